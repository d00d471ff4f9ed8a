#pragma once

/// \file
/// All that an allocator tells about its memory at one moment.

#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/Device.h>
#include <c10/util/Exception.h>
#include <tidemark/detail/device_allocator.h>
#include <tidemark/detail/device_counter.h>
#include <tidemark/detail/memory_meter.h>
#include <tidemark/detail/resident_set.h>
#include <tidemark/memory/bytes.h>

#include <cstddef>
#include <cstdint>
#include <iomanip>
#include <optional>
#include <ostream>
#include <sstream>
#include <string>
#include <utility>

namespace tidemark {

/// One figure of an allocator, in bytes or in blocks.
struct MemoryStat {
  int64_t current = 0;    ///< at the moment of asking
  int64_t peak = 0;       ///< the most at one time, since it was last reset or counting began
  int64_t allocated = 0;  ///< sum of all that came
  int64_t freed = 0;      ///< sum of all that went
};

/// What an allocator tells. Empty is what it doesn't.
struct MemoryStats {
  c10::Device device = c10::kCPU;  ///< whose allocator was asked

  MemoryStat requested;    ///< bytes that tensors and kernels asked for: see MemoryScope
  MemoryStat allocations;  ///< blocks that were handed out

  std::optional<MemoryStat> allocated;       ///< bytes of these blocks, which are rounded up
  std::optional<MemoryStat> active;          ///< with freed blocks that a stream may still use
  std::optional<MemoryStat> reserved;        ///< bytes taken from the device
  std::optional<MemoryStat> inactive_split;  ///< reserved bytes that are free, but can't be given
                                             ///< back as the rest of their segment is in use
  std::optional<MemoryStat> segments;        ///< pieces in which the reserved bytes were taken
  std::optional<int64_t> retries;            ///< times that it emptied its cache to find room
  std::optional<int64_t> ooms;               ///< times that it found none

  std::optional<int64_t> device_free;    ///< bytes
  std::optional<int64_t> device_total;   ///< bytes
  std::optional<int64_t> resident;       ///< bytes of this process in the computer's memory
  std::optional<int64_t> resident_peak;  ///< the most that was resident since the process started

  /// Bytes that are reserved but not allocated: cached, or lost between blocks.
  [[nodiscard]] std::optional<int64_t> fragmentation() const {
    return reserved && allocated ? std::optional(reserved->current - allocated->current)
                                 : std::nullopt;
  }

  /// Reserved over allocated bytes; empty if nothing is allocated.
  [[nodiscard]] std::optional<double> reserved_ratio() const {
    return reserved && allocated && allocated->current > 0
               ? std::optional(static_cast<double>(reserved->current) /
                               static_cast<double>(allocated->current))
               : std::nullopt;
  }

  /// Bytes of the device that are taken but not by this allocator: by contexts, libraries and other
  /// processes.
  [[nodiscard]] std::optional<int64_t> outside() const {
    return device_total && device_free && reserved
               ? std::optional(*device_total - *device_free - reserved->current)
               : std::nullopt;
  }

  /// Whether more than 256 MiB are reserved, and more than twice what was ever allocated. Compared
  /// with the peak, for a cache that is large after a step is what the next one needs.
  [[nodiscard]] bool overreserved() const {
    using namespace literals;
    return reserved && allocated && reserved->current > 256_MiB &&
           reserved->current > 2 * allocated->peak;
  }
};

namespace detail {

inline MemoryStat memory_stat(const c10::CachingAllocator::Stat& stat) {
  return {stat.current, stat.peak, stat.allocated, stat.freed};
}

inline MemoryStats cpu_memory_stats() {
  const MemoryCounters totals = ProcessMeter::get().windows(c10::kCPU).totals();
  const ResidentSet resident = resident_set();
  MemoryStats stats;
  stats.requested = {totals.live, totals.peak, totals.allocated, totals.allocated - totals.live};
  stats.allocations = {totals.blocks, totals.most_blocks, totals.allocations,
                       totals.allocations - totals.blocks};
  stats.resident = resident.now;
  stats.resident_peak = resident.peak;
  return stats;
}

inline MemoryStats device_memory_stats(c10::Device device) {
  c10::DeviceAllocator& allocator = device_allocator(device);
  const auto told = allocator.getDeviceStats(device.index());
  MemoryStats stats;
  stats.device = device;
  stats.requested = memory_stat(requested_bytes(told));
  stats.allocations = memory_stat(told.allocation[kAllPools]);
  stats.allocated = memory_stat(told.allocated_bytes[kAllPools]);
  stats.active = memory_stat(told.active_bytes[kAllPools]);
  stats.reserved = memory_stat(told.reserved_bytes[kAllPools]);
  stats.inactive_split = memory_stat(told.inactive_split_bytes[kAllPools]);
  stats.segments = memory_stat(told.segment[kAllPools]);
  stats.retries = told.num_alloc_retries;
  stats.ooms = told.num_ooms;
  try {
    const auto [free, total] = allocator.getMemoryInfo(device.index());
    stats.device_free = static_cast<int64_t>(free);
    stats.device_total = static_cast<int64_t>(total);
  } catch (const c10::NotImplementedError&) {
    // not every allocator knows
  }
  return stats;
}

}  // namespace detail

/// What the allocator of `device` tells now: torch.cuda.memory_stats for C++, and for the CPU too.
///
/// On the CPU it tells what is counted from the first MemoryScope or install_memory_meter() on, and
/// counting starts with this call if it had not. The resident set is no measure of tensors: it
/// contains all of the process, and memory that was freed leaves it late or never.
///
/// On other devices peaks count from when they were last reset, which a MemoryScope that opens
/// there does, too.
///
/// Throws for a device that this LibTorch has no memory statistics for. Thread-safe.
[[nodiscard]] inline MemoryStats memory_stats(c10::Device device = c10::kCPU) {
  return device.is_cpu() ? detail::cpu_memory_stats()
                         : detail::device_memory_stats(detail::ready_device(device));
}

/// The table of torch.cuda.memory_summary, and what to make of it.
inline std::ostream& operator<<(std::ostream& out, const MemoryStats& stats) {
  constexpr int kWidth = 75;
  std::ostringstream text;  // leaves the format of `out` alone
  const auto rule = [&text](char c) { text << '|' << std::string(kWidth, c) << "|\n"; };
  const auto centered = [&text](const std::string& line) {
    const int left = (kWidth - static_cast<int>(line.size())) / 2;
    text << '|' << std::string(left, ' ') << std::setw(kWidth - left) << std::left << line << "|\n";
  };
  const auto row = [&text](const char* name, const std::optional<MemoryStat>& stat,
                           std::string (*format)(int64_t)) {
    if (stat.has_value()) {
      text << "| " << std::setw(22) << std::left << name;
      for (const int64_t figure : {stat->current, stat->peak, stat->allocated, stat->freed}) {
        text << '|' << std::setw(11) << std::right << format(figure) << ' ';
      }
      text << "|\n";
    }
  };
  const auto count = [](int64_t figure) { return std::to_string(figure); };

  rule('=');
  centered("Memory summary, device " + stats.device.str());
  if (stats.ooms && stats.retries) {
    rule('-');
    centered("OOMs: " + count(*stats.ooms) +
             "        Allocation retries: " + count(*stats.retries));
  }
  rule('=');
  text << "|        Metric         | Cur Usage  | Peak Usage | Tot Alloc  | Tot Freed  |\n";
  rule('-');
  row("Allocated memory", stats.allocated, format_bytes);
  row("Active memory", stats.active, format_bytes);
  row("Requested memory", stats.requested, format_bytes);
  row("GPU reserved memory", stats.reserved, format_bytes);
  row("Non-releasable memory", stats.inactive_split, format_bytes);
  rule('-');
  row("Allocations", stats.allocations, count);
  row("GPU reserved segments", stats.segments, count);
  rule('=');
  if (const auto fragmentation = stats.fragmentation()) {
    text << "Fragmentation: " << format_bytes(*fragmentation) << " reserved but not allocated";
    if (const auto ratio = stats.reserved_ratio()) {
      text << "; reserved is " << std::fixed << std::setprecision(2) << *ratio << " x allocated";
    }
    text << ".\n";
  }
  if (const auto outside = stats.outside()) {
    text << "Device memory: " << format_bytes(*stats.device_free) << " of "
         << format_bytes(*stats.device_total) << " free, " << format_bytes(*outside)
         << " taken outside the allocator (contexts, libraries, other processes).\n";
  }
  if (stats.resident && stats.resident_peak) {
    text << "Process: " << format_bytes(*stats.resident) << " resident, at most "
         << format_bytes(*stats.resident_peak) << ".\n";
  }
  if (stats.overreserved()) {
    text << "Warning: " << format_bytes(stats.reserved->current)
         << " are reserved, of which at most " << format_bytes(stats.allocated->peak)
         << " were ever allocated since the peak was last reset. Set "
            "PYTORCH_ALLOC_CONF=expandable_segments:True without max_split_size_mb, or call "
            "tidemark::empty_cache().\n";
  }
  return out << text.str();
}

}  // namespace tidemark
