#pragma once

// Text and numbers in an HTML page.

#include <tidemark/detail/decimal.h>
#include <tidemark/detail/utf8.h>
#include <tidemark/memory/memory_report.h>

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace tidemark::detail {

/// `text` as one line that stays text in an element and in a quoted attribute.
[[nodiscard]] inline std::string html_text(std::string_view text) {
  std::string out;
  for (const char c : one_line(text)) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      case '\'':
        out += "&#39;";
        break;
      default:
        out += c;
    }
  }
  return out;
}

/// "12.34%" of `whole`, for widths of bars.
[[nodiscard]] inline std::string percent(int64_t part, int64_t whole) {
  return decimal(scaled_ratio(part, whole, 10'000), 2) + '%';
}

/// The class that has the colour of a category.
[[nodiscard]] inline std::string colour_class(std::size_t category) {
  return 'c' + std::to_string(category);
}

/// From the bottom of the chart to its top: what lasts lies below what comes and goes.
inline constexpr std::array<MemoryCategory, kMemoryCategories> kStackOrder{
    MemoryCategory::kParameters,  MemoryCategory::kOptimizerState, MemoryCategory::kBuffers,
    MemoryCategory::kOther,       MemoryCategory::kInputs,         MemoryCategory::kGradients,
    MemoryCategory::kActivations, MemoryCategory::kTemporaries,    MemoryCategory::kWorkspace};

}  // namespace tidemark::detail
