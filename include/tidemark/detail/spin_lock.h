#pragma once

// A lock for a few instructions: where nobody else wants it, it costs one atomic exchange.

#include <algorithm>
#include <atomic>
#include <thread>

namespace tidemark::detail {

class SpinLock {
 public:
  void lock() noexcept {
    int pauses = 1;
    for (int tries = 1; locked_.exchange(true, std::memory_order_acquire); ++tries) {
      // Looking again at once would take the cache line from the holder, who needs it to go on.
      for (int i = 0; i < pauses; ++i) {
        pause();
      }
      pauses = std::min(2 * pauses, 16);
      if (tries % 64 == 0) {
        std::this_thread::yield();  // the holder may have lost its core
      }
    }
  }

  void unlock() noexcept { locked_.store(false, std::memory_order_release); }

 private:
  static void pause() noexcept {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
  }

  std::atomic<bool> locked_{false};
};

}  // namespace tidemark::detail
