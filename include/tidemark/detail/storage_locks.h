#pragma once

#include <c10/core/StorageImpl.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <vector>

namespace tidemark::detail {

/// Locks storages against regions that write them on other threads: a re-run puts old values into
/// a buffer for a while, and nobody else may add to it meanwhile. Recursive, as re-runs nest. The
/// locks are few, shared by all storages and taken in one order.
class StorageLocks {
 public:
  explicit StorageLocks(const std::vector<const c10::StorageImpl*>& storages) {
    std::vector<std::size_t> shards;
    for (const c10::StorageImpl* storage : storages) {
      shards.push_back((reinterpret_cast<uintptr_t>(storage) >> 6) % kShards);
    }
    std::sort(shards.begin(), shards.end());
    shards.erase(std::unique(shards.begin(), shards.end()), shards.end());
    for (const std::size_t shard : shards) {
      locks_.emplace_back(mutexes()[shard]);
    }
  }

 private:
  static constexpr std::size_t kShards = 64;

  static std::array<std::recursive_mutex, kShards>& mutexes() {
    static auto* leaked = new std::array<std::recursive_mutex, kShards>;  // threads outlive statics
    return *leaked;
  }

  std::vector<std::unique_lock<std::recursive_mutex>> locks_;
};

}  // namespace tidemark::detail
