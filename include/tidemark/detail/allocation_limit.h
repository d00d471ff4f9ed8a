#pragma once

// Makes the CPU allocator run out of memory on purpose.

#include <c10/util/Exception.h>

#include <atomic>
#include <cstdint>
#include <limits>
#include <string>

namespace tidemark::detail {

inline namespace process_v1 {

/// When an allocation is to fail: at more live bytes than a number, or at the k-th one.
/// Thread-safe.
class AllocationLimit {
 public:
  static constexpr int64_t kNone = std::numeric_limits<int64_t>::max();

  [[nodiscard]] bool is_set() const { return set_.load(std::memory_order_relaxed); }

  /// From now on `most_live` bytes may be live, and allocation number `failing` fails.
  void set(int64_t most_live, int64_t failing) {
    most_live_ = most_live;
    remaining_ = failing;
    refused_ = 0;
    set_ = true;
  }
  void clear() { set_ = false; }

  /// The number of allocations that were refused since it was set.
  [[nodiscard]] int64_t refused() const { return refused_; }

  /// Throws if `bytes` more may not be allocated.
  void expect_room(int64_t bytes, int64_t live) {
    const bool failing = remaining_.load() != kNone && remaining_.fetch_sub(1) == 1;
    if (failing || bytes > most_live_.load() - live) {
      ++refused_;
      TORCH_CHECK_WITH(OutOfMemoryError, false,
                       "tidemark: MemoryCap: can't allocate memory: you tried to allocate ", bytes,
                       " bytes with ", live, " bytes live. ",
                       failing ? "This allocation was chosen to fail."
                               : "The cap is at " + std::to_string(most_live_.load()) + " bytes.");
    }
  }

 private:
  std::atomic<bool> set_{false};
  std::atomic<int64_t> most_live_{kNone};
  std::atomic<int64_t> remaining_{kNone};
  std::atomic<int64_t> refused_{0};
};

}  // namespace process_v1

}  // namespace tidemark::detail
