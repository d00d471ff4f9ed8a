#pragma once

#include <c10/core/StorageImpl.h>

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
    for (; bytes >= sizeof(uint64_t); begin += sizeof(uint64_t), bytes -= sizeof(uint64_t)) {
      uint64_t word;
      std::memcpy(&word, begin, sizeof(word));
      add(word);
    }
    if (bytes > 0) {
      uint64_t word = 0;
      std::memcpy(&word, begin, bytes);
      add(word);
    }
  }
  [[nodiscard]] uint64_t value() const { return value_; }

 private:
  uint64_t value_ = 0x2545F4914F6CDD1Dull;
};

/// A fingerprint of what CPU memory holds: of all bytes up to 4 KiB, of 64 words spread over it
/// beyond that. 0 for memory that can't be looked at from here.
inline uint64_t fingerprint(const c10::StorageImpl& storage) {
  if (storage.device_type() != c10::kCPU || storage.nbytes() == 0 || storage.data() == nullptr) {
    return 0;
  }
  constexpr std::size_t kWhole = 4096;
  constexpr std::size_t kSamples = 64;
  const auto* data = static_cast<const unsigned char*>(storage.data());
  const std::size_t bytes = storage.nbytes();
  Hash hash;
  hash.add(bytes);
  if (bytes <= kWhole) {
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

}  // namespace tidemark::detail
