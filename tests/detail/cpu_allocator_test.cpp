#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <tidemark/detail/cpu_allocator.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <stdexcept>
#include <vector>

namespace {

using tidemark::detail::BlockObserver;
using tidemark::detail::CpuCounter;
using tidemark::detail::MemoryMeter;
using tidemark::detail::MeteredAllocator;
using tidemark::detail::PeakWindow;
using tidemark::detail::PeakWindows;

const c10::Device kCpu(c10::kCPU);

/// What users install: a base for the metered allocator, whose ways differ from test to test.
struct Base : c10::Allocator {
  static void free_block(void* block) {
    ++freed;
    std::free(block);
  }

  c10::DataPtr allocate(size_t bytes) override {
    void* block = bytes != 0 ? std::malloc(bytes) : nullptr;
    return {block, block, &free_block, kCpu};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &free_block; }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    ++copies;
    std::memcpy(to, from, bytes);
  }

  inline static int freed = 0;
  mutable int copies = 0;
};

class CpuAllocator : public ::testing::Test, public MemoryMeter {
 protected:
  CpuAllocator() {
    Base::freed = 0;
    counter_.open(window_);
  }
  ~CpuAllocator() override { counter_.close(window_); }

  /// A metered allocator over `base`; the `number`th of the test.
  template <int number = 0>
  MeteredAllocator& meter(c10::Allocator& base) {
    static MeteredAllocator* allocator;
    made_.push_back(std::make_unique<MeteredAllocator>(
        base, *this, counter_, [](void* block) { allocator->give_back(block); }));
    allocator = made_.back().get();
    return *allocator;
  }

  [[nodiscard]] PeakWindow seen() { return counter_.read(window_); }

  void add_observer(BlockObserver& observer) override { counter_.add_observer(observer); }
  void remove_observer(BlockObserver& observer) noexcept override {
    counter_.remove_observer(observer);
  }

 private:
  PeakWindows& windows(c10::Device) override { return counter_; }
  PeakWindows& this_threads_windows() override { return counter_.this_threads_windows(); }
  std::vector<PeakWindows*> all_windows() override { return {&counter_}; }
  std::shared_ptr<const tidemark::detail::PeakMarks> mark_peaks() override { return nullptr; }
  tidemark::detail::AllocationLimit& cpu_limit() override { return counter_.limit; }
  void watch_devices(c10::DeviceType, void (*)(MemoryMeter&)) override {}
  void device_allocated(c10::Device, void*, int64_t) noexcept override {}
  void device_freed(c10::Device, void*) noexcept override {}
  void device_refused(c10::Device, int64_t) noexcept override {}
  bool watches(c10::DeviceType) override { return false; }

  CpuCounter counter_;
  PeakWindow window_;
  std::vector<std::unique_ptr<MeteredAllocator>> made_;
};

TEST_F(CpuAllocator, KeepsTheContextSoThatRawAllocateWorks) {
  Base base;
  auto& allocator = meter(base);
  {
    const c10::DataPtr block = allocator.allocate(100);
    EXPECT_EQ(block.get(), block.get_context());
    EXPECT_EQ(block.get_deleter(), allocator.raw_deleter());
    EXPECT_TRUE(allocator.is_simple_data_ptr(block));
    EXPECT_EQ(seen().now.live, 100);
  }
  void* raw = allocator.raw_allocate(50);
  EXPECT_EQ(seen().now.live, 50);
  allocator.raw_deallocate(raw);
  EXPECT_EQ(seen().now.live, 0);
  EXPECT_EQ(seen().peak, 100);
  EXPECT_EQ(seen().now.allocated, 150);
  EXPECT_EQ(seen().now.allocations, 2);
  EXPECT_EQ(Base::freed, 2);
}

TEST_F(CpuAllocator, PassesOnCopiesAndClones) {
  Base base;
  auto& allocator = meter(base);
  const c10::DataPtr block = allocator.allocate(4);
  std::memcpy(block.get(), "abc", 4);
  const c10::DataPtr copy = allocator.clone(block.get(), 4);
  EXPECT_STREQ(static_cast<const char*>(copy.get()), "abc");
  EXPECT_EQ(base.copies, 1);
  EXPECT_EQ(seen().now.live, 8);
}

TEST_F(CpuAllocator, GivesBlocksThatItDoesNotKnowBackToTheBase) {
  Base base;
  auto& allocator = meter(base);
  allocator.raw_deallocate(base.raw_allocate(100));
  EXPECT_EQ(Base::freed, 1);
  EXPECT_EQ(seen().now.live, 0);
  allocator.raw_deallocate(nullptr);
  EXPECT_EQ(Base::freed, 2);
}

TEST_F(CpuAllocator, ZeroBytesAreNoBlock) {
  Base base;
  auto& allocator = meter(base);
  const c10::DataPtr nothing = allocator.allocate(0);
  EXPECT_EQ(nothing.get(), nullptr);
  EXPECT_EQ(nothing.get_deleter(), allocator.raw_deleter());
  EXPECT_EQ(seen().now.allocations, 0);
}

TEST_F(CpuAllocator, ZeroBytesThatHaveAnAddressAreABlock) {
  struct : Base {
    c10::DataPtr allocate(size_t bytes) override { return Base::allocate(bytes + 1); }
  } base;
  auto& allocator = meter(base);
  allocator.allocate(0);
  EXPECT_EQ(seen().now.allocations, 1);
  EXPECT_EQ(seen().now.allocated, 0);
  EXPECT_EQ(Base::freed, 1);
}

TEST_F(CpuAllocator, BlockThatWasGivenBackBehindItsBackStopsToCountWhenItsAddressReturns) {
  struct : Base {
    c10::DataPtr allocate(size_t) override {
      return {&place, &place, [](void*) {}, kCpu};
    }
    c10::DeleterFnPtr raw_deleter() const override {
      return [](void*) {};
    }
    int64_t place = 0;
  } base;
  auto& allocator = meter(base);
  base.raw_deallocate(allocator.raw_allocate(1000));
  EXPECT_EQ(seen().now.live, 1000);
  const c10::DataPtr block = allocator.allocate(10);
  EXPECT_EQ(seen().now.live, 10);
}

TEST_F(CpuAllocator, EachBlockGetsTheDeleterThatItsBaseGaveIt) {
  static int odd = 0;
  static int even = 0;
  odd = even = 0;
  struct : Base {
    c10::DataPtr allocate(size_t bytes) override {
      void* block = std::malloc(bytes);
      if (bytes % 2 == 0) {
        return {block, block, [](void* p) { ++even, std::free(p); }, kCpu};
      }
      return {block, block, [](void* p) { ++odd, std::free(p); }, kCpu};
    }
    c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  } base;
  auto& allocator = meter(base);
  EXPECT_EQ(allocator.raw_deleter(), nullptr);
  {
    const auto first = allocator.allocate(2);
    const auto second = allocator.allocate(3);
    const auto third = allocator.allocate(5);
    EXPECT_EQ(seen().now.live, 10);
  }
  EXPECT_EQ(even, 1);
  EXPECT_EQ(odd, 2);
  EXPECT_EQ(seen().now.live, 0);
}

/// Blocks with a context of their own, the same one for all of them.
struct Arena : Base {
  c10::DataPtr allocate(size_t bytes) override {
    ++users;
    void* block = static_cast<char*>(memory.data()) + used;
    used += bytes;
    return {block, this, [](void* self) { --static_cast<Arena*>(self)->users; }, kCpu};
  }
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  std::vector<char> memory = std::vector<char>(1024);
  size_t used = 0;
  int users = 0;
};

TEST_F(CpuAllocator, CountsBlocksThatHaveAContextOfTheirOwn) {
  Arena arena;
  auto& allocator = meter(arena);
  EXPECT_EQ(allocator.raw_deleter(), nullptr);
  {
    c10::DataPtr first = allocator.allocate(100);
    const c10::DataPtr second = allocator.allocate(200);
    EXPECT_EQ(first.get(), arena.memory.data());
    EXPECT_FALSE(allocator.is_simple_data_ptr(first));
    EXPECT_EQ(seen().now.live, 300);
    first.clear();
    EXPECT_EQ(seen().now.live, 200);
    EXPECT_EQ(arena.users, 1);
  }
  EXPECT_EQ(seen().now.live, 0);
  EXPECT_EQ(arena.users, 0);
}

TEST_F(CpuAllocator, MemoryThatNobodyGivesBackIsLeftAlone) {
  struct : Base {
    c10::DataPtr allocate(size_t) override { return {&place, kCpu}; }
    int64_t place = 0;
  } base;
  auto& allocator = meter(base);
  EXPECT_EQ(allocator.allocate(8).get(), &base.place);
  EXPECT_EQ(seen().now.allocations, 0);
}

/// Refuses what is too big for it.
struct Small : Base {
  c10::DataPtr allocate(size_t bytes) override {
    if (bytes > 1000) {
      throw std::runtime_error("out of memory");
    }
    return Base::allocate(bytes);
  }
};

TEST_F(CpuAllocator, ExceptionOfTheBasePassesAndTheNextBlockCounts) {
  Small base;
  auto& allocator = meter(base);
  EXPECT_THROW(allocator.allocate(2000), std::runtime_error);
  EXPECT_EQ(seen().now.allocations, 0);
  const c10::DataPtr block = allocator.allocate(10);
  EXPECT_EQ(seen().now.live, 10);
}

TEST_F(CpuAllocator, ObserversAreToldWhatTheBaseRefusesOnce) {
  struct : BlockObserver {
    void allocated(c10::Device, const void*, int64_t) noexcept override { ++blocks; }
    void freed(c10::Device, const void*, int64_t) noexcept override { ++blocks; }
    void refused(c10::Device device, int64_t bytes) noexcept override {
      EXPECT_TRUE(device.is_cpu());
      refusals.push_back(bytes);
    }
    int blocks = 0;
    std::vector<int64_t> refusals;
  } observer;
  add_observer(observer);
  Small base;
  auto& outer = meter<1>(meter<0>(base));
  EXPECT_THROW(outer.allocate(2000), std::runtime_error);
  EXPECT_THAT(observer.refusals, ::testing::ElementsAre(2000));
  EXPECT_EQ(observer.blocks, 0);
  remove_observer(observer);
}

TEST_F(CpuAllocator, BlockThatPassesTwoLinksCountsOnce) {
  Base base;
  auto& inner = meter<0>(base);
  auto& outer = meter<1>(inner);
  {
    const c10::DataPtr block = outer.allocate(100);
    EXPECT_EQ(block.get(), block.get_context());
    EXPECT_EQ(seen().now.live, 100);
    EXPECT_EQ(seen().now.allocations, 1);
    const c10::DataPtr direct = inner.allocate(10);
    EXPECT_EQ(seen().now.live, 110);
  }
  EXPECT_EQ(seen().now.live, 0);
  EXPECT_EQ(Base::freed, 2);
}

TEST_F(CpuAllocator, CachingAllocatorBetweenTwoLinksIsCountedByWhatItHandsOut) {
  /// Keeps every block for the next request of its size.
  struct Cache : Base {
    c10::DataPtr allocate(size_t bytes) override {
      auto& free = free_blocks()[bytes];
      if (free.empty()) {
        void* block = below->raw_allocate(bytes);
        sizes()[block] = bytes;
        return {block, block, &keep, kCpu};
      }
      void* block = free.back();
      free.pop_back();
      return {block, block, &keep, kCpu};
    }
    c10::DeleterFnPtr raw_deleter() const override { return &keep; }
    static void keep(void* block) { free_blocks()[sizes().at(block)].push_back(block); }
    static std::map<size_t, std::vector<void*>>& free_blocks() {
      static std::map<size_t, std::vector<void*>> blocks;
      return blocks;
    }
    static std::map<void*, size_t>& sizes() {
      static std::map<void*, size_t> sizes;
      return sizes;
    }
    c10::Allocator* below = nullptr;
  };
  Base base;
  auto& inner = meter<0>(base);
  Cache cache;
  cache.below = &inner;
  auto& outer = meter<1>(cache);
  for (int i = 0; i < 3; ++i) {
    const c10::DataPtr block = outer.allocate(100);
    EXPECT_EQ(seen().now.live, 100);
  }
  EXPECT_EQ(seen().now.live, 0);
  EXPECT_EQ(seen().now.allocations, 3);
  for (const auto& [block, bytes] : Cache::sizes()) {
    inner.raw_deallocate(block);
  }
  EXPECT_EQ(seen().now.live, 0);
  EXPECT_EQ(Base::freed, 1);
}

}  // namespace
