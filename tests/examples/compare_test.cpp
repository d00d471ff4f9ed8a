// The demo's own checks: they fail when they should.

#include "voxel_net/compare.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <tidemark/memory/bytes.h>

#include <string>
#include <utility>
#include <vector>

namespace voxel_net {
namespace {

using namespace tidemark::literals;
using ::testing::HasSubstr;

constexpr Sizes kSizes{1_MiB, 1_KiB};

// Ten blocks, plain and in three regions of 3, 3 and 2 with 2 kept; the same in half precision.
std::vector<Way> ways() {
  return {{"plain", nullptr, {}, 10, {}},
          {"cut", nullptr, {3, 3, 2}, 2, {}},
          {"half", nullptr, {}, 10, torch::kHalf},
          {"half and cut", nullptr, {3, 3, 2}, 2, torch::kHalf}};
}

// What they did: just what the shapes promise.
std::vector<examples::Measured> as_promised() {
  std::vector<examples::Measured> measured;
  for (const Way& way : ways()) {
    measured.push_back(
        {45_MiB - least_peak_saving(way, kSizes), 41_MiB - least_held_saving(way, kSizes), 1.0, 0});
  }
  return measured;
}

// Whether the report is content, and what it printed.
std::pair<bool, std::string> report(const std::vector<examples::Measured>& measured,
                                    torch::Device device = torch::kCPU) {
  ::testing::internal::CaptureStdout();
  const bool passed = report_ways(ways(), measured, kSizes, device);
  return {passed, ::testing::internal::GetCapturedStdout()};
}

TEST(VoxelNetCompare, TheSavingsFollowFromTheRegions) {
  const Way cut = ways()[1];
  EXPECT_EQ(least_held_saving(cut, kSizes), (11 + 11 + 7) * 1_MiB);
  // the second region is the highest: 1 result before it, 12 activations again, 4 blocks behind it
  EXPECT_EQ(least_peak_saving(cut, kSizes), (39 - 13) * 1_MiB - 4_KiB);
  EXPECT_EQ(least_held_saving(ways()[0], kSizes), 0);
  EXPECT_EQ(least_peak_saving(ways()[0], kSizes), 0);
  // half of 40 activations, less the half precision weights of ten blocks
  EXPECT_EQ(least_held_saving(ways()[2], kSizes), 20_MiB - 5_KiB);
  // 3 results and 8 activations of half a MiB are left of 40 of a MiB, and the weights of 2 blocks
  EXPECT_EQ(least_held_saving(ways()[3], kSizes), 40_MiB - 11_MiB / 2 - 1_KiB);
}

TEST(VoxelNetCompare, WhatTheShapesPromiseIsAccepted) {
  const auto [passed, text] = report(as_promised());
  EXPECT_TRUE(passed) << text;
}

TEST(VoxelNetCompare, MoreHeldBytesThanTheShapesAllowAreAnError) {
  auto measured = as_promised();
  ++measured[1].held;
  const auto [passed, text] = report(measured);
  EXPECT_FALSE(passed);
  EXPECT_THAT(text, HasSubstr("FAILED cut: holds more than it may"));
}

TEST(VoxelNetCompare, InHalfPrecisionHeldBytesAndGradientsAreChecked) {
  auto measured = as_promised();
  measured[2].peak += 1_GiB;
  EXPECT_TRUE(report(measured).first);
  ++measured[2].held;
  EXPECT_FALSE(report(measured).first);
  measured = as_promised();
  measured[3].difference = 1e-38;
  EXPECT_FALSE(report(measured).first);
}

TEST(VoxelNetCompare, AHigherPeakThanTheShapesAllowIsAnError) {
  auto measured = as_promised();
  ++measured[1].peak;
  const auto [passed, text] = report(measured);
  EXPECT_FALSE(passed);
  EXPECT_THAT(text, HasSubstr("FAILED cut: peaks higher than it may"));
}

TEST(VoxelNetCompare, ManyBatchesAStepMayPeakNoHigherThanPlain) {
  auto all = ways();
  all[3].micro_batches = 8;
  auto measured = as_promised();
  const auto passes = [&] {
    ::testing::internal::CaptureStdout();
    const bool passed = report_ways(all, measured, kSizes, torch::kCPU);
    ::testing::internal::GetCapturedStdout();
    return passed;
  };
  measured[3].peak = measured[0].peak;
  EXPECT_TRUE(passes());
  ++measured[3].peak;
  EXPECT_FALSE(passes());
}

TEST(VoxelNetCompare, TheSmallestDifferenceOfAGradientIsAnError) {
  auto measured = as_promised();
  measured[1].difference = 1e-38;
  const auto [passed, text] = report(measured);
  EXPECT_FALSE(passed);
  EXPECT_THAT(text, HasSubstr("FAILED cut: changes gradients"));
}

TEST(VoxelNetCompare, OffTheCpuHeldBytesAloneAreChecked) {
  auto measured = as_promised();
  measured[1].difference = 1e-6;
  measured[1].peak += 1_GiB;
  EXPECT_TRUE(report(measured, torch::kCUDA).first);
  ++measured[1].held;
  EXPECT_FALSE(report(measured, torch::kCUDA).first);
}

}  // namespace
}  // namespace voxel_net
