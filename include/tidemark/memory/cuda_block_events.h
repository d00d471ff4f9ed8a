#pragma once

/// \file
/// Makes CUDA's blocks of memory known to the observers of the memory meter. Needs the headers of
/// CUDA and a program that links torch_cuda and c10_cuda, so tidemark.h does not include it.

#include <c10/core/Device.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <tidemark/detail/device_allocator.h>
#include <tidemark/detail/device_block_event.h>
#include <tidemark/detail/keep_loaded.h>
#include <tidemark/detail/memory_meter.h>
#include <tidemark/detail/meter_link.h>

namespace tidemark {

namespace detail {

inline void attach_to_cuda(MemoryMeter& meter) {
  keep_loaded(reinterpret_cast<void (*)()>(&attach_to_cuda));
  c10::cuda::CUDACachingAllocator::attachAllocatorTraceTracker(
      [&meter](const c10::CachingDeviceAllocator::TraceEntry& event) {
        report_device_event(meter, c10::kCUDA, event);
      });
}

}  // namespace detail

/// From now on whatever records blocks of memory (MemoryRecorder) sees those of all CUDA devices,
/// too, but for those that are older than this call, and for memory that does not come from
/// LibTorch's caching allocator. Initialises CUDA. It cannot be undone, as LibTorch takes no
/// observer back, and costs some 50 ns per block. Calling it again, also from another shared
/// object, changes nothing. Thread-safe.
///
/// Throws where there is no CUDA device, and with the allocator back end cudaMallocAsync, which has
/// no observers.
inline void watch_cuda_memory() {
  detail::ready_device(c10::kCUDA);  // before that, there is no allocator that could be attached to
  detail::ProcessMeter::get().watch_devices(c10::kCUDA, &detail::attach_to_cuda);
}

}  // namespace tidemark
