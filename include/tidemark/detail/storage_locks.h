#pragma once

#include <c10/core/StorageImpl.h>
#include <tidemark/detail/vector.h>

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <utility>

namespace tidemark::detail {

/// Locks storages against regions that write them on other threads: a re-run puts old values into
/// a buffer for a while, and nobody else may add to it meanwhile. All of them at once or none, and
/// never a storage that was not asked for, so that regions which share nothing never wait for each
/// other. A thread may lock again what it has locked, as re-runs nest.
class StorageLocks {
 public:
  explicit StorageLocks(Vector<const c10::StorageImpl*> storages) : storages_(std::move(storages)) {
    if (storages_.empty()) {
      return;
    }
    Table& table = Table::of_process();
    std::unique_lock<std::mutex> lock(table.mutex);
    table.unlocked.wait(lock, [&] { return !table.in_the_way_of(*this); });
    older_ = std::exchange(table.newest, this);
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
      StorageLocks** link = &table.newest;
      while (*link != this) {
        link = &(*link)->older_;
      }
      *link = older_;
    }
    table.unlocked.notify_all();
  }

 private:
  struct Table {
    std::mutex mutex;
    std::condition_variable unlocked;
    StorageLocks* newest = nullptr;

    static Table& of_process() {
      static auto* leaked = new Table;  // threads outlive statics
      return *leaked;
    }

    // Whether another thread holds one of the storages.
    [[nodiscard]] bool in_the_way_of(const StorageLocks& wanted) const {
      for (const StorageLocks* other = newest; other != nullptr; other = other->older_) {
        if (other->owner_ != wanted.owner_ && other->shares_one_with(wanted)) {
          return true;
        }
      }
      return false;
    }
  };

  [[nodiscard]] bool shares_one_with(const StorageLocks& other) const {
    return std::find_first_of(storages_.begin(), storages_.end(), other.storages_.begin(),
                              other.storages_.end()) != storages_.end();
  }

  Vector<const c10::StorageImpl*> storages_;
  std::thread::id owner_ = std::this_thread::get_id();
  StorageLocks* older_ = nullptr;  // next in the table; by its mutex
};

}  // namespace tidemark::detail
