#pragma once

// How much memory is live, was live at most, and was allocated, while a scope is open.

#include <c10/core/Device.h>
#include <c10/util/Exception.h>
#include <tidemark/detail/memory_meter.h>
#include <tidemark/detail/peak_windows.h>

#include <cstdint>

namespace tidemark {

/// Starts to count CPU memory, which the first MemoryScope does otherwise. Called early, best as
/// the first line of main(), it makes the blocks known that are allocated before that scope.
/// Thread-safe; but LibTorch sets its allocator without a lock, so no other thread should be
/// setting one at that moment.
inline void install_memory_meter() { detail::ProcessMeter::get().windows(c10::kCPU); }

/// Live and peak bytes of a device between the opening of a scope and the moment it is asked, of
/// all threads of the process. Scopes nest, overlap and close in any order, on any thread; none
/// disturbs another.
///
///     tidemark::MemoryScope scope;
///     model->forward(x).sum().backward();
///     std::cout << tidemark::format_bytes(scope.peak()) << '\n';
///
/// On the CPU the bytes are those that tensors and LibTorch's kernels ask of LibTorch's CPU
/// allocator, exact to the byte. All allocations and frees of the process form one order: a block
/// counts from when the allocator has returned it until it is handed back, whichever thread does
/// either, and the numbers hold for the stretch of that order for which the scope was open. Not
/// counted: blocks that are older than the first scope (see install_memory_meter()), storages of
/// such tensors that are resized, memory that kernels take from malloc, and pinned memory. It costs
/// about 20 ns per block from the first scope on, and stays.
///
/// On other devices the bytes are those requested of the device's caching allocator, in host order,
/// or those of its blocks where it does not tell. Its one peak counter is reset when a scope opens;
/// a block that another thread allocates and frees in that very moment may be missed, and when
/// somebody else resets the counters, peak(), allocated() and allocations() are refused.
///
/// Thread-safe.
class MemoryScope {
 public:
  /// Throws for a device that this LibTorch has no memory statistics for.
  explicit MemoryScope(c10::Device device = c10::kCPU)
      : device_(device), windows_(detail::ProcessMeter::get().windows(device)) {
    windows_.open(window_);
  }
  MemoryScope(const MemoryScope&) = delete;
  MemoryScope& operator=(const MemoryScope&) = delete;
  ~MemoryScope() { windows_.close(window_); }

  /// Bytes that were live when the scope was opened.
  [[nodiscard]] int64_t baseline() const { return windows_.read(window_).opened.live; }

  /// Bytes that are live now, above the baseline; negative when older blocks were freed.
  [[nodiscard]] int64_t current() const {
    const auto window = windows_.read(window_);
    return window.now.live - window.opened.live;
  }

  /// The most bytes that were live at one time, above the baseline; never negative.
  [[nodiscard]] int64_t peak() const {
    const auto window = undisturbed();
    return window.peak - window.opened.live;
  }

  /// Bytes that were allocated, whether or not they are still live.
  [[nodiscard]] int64_t allocated() const {
    const auto window = undisturbed();
    return window.now.allocated - window.opened.allocated;
  }

  /// Number of blocks that were allocated.
  [[nodiscard]] int64_t allocations() const {
    const auto window = undisturbed();
    return window.now.allocations - window.opened.allocations;
  }

 private:
  [[nodiscard]] detail::PeakWindow undisturbed() const {
    auto window = windows_.read(window_);
    TORCH_CHECK(!window.disturbed, "tidemark: the memory figures of ", device_,
                " are lost: something else reset its statistics while a MemoryScope was open. Use "
                "a MemoryScope there, too, instead of resetting.");
    return window;
  }

  c10::Device device_;
  detail::PeakWindows& windows_;
  detail::PeakWindow window_;
};

}  // namespace tidemark
