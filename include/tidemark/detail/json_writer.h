#pragma once

// JSON as it is written, value by value. The numbers of a report are all integers.

#include <tidemark/detail/decimal.h>
#include <tidemark/detail/utf8.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

namespace tidemark::detail {

/// Appends `text` as a JSON string: any bytes are made valid UTF-8. `<` is escaped, too, so that
/// the string may stand in a script element of an HTML page.
inline void append_json_string(std::string& out, std::string_view text) {
  constexpr std::string_view kHex = "0123456789abcdef";
  out += '"';
  each_character(text, [&](std::string_view character) {
    const auto byte = static_cast<unsigned char>(character[0]);
    if (byte == '"' || byte == '\\') {
      out += '\\';
      out += character;
    } else if (byte < 0x20 || byte == '<' || byte == 0x7F) {
      out += "\\u00";
      out += kHex[byte >> 4];
      out += kHex[byte & 15];
    } else {
      out += character;
    }
  });
  out += '"';
}

class JsonWriter {
 public:
  JsonWriter& key(std::string_view name) {
    separate();
    append_json_string(out_, name);
    out_ += ':';
    after_key_ = true;
    return *this;
  }

  JsonWriter& begin_object() { return open('{'); }
  JsonWriter& end_object() { return close('}'); }
  JsonWriter& begin_array() { return open('['); }
  JsonWriter& end_array() { return close(']'); }

  JsonWriter& value(std::string_view text) {
    separate();
    append_json_string(out_, text);
    return *this;
  }
  JsonWriter& value(const char* text) { return value(std::string_view(text)); }

  template <typename Integer, std::enable_if_t<std::is_integral_v<Integer>, int> = 0>
  JsonWriter& value(Integer number) {
    static_assert(!std::is_same_v<Integer, bool> && !std::is_same_v<Integer, char>);
    return raw(std::to_string(number));
  }

  /// value / 10^places
  JsonWriter& decimal_value(int64_t number, std::size_t places) {
    return raw(decimal(number, places));
  }

  template <typename T>
  JsonWriter& value(const std::optional<T>& maybe) {
    return maybe ? value(*maybe) : raw("null");
  }

  template <typename T>
  JsonWriter& member(std::string_view name, const T& of) {
    return key(name).value(of);
  }

  /// A line break, for people who open the file; only between the values of an array or object.
  JsonWriter& line_break() {
    line_break_ = true;
    return *this;
  }

  [[nodiscard]] std::string take() && { return std::move(out_); }

 private:
  void separate() {
    if (!first_ && !after_key_) {
      out_ += ',';
    }
    if (line_break_ && !after_key_) {
      out_ += '\n';
      line_break_ = false;
    }
    first_ = false;
    after_key_ = false;
  }

  JsonWriter& raw(std::string_view text) {
    separate();
    out_ += text;
    return *this;
  }

  JsonWriter& open(char bracket) {
    separate();
    out_ += bracket;
    first_ = true;
    return *this;
  }

  JsonWriter& close(char bracket) {
    out_ += bracket;
    first_ = false;
    after_key_ = false;
    return *this;
  }

  std::string out_;
  bool first_ = true;
  bool after_key_ = false;
  bool line_break_ = false;
};

}  // namespace tidemark::detail
