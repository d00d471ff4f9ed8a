#pragma once

// Memory figures of any device whose allocator keeps statistics, without that device's headers.

#include <ATen/Context.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/Device.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/util/Exception.h>
#include <tidemark/detail/peak_windows.h>

#include <algorithm>
#include <cstdint>

namespace tidemark::detail {

/// The allocator of a device type, provided that it keeps statistics.
inline c10::DeviceAllocator& device_allocator(c10::Device device) {
  c10::DeviceAllocator* allocator = nullptr;
  try {
    allocator = dynamic_cast<c10::DeviceAllocator*>(c10::GetAllocator(device.type()));
  } catch (const c10::Error&) {
    // this LibTorch has no allocator for the device
  }
  TORCH_CHECK(allocator != nullptr, "tidemark: no memory figures for device ", device,
              ": this LibTorch has no allocator for it that keeps statistics "
              "(c10::DeviceAllocator). Measure the CPU, or use a LibTorch built for that device.");
  return *allocator;
}

/// `device` with an index (today's device of the thread if it had none), ready to be asked.
inline c10::Device ready_device(c10::Device device) {
  c10::DeviceAllocator& allocator = device_allocator(device);
  if (!allocator.initialized()) {
    at::globalContext().lazyInitDevice(device.type());
  }
  if (c10::impl::hasDeviceGuardImpl(device.type())) {
    const auto* guard = c10::impl::getDeviceGuardImpl(device.type());
    if (!device.has_index()) {
      return guard->getDevice();
    }
    TORCH_CHECK(device.index() < guard->deviceCount(), "tidemark: no memory figures for device ",
                device, ": there are ", static_cast<int>(guard->deviceCount()),
                " devices of that type, counted from 0.");
  }
  return {device.type(), std::max<c10::DeviceIndex>(device.index(), 0)};
}

/// Counts the bytes that were requested, or where the allocator doesn't tell, those of its blocks.
class DeviceCounter final : public PeakWindows {
 public:
  explicit DeviceCounter(c10::Device device) : device_(device) {}

 protected:
  // Between reading and resetting, another thread's block may come and go unseen: the device
  // offers no single step for both.
  MemoryCounters count(bool reset) override {
    c10::DeviceAllocator& allocator = device_allocator(device_);
    MemoryCounters now = figures_of(allocator);
    if (reset) {
      allocator.resetPeakStats(device_.index());
      const int64_t peak = now.peak;
      now = figures_of(allocator);
      now.peak = std::max(now.peak, peak);
    }
    return now;
  }

 private:
  MemoryCounters figures_of(c10::DeviceAllocator& allocator) const {
    const auto stats = allocator.getDeviceStats(device_.index());
    constexpr auto kAll = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);
    const auto& requested = stats.requested_bytes[kAll];
    const bool told = requested.current != 0 || requested.peak != 0 || requested.allocated != 0;
    const auto& bytes = told ? requested : stats.allocated_bytes[kAll];
    return {bytes.current, bytes.peak, bytes.allocated, stats.allocation[kAll].allocated};
  }

  c10::Device device_;
};

}  // namespace tidemark::detail
