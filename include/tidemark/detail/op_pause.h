#pragma once

#include <utility>

namespace tidemark::detail {

/// While alive, ops of this thread are nobody's: bookkeeping of our own, or what remember() runs
/// once.
class OpPause {
 public:
  OpPause() : before_(std::exchange(active(), true)) {}
  OpPause(const OpPause&) = delete;
  OpPause& operator=(const OpPause&) = delete;
  ~OpPause() { active() = before_; }

  static bool& active() {
    static thread_local bool active = false;
    return active;
  }

 private:
  bool before_;
};

}  // namespace tidemark::detail
