#pragma once

#include <thread>
#include <vector>

namespace tidemark::tests {

/// Runs work(0) to work(count - 1), each on a thread of its own, and waits for all of them.
template <class Work>
void on_threads(int count, Work&& work) {
  std::vector<std::thread> threads;
  threads.reserve(count);
  for (int i = 0; i < count; ++i) {
    threads.emplace_back([&work, i] { work(i); });
  }
  for (auto& thread : threads) {
    thread.join();
  }
}

}  // namespace tidemark::tests
