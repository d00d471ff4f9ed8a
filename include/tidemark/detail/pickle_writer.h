#pragma once

// Python's pickle, protocol 2, with the opcodes that PyTorch's memory viewer can read
// (torch/utils/viz/MemoryViz.js), which are also safe to load: none of them calls anything.

#include <c10/util/Exception.h>
#include <tidemark/detail/utf8.h>

#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <type_traits>
#include <unordered_map>
#include <utility>

namespace tidemark::detail {

class PickleWriter {
 public:
  PickleWriter() { out_ = {'\x80', '\x02'}; }

  PickleWriter& begin_dict() {
    out_ += "}(";
    return *this;
  }
  PickleWriter& end_dict() {
    out_ += 'u';
    return *this;
  }
  PickleWriter& begin_list() {
    out_ += ']';
    return *this;
  }
  /// Appends the last value to the list below it. The viewer would overflow its stack on the opcode
  /// that appends many at once.
  PickleWriter& append() {
    out_ += 'a';
    return *this;
  }

  template <typename Integer, std::enable_if_t<std::is_integral_v<Integer>, int> = 0>
  PickleWriter& value(Integer integer) {
    const auto number = static_cast<int64_t>(integer);
    if (number >= 0 && number < 256) {
      out_ += 'K';
      return bytes(number, 1);
    }
    if (number >= 0 && number < 65536) {
      out_ += 'M';
      return bytes(number, 2);
    }
    if (number >= std::numeric_limits<int32_t>::min() &&
        number <= std::numeric_limits<int32_t>::max()) {
      out_ += 'J';
      return bytes(number, 4);
    }
    out_ += {'\x8A', '\x08'};
    return bytes(number, 8);
  }

  /// Texts that come again and again, as keys do, are written once.
  PickleWriter& value(std::string_view text) {
    const auto [found, is_new] = memo_of_.try_emplace(std::string(text), memos_);
    if (!is_new) {
      return recall(found->second);
    }
    std::string valid;
    each_character(text, [&valid](std::string_view character) { valid += character; });
    TORCH_CHECK(valid.size() <= std::numeric_limits<uint32_t>::max(), "tidemark: a text of ",
                valid.size(), " bytes is too long for a pickle.");
    out_ += 'X';
    bytes(static_cast<int64_t>(valid.size()), 4);
    out_ += valid;
    memoize();
    return *this;
  }
  PickleWriter& value(const char* text) { return value(std::string_view(text)); }

  template <typename T>
  PickleWriter& item(std::string_view key, const T& of) {
    return value(key).value(of);
  }

  /// A tuple of two.
  PickleWriter& pair(int64_t first, int64_t second) {
    value(first).value(second);
    out_ += '\x86';
    return *this;
  }

  PickleWriter& value_of_bool(bool truth) {
    out_ += truth ? '\x88' : '\x89';
    return *this;
  }

  /// Remembers the last value, to be put elsewhere, too.
  uint32_t memoize() {
    memo('q', 'r', memos_);
    return memos_++;
  }
  PickleWriter& recall(uint32_t memo_index) { return memo('h', 'j', memo_index); }

  [[nodiscard]] std::string take() && {
    out_ += '.';
    return std::move(out_);
  }

 private:
  PickleWriter& bytes(int64_t number, int count) {
    for (int i = 0; i < count; ++i) {
      out_ += static_cast<char>(static_cast<uint64_t>(number) >> (8 * i) & 0xFF);
    }
    return *this;
  }

  PickleWriter& memo(char small, char large, uint32_t index) {
    out_ += index < 256 ? small : large;
    return bytes(index, index < 256 ? 1 : 4);
  }

  std::string out_;
  std::unordered_map<std::string, uint32_t> memo_of_;
  uint32_t memos_ = 0;
};

}  // namespace tidemark::detail
