#pragma once

/// \file
/// Gives memory back that an allocator only keeps.

#include <c10/core/Device.h>
#include <c10/util/Exception.h>
#include <tidemark/detail/device_allocator.h>

#include <optional>

namespace tidemark {

/// Gives blocks that are cached but not in use back to the devices of `device`'s type, or to those
/// of the accelerator in use: for other processes, or to be cut anew where they have become too
/// small. What torch.cuda.empty_cache does. Does nothing on the CPU, whose allocator keeps
/// nothing, and on devices that nothing has used. Throws for a device without such an allocator.
/// Thread-safe; it waits for the device.
inline void empty_cache(std::optional<c10::Device> device = std::nullopt) {
  if (!device.has_value()) {
    detail::empty_device_caches();
  } else if (!device->is_cpu()) {
    auto* allocator = detail::find_device_allocator(device->type());
    TORCH_CHECK(allocator != nullptr,
                "tidemark: empty_cache: this LibTorch has no caching "
                "allocator for device ",
                *device,
                " (c10::DeviceAllocator). Name no device, and "
                "the caches of those in use are emptied.");
    detail::empty_device_cache(*allocator);
  }
}

}  // namespace tidemark
