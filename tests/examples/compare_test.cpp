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

// Ten blocks, plain and in three regions of 3, 3 and 2 with 2 kept.
std::vector<Technique> techniques() {
  return {{"plain", nullptr, {}, 10}, {"cut", nullptr, {3, 3, 2}, 2}};
}

// What both did: just what the shapes promise.
std::vector<Measured> as_promised() {
  const Technique cut = techniques()[1];
  return {
      {45_MiB, 41_MiB, 1.0, 0},
      {45_MiB - least_peak_saving(cut, kSizes), 41_MiB - least_held_saving(cut, kSizes), 1.3, 0}};
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

TEST(VoxelNetCompare, AHigherPeakThanTheShapesAllowIsAnError) {
  auto measured = as_promised();
  ++measured[1].peak;
  const auto [passed, text] = report(measured);
  EXPECT_FALSE(passed);
  EXPECT_THAT(text, HasSubstr("FAILED cut: peaks above what the shapes allow"));
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
