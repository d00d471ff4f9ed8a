#pragma once

/// \file
/// Out-of-memory errors on demand, to test what a program does then.

#include <c10/util/Exception.h>
#include <tidemark/detail/allocation_limit.h>
#include <tidemark/detail/memory_meter.h>
#include <tidemark/memory/memory_scope.h>

#include <algorithm>
#include <cstdint>

namespace tidemark::gtest {

/// While alive, LibTorch's CPU allocator throws c10::OutOfMemoryError instead of letting more than
/// so many bytes be live, or at one chosen allocation; of all threads of the process. The bytes are
/// those of a MemoryScope: what tensors and LibTorch's kernels ask for.
///
///     const tidemark::gtest::MemoryCap cap(64_MiB);  // above what is live now
///     EXPECT_THROW(torch::ones({1024, 1024, 64}), c10::OutOfMemoryError);
///
/// One at a time. To fail one allocation after the other see for_each_failing_allocation().
class [[nodiscard]] MemoryCap {
 public:
  /// `bytes` may be allocated on top of what is live. Throws if they are negative, or if there is
  /// another cap.
  explicit MemoryCap(int64_t bytes)
      : MemoryCap(MemoryScope().baseline(), bytes, detail::AllocationLimit::kNone) {}

  /// The k-th allocation from now on fails, counted from 1; those behind it don't. Throws for a
  /// smaller k, or if there is another cap.
  static MemoryCap failing(int64_t k) {
    TORCH_CHECK(k >= 1, "tidemark: MemoryCap::failing got allocation number ", k,
                "; they are counted from 1.");
    return MemoryCap(0, detail::AllocationLimit::kNone, k);
  }

  MemoryCap(const MemoryCap&) = delete;
  MemoryCap& operator=(const MemoryCap&) = delete;
  ~MemoryCap() { limit_.clear(); }

  /// How many allocations it has refused.
  [[nodiscard]] int64_t refused() const { return limit_.refused(); }

 private:
  MemoryCap(int64_t live, int64_t bytes, int64_t failing)
      : limit_(detail::ProcessMeter::get().cpu_limit()) {
    TORCH_CHECK(bytes >= 0, "tidemark: MemoryCap got ", bytes, " bytes; give 0 or more.");
    TORCH_CHECK(!limit_.is_set(), "tidemark: there is a MemoryCap already; one at a time.");
    limit_.set(live + std::min(bytes, detail::AllocationLimit::kNone - live), failing);
  }

  detail::AllocationLimit& limit_;
};

}  // namespace tidemark::gtest
