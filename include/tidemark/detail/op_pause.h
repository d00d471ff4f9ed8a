#pragma once

#include <tidemark/detail/engine_facade.h>

#include <utility>

namespace tidemark::detail {

/// While alive, ops of this thread are nobody's: bookkeeping of our own, or what remember() runs
/// once.
class OpPause {
 public:
  OpPause()
      : state_(EngineLink::this_thread()), before_(std::exchange(state_.ops_are_paused, true)) {}
  OpPause(const OpPause&) = delete;
  OpPause& operator=(const OpPause&) = delete;
  ~OpPause() { state_.ops_are_paused = before_; }

  static bool active() { return EngineLink::this_thread().ops_are_paused; }

 private:
  ThreadState& state_;
  bool before_;
};

}  // namespace tidemark::detail
