#pragma once

// What a caching allocator tells those who trace it, as blocks that come and go.

#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/Device.h>
#include <tidemark/detail/meter_link.h>

#include <cstdint>

namespace tidemark::detail {

/// Called with the allocator's lock held: may call nothing of LibTorch that could allocate.
///
/// A block goes when its free is completed, not when it is requested: a block that another stream
/// may still use is not free before that, and so say requested_bytes, which a MemoryScope shows.
inline void report_device_event(MemoryMeter& meter, c10::DeviceType type,
                                const c10::CachingDeviceAllocator::TraceEntry& event) noexcept {
  using Event = c10::CachingDeviceAllocator::TraceEntry;
  const c10::Device device(type, event.device_);
  auto* address = reinterpret_cast<void*>(event.addr_);
  if (event.action_ == Event::ALLOC) {
    meter.device_allocated(device, address, static_cast<int64_t>(event.size_));
  } else if (event.action_ == Event::FREE_COMPLETED) {
    meter.device_freed(device, address);
  } else if (event.action_ == Event::OOM) {
    meter.device_refused(device, static_cast<int64_t>(event.size_));
  }
}

}  // namespace tidemark::detail
