#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <tidemark/memory/bytes.h>
#include <tidemark/memory/held_bytes_scope.h>
#include <tidemark/memory/measure.h>
#include <tidemark/memory/memory_scope.h>
#include <torch/torch.h>

#include <cstdint>
#include <thread>
#include <vector>

#include "../support/thrown_text.h"

namespace {

using namespace tidemark::literals;
using ::testing::HasSubstr;
using tidemark::HeldBytesScope;
using tidemark::MemoryScope;
using tidemark::tests::thrown_text;
using torch::Tensor;

class MemoryCuda : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!torch::cuda::is_available()) {
      GTEST_SKIP() << "no CUDA device, or a LibTorch without CUDA";
    }
  }

  static Tensor bytes(int64_t count) {
    return torch::empty({count}, torch::dtype(torch::kUInt8).device(torch::kCUDA));
  }
};

TEST_F(MemoryCuda, ScopeWorksBeforeAnythingElseTouchedTheDevice) {
  const MemoryScope scope(torch::kCUDA);
  EXPECT_EQ(scope.current(), 0);
}

TEST_F(MemoryCuda, CountsRequestedBytesOfTensorsExactly) {
  const MemoryScope scope(torch::kCUDA);
  auto a = bytes(1000);
  bytes(8_MiB + 1);
  EXPECT_EQ(scope.current(), 1000);
  EXPECT_EQ(scope.peak(), 1000 + 8_MiB + 1);
  EXPECT_EQ(scope.allocated(), 1000 + 8_MiB + 1);
  EXPECT_EQ(scope.allocations(), 2);
  a.reset();
  EXPECT_EQ(scope.current(), 0);
}

TEST_F(MemoryCuda, InnerScopeDoesNotTakeThePeakFromTheOuterOne) {
  const MemoryScope outer(torch::Device(torch::kCUDA, 0));
  bytes(8_MiB);
  {
    const MemoryScope inner(torch::kCUDA);
    bytes(2_MiB);
    EXPECT_EQ(inner.peak(), 2_MiB);
  }
  EXPECT_EQ(outer.peak(), 8_MiB);
}

TEST_F(MemoryCuda, SeesBlocksOfOtherThreads) {
  const MemoryScope scope(torch::kCUDA);
  Tensor block;
  std::thread([&] { block = bytes(1_MiB); }).join();
  EXPECT_EQ(scope.current(), 1_MiB);
}

TEST_F(MemoryCuda, CpuScopeSeesNothingOfTheDevice) {
  bytes(1);
  const MemoryScope scope;
  auto a = bytes(8_MiB);
  EXPECT_EQ(scope.peak(), 0);
}

TEST_F(MemoryCuda, DeviceThatDoesNotExistIsRefusedByName) {
  EXPECT_THAT(thrown_text([] { MemoryScope scope(torch::Device(torch::kCUDA, 100)); }).value(),
              HasSubstr("no memory figures for device cuda:100"));
}

TEST_F(MemoryCuda, ResetBySomebodyElseIsNoticedNotReported) {
  const MemoryScope scope(torch::kCUDA);
  bytes(8_MiB);
  EXPECT_EQ(scope.peak(), 8_MiB);
  tidemark::detail::device_allocator(torch::kCUDA).resetPeakStats(0);
  EXPECT_THROW(static_cast<void>(scope.peak()), c10::Error);
}

TEST_F(MemoryCuda, MeasuresATrainingStepTheSameInEveryRepeat) {
  torch::nn::Sequential net(torch::nn::Conv3d(torch::nn::Conv3dOptions(2, 4, 3).padding(1)),
                            torch::nn::BatchNorm3d(4), torch::nn::ReLU());
  net->to(torch::kCUDA);
  auto x = torch::randn({2, 2, 8, 8, 8}, torch::kCUDA);
  const auto step = [&] { net->forward(x).square().mean().backward(); };
  step();
  step();
  std::vector<int64_t> peaks;
  std::vector<int64_t> held;
  for (int i = 0; i < 5; ++i) {
    const auto measured = tidemark::measure(step, torch::kCUDA);
    peaks.push_back(measured.peak);
    held.push_back(measured.held);
    EXPECT_EQ(measured.leftover, 0);
  }
  EXPECT_GT(held.front(), 2 * 4 * 8 * 8 * 8 * 4);
  EXPECT_THAT(peaks, ::testing::Each(peaks.front()));
  EXPECT_THAT(held, ::testing::Each(held.front()));
}

TEST_F(MemoryCuda, HeldBytesOfADeviceGraphAreReleasedByItsBackward) {
  auto w = torch::randn({1000}, torch::device(torch::kCUDA).requires_grad(true));
  const HeldBytesScope held(torch::kCUDA);
  auto y = (w * torch::randn({1000}, torch::kCUDA)).exp().sum();
  EXPECT_EQ(held.current(), 8000);
  y.backward();
  EXPECT_EQ(held.current(), 0);
}

}  // namespace
