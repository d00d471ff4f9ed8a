#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/StorageImpl.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace tidemark::detail {

/// A 64-bit hash that is fed step by step; good for telling values apart, not for security.
class Hash {
 public:
  void add(uint64_t word) {
    value_ = (value_ ^ word) * 0x9E3779B97F4A7C15ull;
    value_ ^= value_ >> 29;
  }
  void add_bytes(const void* data, std::size_t bytes) {
    const auto* begin = static_cast<const unsigned char*>(data);
    // Four chains of multiplications at a time run at the speed of memory, one at a quarter of it.
    constexpr std::size_t kLanes = 4;
    constexpr std::size_t kStride = kLanes * sizeof(uint64_t);
    if (bytes >= kStride) {
      std::array<Hash, kLanes> lanes;
      for (std::size_t lane = 0; lane < kLanes; ++lane) {
        lanes[lane].add(lane);
      }
      for (; bytes >= kStride; begin += kStride, bytes -= kStride) {
        std::array<uint64_t, kLanes> words;
        std::memcpy(words.data(), begin, kStride);
        for (std::size_t lane = 0; lane < kLanes; ++lane) {
          lanes[lane].add(words[lane]);
        }
      }
      for (const Hash& lane : lanes) {
        add(lane.value());
      }
    }
    for (; bytes > 0;
         begin += std::min(bytes, sizeof(uint64_t)), bytes -= std::min(bytes, sizeof(uint64_t))) {
      uint64_t word = 0;
      std::memcpy(&word, begin, std::min(bytes, sizeof(word)));
      add(word);
    }
  }
  [[nodiscard]] uint64_t value() const { return value_; }

 private:
  uint64_t value_ = 0x2545F4914F6CDD1Dull;
};

/// A fingerprint of memory: of all of it up to `whole` bytes, of 64 words spread over it beyond
/// that.
inline uint64_t fingerprint(const void* memory, std::size_t bytes, std::size_t whole) {
  constexpr std::size_t kSamples = 64;
  const auto* data = static_cast<const unsigned char*>(memory);
  Hash hash;
  hash.add(bytes);
  if (bytes <= std::max(whole, kSamples * sizeof(uint64_t))) {
    hash.add_bytes(data, bytes);
  } else {
    const std::size_t last = bytes - sizeof(uint64_t);
    for (std::size_t i = 0; i < kSamples; ++i) {
      hash.add_bytes(data + last / (kSamples - 1) * i, sizeof(uint64_t));
    }
    hash.add_bytes(data + last, sizeof(uint64_t));
  }
  return hash.value() | 1;
}

/// The same of all that a storage holds; 0 for memory that can't be looked at from here.
inline uint64_t fingerprint(const c10::StorageImpl& storage, std::size_t whole) {
  if (storage.nbytes() == 0) {
    return fingerprint(nullptr, 0, whole);
  }
  const bool visible = storage.device_type() == c10::kCPU && storage.data() != nullptr;
  return visible ? fingerprint(storage.data(), storage.nbytes(), whole) : 0;
}

/// A fingerprint of up to 256 elements spread over a CPU tensor.
inline uint64_t fingerprint_of_elements(const at::Tensor& tensor) {
  constexpr int64_t kMost = 256;
  const int64_t numel = tensor.numel();
  const int64_t count = std::min(numel, kMost);
  const auto* data = static_cast<const unsigned char*>(tensor.const_data_ptr());
  Hash hash;
  for (int64_t i = 0; i < count; ++i) {
    int64_t index = count == numel ? i : i * (numel - 1) / (count - 1);
    int64_t offset = 0;
    for (int64_t dim = tensor.dim() - 1; dim >= 0; --dim) {
      offset += index % tensor.size(dim) * tensor.stride(dim);
      index /= tensor.size(dim);
    }
    hash.add_bytes(data + offset * tensor.element_size(), tensor.element_size());
  }
  return hash.value();
}

}  // namespace tidemark::detail
