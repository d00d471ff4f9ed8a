#pragma once

// What the operating system says that this process takes up.

#include <array>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <optional>

namespace tidemark::detail {

struct ResidentSet {
  std::optional<int64_t> now;   // bytes
  std::optional<int64_t> peak;  // bytes, since the process started
};

/// Known on Linux.
inline ResidentSet resident_set() {
  ResidentSet set;
  std::FILE* const status = std::fopen("/proc/self/status", "r");
  if (status == nullptr) {
    return set;
  }
  std::array<char, 4096> line{};
  while (std::fgets(line.data(), static_cast<int>(line.size()), status) != nullptr) {
    auto* const figure = std::strncmp(line.data(), "VmRSS:", 6) == 0   ? &set.now
                         : std::strncmp(line.data(), "VmHWM:", 6) == 0 ? &set.peak
                                                                       : nullptr;
    if (figure != nullptr) {
      *figure = std::strtoll(line.data() + 6, nullptr, 10) * 1024;  // it is in KiB
    }
  }
  std::fclose(status);
  return set;
}

}  // namespace tidemark::detail
