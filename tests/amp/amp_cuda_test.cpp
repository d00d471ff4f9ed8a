// What differs on a CUDA device: op lists, the default dtype, and backward on a device's thread.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <tidemark/amp_cast.h>
#include <tidemark/amp_function.h>
#include <tidemark/amp_scope.h>
#include <tidemark/checkpoint.h>
#include <tidemark/grad_scaler.h>
#include <tidemark/memory/memory_scope.h>
#include <torch/torch.h>

#include <limits>
#include <string>
#include <vector>

#include "../support/plain_and_checkpointed.h"
#include "op_dtypes.h"

namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::SizeIs;
using tidemark::AmpBackward;
using tidemark::AmpForward;
using tidemark::AmpOptions;
using tidemark::AmpScope;
using torch::kBFloat16;
using torch::kCUDA;
using torch::kFloat;
using torch::kHalf;
using torch::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

class AmpCuda : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!torch::cuda::is_available()) {
      GTEST_SKIP() << "no CUDA device, or a LibTorch without CUDA";
    }
  }

  static Tensor leaf(at::IntArrayRef sizes) {
    return torch::randn(sizes, torch::device(kCUDA)).requires_grad_();
  }
};

TEST_F(AmpCuda, DefaultsToHalf) {
  const AmpScope amp(kCUDA);
  EXPECT_EQ(leaf({2, 2}).mm(leaf({2, 2})).scalar_type(), kHalf);
  EXPECT_EQ(torch::ones({2, 2}).mm(torch::ones({2, 2})).scalar_type(), kFloat);
}

TEST_F(AmpCuda, TakesBFloat16AndADeviceWithAnIndex) {
  const AmpScope amp(torch::Device(kCUDA, 0), kBFloat16);
  EXPECT_EQ(leaf({2, 2}).mm(leaf({2, 2})).scalar_type(), kBFloat16);
}

TEST_F(AmpCuda, ScopesOfTwoDevicesNest) {
  const AmpScope cuda(kCUDA);
  const AmpScope cpu(torch::kCPU);
  EXPECT_EQ(leaf({2, 2}).mm(leaf({2, 2})).scalar_type(), kHalf);
  EXPECT_EQ(torch::ones({2, 2}).mm(torch::ones({2, 2})).scalar_type(), kBFloat16);
}

TEST_F(AmpCuda, DtypesAreThoseOfPython) {
  tidemark::tests::expect_dtypes_as_recorded(
      kCUDA, std::string(TIDEMARK_AMP_DATA_DIR) + "/cuda_dtypes.csv");
}

TEST_F(AmpCuda, ASumOfHalvesDoesNotOverflow) {
  const AmpScope amp(kCUDA);
  const auto sum = torch::ones({70000}, torch::dtype(kHalf).device(kCUDA)).sum();
  EXPECT_EQ(sum.scalar_type(), kFloat);
  EXPECT_EQ(sum.item<float>(), 70000);
}

/// Notes the dtype of a product in backward, which runs on the device's thread.
struct MmInBackward : torch::autograd::Function<MmInBackward> {
  static Tensor forward(AutogradContext* context, const Tensor& x) {
    const AmpForward amp(context);
    context->save_for_backward({x});
    return x.clone();
  }
  static variable_list backward(AutogradContext* context, variable_list grads) {
    const AmpBackward amp(context);
    const auto x = context->get_saved_variables()[0];
    seen.push_back(x.mm(x).scalar_type());
    return {grads[0]};
  }

  static inline std::vector<at::ScalarType> seen;
};

TEST_F(AmpCuda, BackwardOnTheDevicesThreadRunsInTheDtypeOfItsForward) {
  MmInBackward::seen.clear();
  const auto x = leaf({2, 2});
  Tensor y;
  {
    const AmpScope amp(kCUDA, kBFloat16);
    y = MmInBackward::apply(x);
    y.sum().backward({}, /*keep_graph=*/true);
  }
  y.sum().backward();
  EXPECT_THAT(MmInBackward::seen, AllOf(SizeIs(2), Each(kBFloat16)));
}

TEST_F(AmpCuda, CheckpointedEqualsPlain) {
  for (const auto dtype : {kHalf, kBFloat16}) {
    for (const bool cache : {true, false}) {
      tidemark::tests::expect_equal_to_plain([&](auto& region, auto& record) {
        torch::nn::Sequential block(torch::nn::Linear(8, 8),
                                    torch::nn::LayerNorm(torch::nn::LayerNormOptions({8})),
                                    torch::nn::ReLU(), torch::nn::Linear(8, 8));
        block->to(kCUDA);
        const auto x = leaf({4, 8});
        Tensor y;
        {
          const AmpScope amp(kCUDA, AmpOptions(dtype).cache(cache));
          const auto fn = [block](const Tensor& a) mutable { return block->forward(a).sin(); };
          y = region(fn, region(fn, x));
        }
        y.to(kFloat).square().mean().backward();
        record("x", x.grad());
        record("block", *block);
      });
    }
  }
}

TEST_F(AmpCuda, TrainsInHalfWithAGradScaler) {
  torch::manual_seed(0);
  torch::nn::Sequential net(torch::nn::Conv3d(1, 4, 3), torch::nn::BatchNorm3d(4),
                            torch::nn::ReLU(), torch::nn::Flatten(), torch::nn::Linear(32, 2));
  net->to(kCUDA);
  torch::optim::SGD sgd(net->parameters(), 0.05);
  tidemark::GradScaler scaler(tidemark::GradScalerOptions().init_scale(1024));
  const auto x = torch::randn({4, 1, 4, 4, 4}, torch::device(kCUDA));
  const auto target = torch::tensor({0, 1, 0, 1}).to(kCUDA);
  std::vector<float> losses;
  for (int step = 0; step < 20; ++step) {
    sgd.zero_grad();
    Tensor loss;
    {
      const AmpScope amp(kCUDA);
      loss = torch::nn::functional::cross_entropy(net->forward(x), target);
    }
    scaler.scale(loss).backward();
    scaler.step(sgd);
    scaler.update();
    losses.push_back(loss.item<float>());
  }
  EXPECT_LT(losses.back(), losses.front() / 2);
}

TEST_F(AmpCuda, ConvolutionsInBFloat16PeakNoHigherThanInFloat32) {
  torch::nn::Conv3d conv(torch::nn::Conv3dOptions(16, 16, 3).padding(1));
  conv->to(kCUDA);
  const auto x = torch::randn({1, 16, 32, 32, 32}, torch::device(kCUDA));
  const torch::NoGradGuard no_grad;
  const auto peak = [&](bool enabled) {
    const AmpScope amp(kCUDA, AmpOptions(kBFloat16).enabled(enabled));
    (void)conv(x);  // cuDNN picks its algorithm and loads its kernels
    const tidemark::MemoryScope memory(kCUDA);
    (void)conv(x);
    return memory.peak();
  };
  const auto in_float32 = peak(false);
  EXPECT_LE(peak(true), in_float32)
      << "does this cuDNN (version " << at::globalContext().versionCuDNN()
      << ") have bfloat16 kernels for 3D convolutions? torch falls back to much slower ones.";
}

}  // namespace
