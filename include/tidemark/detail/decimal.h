#pragma once

// Numbers with a decimal point from integers: exact, and the same in every locale.

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>

namespace tidemark::detail {

/// `value` / 10^places: (1234, 2) is "12.34", (-5, 1) is "-0.5".
[[nodiscard]] inline std::string decimal(int64_t value, std::size_t places) {
  const uint64_t magnitude = value < 0 ? 0 - static_cast<uint64_t>(value) : value;
  std::string digits = std::to_string(magnitude);
  if (digits.size() <= places) {
    digits.insert(0, places + 1 - digits.size(), '0');
  }
  if (places > 0) {
    digits.insert(digits.size() - places, 1, '.');
  }
  return value < 0 ? "-" + digits : digits;
}

/// part / whole * factor, rounded; 0 if there is no whole. For factors up to 10^6.
[[nodiscard]] inline int64_t scaled_ratio(int64_t part, int64_t whole, int64_t factor) {
  return whole == 0 ? 0
                    : std::llround(static_cast<double>(part) / static_cast<double>(whole) *
                                   static_cast<double>(factor));
}

/// Whole nanoseconds; 0 for what is no time.
[[nodiscard]] inline int64_t nanoseconds(double seconds) {
  constexpr double kMost = 9e9;  // of seconds that fit
  return std::abs(seconds) < kMost ? std::llround(seconds * 1e9) : 0;
}

/// "12.3" for 12.3 ms.
[[nodiscard]] inline std::string tenths_of_ms(int64_t nanoseconds) {
  return decimal((nanoseconds + (nanoseconds < 0 ? -50'000 : 50'000)) / 100'000, 1);
}

}  // namespace tidemark::detail
