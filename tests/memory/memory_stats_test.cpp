#include <c10/core/CachingDeviceAllocator.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <tidemark/memory/bytes.h>
#include <tidemark/memory/empty_cache.h>
#include <tidemark/memory/memory_scope.h>
#include <tidemark/memory/memory_stats.h>
#include <torch/torch.h>

#include <cstdint>
#include <optional>
#include <sstream>
#include <string>
#include <utility>

#include "../support/own_process.h"
#include "../support/thrown_text.h"
#include "fake_device.h"

namespace {

using namespace tidemark::literals;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::Optional;
using tidemark::memory_stats;
using tidemark::MemoryScope;
using tidemark::MemoryStats;
using tidemark::tests::expect_in_own_process;
using tidemark::tests::FakeDevice;
using tidemark::tests::kDevice;
using tidemark::tests::kType;
using tidemark::tests::new_device;
using tidemark::tests::thrown_text;

torch::Tensor bytes(int64_t count) { return torch::empty({count}, torch::kUInt8); }

std::string text_of(const MemoryStats& stats) {
  std::ostringstream out;
  out << stats;
  return out.str();
}

TEST(MemoryStats, OfTheCpuAreWhatWasCounted) {
  expect_in_own_process([] {
    tidemark::install_memory_meter();
    const auto kept = bytes(1000);
    bytes(5000);
    const auto other = bytes(10);
    const MemoryStats stats = memory_stats();
    EXPECT_TRUE(stats.device.is_cpu());
    EXPECT_EQ(stats.requested.current, 1010);
    EXPECT_EQ(stats.requested.peak, 6000);
    EXPECT_EQ(stats.requested.allocated, 6010);
    EXPECT_EQ(stats.requested.freed, 5000);
    EXPECT_EQ(stats.allocations.current, 2);
    EXPECT_EQ(stats.allocations.peak, 2);
    EXPECT_EQ(stats.allocations.allocated, 3);
    EXPECT_EQ(stats.allocations.freed, 1);
  });
}

TEST(MemoryStats, PeakOfTheCpuIsNotTakenByScopes) {
  expect_in_own_process([] {
    tidemark::install_memory_meter();
    bytes(8_MiB);
    const MemoryScope scope;
    bytes(1_MiB);
    EXPECT_EQ(memory_stats().requested.peak, 8_MiB);
    EXPECT_EQ(scope.peak(), 1_MiB);
  });
}

TEST(MemoryStats, OfTheCpuSwitchCountingOn) {
  expect_in_own_process([] {
    EXPECT_EQ(memory_stats().requested.allocated, 0);
    const auto block = bytes(1000);
    EXPECT_EQ(memory_stats().requested.current, 1000);
  });
}

TEST(MemoryStats, OfTheCpuLeaveOpenWhatNobodyTells) {
  const MemoryStats stats = memory_stats();
  EXPECT_EQ(stats.reserved.has_value(), false);
  EXPECT_EQ(stats.fragmentation(), std::nullopt);
  EXPECT_EQ(stats.reserved_ratio(), std::nullopt);
  EXPECT_EQ(stats.outside(), std::nullopt);
  EXPECT_EQ(stats.device_total, std::nullopt);
  EXPECT_FALSE(stats.overreserved());
}

#ifdef __linux__
TEST(MemoryStats, ResidentSetIsToldBesides) {
  const auto touched = torch::ones({16_MiB}, torch::kUInt8);
  const MemoryStats stats = memory_stats();
  EXPECT_GT(stats.resident.value(), 16_MiB);
  EXPECT_GE(stats.resident_peak.value(), 16_MiB);
  EXPECT_THAT(text_of(stats), HasSubstr(" resident, at most "));
}
#endif

TEST(MemoryStats, PrintARowForWhatIsKnown) {
  MemoryStats stats;
  stats.requested = {1000, 12_MiB, 3_GiB, 2_GiB};
  stats.allocations = {2, 40, 5000, 4998};
  stats.resident = 100_MiB;
  stats.resident_peak = 150_MiB;
  EXPECT_EQ("\n" + text_of(stats), R"(
|===========================================================================|
|                        Memory summary, device cpu                         |
|===========================================================================|
|        Metric         | Cur Usage  | Peak Usage | Tot Alloc  | Tot Freed  |
|---------------------------------------------------------------------------|
| Requested memory      | 1000 bytes |   12.0 MiB |    3.0 GiB |    2.0 GiB |
|---------------------------------------------------------------------------|
| Allocations           |          2 |         40 |       5000 |       4998 |
|===========================================================================|
Process: 100.0 MiB resident, at most 150.0 MiB.
)");
}

/// A device with 266 MiB allocated of 400 MiB that it has reserved.
MemoryStats stats_of_a_device() {
  MemoryStats stats;
  stats.device = c10::Device(c10::kCUDA, 1);
  stats.requested = {265_MiB, 300_MiB, 10_GiB, 9_GiB};
  stats.allocations = {7, 9, 1000, 993};
  stats.allocated = {266_MiB, 301_MiB, 11_GiB, 10_GiB};
  stats.active = {270_MiB, 310_MiB, 11_GiB, 10_GiB};
  stats.reserved = {400_MiB, 400_MiB, 400_MiB, 0};
  stats.inactive_split = {30_MiB, 50_MiB, 1_GiB, 1_GiB};
  stats.segments = {20, 20, 20, 0};
  stats.retries = 3;
  stats.ooms = 1;
  stats.device_free = 79_GiB;
  stats.device_total = 80_GiB;
  return stats;
}

TEST(MemoryStats, PrintTheRowsOfPyTorchsSummary) {
  EXPECT_EQ("\n" + text_of(stats_of_a_device()), R"(
|===========================================================================|
|                       Memory summary, device cuda:1                       |
|---------------------------------------------------------------------------|
|                   OOMs: 1        Allocation retries: 3                    |
|===========================================================================|
|        Metric         | Cur Usage  | Peak Usage | Tot Alloc  | Tot Freed  |
|---------------------------------------------------------------------------|
| Allocated memory      |  266.0 MiB |  301.0 MiB |   11.0 GiB |   10.0 GiB |
| Active memory         |  270.0 MiB |  310.0 MiB |   11.0 GiB |   10.0 GiB |
| Requested memory      |  265.0 MiB |  300.0 MiB |   10.0 GiB |    9.0 GiB |
| GPU reserved memory   |  400.0 MiB |  400.0 MiB |  400.0 MiB |    0 bytes |
| Non-releasable memory |   30.0 MiB |   50.0 MiB |    1.0 GiB |    1.0 GiB |
|---------------------------------------------------------------------------|
| Allocations           |          7 |          9 |       1000 |        993 |
| GPU reserved segments |         20 |         20 |         20 |          0 |
|===========================================================================|
Fragmentation: 134.0 MiB reserved but not allocated; reserved is 1.50 x allocated.
Device memory: 79.0 GiB of 80.0 GiB free, 624.0 MiB taken outside the allocator (contexts, libraries, other processes).
)");
}

TEST(MemoryStats, PrintingLeavesTheStreamsFormatAlone) {
  std::ostringstream out;
  out.precision(3);
  out << stats_of_a_device() << 3.14159;
  EXPECT_THAT(out.str(), ::testing::EndsWith("\n3.14"));
}

TEST(MemoryStats, MuchMoreReservedThanEverAllocatedIsPointedOut) {
  MemoryStats stats = stats_of_a_device();
  EXPECT_THAT(text_of(stats), Not(HasSubstr("Warning")));
  stats.reserved->current = 14060_MiB;
  EXPECT_TRUE(stats.overreserved());
  EXPECT_THAT(text_of(stats), AllOf(HasSubstr("Warning: 13.7 GiB are reserved, of which at most "
                                              "301.0 MiB were ever allocated"),
                                    HasSubstr("expandable_segments:True")));
}

TEST(MemoryStats, ReservedForAPeakOrLittleIsNotPointedOut) {
  MemoryStats stats = stats_of_a_device();
  stats.allocated->current = 1_MiB;  // after a step
  EXPECT_FALSE(stats.overreserved());
  stats.allocated->peak = 1_MiB;
  EXPECT_TRUE(stats.overreserved());
  stats.reserved->current = 256_MiB;
  EXPECT_FALSE(stats.overreserved());
}

class DeviceMemoryStats : public ::testing::Test {
 protected:
  DeviceMemoryStats() { c10::SetAllocator(kType, &device_); }

  FakeDevice& device_ = new_device();
};

TEST_F(DeviceMemoryStats, AreWhatTheAllocatorTells) {
  device_.stats.reserved_bytes[0].increase(4_MiB);
  device_.stats.active_bytes[0].increase(3000);
  device_.stats.inactive_split_bytes[0].increase(512);
  device_.stats.segment[0].increase(2);
  device_.stats.num_alloc_retries = 5;
  device_.stats.num_ooms = 6;
  const auto kept = device_.allocate(1000);
  device_.allocate(300);
  const MemoryStats stats = memory_stats(c10::Device(kType));
  EXPECT_EQ(stats.device, kDevice);
  EXPECT_EQ(stats.requested.current, 1000);
  EXPECT_EQ(stats.requested.peak, 1300);
  EXPECT_EQ(stats.requested.freed, 300);
  EXPECT_EQ(stats.allocations.current, 1);
  EXPECT_EQ(stats.allocations.allocated, 2);
  EXPECT_EQ(stats.allocated->current, 1024);
  EXPECT_EQ(stats.active->current, 3000);
  EXPECT_EQ(stats.reserved->current, 4_MiB);
  EXPECT_EQ(stats.inactive_split->current, 512);
  EXPECT_EQ(stats.segments->current, 2);
  EXPECT_EQ(stats.retries, 5);
  EXPECT_EQ(stats.ooms, 6);
  EXPECT_EQ(stats.fragmentation(), 4_MiB - 1024);
  EXPECT_THAT(stats.reserved_ratio(), Optional(4096.0));
  EXPECT_EQ(stats.device_total, std::nullopt);
  EXPECT_EQ(stats.resident, std::nullopt);
}

TEST_F(DeviceMemoryStats, FallBackToBlocksWhereRequestedBytesAreNotTold) {
  device_.tells_requested_bytes = false;
  const auto kept = device_.allocate(1000);
  EXPECT_EQ(memory_stats(kDevice).requested.current, 1024);
}

TEST_F(DeviceMemoryStats, TellWhatIsTakenOutsideTheAllocator) {
  struct Known : FakeDevice {
    std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex) override { return {60_GiB, 80_GiB}; }
  };
  static Known known;
  c10::SetAllocator(kType, &known);
  known.stats.reserved_bytes[0].increase(15_GiB);
  const MemoryStats stats = memory_stats(kDevice);
  EXPECT_EQ(stats.device_free, 60_GiB);
  EXPECT_EQ(stats.device_total, 80_GiB);
  EXPECT_EQ(stats.outside(), 5_GiB);
  EXPECT_EQ(stats.reserved_ratio(), std::nullopt);
}

TEST_F(DeviceMemoryStats, OfADeviceWithoutThemAreRefusedByName) {
  EXPECT_THAT(thrown_text([] { static_cast<void>(memory_stats(c10::kMeta)); }).value(),
              HasSubstr("no memory figures for device meta"));
}

TEST_F(DeviceMemoryStats, EmptyCacheReachesTheDevicesAllocator) {
  tidemark::empty_cache(kDevice);
  EXPECT_EQ(device_.caches_emptied, 1);
}

TEST_F(DeviceMemoryStats, EmptyCacheLeavesADeviceThatNothingHasUsed) {
  device_.is_initialized = false;
  tidemark::empty_cache(kDevice);
  EXPECT_EQ(device_.caches_emptied, 0);
}

TEST_F(DeviceMemoryStats, EmptyCacheDoesNothingOnTheCpu) {
  const auto block = bytes(1000);
  const MemoryScope scope;
  tidemark::empty_cache(c10::kCPU);
  tidemark::empty_cache();
  EXPECT_EQ(scope.current(), 0);
}

TEST_F(DeviceMemoryStats, EmptyCacheOfADeviceWithoutOneIsRefusedByName) {
  EXPECT_THAT(thrown_text([] { tidemark::empty_cache(c10::kMeta); }).value(),
              HasSubstr("no caching allocator for device meta"));
}

}  // namespace
