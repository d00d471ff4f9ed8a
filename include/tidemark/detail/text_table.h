#pragma once

// Tables and paragraphs for a terminal.

#include <tidemark/detail/decimal.h>
#include <tidemark/detail/utf8.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <string>
#include <string_view>
#include <vector>

namespace tidemark::detail {

inline constexpr std::size_t kTextColumns = 100;

[[nodiscard]] inline std::string right_aligned(std::string_view text, std::size_t width) {
  const std::size_t length = characters(text);
  return std::string(length < width ? width - length : 0, ' ') + std::string(text);
}

/// At the left of `width` columns; its end makes place for "~" if it is too long.
[[nodiscard]] inline std::string left_aligned(std::string_view text, std::size_t width) {
  const std::size_t length = characters(text);
  if (length <= width) {
    return std::string(text) + std::string(width - length, ' ');
  }
  std::string cut;
  std::size_t taken = 0;
  each_character(text, [&](std::string_view character) {
    if (++taken < width) {
      cut += character;
    }
  });
  return cut + '~';
}

/// `text` as one line of at most `width` columns.
[[nodiscard]] inline std::string shortened(std::string_view text, std::size_t width) {
  std::string line = one_line(text);
  return characters(line) <= width ? line : left_aligned(line, width);
}

/// A paragraph that hangs on `head`: the text goes on right of it, broken at spaces.
[[nodiscard]] inline std::string paragraph(std::string_view head, std::string_view text) {
  const std::size_t indent = characters(head);
  const std::string line = one_line(text);
  std::string out(head);
  std::size_t column = indent;
  std::size_t at = 0;
  while (at < line.size()) {
    const std::size_t end = std::min(line.find(' ', at), line.size());
    const std::string_view word = std::string_view(line).substr(at, end - at);
    at = end + 1;
    if (word.empty()) {
      continue;
    }
    const std::size_t length = characters(word);
    if (column > indent && column + 1 + length > kTextColumns) {
      out += '\n' + std::string(indent, ' ');
      column = indent;
    }
    if (column > indent) {
      out += ' ';
      ++column;
    }
    out += word;
    column += length;
  }
  return out + '\n';
}

/// The unit of the bytes of a report: so that the numbers of all tables compare at a glance.
class ByteUnit {
 public:
  /// The largest of which there are at least ten.
  explicit ByteUnit(int64_t bytes) {
    while (index_ + 1 < kNames.size() && bytes >> (10 * index_) >= 10240) {
      ++index_;
    }
  }

  [[nodiscard]] std::string name() const { return kNames[index_]; }

  /// In tenths of the unit; bytes are whole.
  [[nodiscard]] int64_t count(int64_t bytes) const {
    if (index_ == 0) {
      return bytes;
    }
    return std::llround(std::ldexp(static_cast<double>(bytes), -10 * static_cast<int>(index_)) *
                        10);
  }
  /// "-" for no bytes, which "0.0" need not mean.
  [[nodiscard]] std::string operator()(int64_t bytes) const { return cell(bytes, count(bytes)); }
  /// The same with a count that was rounded otherwise.
  [[nodiscard]] std::string cell(int64_t bytes, int64_t count) const {
    return bytes == 0 ? "-" : decimal(count, index_ == 0 ? 0 : 1);
  }

 private:
  static constexpr std::array<const char*, 5> kNames{"bytes", "KiB", "MiB", "GiB", "TiB"};
  std::size_t index_ = 0;
};

/// `whole` cut in the proportions of `parts`, in integers that add up to it: what is left over from
/// rounding down goes to the largest remainders.
template <std::size_t kParts>
[[nodiscard]] std::array<int64_t, kParts> apportioned(const std::array<int64_t, kParts>& parts,
                                                      int64_t whole) {
  std::array<int64_t, kParts> shares{};
  const int64_t sum = std::accumulate(parts.begin(), parts.end(), int64_t{0});
  if (sum == 0) {
    return shares;
  }
  std::array<double, kParts> remainders{};
  int64_t left_over = whole;
  for (std::size_t i = 0; i < kParts; ++i) {
    const double share =
        static_cast<double>(parts[i]) / static_cast<double>(sum) * static_cast<double>(whole);
    shares[i] = static_cast<int64_t>(std::floor(share));
    remainders[i] = share - std::floor(share);
    left_over -= shares[i];
  }
  for (; left_over > 0; --left_over) {
    const auto most = std::max_element(remainders.begin(), remainders.end());
    ++shares[static_cast<std::size_t>(most - remainders.begin())];
    *most = -1;
  }
  return shares;
}

}  // namespace tidemark::detail
