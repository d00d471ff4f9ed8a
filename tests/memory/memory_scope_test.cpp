#include <ATen/Parallel.h>
#include <c10/core/CPUAllocator.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <tidemark/memory/bytes.h>
#include <tidemark/memory/memory_scope.h>
#include <torch/torch.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "../support/threads.h"
#include "../support/thrown_text.h"

namespace {

using namespace tidemark::literals;
using ::testing::AllOf;
using ::testing::HasSubstr;
using tidemark::MemoryScope;
using tidemark::tests::on_threads;
using tidemark::tests::thrown_text;
using torch::Tensor;

Tensor bytes(int64_t count) { return torch::empty({count}, torch::kUInt8); }

TEST(MemoryScope, CountsTheBytesOfTensorsExactly) {
  const MemoryScope scope;
  auto a = torch::empty({3, 5, 7});
  EXPECT_EQ(scope.current(), 3 * 5 * 7 * 4);
  auto b = torch::empty({10}, torch::kFloat64);
  auto c = torch::empty({11}, torch::kHalf);
  EXPECT_EQ(scope.current(), 420 + 80 + 22);
  EXPECT_EQ(scope.allocations(), 3);
  a.reset();
  EXPECT_EQ(scope.current(), 80 + 22);
  EXPECT_EQ(scope.peak(), 420 + 80 + 22);
  EXPECT_EQ(scope.allocated(), 420 + 80 + 22);
}

TEST(MemoryScope, ViewsCountNothing) {
  auto a = bytes(1000);
  const MemoryScope scope;
  auto views = {a.view({10, 100}), a.narrow(0, 5, 10), a.detach(), a.view({10, 100}).t()};
  EXPECT_EQ(views.size(), 4U);
  EXPECT_EQ(scope.allocations(), 0);
  EXPECT_EQ(scope.peak(), 0);
}

TEST(MemoryScope, EmptyTensorsCountNothing) {
  const MemoryScope scope;
  auto a = bytes(0);
  auto b = torch::empty({5, 0, 3});
  EXPECT_EQ(scope.allocations(), 0);
}

TEST(MemoryScope, CountsWhatResizeAllocatesAndFrees) {
  const MemoryScope scope;
  auto a = bytes(100);
  a.resize_({1000});
  EXPECT_EQ(scope.current(), 1000);
  EXPECT_EQ(scope.peak(), 1100);  // old and new block, while it copies
  a.set_(bytes(7));
  EXPECT_EQ(scope.current(), 7);
}

TEST(MemoryScope, PeakCountsWhatIsGoneAgain) {
  const MemoryScope scope;
  bytes(32_MiB);
  EXPECT_EQ(scope.current(), 0);
  EXPECT_EQ(scope.peak(), 32_MiB);
}

TEST(MemoryScope, FreeingOlderBlocksIsNegativeAndNoPeak) {
  const MemoryScope outer;
  auto older = bytes(8_MiB);
  const MemoryScope scope;
  EXPECT_EQ(scope.baseline() - outer.baseline(), 8_MiB);
  older.reset();
  EXPECT_EQ(scope.current(), -8_MiB);
  EXPECT_EQ(scope.peak(), 0);
  bytes(5_MiB);
  EXPECT_EQ(scope.peak(), 0);
  bytes(9_MiB);
  EXPECT_EQ(scope.peak(), 1_MiB);
}

TEST(MemoryScope, InnerScopeDoesNotTakeThePeakFromTheOuterOne) {
  const MemoryScope outer;
  bytes(8_MiB);
  {
    const MemoryScope inner;
    bytes(2_MiB);
    EXPECT_EQ(inner.peak(), 2_MiB);
  }
  EXPECT_EQ(outer.peak(), 8_MiB);
}

TEST(MemoryScope, OuterScopeSeesThePeakOfTheInnerOne) {
  const MemoryScope outer;
  const auto kept = bytes(1_MiB);
  {
    const MemoryScope inner;
    bytes(2_MiB);
  }
  EXPECT_EQ(outer.peak(), 3_MiB);
}

TEST(MemoryScope, ScopeDoesNotSeeAnEarlierPeak) {
  const MemoryScope outer;
  bytes(8_MiB);
  const MemoryScope scope;
  EXPECT_EQ(scope.peak(), 0);
  EXPECT_EQ(scope.allocated(), 0);
  EXPECT_EQ(scope.allocations(), 0);
}

TEST(MemoryScope, OverlappingScopesThatCloseInAnyOrderAreExact) {
  auto first = std::make_unique<MemoryScope>();
  auto a = bytes(4_MiB);
  auto second = std::make_unique<MemoryScope>();
  bytes(1_MiB);
  EXPECT_EQ(first->peak(), 5_MiB);
  first.reset();
  a.reset();
  EXPECT_EQ(second->peak(), 1_MiB);
  EXPECT_EQ(second->current(), -4_MiB);
  bytes(6_MiB);
  EXPECT_EQ(second->peak(), 2_MiB);
}

/// Replays what scopes should say, knowing the whole history.
struct Replay {
  struct Scope {
    std::unique_ptr<MemoryScope> real;
    int64_t baseline = 0;
    int64_t peak = 0;
    int64_t allocated = 0;
    int64_t allocations = 0;
  };

  void allocate(int64_t size) {
    live += size;
    for (auto& scope : scopes) {
      scope.peak = std::max(scope.peak, live - scope.baseline);
      scope.allocated += size;
      ++scope.allocations;
    }
  }
  void free(int64_t size) { live -= size; }
  void open() { scopes.push_back({std::make_unique<MemoryScope>(), live, 0, 0, 0}); }
  void check(const Scope& scope) const {
    ASSERT_EQ(scope.real->current(), live - scope.baseline);
    ASSERT_EQ(scope.real->peak(), scope.peak);
    ASSERT_EQ(scope.real->allocated(), scope.allocated);
    ASSERT_EQ(scope.real->allocations(), scope.allocations);
  }

  int64_t live = 0;
  std::deque<Scope> scopes;
};

TEST(MemoryScope, AgreesWithAReplayOfRandomHistories) {
  auto* allocator = c10::GetCPUAllocator();
  for (unsigned seed = 0; seed < 300; ++seed) {
    std::mt19937 random(seed);
    const auto pick = [&random](auto& container) {
      return container.begin() + static_cast<std::ptrdiff_t>(random() % container.size());
    };
    Replay replay;
    replay.open();
    std::vector<std::pair<c10::DataPtr, int64_t>> blocks;
    for (int step = 0; step < 200; ++step) {
      switch (random() % 8) {
        case 0:
          replay.open();
          break;
        case 1:
          if (!replay.scopes.empty()) {
            const auto scope = pick(replay.scopes);
            replay.check(*scope);
            replay.scopes.erase(scope);
          }
          break;
        case 2:
          for (const auto& scope : replay.scopes) {
            replay.check(scope);
          }
          break;
        case 3:
        case 4:
          if (!blocks.empty()) {
            const auto block = pick(blocks);
            replay.free(block->second);
            blocks.erase(block);
          }
          break;
        default: {
          const auto size = static_cast<int64_t>(1 + random() % 5000);
          blocks.emplace_back(allocator->allocate(size), size);
          replay.allocate(size);
        }
      }
    }
    for (const auto& scope : replay.scopes) {
      replay.check(scope);
    }
  }
}

TEST(MemoryScope, SeesBlocksOfEveryThread) {
  const MemoryScope scope;
  Tensor from_thread;
  std::thread([&] { from_thread = bytes(1_MiB); }).join();
  EXPECT_EQ(scope.current(), 1_MiB);
  std::thread([&] { from_thread.reset(); }).join();
  EXPECT_EQ(scope.current(), 0);

  std::vector<Tensor> chunks(4);
  at::parallel_for(0, 4, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      chunks[i] = bytes(1000);
    }
  });
  EXPECT_EQ(scope.current(), 4000);
}

TEST(MemoryScope, EightThreadsThatFreeEachOthersBlocksAreCountedExactly) {
  constexpr int kThreads = 8;
  constexpr int kBlocks = 20'000;
  const MemoryScope scope;
  struct Mailbox {
    std::mutex mutex;
    std::vector<c10::DataPtr> blocks;
  };
  std::vector<Mailbox> mailboxes(kThreads);
  std::atomic<int64_t> allocated{0};
  on_threads(kThreads, [&](int t) {
    std::mt19937 random(t);
    for (int i = 0; i < kBlocks; ++i) {
      const auto size = static_cast<int64_t>(1 + random() % 2000);
      auto block = c10::GetCPUAllocator()->allocate(size);
      allocated += size;
      Mailbox& other = mailboxes[random() % kThreads];
      std::vector<c10::DataPtr> dropped;
      const std::lock_guard<std::mutex> lock(other.mutex);
      other.blocks.push_back(std::move(block));
      if (other.blocks.size() > 10) {
        dropped.swap(other.blocks);
      }
    }
  });
  EXPECT_EQ(scope.allocated(), allocated);
  EXPECT_EQ(scope.allocations(), kThreads * kBlocks);
  EXPECT_GE(scope.peak(), scope.current());
  EXPECT_LE(scope.peak(), kThreads * 12 * 2000);
  mailboxes.clear();
  EXPECT_EQ(scope.current(), 0);
}

TEST(MemoryScope, PeakOfThreadsThatHoldTogetherIsTheirSum) {
  constexpr int kThreads = 8;
  for (int round = 0; round < 20; ++round) {
    const MemoryScope scope;
    std::atomic<int> holding{0};
    on_threads(kThreads, [&](int) {
      auto block = bytes(1_MiB);
      ++holding;
      while (holding < kThreads) {
        std::this_thread::yield();
      }
    });
    ASSERT_EQ(scope.peak(), kThreads * 1_MiB);
    ASSERT_EQ(scope.current(), 0);
  }
}

TEST(MemoryScope, ScopesOfManyThreadsKeepTheirPeaks) {
  // All threads together never hold more than 8 KiB, and each has held 1 KiB inside its scope.
  on_threads(8, [](int) {
    for (int i = 0; i < 2000; ++i) {
      const MemoryScope scope;
      const int64_t before = scope.baseline();
      auto block = bytes(1_KiB);
      ASSERT_GE(scope.peak() + before, 1_KiB);
      ASSERT_LE(scope.peak(), 8_KiB);
      ASSERT_GE(scope.allocated(), 1_KiB);
    }
  });
}

TEST(MemoryScope, DeviceWithoutStatisticsIsRefusedByName) {
  EXPECT_THAT(thrown_text([] { MemoryScope scope(c10::kMeta); }).value(),
              AllOf(HasSubstr("no memory figures for device meta"), HasSubstr("Measure the CPU")));
}

// ---- what runs on the meter ----------------------------------------------------------------

/// Runs `work` twice (caches fill up in the first run), and expects that all memory comes back.
void expect_all_given_back(const std::function<void()>& work) {
  work();
  const MemoryScope scope;
  work();
  EXPECT_EQ(scope.current(), 0);
  EXPECT_GT(scope.peak(), 0);
}

TEST(MemoryScopeSurvives, FloatConv3dOfBatchTwo) {
  const MemoryScope scope;
  expect_all_given_back([] {
    torch::nn::Conv3d conv(torch::nn::Conv3dOptions(8, 16, 3));
    auto x = torch::randn({2, 8, 6, 6, 6}, torch::requires_grad());
    conv(x).sum().backward();
  });
}

TEST(MemoryScopeSurvives, TransposedStridedAndHalfPrecisionConvolutions) {
  const MemoryScope scope;
  expect_all_given_back([] {
    auto x = torch::randn({2, 8, 6, 6, 6}, torch::requires_grad());
    torch::nn::ConvTranspose3d up(torch::nn::ConvTranspose3dOptions(8, 16, 3).stride(2));
    up(x).sum().backward();
    torch::nn::Conv3d strided(torch::nn::Conv3dOptions(8, 16, 3).stride(2).dilation(2).padding(2));
    strided(x).sum().backward();
    torch::nn::Conv3d low(torch::nn::Conv3dOptions(8, 16, 3));
    low->to(torch::kBFloat16);
    low(x.to(torch::kBFloat16)).sum().backward();
  });
}

TEST(MemoryScopeSurvives, LstmTrainingAndInference) {
  const MemoryScope scope;
  expect_all_given_back([] {
    torch::nn::LSTM lstm(16, 32);
    std::get<0>(lstm(torch::randn({5, 2, 16}))).sum().backward();
    torch::NoGradGuard no_grad;
    lstm(torch::randn({5, 2, 16}));
  });
}

TEST(MemoryScopeSurvives, MkldnnTensors) {
  const MemoryScope scope;
  expect_all_given_back([] {
    torch::NoGradGuard no_grad;
    auto opaque = torch::randn({1, 8, 8, 8}).to_mkldnn();
    torch::relu(opaque).to_dense();
  });
}

TEST(MemoryScopeSurvives, QuantizedLinear) {
  const MemoryScope scope;
  expect_all_given_back([] {
    torch::NoGradGuard no_grad;
    auto& dispatcher = c10::Dispatcher::singleton();
    const auto call = [&](const char* name, std::vector<c10::IValue> stack) {
      dispatcher.findSchemaOrThrow(name, "").callBoxed(&stack);
      return stack.at(0);
    };
    auto weight = torch::quantize_per_tensor(torch::randn({8, 8}), 0.1, 0, torch::kQInt8);
    auto input = torch::quantize_per_tensor(torch::randn({4, 8}), 0.1, 0, torch::kQUInt8);
    auto packed = call("quantized::linear_prepack", {weight, c10::IValue()});
    call("quantized::linear", {input, packed, 1.0, int64_t{0}});
  });
}

TEST(MemoryScopeSurvives, LazyClones) {
  const MemoryScope scope;
  expect_all_given_back([] {
    auto a = torch::randn({100});
    auto b = at::_lazy_clone(a);
    b.add_(1);
    auto c = at::_lazy_clone(a);
    a.reset();
    c.add_(1);
  });
}

TEST(MemoryScopeSurvives, RawAllocation) {
  const MemoryScope scope;
  auto* allocator = c10::GetCPUAllocator();
  void* block = allocator->raw_allocate(64);
  EXPECT_EQ(scope.current(), 64);
  allocator->raw_deallocate(block);
  EXPECT_EQ(scope.current(), 0);
}

TEST(MemoryScope, DestroyedModelWithItsOptimizerGivesAllBack) {
  expect_all_given_back([] {
    torch::nn::Sequential net(torch::nn::Conv3d(torch::nn::Conv3dOptions(2, 4, 3)),
                              torch::nn::BatchNorm3d(4), torch::nn::ReLU());
    torch::optim::Adam optimizer(net->parameters());
    net->forward(torch::randn({2, 2, 6, 6, 6})).sum().backward();
    optimizer.step();
  });
}

TEST(MemoryScope, PeaksAreTheSameToTheByteInEveryRepeat) {
  torch::nn::Sequential net(torch::nn::Conv3d(torch::nn::Conv3dOptions(2, 4, 3).padding(1)),
                            torch::nn::BatchNorm3d(4), torch::nn::ReLU(),
                            torch::nn::Conv3d(torch::nn::Conv3dOptions(4, 2, 3).padding(1)));
  torch::optim::Adam optimizer(net->parameters());
  auto x = torch::randn({2, 2, 8, 8, 8});
  std::vector<int64_t> peaks;
  for (int step = 0; step < 6; ++step) {
    const MemoryScope scope;
    optimizer.zero_grad();
    net->forward(x).square().mean().backward();
    optimizer.step();
    if (step > 0) {  // the first one allocates gradients and optimizer state
      peaks.push_back(scope.peak());
      EXPECT_EQ(scope.current(), 0);
    }
  }
  EXPECT_GT(peaks.front(), 2 * 4 * 8 * 8 * 8 * 4);
  EXPECT_THAT(peaks, ::testing::Each(peaks.front()));
}

}  // namespace
