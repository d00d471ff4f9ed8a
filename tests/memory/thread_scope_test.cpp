// MemoryScopes of one thread.

#include <c10/core/CPUAllocator.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <tidemark/detail/memory_meter.h>
#include <tidemark/detail/meter_link.h>
#include <tidemark/memory/bytes.h>
#include <tidemark/memory/memory_scope.h>
#include <torch/torch.h>

#include <algorithm>
#include <array>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "../support/threads.h"

namespace {

using namespace tidemark::literals;
using tidemark::MemoryScope;
using tidemark::tests::on_threads;
using torch::Tensor;

constexpr auto kThis = MemoryScope::Threads::kThis;

Tensor bytes(int64_t count) { return torch::empty({count}, torch::kUInt8); }

/// Runs `work` on a thread of its own and waits for it.
template <class Work>
auto on_a_thread(Work&& work) {
  return std::async(std::launch::async, std::forward<Work>(work)).get();
}

TEST(ThreadScope, CountsTheBlocksOfItsOwnThread) {
  const MemoryScope all;
  const MemoryScope mine(kThis);
  const auto kept = bytes(1000);
  bytes(500);
  Tensor others;
  on_a_thread([&] { others = bytes(1_MiB); });
  EXPECT_EQ(mine.current(), 1000);
  EXPECT_EQ(mine.peak(), 1500);
  EXPECT_EQ(mine.allocated(), 1500);
  EXPECT_EQ(mine.allocations(), 2);
  EXPECT_EQ(all.current(), 1000 + 1_MiB);
}

TEST(ThreadScope, FreeCountsForTheThreadThatAllocatedWhicheverFrees) {
  const MemoryScope mine(kThis);
  auto block = bytes(1000);
  on_a_thread([&] {
    const MemoryScope theirs(kThis);
    block.reset();
    EXPECT_EQ(theirs.current(), 0);
  });
  EXPECT_EQ(mine.current(), 0);
  EXPECT_EQ(mine.peak(), 1000);
}

TEST(ThreadScope, FreeingTheBlocksOfOthersIsNotSeen) {
  const MemoryScope mine(kThis);
  auto others = on_a_thread([] {
    const MemoryScope theirs(kThis);
    return bytes(1_MiB);
  });
  others.reset();
  EXPECT_EQ(mine.current(), 0);
}

TEST(ThreadScope, BlocksFromBeforeTheThreadsFirstScopeAreNotSeenToGo) {
  on_a_thread([] {
    auto before = bytes(1000);
    const MemoryScope mine(kThis);
    EXPECT_EQ(mine.baseline(), 0);
    before.reset();
    EXPECT_EQ(mine.current(), 0);
    auto between = bytes(10);
    const MemoryScope later(kThis);
    EXPECT_EQ(later.baseline(), 10);
    between.reset();
    EXPECT_EQ(later.current(), -10);
  });
}

TEST(ThreadScope, InnerScopeDoesNotTakeThePeakFromTheOuterOne) {
  const MemoryScope all;
  const MemoryScope outer(kThis);
  bytes(8_MiB);
  {
    const MemoryScope inner(kThis);
    const MemoryScope inner_all;
    bytes(2_MiB);
    EXPECT_EQ(inner.peak(), 2_MiB);
  }
  EXPECT_EQ(outer.peak(), 8_MiB);
  EXPECT_EQ(all.peak(), 8_MiB);
}

TEST(ThreadScope, CanBeReadAndClosedOnAnotherThread) {
  auto scope = std::make_unique<MemoryScope>(kThis);
  const auto kept = bytes(1000);
  on_a_thread([&] {
    const auto others = bytes(1_MiB);
    EXPECT_EQ(scope->current(), 1000);
    EXPECT_EQ(scope->peak(), 1000);
    scope.reset();
  });
}

TEST(ThreadScope, OutlivesItsThread) {
  std::unique_ptr<MemoryScope> scope;
  auto block = on_a_thread([&] {
    scope = std::make_unique<MemoryScope>(kThis);
    return bytes(1000);
  });
  EXPECT_EQ(scope->current(), 1000);
  // Threads that come after it don't count there, on whatever stack they run.
  for (int i = 0; i < 10; ++i) {
    on_a_thread([] {
      const MemoryScope other(kThis);
      EXPECT_EQ(other.baseline(), 0);
      bytes(1_MiB);
      EXPECT_EQ(other.peak(), 1_MiB);
    });
  }
  EXPECT_EQ(scope->peak(), 1000);
  block.reset();
  EXPECT_EQ(scope->current(), 0);
}

TEST(ThreadScope, OfAThreadThatIsGoneSeesNothingOfTheNextOne) {
  std::optional<MemoryScope> scope;
  on_a_thread([&] { scope.emplace(kThis); });
  on_a_thread([] {
    const MemoryScope other(kThis);
    bytes(1_MiB);
  });
  EXPECT_EQ(scope->peak(), 0);
  EXPECT_EQ(scope->allocations(), 0);
}

TEST(ThreadScope, BlocksThatOutliveTheirThreadDoNotCountForTheNextOne) {
  std::vector<Tensor> blocks;
  for (int i = 0; i < 20; ++i) {
    on_a_thread([&] {
      const MemoryScope scope(kThis);
      EXPECT_EQ(scope.baseline(), 0);
      if (i % 2 == 1) {
        blocks.at(i / 2).reset();
      } else {
        blocks.push_back(bytes(1000));
      }
      EXPECT_EQ(scope.current(), i % 2 == 1 ? 0 : 1000);
    });
  }
}

TEST(ThreadScope, ThreadsThatAreGoneCostNothing) {
  const auto known = [] { return tidemark::detail::ProcessMeter::get().all_windows().size(); };
  const auto one_after_the_other = [] {
    for (int i = 0; i < 100; ++i) {
      on_a_thread([] {
        const MemoryScope scope(kThis);
        bytes(1000);
      });
    }
  };
  one_after_the_other();
  const size_t before = known();
  one_after_the_other();
  EXPECT_EQ(known(), before);
}

/// Opens a scope when its thread ends, after the thread's other objects are gone.
struct AtThreadExit {
  std::function<void()> work;
  ~AtThreadExit() { work(); }
};

TEST(ThreadScope, WorksWhileItsThreadEnds) {
  std::optional<MemoryScope> late;
  Tensor block;
  std::thread([&] {
    static thread_local AtThreadExit at_exit;  // made first, so it goes last
    at_exit.work = [&] {
      late.emplace(kThis);
      block = bytes(1000);
    };
    const MemoryScope scope(kThis);
  }).join();
  EXPECT_EQ(late->current(), 1000);
  block.reset();
  EXPECT_EQ(late->current(), 0);
  late.reset();
  on_a_thread([] {
    const MemoryScope next(kThis);
    bytes(10);
    EXPECT_EQ(next.peak(), 10);
  });
}

/// A thread that does what it is told, one thing at a time.
class Worker {
 public:
  Worker() : thread_([this] { run(); }) {}
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;
  ~Worker() {
    tell(nullptr);
    thread_.join();
  }

  void tell(std::function<void()> work) {
    std::unique_lock<std::mutex> lock(mutex_);
    work_ = std::move(work);
    told_ = true;
    changed_.notify_all();
    changed_.wait(lock, [this] { return !told_; });
  }

 private:
  void run() {
    std::unique_lock<std::mutex> lock(mutex_);
    for (bool on = true; on;) {
      changed_.wait(lock, [this] { return told_; });
      on = work_ != nullptr;
      if (on) {
        work_();
      }
      told_ = false;
      changed_.notify_all();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::function<void()> work_;
  bool told_ = false;
  std::thread thread_;
};

TEST(ThreadScope, AgreesWithAReplayOfRandomHistoriesOfThreeThreads) {
  struct Scope {
    size_t thread;
    std::unique_ptr<MemoryScope> real;
    int64_t baseline;
    int64_t peak;
  };
  struct Held {
    size_t thread;
    int64_t size;
    c10::DataPtr block;
  };
  auto* allocator = c10::GetCPUAllocator();
  for (unsigned seed = 0; seed < 20; ++seed) {
    std::mt19937 random(seed);
    const auto pick = [&random](auto& container) {
      return container.begin() + static_cast<std::ptrdiff_t>(random() % container.size());
    };
    std::array<Worker, 3> workers;
    std::array<int64_t, 3> live{};
    std::vector<Scope> scopes;
    std::vector<Held> blocks;
    const auto open = [&](size_t thread) {
      Scope scope{thread, nullptr, live.at(thread), 0};
      workers.at(thread).tell([&] { scope.real = std::make_unique<MemoryScope>(kThis); });
      scopes.push_back(std::move(scope));
    };
    for (size_t thread = 0; thread < 3; ++thread) {
      open(thread);
    }
    for (int step = 0; step < 300; ++step) {
      const size_t thread = random() % 3;
      const auto choice = random() % 8;
      if (choice == 0) {
        open(thread);
      } else if (choice == 1 && !scopes.empty()) {
        const auto scope = pick(scopes);
        workers.at(thread).tell([&] {
          EXPECT_EQ(scope->real->peak(), scope->peak);
          EXPECT_EQ(scope->real->current(), live.at(scope->thread) - scope->baseline);
          scope->real.reset();
        });
        scopes.erase(scope);
      } else if (choice < 4 && !blocks.empty()) {
        const auto held = pick(blocks);
        workers.at(thread).tell([&] { held->block.clear(); });
        live.at(held->thread) -= held->size;
        blocks.erase(held);
      } else if (choice >= 4) {
        const auto size = static_cast<int64_t>(1 + random() % 5000);
        blocks.push_back({thread, size, {}});
        workers.at(thread).tell([&] { blocks.back().block = allocator->allocate(size); });
        live.at(thread) += size;
        for (auto& scope : scopes) {
          if (scope.thread == thread) {
            scope.peak = std::max(scope.peak, live.at(thread) - scope.baseline);
          }
        }
      }
    }
    for (const auto& scope : scopes) {
      ASSERT_EQ(scope.real->peak(), scope.peak);
      ASSERT_EQ(scope.real->baseline() + scope.real->current(), live.at(scope.thread));
    }
  }
}

TEST(ThreadScope, ThreadsThatFreeEachOthersBlocksAreCountedExactly) {
  constexpr int kThreads = 8;
  constexpr int kBlocks = 10'000;
  struct Mailbox {
    std::mutex mutex;
    std::vector<c10::DataPtr> blocks;
  };
  std::vector<Mailbox> mailboxes(kThreads);
  std::vector<std::unique_ptr<MemoryScope>> scopes(kThreads);
  std::vector<int64_t> allocated(kThreads);
  const MemoryScope all;
  on_threads(kThreads, [&](int t) {
    scopes.at(t) = std::make_unique<MemoryScope>(kThis);
    std::mt19937 random(t);
    for (int i = 0; i < kBlocks; ++i) {
      const auto size = static_cast<int64_t>(1 + random() % 2000);
      auto block = c10::GetCPUAllocator()->allocate(size);
      allocated.at(t) += size;
      Mailbox& other = mailboxes.at(random() % kThreads);
      std::vector<c10::DataPtr> dropped;
      const std::lock_guard<std::mutex> lock(other.mutex);
      other.blocks.push_back(std::move(block));
      if (other.blocks.size() > 10) {
        dropped.swap(other.blocks);
      }
    }
  });
  int64_t live = 0;
  for (int t = 0; t < kThreads; ++t) {
    EXPECT_EQ(scopes.at(t)->allocated(), allocated.at(t));
    EXPECT_EQ(scopes.at(t)->allocations(), kBlocks);
    live += scopes.at(t)->current();
  }
  EXPECT_EQ(live, all.current());
  mailboxes.clear();
  for (const auto& scope : scopes) {
    EXPECT_EQ(scope->current(), 0);
  }
}

TEST(ThreadScope, ChecksOutWithPeakSnapshots) {
  const MemoryScope mine(kThis);
  std::optional<MemoryScope> theirs;
  on_a_thread([&] { theirs.emplace(kThis); });
  bytes(1_KiB);
  const auto before = tidemark::detail::mark_peaks();
  bytes(1_MiB);
  EXPECT_EQ(mine.peak(), 1_MiB);
  before->put_back();
  EXPECT_EQ(mine.peak(), 1_KiB);
  EXPECT_EQ(theirs->peak(), 0);
}

}  // namespace
