// Regions on a device: random numbers, settings, streams, and what no value can be looked at of.

#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <gtest/gtest.h>
#include <tidemark/checkpoint.h>
#include <torch/torch.h>

#include <memory>

#include "support/plain_and_checkpointed.h"
#include "support/thrown_text.h"

namespace {

using tidemark::checkpoint;
using tidemark::tests::expect_equal_to_plain;
using tidemark::tests::thrown_text;
using torch::Tensor;

class CheckpointCuda : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!torch::cuda::is_available()) {
      GTEST_SKIP() << "no CUDA device, or a LibTorch without CUDA";
    }
  }
};

TEST_F(CheckpointCuda, MasksAreRepeatedAlsoWhenTheArgumentsAreOnTheCpu) {
  expect_equal_to_plain([](auto& region, auto& record) {
    const Tensor x = torch::randn({64, 64}).requires_grad_();
    for (int i = 0; i < 3; ++i) {
      region(
          [](const Tensor& a) { return torch::dropout(a.to(torch::kCUDA).exp(), 0.5, true).sin(); },
          x)
          .sum()
          .backward();
    }
    record("x", x.grad());
    record("next", torch::rand({4}, torch::kCUDA));
  });
}

TEST_F(CheckpointCuda, TheReRunIsOnTheStreamOfTheForward) {
  expect_equal_to_plain([](auto& region, auto& record) {
    const Tensor x = torch::randn({256, 256}, torch::kCUDA).requires_grad_();
    torch::cuda::synchronize();
    Tensor y;
    {
      const c10::impl::VirtualGuardImpl device(torch::kCUDA);
      const c10::StreamGuard guard(device.getStreamFromGlobalPool(torch::Device(torch::kCUDA, 0)));
      y = region([](const Tensor& a) { return a.mm(a.t()).sin().mm(a); }, x);
    }
    torch::cuda::synchronize();
    y.sum().backward();
    torch::cuda::synchronize();
    record("x", x.grad());
  });
}

TEST_F(CheckpointCuda, AStateThatTheRegionReplacesIsRefused) {
  const Tensor x = torch::full({4}, 0.5, torch::kCUDA).requires_grad_();
  const auto state = std::make_shared<Tensor>(torch::zeros({4}, torch::kCUDA));
  const auto fn = [state](const Tensor& t) {
    const Tensor h = (t + *state).tanh();
    *state = h.detach();
    return h.exp();
  };
  const Tensor y = checkpoint(fn, x);
  EXPECT_TRUE(thrown_text([&] { y.sum().backward(); }).has_value());
}

TEST_F(CheckpointCuda, OutputsOnTheCpuAndOnTheDeviceReRunTheRegionOnceForAPass) {
  const tidemark::tests::CheckpointedRegions region;
  const Tensor x = torch::randn({16}).requires_grad_();
  const auto fn = [](const Tensor& a) {
    return std::make_pair(a.exp(), a.to(torch::kCUDA).sin().exp());
  };
  const auto [host, device] = region(fn, x);
  const Tensor loss = host.sum() + device.sum().cpu();
  const auto [plain_host, plain_device] = fn(x);
  const Tensor expected =
      torch::autograd::grad({plain_host.sum() + plain_device.sum().cpu()}, {x})[0];
  for (int pass = 1; pass <= 100; ++pass) {
    const Tensor actual = torch::autograd::grad({loss}, {x}, {}, /*retain_graph=*/true)[0];
    EXPECT_TRUE(torch::equal(actual, expected));
    EXPECT_EQ(region.calls(), 1 + pass);
  }
}

}  // namespace
