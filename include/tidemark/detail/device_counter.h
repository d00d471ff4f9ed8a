#pragma once

// Memory figures of any device whose allocator keeps statistics, without that device's headers.

#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/Device.h>
#include <tidemark/detail/device_allocator.h>
#include <tidemark/detail/peak_windows.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace tidemark::detail {

inline constexpr auto kAllPools = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);

/// The bytes that were requested, or where the allocator doesn't tell, those of its blocks.
inline const c10::CachingAllocator::Stat& requested_bytes(
    const c10::CachingDeviceAllocator::DeviceStats& stats) {
  const auto& requested = stats.requested_bytes[kAllPools];
  const bool told = requested.current != 0 || requested.peak != 0 || requested.allocated != 0;
  return told ? requested : stats.allocated_bytes[kAllPools];
}

/// Counts what requested_bytes() tells.
class DeviceCounter final : public PeakWindows {
 public:
  explicit DeviceCounter(c10::Device device) : device_(device) {}

  [[nodiscard]] c10::Device device() const { return device_; }

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
    const auto& bytes = requested_bytes(stats);
    const auto& blocks = stats.allocation[kAllPools];
    return {bytes.current,    bytes.peak,     bytes.allocated,
            blocks.allocated, blocks.current, blocks.peak};
  }

  c10::Device device_;
};

}  // namespace tidemark::detail
