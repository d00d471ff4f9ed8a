#pragma once

/// \file
/// How much memory is live, was live at most, and was allocated, while a scope is open.

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
/// all threads of the process or of one. Scopes nest, overlap and close in any order, on any
/// thread; none disturbs another.
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
/// such tensors that are resized, memory that kernels take from malloc, and pinned memory. From the
/// first scope on, and for good, a block costs some 20 ns more, or 70 ns while two threads do
/// nothing but allocate.
///
/// A scope of one thread counts what that thread allocates, in that same order; a block that
/// another thread frees still goes off its account. So it tells what a piece of code costs while
/// data loaders or other models work beside it. Not counted: blocks that are older than the first
/// such scope of the thread, and what kernels allocate on the threads that help it.
///
///     const tidemark::MemoryScope mine(tidemark::MemoryScope::Threads::kThis);
///
/// On other devices the bytes are those requested of the device's caching allocator, in host order,
/// or those of its blocks where it does not tell. Its one peak counter is reset when a scope opens;
/// a block that another thread allocates and frees in that very moment may be missed, and when
/// somebody else resets the counters, peak(), allocated() and allocations() are refused.
///
/// Thread-safe.
class MemoryScope {
 public:
  /// Whose blocks count, by the thread that allocates them.
  enum class Threads {
    kAll,  ///< Of all threads of the process.
    kThis  ///< Of the thread that opens the scope; on the CPU only.
  };

  /// Throws for a device that this LibTorch has no memory statistics for, and for one thread of any
  /// device but the CPU.
  explicit MemoryScope(c10::Device device = c10::kCPU, Threads threads = Threads::kAll)
      : device_(device), windows_(windows_of(device, threads)) {
    windows_.open(window_);
  }
  /// Of the CPU: MemoryScope(MemoryScope::Threads::kThis).
  explicit MemoryScope(Threads threads) : MemoryScope(c10::kCPU, threads) {}
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
  static detail::PeakWindows& windows_of(c10::Device device, Threads threads) {
    detail::MemoryMeter& meter = detail::ProcessMeter::get();
    if (threads == Threads::kAll) {
      return meter.windows(device);
    }
    TORCH_CHECK(device.is_cpu(), "tidemark: MemoryScope: there are no figures of one thread for ",
                device,
                ", whose allocator does not tell which thread a block is for. Use "
                "Threads::kAll there, or kThis on the CPU.");
    return meter.this_threads_windows();
  }

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
