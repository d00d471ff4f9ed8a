#pragma once

// Reads a pickle with nothing but the opcodes that torch/utils/viz/MemoryViz.js has.

#include <cstddef>
#include <cstdint>
#include <map>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace tidemark::tests {

struct Pickled {
  enum class Kind { kNone, kNumber, kText, kList, kDict };

  Kind kind = Kind::kNone;
  int64_t number = 0;  // true and false are 1 and 0
  std::string text;
  std::vector<Pickled> list;  // a tuple, too
  std::map<std::string, Pickled> dict;

  const Pickled& operator[](const std::string& key) const { return dict.at(key); }
  const Pickled& operator[](std::size_t index) const { return list.at(index); }
};

class PickleReader {
 public:
  explicit PickleReader(std::string_view bytes) : bytes_(bytes) {}

  /// Throws std::runtime_error for an opcode or a size that the viewer has no use for, and for what
  /// is behind the end.
  Pickled read() {
    while (true) {
      const auto opcode = static_cast<unsigned char>(take(1)[0]);
      switch (opcode) {
        case 0x80:
          expect(number(1) == 2, "another protocol than 2");
          break;
        case '}':
          push(Pickled::Kind::kDict);
          break;
        case ']':
          push(Pickled::Kind::kList);
          break;
        case '(':
          marks_.push_back(stack_.size());
          break;
        case 'a': {
          Pickled last = pop();
          top(Pickled::Kind::kList).list.push_back(std::move(last));
          break;
        }
        case 'u':
          set_items();
          break;
        case 'K':
          push_number(number(1));
          break;
        case 'M':
          push_number(number(2));
          break;
        case 'J':
          push_number(static_cast<int32_t>(number(4)));
          break;
        case 0x8A: {
          const int64_t size = number(1);
          expect(size >= 1 && size <= 8, "a number that is no number in the viewer");
          push_number(number(static_cast<std::size_t>(size)));
          break;
        }
        case 'X': {
          const int64_t size = number(4);
          push(Pickled::Kind::kText).text = take(static_cast<std::size_t>(size));
          break;
        }
        case 'q':
          memo_[number(1)] = stack_.at(stack_.size() - 1);
          break;
        case 'r':
          memo_[number(4)] = stack_.at(stack_.size() - 1);
          break;
        case 'h':
          stack_.push_back(memo_.at(number(1)));
          break;
        case 'j':
          stack_.push_back(memo_.at(number(4)));
          break;
        case 0x86: {
          Pickled second = pop();
          Pickled first = pop();
          push(Pickled::Kind::kList).list = {first, second};
          break;
        }
        case 0x88:
          push_number(1);
          break;
        case 0x89:
          push_number(0);
          break;
        case '.': {
          Pickled all = pop();
          expect(stack_.empty() && marks_.empty() && at_ == bytes_.size(), "more than one value");
          return all;
        }
        default:
          expect(false, "the opcode " + std::to_string(opcode));
      }
    }
  }

 private:
  static void expect(bool truth, const std::string& what) {
    if (!truth) {
      throw std::runtime_error("the pickle has " + what);
    }
  }

  std::string_view take(std::size_t count) {
    expect(count <= bytes_.size() - at_, "no end");
    at_ += count;
    return bytes_.substr(at_ - count, count);
  }
  int64_t number(std::size_t size) {
    const std::string_view bytes = take(size);
    uint64_t value = 0;
    for (std::size_t i = 0; i < size; ++i) {
      value |= static_cast<uint64_t>(static_cast<unsigned char>(bytes[i])) << (8 * i);
    }
    return static_cast<int64_t>(value);
  }

  Pickled& push(Pickled::Kind kind) {
    stack_.emplace_back().kind = kind;
    return stack_.back();
  }
  void push_number(int64_t value) { push(Pickled::Kind::kNumber).number = value; }
  Pickled pop() {
    expect(!stack_.empty(), "too few values");
    Pickled last = std::move(stack_.back());
    stack_.pop_back();
    return last;
  }
  Pickled& top(Pickled::Kind kind) {
    expect(!stack_.empty() && stack_.back().kind == kind, "a value of another kind");
    return stack_.back();
  }

  void set_items() {
    expect(!marks_.empty(), "no mark");
    const std::size_t mark = marks_.back();
    marks_.pop_back();
    expect((stack_.size() - mark) % 2 == 0, "a key without a value");
    std::vector<Pickled> items(stack_.begin() + static_cast<std::ptrdiff_t>(mark), stack_.end());
    stack_.resize(mark);
    for (std::size_t i = 0; i < items.size(); i += 2) {
      expect(items[i].kind == Pickled::Kind::kText, "a key that is no text");
      top(Pickled::Kind::kDict).dict[items[i].text] = items[i + 1];
    }
  }

  std::string_view bytes_;
  std::size_t at_ = 0;
  std::vector<Pickled> stack_;
  std::vector<std::size_t> marks_;
  std::map<int64_t, Pickled> memo_;
};

}  // namespace tidemark::tests
