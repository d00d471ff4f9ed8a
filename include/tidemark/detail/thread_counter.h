#pragma once

// What one thread allocates.

#include <tidemark/detail/peak_windows.h>
#include <tidemark/detail/spin_lock.h>

#include <cstdint>
#include <mutex>
#include <utility>

namespace tidemark::detail {

/// Live bytes of the CPU that one thread has allocated, whichever thread frees them. Blocks point
/// to it, and scopes, which both may outlive the thread: so it stays, and the next thread takes it
/// over when nothing needs it any more.
class ThreadCounter final : public PeakWindows {
 public:
  /// `order` is what guards the counting of all blocks.
  explicit ThreadCounter(SpinLock& order) : order_(order) {}

  // Called with the lock held.
  void add(int64_t bytes) noexcept { counters_.add(bytes); }
  void subtract(int64_t bytes) noexcept { counters_.subtract(bytes); }

  /// Makes it the counter of the calling thread, if it is nobody's.
  bool take() {
    if (any_open()) {
      return false;
    }
    const std::lock_guard<SpinLock> lock(order_);
    if (taken_ || counters_.blocks > 0) {
      return false;
    }
    taken_ = true;
    return true;
  }

  void leave() noexcept {
    const std::lock_guard<SpinLock> lock(order_);
    taken_ = false;
  }

 protected:
  MemoryCounters count(bool reset) override {
    const std::lock_guard<SpinLock> lock(order_);
    const MemoryCounters now = counters_;
    if (reset) {
      counters_.peak = counters_.live;
    }
    return now;
  }

 private:
  SpinLock& order_;
  MemoryCounters counters_;
  bool taken_ = false;
};

/// The counter of this thread, if it has one. To be asked at every allocation, hence not one object
/// with what gives it back, which would have to be constructed.
inline thread_local ThreadCounter* t_thread_counter = nullptr;

/// Gives this thread a counter, and has it given back when the thread ends.
inline void use_thread_counter(ThreadCounter& counter) {
  struct LeaveAtExit {
    ~LeaveAtExit() {
      if (t_thread_counter != nullptr) {
        std::exchange(t_thread_counter, nullptr)->leave();
      }
    }
  };
  t_thread_counter = &counter;
  static thread_local const LeaveAtExit leave_at_exit;
  static_cast<void>(leave_at_exit);
}

}  // namespace tidemark::detail
