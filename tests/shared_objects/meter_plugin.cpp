// The memory meter of a shared object: see plugin.cpp.

#include <tidemark/detail/block_observer.h>
#include <tidemark/detail/memory_meter.h>
#include <tidemark/memory/memory_scope.h>

#include <cstdint>

#define METER_API extern "C" __attribute__((visibility("default")))

namespace {

/// Live bytes as an observer sees them.
class Adding final : public tidemark::detail::BlockObserver {
 public:
  Adding() { tidemark::detail::ProcessMeter::get().add_observer(*this); }
  Adding(const Adding&) = delete;
  Adding& operator=(const Adding&) = delete;
  ~Adding() override { tidemark::detail::ProcessMeter::get().remove_observer(*this); }

  void allocated(c10::Device, const void*, int64_t bytes) noexcept override { live += bytes; }
  void freed(c10::Device, const void*, int64_t bytes) noexcept override { live -= bytes; }

  int64_t live = 0;
};

}  // namespace

METER_API void* plugin_open_scope() { return new tidemark::MemoryScope; }
METER_API void* plugin_open_thread_scope() {
  return new tidemark::MemoryScope(tidemark::MemoryScope::Threads::kThis);
}
METER_API int64_t plugin_baseline(void* scope) {
  return static_cast<tidemark::MemoryScope*>(scope)->baseline();
}
METER_API int64_t plugin_current(void* scope) {
  return static_cast<tidemark::MemoryScope*>(scope)->current();
}
METER_API int64_t plugin_peak(void* scope) {
  return static_cast<tidemark::MemoryScope*>(scope)->peak();
}
METER_API void plugin_close_scope(void* scope) {
  delete static_cast<tidemark::MemoryScope*>(scope);
}

METER_API void* plugin_open_observer() { return new Adding; }
METER_API int64_t plugin_observed(void* observer) { return static_cast<Adding*>(observer)->live; }
METER_API void plugin_close_observer(void* observer) { delete static_cast<Adding*>(observer); }

/// Has device blocks of the kind reported, as watch_cuda_memory() does.
METER_API void plugin_watch(c10::DeviceType type, void (*attach)(tidemark::detail::MemoryMeter&)) {
  tidemark::detail::ProcessMeter::get().watch_devices(type, attach);
}
