#pragma once

// The memory meter as all shared objects of the process see it, and what asks it for nothing unless
// something in the process measures memory.

#include <c10/core/Allocator.h>
#include <c10/core/Device.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

namespace tidemark::detail {

inline namespace process_v1 {

class AllocationLimit;
class BlockObserver;
class PeakWindows;

/// The peaks of open scopes at one moment, to go back to when what follows is undone and done in
/// another way.
class PeakMarks {
 public:
  PeakMarks() = default;
  PeakMarks(const PeakMarks&) = delete;
  PeakMarks& operator=(const PeakMarks&) = delete;
  virtual ~PeakMarks() = default;

  /// To be called when what is undone is freed: what is live counts.
  virtual void put_back() const = 0;
};

/// All that a process counts; one for all its shared objects.
class MemoryMeter {
 public:
  MemoryMeter() = default;
  MemoryMeter(const MemoryMeter&) = delete;
  MemoryMeter& operator=(const MemoryMeter&) = delete;
  virtual ~MemoryMeter() = default;

  /// The windows of a device, with its counting switched on. They live as long as the process.
  virtual PeakWindows& windows(c10::Device device) = 0;

  /// The windows of what the calling thread allocates on the CPU from its first call on, whichever
  /// thread frees it, with CPU counting switched on. They live as long as the process.
  virtual PeakWindows& this_threads_windows() = 0;

  /// The windows of all devices and threads whose counting is switched on.
  virtual std::vector<PeakWindows*> all_windows() = 0;

  /// The peaks that all open scopes have seen so far. Switches no counting on.
  virtual std::shared_ptr<const PeakMarks> mark_peaks() = 0;

  /// When CPU memory is to run out, with its counting switched on.
  virtual AllocationLimit& cpu_limit() = 0;

  /// From now on the observer is told of all blocks, of the CPU with its counting switched on.
  virtual void add_observer(BlockObserver& observer) = 0;

  /// When it returns, no call of the observer is under way, and none follows.
  virtual void remove_observer(BlockObserver& observer) noexcept = 0;

  /// Runs `attach`, which is to have the blocks of such devices reported, unless one has run
  /// before.
  virtual void watch_devices(c10::DeviceType type, void (*attach)(MemoryMeter&)) = 0;

  /// Whether observers are told of blocks on such devices.
  virtual bool watches(c10::DeviceType type) = 0;

  /// A block of a watched device came, for the observers to be told.
  virtual void device_allocated(c10::Device device, void* address, int64_t bytes) noexcept = 0;

  /// A block of a watched device went; one that did not come to notice is ignored.
  virtual void device_freed(c10::Device device, void* address) noexcept = 0;

  /// A watched device could not give `bytes`.
  virtual void device_refused(c10::Device device, int64_t bytes) noexcept = 0;
};

/// By this another shared object recognises the meter that is there already. Not final: a cast to
/// a final class may compare vtables, of which every shared object has its own.
class MeterLink : public c10::Allocator {
 public:
  virtual MemoryMeter& meter() = 0;
};

// The meter of this shared object, once it has asked for it.
inline std::atomic<MemoryMeter*> known_meter{nullptr};

}  // namespace process_v1

/// The peaks of all open MemoryScopes; null where nothing counts.
inline std::shared_ptr<const PeakMarks> mark_peaks() {
  MemoryMeter* meter = known_meter.load(std::memory_order_acquire);
  if (meter == nullptr) {
    auto* link = dynamic_cast<MeterLink*>(c10::GetAllocator(c10::kCPU));
    meter = link != nullptr ? &link->meter() : nullptr;
  }
  return meter != nullptr ? meter->mark_peaks() : nullptr;
}

}  // namespace tidemark::detail
