#pragma once

/// \file
/// Numbers of bytes, written and read by people.

#include <c10/util/Exception.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>

namespace tidemark {

namespace detail {

template <int64_t kUnit>
constexpr int64_t whole_units(unsigned long long count) {
  TORCH_CHECK(count <= static_cast<unsigned long long>(std::numeric_limits<int64_t>::max() / kUnit),
              "tidemark: ", count, " units of ", kUnit,
              " bytes are more bytes than an int64_t can hold.");
  return static_cast<int64_t>(count) * kUnit;
}

}  // namespace detail

/// Numbers of bytes in units, after `using namespace tidemark::literals;`. A number of bytes that
/// no int64_t holds does not compile where a constant is asked for, and throws elsewhere.
namespace literals {

/// 12_KiB is 12 * 1024 bytes.
constexpr int64_t operator""_KiB(unsigned long long count) {
  return detail::whole_units<int64_t{1} << 10>(count);
}
/// 12_MiB is 12 * 1024 * 1024 bytes.
constexpr int64_t operator""_MiB(unsigned long long count) {
  return detail::whole_units<int64_t{1} << 20>(count);
}
/// 12_GiB is 12 * 1024 * 1024 * 1024 bytes.
constexpr int64_t operator""_GiB(unsigned long long count) {
  return detail::whole_units<int64_t{1} << 30>(count);
}

}  // namespace literals

/// "12.0 MiB", "-1.5 KiB", "512 bytes": one decimal in the largest binary unit that fits.
[[nodiscard]] inline std::string format_bytes(int64_t bytes) {
  constexpr std::array<const char*, 6> kUnits{"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  const std::string sign = bytes < 0 ? "-" : "";
  // not -bytes: the smallest number has no positive twin
  const uint64_t magnitude = bytes < 0 ? 0 - static_cast<uint64_t>(bytes) : bytes;
  if (magnitude < 1024) {
    return sign + std::to_string(magnitude) + (magnitude == 1 ? " byte" : " bytes");
  }
  const auto tenths_of_two_to_the = [magnitude](size_t bits) {
    const uint64_t one = uint64_t{1} << bits;
    return magnitude / one * 10 + (magnitude % one * 10 + one / 2) / one;
  };
  size_t unit = 0;
  uint64_t tenths = tenths_of_two_to_the(10);
  while (tenths >= 10240 && unit + 1 < kUnits.size()) {
    ++unit;
    tenths = tenths_of_two_to_the(10 * (unit + 1));
  }
  return sign + std::to_string(tenths / 10) + '.' + std::to_string(tenths % 10) + ' ' +
         kUnits[unit];
}

}  // namespace tidemark
