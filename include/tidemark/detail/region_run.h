#pragma once

// Which regions run on this thread, and what they remember.

#include <tidemark/detail/engine_facade.h>
#include <tidemark/detail/vector.h>

#include <cstddef>
#include <memory>
#include <typeinfo>
#include <utility>

namespace tidemark::detail {

inline namespace process_v1 {

/// What a call of remember() returned, whatever it is.
struct Remembered {
  explicit Remembered(const std::type_info& type) : type(type) {}
  virtual ~Remembered() = default;
  const std::type_info& type;
  bool drew = false;  // random numbers, on the CPU: no op of the region shows that
};

/// What the calls of remember() in one region returned, in order.
using Memory = Vector<std::shared_ptr<const Remembered>>;

/// One run of a region, while it is open on its thread: the forward, which fills its memory, or a
/// re-run, which reads it.
class RegionRun {
 public:
  /// A forward.
  explicit RegionRun(Memory& memory) : RegionRun(&memory, nullptr) {}
  /// A re-run; `redraws` if it draws the forward's random numbers again.
  RegionRun(const Memory& memory, bool redraws) : RegionRun(nullptr, &memory) {
    redraws_ = redraws;
  }

  RegionRun(const RegionRun&) = delete;
  RegionRun& operator=(const RegionRun&) = delete;
  ~RegionRun() { innermost() = outer_; }

  static RegionRun*& innermost() { return EngineLink::this_thread().innermost_run; }

  /// While alive, no region runs on this thread: what remember() calls is not called again.
  class Outside {
   public:
    Outside() : hidden_(std::exchange(innermost(), nullptr)) {}
    Outside(const Outside&) = delete;
    Outside& operator=(const Outside&) = delete;
    ~Outside() { innermost() = hidden_; }

   private:
    RegionRun* hidden_;
  };

  [[nodiscard]] bool again() const { return read_ != nullptr; }
  [[nodiscard]] bool redraws() const { return redraws_; }
  [[nodiscard]] RegionRun* outer() const { return outer_; }

  void add(std::shared_ptr<const Remembered> value) { filled_->push_back(std::move(value)); }

  /// The next value; nullptr if the forward remembered no more.
  std::shared_ptr<const Remembered> next() {
    return next_ < read_->size() ? (*read_)[next_++] : nullptr;
  }

 private:
  RegionRun(Memory* filled, const Memory* read)
      : filled_(filled), read_(read), outer_(innermost()) {
    innermost() = this;
  }

  Memory* filled_;
  const Memory* read_;
  std::size_t next_ = 0;
  bool redraws_ = false;
  RegionRun* outer_;
};

}  // namespace process_v1

}  // namespace tidemark::detail
