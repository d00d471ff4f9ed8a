#pragma once

#include <algorithm>
#include <cassert>
#include <cstddef>
#include <cstdint>
#include <new>
#include <utility>

namespace tidemark::detail {

/// The sequence for types of the library's own and for pointers to things, with functions of
/// std::vector's: one more type of std::vector costs the compiler 1.5 MB in every source that
/// includes tidemark, of c10::SmallVector 1.2 MB, of this 0.4 MB.
///
/// Elements move without an exception, so that none is lost when there is no memory for more.
template <class T>
class Vector {
 public:
  using value_type = T;
  using iterator = T*;
  using const_iterator = const T*;

  Vector() = default;
  explicit Vector(std::size_t count) : Vector() { resize(count); }
  Vector(const Vector& other) : Vector() {  // once it has begun, the destructor frees what it has
    reserve(other.size());
    for (const T& element : other) {
      push_back(element);
    }
  }
  Vector(Vector&& other) noexcept { swap(other); }
  Vector& operator=(const Vector& other) {
    if (this != &other) {
      Vector(other).swap(*this);
    }
    return *this;
  }
  Vector& operator=(Vector&& other) noexcept {
    Vector(std::move(other)).swap(*this);
    return *this;
  }
  ~Vector() {
    clear();
    ::operator delete(static_cast<void*>(begin_));
  }

  void swap(Vector& other) noexcept {
    std::swap(begin_, other.begin_);
    std::swap(end_, other.end_);
    std::swap(room_end_, other.room_end_);
  }

  T* begin() { return begin_; }
  T* end() { return end_; }
  const T* begin() const { return begin_; }
  const T* end() const { return end_; }
  [[nodiscard]] std::size_t size() const { return static_cast<std::size_t>(end_ - begin_); }
  [[nodiscard]] bool empty() const { return begin_ == end_; }

  T& operator[](std::size_t index) {
    assert(index < size());
    return begin_[index];
  }
  const T& operator[](std::size_t index) const {
    assert(index < size());
    return begin_[index];
  }
  T& front() { return (*this)[0]; }
  T& back() { return (*this)[size() - 1]; }
  const T& front() const { return (*this)[0]; }
  const T& back() const { return (*this)[size() - 1]; }

  /// Adds an element; if that fails, the elements are as they were. By value, so that it may be one
  /// of the elements.
  void push_back(T element) {
    reserve(size() + 1);
    ::new (static_cast<void*>(end_)) T(std::move(element));
    ++end_;
  }

  /// Makes room for so many elements in all, and for at least twice as many as there was room for.
  void reserve(std::size_t count) {
    const auto room = static_cast<std::size_t>(room_end_ - begin_);
    if (count > room) {
      move_to_room_for(std::max(std::max(count, 2 * room), std::size_t{4}));
    }
  }

  void resize(std::size_t count) {
    reserve(count);
    while (size() < count) {
      push_back(T());
    }
    while (size() > count) {
      pop_back();
    }
  }

  void pop_back() {
    assert(!empty());
    (--end_)->~T();
  }
  void clear() {
    while (!empty()) {
      pop_back();
    }
  }

  void erase(T* first, T* last) {
    assert(begin_ <= first && first <= last && last <= end_);
    static_assert(noexcept(*first = std::move(*last)));
    if (first == last) {
      return;  // else each of those behind would be moved to itself
    }
    while (last != end_) {
      *first++ = std::move(*last++);
    }
    while (end_ != first) {
      pop_back();
    }
  }
  void erase(T* element) { erase(element, element + 1); }

  bool operator==(const Vector& other) const {
    std::size_t i = 0;
    while (i < size() && i < other.size() && begin_[i] == other.begin_[i]) {
      ++i;
    }
    return i == size() && i == other.size();
  }

 private:
  void move_to_room_for(std::size_t count) {
    static_assert(alignof(T) <= __STDCPP_DEFAULT_NEW_ALIGNMENT__);
    static_assert(noexcept(T(std::move(*begin_))));
    constexpr std::size_t kSize = sizeof(T);  // NOLINT(bugprone-sizeof-expression): of a pointer
    if (count > static_cast<std::size_t>(PTRDIFF_MAX) / kSize) {
      throw std::bad_array_new_length();
    }
    const std::size_t bytes = count * kSize;
    T* const begin = static_cast<T*>(::operator new(bytes));
    T* end = begin;
    for (T& element : *this) {
      ::new (static_cast<void*>(end++)) T(std::move(element));
    }
    clear();
    ::operator delete(static_cast<void*>(begin_));
    begin_ = begin;
    end_ = end;
    room_end_ = begin + count;
  }

  T* begin_ = nullptr;
  T* end_ = nullptr;
  T* room_end_ = nullptr;
};

}  // namespace tidemark::detail
