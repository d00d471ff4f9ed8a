// The memory meter of a shared object: see plugin.cpp.

#include <tidemark/memory/memory_scope.h>

#include <cstdint>

#define METER_API extern "C" __attribute__((visibility("default")))

METER_API void* plugin_open_scope() { return new tidemark::MemoryScope; }
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
