#pragma once

// The CPU meter: an allocator that wraps the one LibTorch uses and counts what passes through.

#include <c10/core/Allocator.h>
#include <tidemark/detail/allocation_limit.h>
#include <tidemark/detail/block_observer.h>
#include <tidemark/detail/block_table.h>
#include <tidemark/detail/meter_link.h>
#include <tidemark/detail/peak_windows.h>
#include <tidemark/detail/spin_lock.h>
#include <tidemark/detail/thread_counter.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <mutex>
#include <utility>
#include <vector>

namespace tidemark::detail {

/// Live bytes of the CPU. The lock puts all blocks of the process into one order, so every thread
/// sees the same history, and a scope's numbers are exact for the stretch of it that it was open.
class CpuCounter final : public PeakWindows {
 public:
  AllocationLimit limit;

  /// Throws if there is to be no room for `bytes` more.
  void expect_room(size_t bytes) {
    if (limit.is_set()) {
      const int64_t live = [this] {
        const std::lock_guard<SpinLock> lock(spin_);
        return counters_.live;
      }();
      limit.expect_room(static_cast<int64_t>(bytes), live);
    }
  }

  /// Where a block of this thread counts besides, if anywhere.
  [[nodiscard]] ThreadCounter* thread_counter() const {
    return any_thread_.load(std::memory_order_relaxed) ? t_thread_counter : nullptr;
  }

  void add(const Block& block) noexcept {
    const std::lock_guard<SpinLock> lock(spin_);
    counters_.add(block.bytes);
    if (block.thread != nullptr) {
      block.thread->add(block.bytes);
    }
    observers_.allocated(c10::kCPU, block.address, block.bytes);
  }

  void subtract(const Block& block) noexcept {
    const std::lock_guard<SpinLock> lock(spin_);
    counters_.subtract(block.bytes);
    if (block.thread != nullptr) {
      block.thread->subtract(block.bytes);
    }
    observers_.freed(c10::kCPU, block.address, block.bytes);
  }

  /// The windows of this thread, counted from the first call on.
  PeakWindows& this_threads_windows() {
    any_thread_.store(true, std::memory_order_relaxed);
    if (t_thread_counter == nullptr) {
      const std::lock_guard<std::mutex> lock(threads_mutex_);
      use_thread_counter(take_thread_counter());
    }
    return *t_thread_counter;
  }

  void append_threads_windows(std::vector<PeakWindows*>& all) {
    const std::lock_guard<std::mutex> lock(threads_mutex_);
    for (ThreadCounter& counter : threads_) {
      all.push_back(&counter);
    }
  }

  void add_observer(BlockObserver& observer) {
    const std::lock_guard<SpinLock> lock(spin_);
    observers_.add(observer);
  }
  void remove_observer(BlockObserver& observer) noexcept {
    const std::lock_guard<SpinLock> lock(spin_);
    observers_.remove(observer);
  }

  // For blocks of other devices, which are counted there.
  void tell_allocated(c10::Device device, const Block& block) noexcept {
    const std::lock_guard<SpinLock> lock(spin_);
    observers_.allocated(device, block.address, block.bytes);
  }
  void tell_refused(c10::Device device, int64_t bytes) noexcept {
    const std::lock_guard<SpinLock> lock(spin_);
    observers_.refused(device, bytes);
  }
  void tell_freed(c10::Device device, const Block& block) noexcept {
    const std::lock_guard<SpinLock> lock(spin_);
    observers_.freed(device, block.address, block.bytes);
  }

 protected:
  MemoryCounters count(bool reset) override {
    const std::lock_guard<SpinLock> lock(spin_);
    const MemoryCounters now = counters_;
    if (reset) {
      counters_.peak = counters_.live;
    }
    return now;
  }

 private:
  ThreadCounter& take_thread_counter() {
    for (ThreadCounter& counter : threads_) {
      if (counter.take()) {
        return counter;
      }
    }
    ThreadCounter& counter = threads_.emplace_back(spin_);
    counter.take();
    return counter;
  }

  // What allocations only read, apart from the lock and what its holder writes, which are on one
  // cache line so that threads get both at once.
  std::atomic<bool> any_thread_{false};
  BlockObservers observers_;
  alignas(64) SpinLock spin_;
  MemoryCounters counters_;

  alignas(64) std::mutex threads_mutex_;
  std::deque<ThreadCounter> threads_;
};

// Whether this thread is inside a MeteredAllocator, and whether another one was reached from there.
inline thread_local bool t_inside_link = false;
inline thread_local bool t_link_below_reached = false;

/// Calls `allocator` so that the links it reaches note that, but do not count.
class BelowLink {
 public:
  BelowLink() : nested_(std::exchange(t_inside_link, true)) {
    t_link_below_reached = t_link_below_reached || nested_;
  }
  BelowLink(const BelowLink&) = delete;
  BelowLink& operator=(const BelowLink&) = delete;
  ~BelowLink() { t_inside_link = nested_; }

  [[nodiscard]] bool nested() const { return nested_; }

 private:
  bool nested_;
};

/// Wraps `base` and counts its blocks. A block keeps the context that base gave it where that is
/// the block itself, as raw_allocate() wants (oneDNN and others call it); only its deleter changes.
/// Blocks that it does not know, such as those from before it was installed, go straight to base.
class MeteredAllocator : public MeterLink {
 public:
  /// `deleter` is to call give_back() of this allocator.
  MeteredAllocator(c10::Allocator& base, MemoryMeter& meter, CpuCounter& counter,
                   c10::DeleterFnPtr deleter)
      : base_(base), meter_(meter), counter_(counter), deleter_(deleter) {}

  MemoryMeter& meter() override { return meter_; }
  [[nodiscard]] const c10::Allocator& base() const { return base_; }

  c10::DataPtr allocate(size_t bytes) override {
    // A user's allocator may lie between two of our links; then the outer one counts.
    const BelowLink below;
    const bool counts = !below.nested();
    c10::DataPtr block;
    try {
      if (counts && bytes > 0) {
        counter_.expect_room(bytes);
      }
      block = base_.allocate(bytes);
    } catch (...) {
      if (counts) {
        counter_.tell_refused(c10::kCPU, static_cast<int64_t>(bytes));
      }
      throw;
    }
    const c10::DeleterFnPtr base_deleter = block.get_deleter();
    if (block.get() != block.get_context()) {
      return counts && block.get_context() != nullptr ? wrap(std::move(block), bytes)
                                                      : std::move(block);
    }
    if (counts && block.get() != nullptr) {
      const Block known{block.get(), static_cast<int64_t>(bytes), base_deleter,
                        counter_.thread_counter()};
      if (const auto lost = blocks_.insert(known)) {
        counter_.subtract(*lost);  // given back behind our back, or it could not be here
      }
      counter_.add(known);
    } else if (base_deleter != base_.raw_deleter()) {
      return block;  // not in the table, so its deleter would be forgotten
    }
    static_cast<void>(block.compare_exchange_deleter(base_deleter, deleter_));
    return block;
  }

  void give_back(void* address) {
    if (const auto block = blocks_.remove(address)) {
      counter_.subtract(*block);
      block->deleter(address);
    } else if (const c10::DeleterFnPtr deleter = base_.raw_deleter()) {
      deleter(address);
    }
  }

  c10::DeleterFnPtr raw_deleter() const override {
    return base_.raw_deleter() != nullptr ? deleter_ : nullptr;
  }

  bool is_simple_data_ptr(const c10::DataPtr& block) const override {
    const auto* wrapped = block.cast_context<Wrapped>(&delete_wrapped);
    return base_.is_simple_data_ptr(wrapped != nullptr ? wrapped->block : block);
  }

  void copy_data(void* to, const void* from, size_t bytes) const override {
    base_.copy_data(to, from, bytes);
  }

 private:
  /// For allocators whose blocks have a context of their own; those can't raw_allocate() anyway.
  struct Wrapped {
    c10::DataPtr block;
    Block known;
    CpuCounter& counter;
  };

  c10::DataPtr wrap(c10::DataPtr block, size_t bytes) {
    const Block known{block.get(), static_cast<int64_t>(bytes), nullptr, counter_.thread_counter()};
    auto* wrapped = new Wrapped{std::move(block), known, counter_};
    counter_.add(known);
    return {known.address, wrapped, &delete_wrapped, wrapped->block.device()};
  }

  static void delete_wrapped(void* context) {
    auto* wrapped = static_cast<Wrapped*>(context);
    wrapped->counter.subtract(wrapped->known);
    delete wrapped;
  }

  c10::Allocator& base_;
  MemoryMeter& meter_;
  CpuCounter& counter_;
  c10::DeleterFnPtr deleter_;
  BlockTable blocks_;
};

}  // namespace tidemark::detail
