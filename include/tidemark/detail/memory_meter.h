#pragma once

// Finds or makes the one memory meter of the process, and puts it before LibTorch's CPU allocator.

#include <c10/core/Allocator.h>
#include <c10/core/Device.h>
#include <c10/core/DeviceType.h>
#include <c10/util/Exception.h>
#include <tidemark/detail/block_observer.h>
#include <tidemark/detail/block_table.h>
#include <tidemark/detail/cpu_allocator.h>
#include <tidemark/detail/device_counter.h>
#include <tidemark/detail/keep_loaded.h>
#include <tidemark/detail/meter_link.h>
#include <tidemark/detail/peak_snapshot.h>
#include <tidemark/detail/peak_windows.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <new>
#include <utility>
#include <vector>

namespace tidemark::detail {

/// The meter of the shared objects that share its code. Leaked with all that belongs to it: blocks
/// are given back until the process is gone.
class ProcessMeter final : public MemoryMeter {
 public:
  /// The meter of this process. An object that has no code in common with the one that installed
  /// it (hidden visibility, a plugin) finds it behind LibTorch's allocator; one that can't, since
  /// somebody wrapped that allocator again, gets a meter of its own, which counts the same.
  static MemoryMeter& get() {
    static MemoryMeter& meter = []() -> MemoryMeter& {
      MemoryMeter& made = find_or_make();
      known_meter.store(&made, std::memory_order_release);
      return made;
    }();
    return meter;
  }

  PeakWindows& windows(c10::Device device) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (device.is_cpu()) {
      ensure_installed();
      return cpu_;
    }
    device = ready_device(device);
    for (DeviceCounter& counter : devices_) {
      if (counter.device() == device) {
        return counter;
      }
    }
    return devices_.emplace_back(device);
  }

  PeakWindows& this_threads_windows() override {
    windows(c10::kCPU);
    return cpu_.this_threads_windows();
  }

  std::vector<PeakWindows*> all_windows() override {
    const std::lock_guard<std::mutex> lock(mutex_);
    std::vector<PeakWindows*> all;
    if (links_[0] != nullptr) {
      all.push_back(&cpu_);
    }
    cpu_.append_threads_windows(all);
    for (DeviceCounter& counter : devices_) {
      all.push_back(&counter);
    }
    return all;
  }

  std::shared_ptr<const PeakMarks> mark_peaks() override {
    return std::make_shared<PeakSnapshot>(all_windows());
  }

  AllocationLimit& cpu_limit() override {
    windows(c10::kCPU);
    return cpu_.limit;
  }

  void add_observer(BlockObserver& observer) override {
    windows(c10::kCPU);
    cpu_.add_observer(observer);
  }

  void remove_observer(BlockObserver& observer) noexcept override {
    cpu_.remove_observer(observer);
  }

  void watch_devices(c10::DeviceType type, void (*attach)(MemoryMeter&)) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    bool& watched = watched_.at(static_cast<size_t>(type));
    if (!watched) {
      attach(*this);
      watched = true;
    }
  }

  bool watches(c10::DeviceType type) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    return type == c10::kCPU || watched_.at(static_cast<size_t>(type));
  }

  void device_allocated(c10::Device device, void* address, int64_t bytes) noexcept override {
    const Block block{address, bytes};
    try {
      if (const auto lost = device_blocks_.insert(block)) {
        cpu_.tell_freed(device, *lost);
      }
    } catch (const std::bad_alloc&) {
      return;  // it will not be known when it goes, either
    }
    cpu_.tell_allocated(device, block);
  }

  void device_freed(c10::Device device, void* address) noexcept override {
    if (const auto block = device_blocks_.remove(address)) {
      cpu_.tell_freed(device, *block);
    }
  }

  void device_refused(c10::Device device, int64_t bytes) noexcept override {
    cpu_.tell_refused(device, bytes);
  }

 private:
  static constexpr size_t kMaxLinks = 8;

  static MemoryMeter& find_or_make() {
    if (auto* link = dynamic_cast<MeterLink*>(c10::GetAllocator(c10::kCPU))) {
      return link->meter();
    }
    keep_loaded(reinterpret_cast<void (*)()>(&give_back<0>));
    return *new ProcessMeter;
  }

  /// Sees to it that today's CPU allocator is one of our links or leads to one. Whoever replaced
  /// our link is wrapped in turn; whoever went back to an allocator that has a link gets that one.
  void ensure_installed() {
    c10::Allocator& current = *c10::GetAllocator(c10::kCPU);
    size_t count = 0;
    MeteredAllocator* link = nullptr;
    for (; count < kMaxLinks && links_[count] != nullptr; ++count) {
      if (&current == links_[count]) {
        return;
      }
      if (&current == &links_[count].load()->base()) {
        link = links_[count];
      }
    }
    if (link == nullptr) {
      if (count > 0 && leads_to_link(current)) {
        return;
      }
      TORCH_CHECK(count < kMaxLinks, "tidemark: the memory meter can't follow: a program has set ",
                  count + 1,
                  " different CPU allocators. Set the ones that it needs before the first "
                  "MemoryScope.");
      const auto deleters = make_deleters(std::make_index_sequence<kMaxLinks>());
      link = new MeteredAllocator(current, *this, cpu_, deleters[count]);
      links_[count] = link;
    }
    // With today's priority, which can't be read, and no more: who could replace the allocator
    // before can do it still.
    for (int priority = 0; priority <= UINT8_MAX && c10::GetAllocator(c10::kCPU) != link;
         ++priority) {
      c10::SetAllocator(c10::kCPU, link, static_cast<uint8_t>(priority));
    }
  }

  static bool leads_to_link(c10::Allocator& allocator) {
    const BelowLink below;
    t_link_below_reached = false;
    allocator.allocate(1);
    return t_link_below_reached;
  }

  // A deleter is a plain function, so each link needs one of its own.
  template <size_t I>
  static void give_back(void* address) {
    links_[I].load(std::memory_order_relaxed)->give_back(address);
  }

  template <size_t... I>
  static std::array<c10::DeleterFnPtr, sizeof...(I)> make_deleters(std::index_sequence<I...>) {
    return {&give_back<I>...};
  }

  inline static std::array<std::atomic<MeteredAllocator*>, kMaxLinks> links_{};

  std::mutex mutex_;
  CpuCounter cpu_;
  std::deque<DeviceCounter> devices_;  // few, and they stay where they are
  std::array<bool, c10::COMPILE_TIME_MAX_DEVICE_TYPES> watched_{};
  BlockTable device_blocks_;
};

}  // namespace tidemark::detail
