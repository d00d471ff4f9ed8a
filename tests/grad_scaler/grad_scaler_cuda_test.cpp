// What differs on a device: where numbers live, and kernels that lack a dtype.

#include <gtest/gtest.h>
#include <tidemark/grad_scaler.h>
#include <torch/torch.h>

#include <sstream>
#include <vector>

#include "weights.h"

namespace {

using namespace tidemark::tests;
using tidemark::GradScaler;
using tidemark::GradScalerOptions;
using tidemark::StepResult;
using torch::Tensor;
using torch::optim::SGD;

class GradScalerCuda : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!torch::cuda::is_available()) {
      GTEST_SKIP() << "no CUDA device, or a LibTorch without CUDA";
    }
  }

  static Tensor cuda_weight(double value, torch::ScalarType dtype = torch::kFloat) {
    return torch::full({2}, value, torch::dtype(dtype).device(torch::kCUDA)).requires_grad_();
  }
};

TEST_F(GradScalerCuda, UnscalesEveryDtypeAndLooksForInfInIt) {
  for (const auto dtype : {torch::kBFloat16, torch::kFloat, torch::kDouble}) {
    GradScaler scaler(GradScalerOptions().init_scale(4));
    const auto w = cuda_weight(1, dtype);
    SGD sgd({w}, 0.5);
    backward(scaler, w, 8);
    EXPECT_EQ(grad_value(w), 32);
    EXPECT_EQ(scaler.step(sgd), StepResult::kStepped);
    EXPECT_EQ(grad_value(w), 8);
    EXPECT_EQ(value(w), -3);
    scaler.update();
    for (const float bad : {kInf, -kInf, kNaN}) {
      w.mutable_grad() = torch::tensor({1.F, bad}).to(torch::kCUDA, dtype);
      EXPECT_EQ(scaler.step(sgd), StepResult::kSkipped);
      scaler.update();
    }
    EXPECT_EQ(value(w), -3);
    EXPECT_EQ(scaler.get_scale(), 0.5);
  }
}

TEST_F(GradScalerCuda, UnscalesBFloat16AsTheCpuDoes) {
  torch::manual_seed(1);
  const auto unscale_by_three = [](const Tensor& gradient) {
    tidemark::detail::GradientRefs gradients;
    gradients.push_back(&gradient);
    const auto inverse = torch::full({}, 1.0 / 3.0, gradient.options().dtype(torch::kFloat32));
    tidemark::detail::check_and_unscale_all(gradients, inverse);
  };
  for (const auto& sizes : std::vector<std::vector<int64_t>>{{}, {1}, {1000}, {3, 4, 5}}) {
    const auto gradient = (torch::randn(sizes) * 100).to(torch::kBFloat16);
    const auto on_cpu = gradient.clone();
    const auto on_cuda = gradient.to(torch::kCUDA);
    unscale_by_three(on_cpu);
    unscale_by_three(on_cuda);
    EXPECT_TRUE(on_cuda.cpu().equal(on_cpu));
  }
}

TEST_F(GradScalerCuda, HasItsScaleWhereTheFirstLossIs) {
  GradScaler scaler(GradScalerOptions().init_scale(4));
  const auto losses = scaler.scale(
      std::vector<Tensor>{torch::ones({}, torch::kCUDA), torch::ones({2}, torch::kHalf)});
  EXPECT_TRUE(losses[0].is_cuda());
  EXPECT_TRUE(losses[1].is_cpu());
  EXPECT_EQ(losses[0].item<float>(), 4);
  EXPECT_EQ(value(losses[1]), 4);
}

TEST_F(GradScalerCuda, CollectsInfOfAllDevicesWhereverTheScaleIs) {
  for (const bool scale_on_cuda : {true, false}) {
    for (const bool inf_on_cuda : {true, false}) {
      GradScaler scaler(GradScalerOptions().init_scale(4));
      const auto on_cuda = cuda_weight(1);
      const auto on_cpu = weight(1);
      SGD sgd(std::vector<Tensor>{on_cuda, on_cpu}, 0.5);
      (void)scaler.scale(torch::ones({}, scale_on_cuda ? torch::kCUDA : torch::kCPU));
      backward(scaler, on_cuda, 2);
      backward(scaler, on_cpu, 4);
      EXPECT_EQ(scaler.step(sgd), StepResult::kStepped);
      EXPECT_EQ(value(on_cuda), 0);
      EXPECT_EQ(value(on_cpu), -1);
      scaler.update();
      sgd.zero_grad();
      backward(scaler, on_cuda, inf_on_cuda ? kInf : 1);
      backward(scaler, on_cpu, inf_on_cuda ? 1 : kInf);
      EXPECT_EQ(scaler.step(sgd), StepResult::kSkipped);
      scaler.update();
      EXPECT_EQ(scaler.get_scale(), 2);
      EXPECT_EQ(value(on_cuda), 0);
      EXPECT_EQ(value(on_cpu), -1);
    }
  }
}

TEST_F(GradScalerCuda, BacksOffAndGrowsOnTheDevice) {
  GradScaler scaler(GradScalerOptions().init_scale(8).growth_interval(2).max_scale(20));
  const auto w = cuda_weight(0);
  SGD sgd({w}, 0.5);
  const auto update_with = [&](double gradient) {
    sgd.zero_grad();
    backward(scaler, w, gradient);
    scaler.step(sgd);
    scaler.update();
    return scaler.get_scale();
  };
  EXPECT_EQ(update_with(kInf), 4);
  EXPECT_EQ(update_with(0), 4);
  EXPECT_EQ(update_with(0), 8);
  scaler.set_growth_interval(1);
  EXPECT_EQ(update_with(0), 16);
  EXPECT_EQ(update_with(0), 20);
}

TEST_F(GradScalerCuda, TakesANewScaleFromTheDeviceUnlessItIsNone) {
  GradScaler scaler;
  (void)scaler.scale(torch::ones({}, torch::kCUDA));
  scaler.update(torch::full({1}, 32.0, torch::kCUDA));
  EXPECT_EQ(scaler.get_scale(), 32);
  for (const float bad : {0.F, -1.F, kInf, kNaN}) {
    scaler.update(torch::full({1}, bad, torch::kCUDA));
    EXPECT_EQ(scaler.get_scale(), 32);
  }
}

TEST_F(GradScalerCuda, LoadsOnTheCpuWhatWasSavedOnTheDevice) {
  GradScaler scaler(GradScalerOptions().init_scale(24));
  (void)scaler.scale(torch::ones({}, torch::kCUDA));
  std::stringstream file;
  torch::save(scaler, file);
  GradScaler loaded;
  torch::load(loaded, file);
  EXPECT_EQ(loaded.scale(torch::ones({})).item<float>(), 24);
}

}  // namespace
