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
std::vector<Technique> techniques() {
  return {{"plain", nullptr, {}, 10, {}},
          {"cut", nullptr, {3, 3, 2}, 2, {}},
          {"half", nullptr, {}, 10, torch::kHalf},
          {"half and cut", nullptr, {3, 3, 2}, 2, torch::kHalf}};
}

// What they did: just what the shapes promise.
std::vector<Measured> as_promised() {
  std::vector<Measured> measured;
  for (const Technique& technique : techniques()) {
    measured.push_back({45_MiB - least_peak_saving(technique, kSizes),
                        41_MiB - least_held_saving(technique, kSizes), 1.0, 0});
  }
  return measured;
}

// Whether the report is content, and what it printed.
std::pair<bool, std::string> report(const std::vector<Measured>& measured, bool on_cpu = true) {
  ::testing::internal::CaptureStdout();
  const bool passed = report_techniques(techniques(), measured, kSizes, on_cpu);
  return {passed, ::testing::internal::GetCapturedStdout()};
}

TEST(VoxelNetCompare, TheSavingsFollowFromTheRegions) {
  const Technique cut = techniques()[1];
  EXPECT_EQ(least_held_saving(cut, kSizes), (11 + 11 + 7) * 1_MiB);
  // the second region is the highest: 1 result before it, 12 activations again, 4 blocks behind it
  EXPECT_EQ(least_peak_saving(cut, kSizes), (39 - 13) * 1_MiB - 4_KiB);
  EXPECT_EQ(least_held_saving(techniques()[0], kSizes), 0);
  EXPECT_EQ(least_peak_saving(techniques()[0], kSizes), 0);
  // half of 40 activations, less the half precision weights of ten blocks
  EXPECT_EQ(least_held_saving(techniques()[2], kSizes), 20_MiB - 5_KiB);
  // 3 results and 8 activations of half a MiB are left of 40 of a MiB, and the weights of 2 blocks
  EXPECT_EQ(least_held_saving(techniques()[3], kSizes), 40_MiB - 11_MiB / 2 - 1_KiB);
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
  EXPECT_THAT(text, HasSubstr("FAILED cut: holds more than the shapes allow"));
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
  EXPECT_THAT(text, HasSubstr("FAILED cut: peaks above what the shapes allow"));
}

TEST(VoxelNetCompare, ManyBatchesAStepMayPeakNoHigherThanPlain) {
  auto all = techniques();
  all[3].micro_batches = 8;
  auto measured = as_promised();
  const auto passes = [&] {
    ::testing::internal::CaptureStdout();
    const bool passed = report_techniques(all, measured, kSizes, /*on_cpu=*/true);
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
  EXPECT_TRUE(report(measured, /*on_cpu=*/false).first);
  ++measured[1].held;
  EXPECT_FALSE(report(measured, /*on_cpu=*/false).first);
}

}  // namespace
}  // namespace voxel_net
