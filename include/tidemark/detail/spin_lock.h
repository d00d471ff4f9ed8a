#pragma once

// A lock for a few instructions: where nobody else wants it, it costs one atomic exchange.

#include <atomic>
#include <thread>

namespace tidemark::detail {

class SpinLock {
 public:
  void lock() noexcept {
    while (locked_.exchange(true, std::memory_order_acquire)) {
      for (int spins = 1; locked_.load(std::memory_order_relaxed); ++spins) {
        if (spins % 64 == 0) {
          std::this_thread::yield();  // the holder may have lost its core
        }
      }
    }
  }

  void unlock() noexcept { locked_.store(false, std::memory_order_release); }

 private:
  std::atomic<bool> locked_{false};
};

}  // namespace tidemark::detail
