#pragma once

#include <c10/core/StorageImpl.h>

#include <algorithm>
#include <condition_variable>
#include <cstddef>
#include <mutex>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

namespace tidemark::detail {

/// Locks storages against regions that write them on other threads: a re-run puts old values into
/// a buffer for a while, and nobody else may add to it meanwhile. All of them at once or none, and
/// never a storage that was not asked for, so that regions which share nothing never wait for each
/// other. A thread may lock again what it has locked, as re-runs nest.
class StorageLocks {
 public:
  explicit StorageLocks(std::vector<const c10::StorageImpl*> storages)
      : storages_(std::move(storages)) {
    if (storages_.empty()) {
      return;
    }
    Table& table = Table::of_process();
    const auto self = std::this_thread::get_id();
    std::unique_lock<std::mutex> lock(table.mutex);
    table.unlocked.wait(lock, [&] {
      return std::all_of(storages_.begin(), storages_.end(), [&](const c10::StorageImpl* storage) {
        const auto held = table.held.find(storage);
        return held == table.held.end() || held->second.owner == self;
      });
    });
    for (const c10::StorageImpl* storage : storages_) {
      Held& held = table.held[storage];
      held.owner = self;
      ++held.times;
    }
  }
  StorageLocks(const StorageLocks&) = delete;
  StorageLocks& operator=(const StorageLocks&) = delete;

  ~StorageLocks() {
    if (storages_.empty()) {
      return;
    }
    Table& table = Table::of_process();
    {
      const std::lock_guard<std::mutex> lock(table.mutex);
      for (const c10::StorageImpl* storage : storages_) {
        const auto held = table.held.find(storage);
        if (--held->second.times == 0) {
          table.held.erase(held);
        }
      }
    }
    table.unlocked.notify_all();
  }

 private:
  struct Held {
    std::thread::id owner;
    std::size_t times = 0;
  };
  struct Table {
    std::mutex mutex;
    std::condition_variable unlocked;
    std::unordered_map<const c10::StorageImpl*, Held> held;

    static Table& of_process() {
      static auto* leaked = new Table;  // threads outlive statics
      return *leaked;
    }
  };

  std::vector<const c10::StorageImpl*> storages_;
};

}  // namespace tidemark::detail
