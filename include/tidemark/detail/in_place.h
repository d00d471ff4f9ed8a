#pragma once

#include <cstddef>
#include <new>
#include <utility>

namespace tidemark::detail {

/// Room for an object that is made later, or not at all; neither copied nor moved. Apart from that
/// a std::optional, which takes the compiler ten times as long for each type.
template <class T>
class InPlace {
 public:
  InPlace() = default;
  InPlace(const InPlace&) = delete;
  InPlace& operator=(const InPlace&) = delete;
  ~InPlace() { reset(); }

  /// Makes the object in place of what was there.
  template <class... Args>
  T& emplace(Args&&... args) {
    reset();
    object_ = ::new (static_cast<void*>(room_)) T(std::forward<Args>(args)...);
    return *object_;
  }

  void reset() {
    if (T* const object = std::exchange(object_, nullptr)) {
      object->~T();
    }
  }

  [[nodiscard]] bool has_value() const { return object_ != nullptr; }
  T& operator*() { return *object_; }
  const T& operator*() const { return *object_; }
  T* operator->() { return object_; }
  const T* operator->() const { return object_; }

 private:
  alignas(T) std::byte room_[sizeof(T)];
  T* object_ = nullptr;
};

}  // namespace tidemark::detail
