#pragma once

// Text of any origin (names of ops and modules) made fit for a file that has to be UTF-8.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace tidemark::detail {

/// The number of bytes of the UTF-8 sequence that `text` starts with; 0 if that is none.
[[nodiscard]] inline std::size_t utf8_length(std::string_view text) {
  const auto byte = [text](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  if (text.empty()) {
    return 0;
  }
  if (byte(0) < 0x80) {
    return 1;
  }
  const std::size_t length = byte(0) < 0xC2   ? 0
                             : byte(0) < 0xE0 ? 2
                             : byte(0) < 0xF0 ? 3
                             : byte(0) < 0xF5 ? 4
                                              : 0;
  if (length == 0 || text.size() < length) {
    return 0;
  }
  for (std::size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xC0) != 0x80) {
      return 0;
    }
  }
  const bool overlong = (byte(0) == 0xE0 && byte(1) < 0xA0) || (byte(0) == 0xF0 && byte(1) < 0x90);
  const bool surrogate = byte(0) == 0xED && byte(1) > 0x9F;
  const bool too_large = byte(0) == 0xF4 && byte(1) > 0x8F;
  return overlong || surrogate || too_large ? 0 : length;
}

/// Calls `with` with each character of `text`, and with U+FFFD for each byte that is part of none.
template <typename With>
void each_character(std::string_view text, const With& with) {
  while (!text.empty()) {
    const std::size_t length = utf8_length(text);
    with(length == 0 ? std::string_view("\xEF\xBF\xBD") : text.substr(0, length));
    text.remove_prefix(length == 0 ? 1 : length);
  }
}

/// `text` as one line of valid UTF-8: a space for each control character, so that no name can break
/// a table or send commands to a terminal.
[[nodiscard]] inline std::string one_line(std::string_view text) {
  std::string line;
  line.reserve(text.size());
  each_character(text, [&line](std::string_view character) {
    const auto first = static_cast<unsigned char>(character[0]);
    const bool c1 = first == 0xC2 && static_cast<unsigned char>(character[1]) < 0xA0;
    const bool control = first < 0x20 || first == 0x7F || c1;
    line += control ? std::string_view(" ") : character;
  });
  return line;
}

/// The number of characters of `text`.
[[nodiscard]] inline std::size_t characters(std::string_view text) {
  std::size_t count = 0;
  each_character(text, [&count](std::string_view) { ++count; });
  return count;
}

}  // namespace tidemark::detail
