#pragma once

// What the operating system says that this process takes up.

#include <cstdint>
#include <fstream>
#include <limits>
#include <optional>
#include <string>

namespace tidemark::detail {

struct ResidentSet {
  std::optional<int64_t> now;   // bytes
  std::optional<int64_t> peak;  // bytes, since the process started
};

/// Known on Linux.
inline ResidentSet resident_set() {
  ResidentSet set;
  std::ifstream status("/proc/self/status");
  std::string key;
  while (status >> key) {
    if (int64_t kib = 0; (key == "VmRSS:" || key == "VmHWM:") && status >> kib) {
      (key == "VmRSS:" ? set.now : set.peak) = kib * 1024;
    }
    status.ignore(std::numeric_limits<std::streamsize>::max(), '\n');
  }
  return set;
}

}  // namespace tidemark::detail
