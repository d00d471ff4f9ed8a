#pragma once

// The caching allocators of devices, without the devices' headers.

#include <ATen/Context.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/Device.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/util/Exception.h>
#include <tidemark/detail/rng_state.h>

#include <algorithm>

namespace tidemark::detail {

/// The allocator of a device type, if there is one that keeps statistics.
inline c10::DeviceAllocator* find_device_allocator(c10::DeviceType type) {
  try {
    return dynamic_cast<c10::DeviceAllocator*>(c10::GetAllocator(type));
  } catch (const c10::Error&) {
    return nullptr;  // this LibTorch has no allocator for the device
  }
}

/// The same, and an error where there is none.
inline c10::DeviceAllocator& device_allocator(c10::Device device) {
  c10::DeviceAllocator* allocator = find_device_allocator(device.type());
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

/// Gives blocks that are cached but not in use back to the devices, so that they can be cut anew.
inline void empty_device_cache(c10::DeviceAllocator& allocator) {
  if (allocator.initialized()) {
    allocator.emptyCache();
  }
}

/// The same for the accelerator, if there is one that has been used.
inline void empty_device_caches() {
  const auto type = accelerator_in_use();
  auto* allocator = type.has_value() ? find_device_allocator(*type) : nullptr;
  if (allocator != nullptr) {
    empty_device_cache(*allocator);
  }
}

}  // namespace tidemark::detail
