#pragma once

// Which blocks of memory are alive: a hash table from address to size and deleter.

#include <c10/util/UniqueVoidPtr.h>
#include <tidemark/detail/spin_lock.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

namespace tidemark::detail {

class ThreadCounter;

/// A live block of memory, what gives it back, and where it counts besides.
struct Block {
  void* address = nullptr;
  int64_t bytes = 0;
  c10::DeleterFnPtr deleter = nullptr;
  ThreadCounter* thread = nullptr;
};

/// Live blocks by address. Thread-safe; shards keep threads out of each other's way. Open
/// addressing in flat arrays, since a node per block would cost more than the rest of the meter.
class BlockTable {
 public:
  /// Adds a block (of non-null address). Gives back the block that it replaces, if any.
  std::optional<Block> insert(const Block& block) {
    const uint64_t hash = hash_of(block.address);
    Shard& shard = shards_[shard_of(hash)];
    const std::lock_guard<SpinLock> lock(shard.mutex);
    if (2 * (shard.used + 1) > shard.slots.size()) {
      grow(shard);
    }
    Block& slot = find(shard, block.address, hash);
    if (slot.address != nullptr) {
      return std::exchange(slot, block);
    }
    slot = block;
    ++shard.used;
    return std::nullopt;
  }

  /// Takes out the block at an address; nullopt where the table knows none.
  std::optional<Block> remove(void* address) noexcept {
    const uint64_t hash = hash_of(address);
    Shard& shard = shards_[shard_of(hash)];
    const std::lock_guard<SpinLock> lock(shard.mutex);
    if (address == nullptr || shard.used == 0) {
      return std::nullopt;
    }
    Block& slot = find(shard, address, hash);
    if (slot.address == nullptr) {
      return std::nullopt;
    }
    const Block block = slot;
    close_gap(shard, static_cast<size_t>(&slot - shard.slots.data()));
    --shard.used;
    return block;
  }

 private:
  struct alignas(64) Shard {
    SpinLock mutex;
    std::vector<Block> slots;  // a power of two of them, at most half used
    size_t used = 0;
  };

  static constexpr int kShardBits = 6;

  static uint64_t hash_of(const void* address) {
    return (reinterpret_cast<uintptr_t>(address) >> 4) * uint64_t{0x9E3779B97F4A7C15};
  }
  static size_t shard_of(uint64_t hash) { return hash >> (64 - kShardBits); }
  static size_t home_of(const Shard& shard, uint64_t hash) {
    return (hash >> 24) & (shard.slots.size() - 1);
  }

  /// The slot of an address, or the free one where it belongs.
  static Block& find(Shard& shard, const void* address, uint64_t hash) {
    size_t i = home_of(shard, hash);
    while (shard.slots[i].address != nullptr && shard.slots[i].address != address) {
      i = (i + 1) & (shard.slots.size() - 1);
    }
    return shard.slots[i];
  }

  static void grow(Shard& shard) {
    std::vector<Block> old(shard.slots.empty() ? 16 : 2 * shard.slots.size());
    old.swap(shard.slots);
    for (const Block& block : old) {
      if (block.address != nullptr) {
        find(shard, block.address, hash_of(block.address)) = block;
      }
    }
  }

  /// Empties a slot and moves up the blocks that were pushed past it.
  static void close_gap(Shard& shard, size_t gap) {
    const size_t mask = shard.slots.size() - 1;
    for (size_t i = (gap + 1) & mask; shard.slots[i].address != nullptr; i = (i + 1) & mask) {
      const size_t home = home_of(shard, hash_of(shard.slots[i].address));
      if (((i - home) & mask) >= ((i - gap) & mask)) {
        shard.slots[gap] = shard.slots[i];
        gap = i;
      }
    }
    shard.slots[gap] = Block{};
  }

  std::array<Shard, size_t{1} << kShardBits> shards_;
};

}  // namespace tidemark::detail
