// MemoryScope on devices, with an allocator that stands for a device's.

#include <c10/core/CachingDeviceAllocator.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <tidemark/memory/bytes.h>
#include <tidemark/memory/measure.h>
#include <tidemark/memory/memory_scope.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "../support/thrown_text.h"
#include "fake_device.h"

namespace {

using namespace tidemark::literals;
using ::testing::HasSubstr;
using tidemark::MemoryScope;
using tidemark::tests::FakeDevice;
using tidemark::tests::kDevice;
using tidemark::tests::kType;
using tidemark::tests::new_device;
using tidemark::tests::thrown_text;

class DeviceMemory : public ::testing::Test {
 protected:
  DeviceMemory() { c10::SetAllocator(kType, &device_); }

  FakeDevice& device_ = new_device();
};

TEST_F(DeviceMemory, CountsRequestedBytes) {
  const MemoryScope scope(kDevice);
  auto block = device_.allocate(1000);
  EXPECT_EQ(scope.current(), 1000);
  device_.allocate(300);
  block.clear();
  EXPECT_EQ(scope.current(), 0);
  EXPECT_EQ(scope.peak(), 1300);
  EXPECT_EQ(scope.allocated(), 1300);
  EXPECT_EQ(scope.allocations(), 2);
}

TEST_F(DeviceMemory, CountsBlocksWhereRequestedBytesAreNotTold) {
  device_.tells_requested_bytes = false;
  const MemoryScope scope(kDevice);
  device_.allocate(1000);
  EXPECT_EQ(scope.peak(), 1024);
  EXPECT_EQ(scope.allocated(), 1024);
}

TEST_F(DeviceMemory, FiguresAreOfOneKindAlsoWhenNothingIsLive) {
  device_.allocate(1000);
  const MemoryScope scope(kDevice);
  EXPECT_EQ(scope.allocated(), 0);
  device_.allocate(1);
  EXPECT_EQ(scope.allocated(), 1);
  EXPECT_EQ(scope.peak(), 1);
}

TEST_F(DeviceMemory, InnerScopeDoesNotTakeThePeakFromTheOuterOne) {
  const MemoryScope outer(kDevice);
  device_.allocate(8_MiB);
  {
    const MemoryScope inner(kDevice);
    device_.allocate(2_MiB);
    EXPECT_EQ(inner.peak(), 2_MiB);
  }
  EXPECT_EQ(outer.peak(), 8_MiB);
}

TEST_F(DeviceMemory, AgreesWithAReplayOfRandomHistories) {
  struct Open {
    std::unique_ptr<MemoryScope> real;
    int64_t baseline;
    int64_t peak;
  };
  for (unsigned seed = 0; seed < 300; ++seed) {
    std::mt19937 random(seed);
    const auto pick = [&random](auto& container) {
      return container.begin() + static_cast<std::ptrdiff_t>(random() % container.size());
    };
    std::vector<Open> scopes;
    std::vector<std::pair<c10::DataPtr, int64_t>> blocks;
    int64_t live = 0;
    for (int step = 0; step < 200; ++step) {
      const auto choice = random() % 6;
      if (choice == 0) {
        scopes.push_back({std::make_unique<MemoryScope>(kDevice), live, 0});
      } else if (choice == 1 && !scopes.empty()) {
        const auto scope = pick(scopes);
        ASSERT_EQ(scope->real->peak(), scope->peak);
        ASSERT_EQ(scope->real->current(), live - scope->baseline);
        scopes.erase(scope);
      } else if (choice == 2 && !blocks.empty()) {
        const auto block = pick(blocks);
        live -= block->second;
        blocks.erase(block);
      } else if (choice > 2) {
        const auto size = static_cast<int64_t>(1 + random() % 5000);
        blocks.emplace_back(device_.allocate(size), size);
        live += size;
        for (auto& scope : scopes) {
          scope.peak = std::max(scope.peak, live - scope.baseline);
        }
      }
    }
    for (const auto& scope : scopes) {
      ASSERT_EQ(scope.real->peak(), scope.peak);
    }
  }
}

TEST_F(DeviceMemory, ResetBySomebodyElseIsNoticedNotReported) {
  const MemoryScope scope(kDevice);
  device_.allocate(8_MiB);
  EXPECT_EQ(scope.peak(), 8_MiB);
  device_.resetPeakStats(0);
  EXPECT_THAT(thrown_text([&] { static_cast<void>(scope.peak()); }).value(),
              HasSubstr("something else reset its statistics"));
  EXPECT_EQ(scope.current(), 0);  // this figure is not touched
  const MemoryScope later(kDevice);
  device_.allocate(1_MiB);
  EXPECT_EQ(later.peak(), 1_MiB);
}

TEST_F(DeviceMemory, ResetOfTheSumsIsNoticed) {
  device_.allocate(8_MiB);
  const MemoryScope scope(kDevice);
  device_.resetAccumulatedStats(0);
  EXPECT_THROW(static_cast<void>(scope.allocated()), c10::Error);
}

TEST_F(DeviceMemory, AllocatorThatIsReplacedUnderAScopeIsNoticedNotReported) {
  device_.allocate(8_MiB);
  const MemoryScope scope(kDevice);
  c10::SetAllocator(kType, &new_device());
  EXPECT_THROW(static_cast<void>(scope.peak()), c10::Error);
}

TEST_F(DeviceMemory, ScopeOfOneThreadIsRefusedWithTheWayOut) {
  EXPECT_THAT(thrown_text([] { MemoryScope scope(kDevice, MemoryScope::Threads::kThis); }).value(),
              ::testing::AllOf(HasSubstr("no figures of one thread for privateuseone:0"),
                               HasSubstr("Use Threads::kAll there")));
}

TEST_F(DeviceMemory, ScopesOfTheDeviceAndOfTheCpuAreIndependent) {
  const MemoryScope cpu;
  const MemoryScope device(kDevice);
  device_.allocate(100);
  EXPECT_EQ(cpu.allocations(), 0);
  EXPECT_EQ(device.allocations(), 1);
}

TEST_F(DeviceMemory, MeasureTellsTheDevicesFigures) {
  c10::DataPtr kept;
  const auto step = tidemark::measure(
      [&] {
        device_.allocate(4_MiB);
        kept = device_.allocate(1_MiB);
      },
      kDevice);
  EXPECT_EQ(step.peak, 4_MiB);
  EXPECT_EQ(step.leftover, 1_MiB);
  EXPECT_EQ(step.allocations, 2);
}

TEST_F(DeviceMemory, AllocatorWithoutStatisticsIsRefusedByName) {
  static struct : c10::Allocator {
    c10::DataPtr allocate(size_t) override { return {nullptr, kDevice}; }
    void copy_data(void*, const void*, size_t) const override {}
  } plain;
  c10::SetAllocator(kType, &plain);
  EXPECT_THAT(thrown_text([] { MemoryScope scope(kDevice); }).value(),
              HasSubstr("no memory figures for device privateuseone:0"));
}

}  // namespace
