// What differs on a device: where numbers live, its random numbers, and its allocator.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <tidemark/amp_scope.h>
#include <tidemark/grad_accumulator.h>
#include <tidemark/grad_scaler.h>
#include <tidemark/memory/memory_scope.h>
#include <torch/torch.h>

#include <cmath>
#include <cstdint>
#include <memory>
#include <sstream>
#include <vector>

#include "../support/thrown_text.h"
#include "support.h"

namespace {

using namespace tidemark::tests;
using ::testing::HasSubstr;
using ::testing::Optional;
using ::testing::SizeIs;
using tidemark::BatchNormPolicy;
using tidemark::GradAccumulator;
using tidemark::GradAccumulatorOptions;
using tidemark::GradScaler;
using tidemark::GradScalerOptions;
using tidemark::StepResult;
using torch::Tensor;
using torch::optim::SGD;

class GradAccumulatorCuda : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!torch::cuda::is_available()) {
      GTEST_SKIP() << "no CUDA device, or a LibTorch without CUDA";
    }
  }

  static Tensor cuda_weight(double value, torch::ScalarType dtype = torch::kFloat) {
    return torch::full({1}, value, torch::dtype(dtype).device(torch::kCUDA)).requires_grad_();
  }
};

TEST_F(GradAccumulatorCuda, AddsUpOnTheDeviceAndReadsItOncePerWindow) {
  GradScaler scaler(GradScalerOptions().init_scale(1024));
  const auto w = cuda_weight(0);
  const auto brain = cuda_weight(0, torch::kBFloat16);
  const auto on_cpu = weight(0);
  SGD first({w, on_cpu}, 1);
  SGD second({brain}, 1);
  GradAccumulator accumulator(
      {first, second},
      GradAccumulatorOptions(4).scaler(scaler).clip_grad_norm(kInf).accumulate_dtype(
          torch::kFloat));
  const auto loss = [&](double gradient) {
    return (w.sum() + brain.sum() + on_cpu.sum().to(torch::kCUDA)) * gradient;
  };
  (void)accumulator.backward(loss(1), 2);
  const HostReads reads;
  accumulator.backward(loss(2), 2);
  accumulator.backward(loss(3), 2);
  EXPECT_EQ(HostReads::taken(), 0);
  accumulator.backward(loss(6), 2);
  EXPECT_EQ(HostReads::taken(), 3);
  EXPECT_EQ(value(w), -3);
  EXPECT_EQ(value(brain), -3);
  EXPECT_EQ(value(on_cpu), -3);
  EXPECT_NEAR(accumulator.grad_norm(), std::sqrt(27.0), 1e-5);
  EXPECT_EQ(accumulator.window_loss(), 0);
  accumulator.backward(loss(kInf));
  accumulator.flush();
  EXPECT_EQ(accumulator.last_result(), StepResult::kSkipped);
  EXPECT_EQ(scaler.get_scale(), 512);
}

// A step with dropout, BatchNorm and autocast, of a net big enough to fill a device.
struct DeviceTraining {
  explicit DeviceTraining(GradAccumulatorOptions options = {}) {
    torch::manual_seed(5);
    model =
        torch::nn::Sequential(torch::nn::Conv3d(torch::nn::Conv3dOptions(1, 8, 3).padding(1)),
                              torch::nn::BatchNorm3d(8), torch::nn::ReLU(), torch::nn::Dropout(0.5),
                              torch::nn::Conv3d(torch::nn::Conv3dOptions(8, 1, 3).padding(1)));
    model->to(torch::kCUDA);
    adam = std::make_unique<torch::optim::Adam>(model->parameters());
    accumulator = std::make_unique<GradAccumulator>(
        *adam, options.module(model).scaler(scaler).batch_norm(BatchNormPolicy::kCorrectMomentum));
    data = torch::randn({16, 1, 8, 8, 8}, torch::kCUDA);
    torch::manual_seed(6);
  }

  // The device has no room for `most` rows and another block that is too big for it.
  void step(int64_t most) {
    accumulator->accumulate(data, [&](const Tensor& part) {
      ++parts;
      const tidemark::AmpScope amp(torch::kCUDA);
      auto loss = model->forward(part).square().mean();
      if (part.size(0) > most) {
        (void)torch::empty({int64_t{1} << 40}, torch::kCUDA);
      }
      return loss;
    });
  }

  std::vector<Tensor> state() {
    auto result = model->parameters();
    for (const auto& buffer : model->buffers()) {
      result.push_back(buffer);
    }
    result.push_back(torch::rand({4}, torch::kCUDA));
    return result;
  }

  GradScaler scaler;
  torch::nn::Sequential model;
  std::unique_ptr<torch::optim::Adam> adam;
  std::unique_ptr<GradAccumulator> accumulator;
  Tensor data;
  int parts = 0;
};

TEST_F(GradAccumulatorCuda, RecoversFromTheAllocatorsOwnError) {
  at::globalContext().setDeterministicCuDNN(true);
  at::globalContext().setBenchmarkCuDNN(false);
  std::vector<Tensor> expected;
  {
    DeviceTraining fixed(GradAccumulatorOptions().micro_batch(4));
    fixed.step(16);
    fixed.step(16);
    expected = fixed.state();
  }
  DeviceTraining found;
  EXPECT_THAT(warnings_of([&] { found.step(4); }), SizeIs(2));
  EXPECT_EQ(found.parts, 1 + 1 + 4);
  found.step(4);
  EXPECT_EQ(found.parts, 1 + 1 + 4 + 4);
  const auto got = found.state();
  for (size_t i = 0; i < got.size(); ++i) {
    EXPECT_TRUE(torch::equal(got[i], expected[i])) << i;
  }
}

TEST_F(GradAccumulatorCuda, SaysWhatToDoWhereOneRowIsTooMany) {
  DeviceTraining training;
  (void)warnings_of([&] {
    EXPECT_THAT(thrown_text([&] { training.step(0); }), Optional(HasSubstr("CUDA out of memory")));
  });
  EXPECT_EQ(training.accumulator->micro_batch(), 1);
}

TEST_F(GradAccumulatorCuda, PeakDoesNotGrowWithTheNumberOfMicroBatches) {
  const auto peak = [&](int micro_batches) {
    torch::nn::Linear model(256, 256);
    model->to(torch::kCUDA);
    SGD sgd(model->parameters(), 0.1);
    GradAccumulator accumulator(sgd, GradAccumulatorOptions(micro_batches));
    const auto x = torch::randn({1024, 256}, torch::kCUDA);
    int64_t bytes = 0;
    for (int window = 0; window < 2; ++window) {
      const tidemark::MemoryScope scope(torch::kCUDA);
      for (int i = 0; i < micro_batches; ++i) {
        accumulator.backward(model->forward(x).square().mean());
      }
      bytes = scope.peak();
    }
    return bytes;
  };
  EXPECT_EQ(peak(16), peak(4));
}

TEST_F(GradAccumulatorCuda, GoesOnFromASavedWindow) {
  const auto w = cuda_weight(0);
  SGD sgd({w}, 1);
  GradScaler scaler(GradScalerOptions().init_scale(8));
  GradAccumulator accumulator(sgd, GradAccumulatorOptions(2).scaler(scaler));
  accumulator.backward(w.sum());
  std::stringstream file;
  torch::save(accumulator, file);
  accumulator.discard();
  GradAccumulator loaded(sgd, GradAccumulatorOptions(2).scaler(scaler));
  torch::load(loaded, file);
  EXPECT_TRUE(w.grad().is_cuda());
  loaded.backward(w.sum() * 3);
  EXPECT_EQ(value(w), -2);
}

}  // namespace
