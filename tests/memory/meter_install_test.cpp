// How the meter gets into a process and out of it.

#include <c10/core/CPUAllocator.h>
#include <gtest/gtest.h>
#include <tidemark/detail/block_observer.h>
#include <tidemark/detail/memory_meter.h>
#include <tidemark/memory/memory_scope.h>
#include <torch/torch.h>

#include <cstdint>
#include <cstdlib>
#include <functional>
#include <iostream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "../support/own_process.h"
#include "../support/threads.h"
#include "../support/thrown_text.h"

namespace {

using tidemark::MemoryScope;
using tidemark::tests::on_threads;
using tidemark::tests::thrown_text;
using torch::Tensor;

class MeterInstall : public ::testing::Test {
 protected:
  static void expect_in_own_process(const std::function<void()>& scenario) {
    tidemark::tests::expect_in_own_process([&] {
      EXPECT_EQ(c10::GetCPUAllocator(), c10::GetDefaultCPUAllocator()) << "installed too soon";
      scenario();
    });
  }
};

/// A user's allocator: passes on to another one.
struct Forwarding : c10::Allocator {
  explicit Forwarding(c10::Allocator* next) : next(next) {}
  c10::DataPtr allocate(size_t bytes) override {
    ++blocks;
    asked += static_cast<int64_t>(bytes);
    return next->allocate(bytes);
  }
  [[nodiscard]] c10::DeleterFnPtr raw_deleter() const override { return next->raw_deleter(); }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    next->copy_data(to, from, bytes);
  }
  c10::Allocator* next;
  int blocks = 0;
  int64_t asked = 0;  // bytes
};

/// Adds up what it is told.
struct Adding : tidemark::detail::BlockObserver {
  void allocated(c10::Device, const void*, int64_t bytes) noexcept override { live += bytes; }
  void freed(c10::Device, const void*, int64_t bytes) noexcept override { live -= bytes; }
  int64_t live = 0;
};

TEST_F(MeterInstall, BlocksFromBeforeAreFreedAndNotCounted) {
  expect_in_own_process([] {
    auto before = torch::ones({1000});
    void* raw = c10::GetCPUAllocator()->raw_allocate(64);
    const MemoryScope scope;
    EXPECT_EQ(scope.baseline(), 0);
    auto after = torch::ones({10});
    EXPECT_EQ(scope.current(), 40);
    before.reset();
    EXPECT_EQ(scope.current(), 40);
    c10::GetCPUAllocator()->raw_deallocate(raw);
    EXPECT_EQ(scope.current(), 40);
  });
}

TEST_F(MeterInstall, StorageFromBeforeCanBeResized) {
  expect_in_own_process([] {
    auto before = torch::ones({1000});
    const MemoryScope scope;
    before.resize_({2000});
    before.fill_(1);
    EXPECT_EQ(scope.current(), 0);  // it keeps the allocator that it was made with
    before = before.clone();
    EXPECT_EQ(scope.current(), 8000);
  });
}

TEST_F(MeterInstall, BlocksFromBeforeAreNotToldToObservers) {
  expect_in_own_process([] {
    auto before = torch::ones({1000});
    Adding observer;
    tidemark::detail::ProcessMeter::get().add_observer(observer);
    auto after = torch::ones({10});
    before.reset();
    EXPECT_EQ(observer.live, 40);
    after.reset();
    EXPECT_EQ(observer.live, 0);
    tidemark::detail::ProcessMeter::get().remove_observer(observer);
  });
}

TEST_F(MeterInstall, InstallingWhenTensorsExistPrintsNothing) {
  expect_in_own_process([] {
    auto before = torch::ones({1000});
    ::testing::internal::CaptureStdout();
    ::testing::internal::CaptureStderr();
    {
      const MemoryScope scope;
      const MemoryScope mine(MemoryScope::Threads::kThis);
      before.reset();
      torch::ones({10});
    }
    EXPECT_EQ(::testing::internal::GetCapturedStdout(), "");
    EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");
  });
}

TEST_F(MeterInstall, EarlyInstallMakesBlocksKnownBeforeTheFirstScope) {
  expect_in_own_process([] {
    tidemark::install_memory_meter();
    auto before = torch::ones({1000});
    const MemoryScope scope;
    EXPECT_EQ(scope.baseline(), 4000);
    before.reset();
    EXPECT_EQ(scope.current(), -4000);
  });
}

TEST_F(MeterInstall, ManyThreadsThatOpenTheFirstScopeInstallOneMeter) {
  expect_in_own_process([] {
    on_threads(8, [](int) {
      for (int i = 0; i < 1000; ++i) {
        const MemoryScope scope;
        const auto block = torch::empty({10});
        EXPECT_GE(scope.allocated(), 40);
      }
    });
    const MemoryScope scope;
    EXPECT_EQ(scope.baseline(), 0);
    const auto block = torch::empty({10});
    EXPECT_EQ(scope.allocations(), 1);
  });
}

TEST_F(MeterInstall, AllocatorThatTheUserInstalledBeforeKeepsWorking) {
  expect_in_own_process([] {
    static Forwarding user(c10::GetCPUAllocator());
    c10::SetCPUAllocator(&user, 3);
    const MemoryScope scope;
    auto a = torch::empty({10});
    EXPECT_EQ(user.blocks, 1);
    EXPECT_EQ(scope.current(), 40);
    void* raw = c10::GetCPUAllocator()->raw_allocate(60);
    EXPECT_EQ(scope.current(), 100);
    c10::GetCPUAllocator()->raw_deallocate(raw);
    a.reset();
    EXPECT_EQ(scope.current(), 0);
  });
}

TEST_F(MeterInstall, AllocatorThatWrapsTheMeterLaterLeavesItInPlace) {
  expect_in_own_process([] {
    const MemoryScope first;
    auto* meter = c10::GetCPUAllocator();
    static Forwarding user(meter);
    c10::SetCPUAllocator(&user);  // the meter left the priority as it was
    ASSERT_EQ(c10::GetCPUAllocator(), &user);
    const MemoryScope second;
    EXPECT_EQ(c10::GetCPUAllocator(), &user);
    const auto a = torch::empty({10});
    EXPECT_EQ(first.current(), 40);
    EXPECT_EQ(second.current(), 40);
    EXPECT_EQ(second.allocations(), 1);
    c10::SetCPUAllocator(meter);
    const auto b = torch::empty({10});
    const MemoryScope third;
    EXPECT_EQ(c10::GetCPUAllocator(), meter);
    EXPECT_EQ(first.current(), 80);
  });
}

TEST_F(MeterInstall, MeterBetweenTwoAllocatorsOfUsersCountsWhatBothCount) {
  expect_in_own_process([] {
    static Forwarding below(c10::GetCPUAllocator());
    c10::SetCPUAllocator(&below);
    const MemoryScope scope;
    static Forwarding above(c10::GetCPUAllocator());
    c10::SetCPUAllocator(&above);
    const MemoryScope mine(MemoryScope::Threads::kThis);
    const int64_t from = above.asked;  // with the one that asked whether it leads to the meter
    {
      torch::nn::Linear layer(16, 16);
      layer(torch::randn({8, 16})).square().sum().backward();
      EXPECT_EQ(scope.allocated(), above.asked - from);
      EXPECT_EQ(mine.allocated(), above.asked - from);
      EXPECT_EQ(below.asked, above.asked);
      EXPECT_EQ(below.blocks, above.blocks);
    }
    EXPECT_EQ(scope.current(), 0);
    EXPECT_EQ(mine.current(), 0);
  });
}

TEST_F(MeterInstall, AllocatorThatReplacesTheMeterIsMeteredFromTheNextScopeOn) {
  expect_in_own_process([] {
    const MemoryScope first;
    auto a = torch::empty({10});
    static Forwarding user(c10::GetDefaultCPUAllocator());
    c10::SetCPUAllocator(&user);
    auto unseen = torch::empty({1000});
    EXPECT_EQ(first.current(), 40);
    const MemoryScope second;
    auto b = torch::empty({10});
    EXPECT_EQ(user.blocks, 3);  // with the one that asked whether it leads to the meter
    EXPECT_EQ(second.current(), 40);
    EXPECT_EQ(first.current(), 80);
    a.reset();
    b.reset();
    unseen.reset();
    EXPECT_EQ(first.current(), 0);
    EXPECT_EQ(second.current(), -40);
  });
}

TEST_F(MeterInstall, GoingBackToAnEarlierAllocatorAgainAndAgainIsFollowed) {
  expect_in_own_process([] {
    static Forwarding user(c10::GetDefaultCPUAllocator());
    const MemoryScope whole;
    for (int i = 0; i < 100; ++i) {
      c10::SetCPUAllocator(i % 2 == 0 ? &user : c10::GetDefaultCPUAllocator());
      const MemoryScope scope;
      const auto a = torch::empty({10});
      EXPECT_EQ(scope.current(), 40);
    }
    EXPECT_EQ(user.blocks, 51);  // with the one that asked whether it leads to the meter
    EXPECT_EQ(whole.current(), 0);
    EXPECT_EQ(whole.peak(), 40);
  });
}

TEST_F(MeterInstall, MoreReplacedAllocatorsThanItCanFollowAreRefused) {
  expect_in_own_process([] {
    bool refused = false;
    std::vector<std::unique_ptr<Forwarding>> users;
    for (int i = 0; i < 20 && !refused; ++i) {
      users.push_back(std::make_unique<Forwarding>(c10::GetDefaultCPUAllocator()));
      c10::SetCPUAllocator(users.back().get());
      const auto text = thrown_text([] { MemoryScope scope; });
      refused = text && text->find("Set the ones that it needs before") != std::string::npos;
    }
    EXPECT_TRUE(refused);
    c10::SetCPUAllocator(c10::GetDefaultCPUAllocator());
  });
}

/// Keeps each block that it hands out in a context of its own, as some users' do.
struct WithContext : c10::Allocator {
  c10::DataPtr allocate(size_t bytes) override {
    auto* context = new std::vector<char>(bytes);
    return {context->data(), context,
            [](void* self) { delete static_cast<std::vector<char>*>(self); },
            c10::Device(c10::kCPU)};
  }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }
};

TEST_F(MeterInstall, AllocatorWithContextsOfItsOwnIsMetered) {
  expect_in_own_process([] {
    static WithContext user;
    c10::SetCPUAllocator(&user);
    const MemoryScope scope;
    auto a = torch::ones({10});
    auto b = torch::ones({20});
    EXPECT_EQ(scope.current(), 120);
    a.reset();
    EXPECT_EQ(scope.current(), 80);
    EXPECT_EQ(scope.peak(), 120);
  });
}

TEST_F(MeterInstall, AllocatorWithContextsOfItsOwnIsMeteredForThreadsAndObservers) {
  expect_in_own_process([] {
    static WithContext user;
    c10::SetCPUAllocator(&user);
    Adding observer;
    tidemark::detail::ProcessMeter::get().add_observer(observer);
    const MemoryScope mine(MemoryScope::Threads::kThis);
    auto a = torch::ones({10});
    EXPECT_EQ(mine.current(), 40);
    EXPECT_EQ(observer.live, 40);
    std::thread([&] { a.reset(); }).join();
    EXPECT_EQ(mine.current(), 0);
    EXPECT_EQ(observer.live, 0);
    tidemark::detail::ProcessMeter::get().remove_observer(observer);
  });
}

Tensor& tensor_of_static_life() {
  static Tensor tensor;
  return tensor;
}
const Tensor& g_tensor_before_main = tensor_of_static_life();
struct ThreadsTensor {
  Tensor tensor;
};
thread_local ThreadsTensor t_tensor;

TEST_F(MeterInstall, ProcessEndsWellWithLiveTensorsInStatics) {
  expect_in_own_process([] {
    static MemoryScope scope;
    static Tensor late = torch::ones({1000});
    tensor_of_static_life() = torch::ones({1000});
    t_tensor.tensor = torch::ones({1000});
    std::thread([] { t_tensor.tensor = torch::ones({1000}); }).join();
    EXPECT_EQ(scope.current(), 12'000);
    EXPECT_TRUE(g_tensor_before_main.defined());
    static std::shared_ptr<Tensor> made_at_exit;
    std::atexit([] {
      auto tensor = torch::ones({10});
      const MemoryScope at_exit;
      auto other = torch::ones({10});
      if (at_exit.current() != 40) {
        std::cerr << "wrong at exit\n";
        std::_Exit(1);
      }
    });
  });
}

TEST_F(MeterInstall, ProcessEndsWellWithScopesOfThreadsAndObserversInStatics) {
  expect_in_own_process([] {
    static Adding& observer = *new Adding;  // it is told of the blocks of statics that end later
    tidemark::detail::ProcessMeter::get().add_observer(observer);
    static MemoryScope scope(MemoryScope::Threads::kThis);
    static std::unique_ptr<MemoryScope> of_thread;
    t_tensor.tensor = torch::ones({1000});
    std::thread([] {
      of_thread = std::make_unique<MemoryScope>(MemoryScope::Threads::kThis);
      t_tensor.tensor = torch::ones({1000});
      tensor_of_static_life() = torch::ones({1000});
    }).join();
    EXPECT_EQ(scope.current(), 4000);
    EXPECT_EQ(of_thread->current(), 4000);
    EXPECT_EQ(observer.live, 8000);
    std::atexit([] {
      const MemoryScope at_exit(MemoryScope::Threads::kThis);
      auto tensor = torch::ones({10});
      if (at_exit.current() != 40) {
        std::cerr << "wrong at exit\n";
        std::_Exit(1);
      }
    });
  });
}

}  // namespace
