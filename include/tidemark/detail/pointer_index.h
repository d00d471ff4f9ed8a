#pragma once

#include <tidemark/detail/vector.h>

#include <cstddef>
#include <cstdint>
#include <utility>

namespace tidemark::detail {

/// Where in a sequence that is which belongs to an address. An open-addressed table: it
/// allocates when it grows, where a std::unordered_map allocates for each address and takes the
/// compiler 4 MB more in every source.
class PointerIndex {
 public:
  /// What belongs to an address; nullptr if nothing does.
  [[nodiscard]] const std::size_t* find(const void* address) const {
    if (slots_.empty()) {
      return nullptr;
    }
    const Slot& slot = slots_[place_of(address, slots_, bits_)];
    return slot.address != nullptr ? &slot.index : nullptr;
  }

  /// Returns whether the address, which isn't null, is new; one that it knows keeps its index. If
  /// memory lacks, nothing has changed.
  bool add(const void* address, std::size_t index) {
    if (2 * (size_ + 1) > slots_.size()) {
      grow();
    }
    Slot& slot = slots_[place_of(address, slots_, bits_)];
    if (slot.address != nullptr) {
      return false;
    }
    slot = {address, index};
    ++size_;
    return true;
  }

 private:
  struct Slot {
    const void* address = nullptr;
    std::size_t index = 0;
  };

  // The slot of an address among 2^bits, or the free one where it goes. Half of them are free.
  static std::size_t place_of(const void* address, const Vector<Slot>& slots, unsigned bits) {
    // Fibonacci hashing, whose upper bits depend on all bits of the address.
    const std::uint64_t product =
        reinterpret_cast<std::uintptr_t>(address) * std::uint64_t{0x9e3779b97f4a7c15};
    std::size_t place = product >> (64U - bits);
    while (slots[place].address != nullptr && slots[place].address != address) {
      place = (place + 1) % slots.size();
    }
    return place;
  }

  void grow() {
    const unsigned bits = bits_ + 1;
    Vector<Slot> slots(std::size_t{1} << bits);
    for (const Slot& slot : slots_) {
      if (slot.address != nullptr) {
        slots[place_of(slot.address, slots, bits)] = slot;
      }
    }
    slots_ = std::move(slots);
    bits_ = bits;
  }

  Vector<Slot> slots_;    // none, or 2^bits_
  unsigned bits_ = 2;     // grows to 8 slots first
  std::size_t size_ = 0;  // of those that aren't free
};

}  // namespace tidemark::detail
