#pragma once

// Who wants to see every block of memory come and go.

#include <c10/core/Device.h>

#include <algorithm>
#include <cstdint>
#include <vector>

namespace tidemark::detail {

inline namespace process_v1 {

/// Sees the blocks of memory come and go. Called on the thread that allocates or frees, one call at
/// a time, inside the lock that puts the blocks into one order: must be quick, must not throw, must
/// neither allocate nor free memory of LibTorch, nor ask the meter for anything.
class BlockObserver {
 public:
  BlockObserver() = default;
  BlockObserver(const BlockObserver&) = delete;
  BlockObserver& operator=(const BlockObserver&) = delete;
  virtual ~BlockObserver() = default;

  virtual void allocated(c10::Device device, const void* address, int64_t bytes) noexcept = 0;

  /// Only of blocks whose allocation was seen by the meter, if not by this observer.
  virtual void freed(c10::Device device, const void* address, int64_t bytes) noexcept = 0;

  /// The allocator could not give `bytes`.
  virtual void refused(c10::Device /*device*/, int64_t /*bytes*/) noexcept {}
};

}  // namespace process_v1

/// Several observers. Whoever has it guards it by a lock.
class BlockObservers {
 public:
  void add(BlockObserver& observer) { observers_.push_back(&observer); }
  void remove(BlockObserver& observer) noexcept {
    observers_.erase(std::remove(observers_.begin(), observers_.end(), &observer),
                     observers_.end());
  }

  void allocated(c10::Device device, const void* address, int64_t bytes) noexcept {
    for (BlockObserver* observer : observers_) {
      observer->allocated(device, address, bytes);
    }
  }
  void freed(c10::Device device, const void* address, int64_t bytes) noexcept {
    for (BlockObserver* observer : observers_) {
      observer->freed(device, address, bytes);
    }
  }
  void refused(c10::Device device, int64_t bytes) noexcept {
    for (BlockObserver* observer : observers_) {
      observer->refused(device, bytes);
    }
  }

 private:
  std::vector<BlockObserver*> observers_;
};

}  // namespace tidemark::detail
