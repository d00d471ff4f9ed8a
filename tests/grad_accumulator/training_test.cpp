// Whole trainings with all of tidemark in them, against the loop that everybody writes by hand.

#include <gtest/gtest.h>
#include <tidemark/amp_scope.h>
#include <tidemark/checkpointed_sequential.h>
#include <tidemark/grad_accumulator.h>
#include <tidemark/grad_scaler.h>
#include <torch/torch.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "support.h"

namespace {

using namespace tidemark::tests;
using tidemark::GradAccumulator;
using tidemark::GradAccumulatorOptions;
using tidemark::GradScaler;
using tidemark::GradScalerOptions;
using tidemark::StepResult;
using torch::Tensor;

constexpr int kSteps = 20;
constexpr int kMicroBatches = 4;

// A small net of convolutions, dropout and BatchNorm, with one optimizer or two, in float16.
template <class Sequential>
struct Net {
  explicit Net(bool two_optimizers) {
    torch::manual_seed(11);
    head = torch::nn::Linear(4, 1);
    for (int i = 0; i < 3; ++i) {
      blocks->push_back(
          torch::nn::Conv3d(torch::nn::Conv3dOptions(i == 0 ? 1 : 4, 4, 3).padding(1)));
      blocks->push_back(torch::nn::BatchNorm3d(4));
      blocks->push_back(torch::nn::Functional(torch::relu));
      blocks->push_back(torch::nn::Dropout(0.2));
    }
    if (two_optimizers) {
      optimizers.push_back(std::make_unique<torch::optim::Adam>(blocks->parameters()));
      optimizers.push_back(std::make_unique<torch::optim::SGD>(
          head->parameters(), torch::optim::SGDOptions(0.01).momentum(0.9)));
    } else {
      auto parameters = blocks->parameters();
      for (const auto& parameter : head->parameters()) {
        parameters.push_back(parameter);
      }
      optimizers.push_back(std::make_unique<torch::optim::AdamW>(parameters));
    }
    torch::manual_seed(12);
  }

  Tensor loss(int step, int micro_batch) {
    // Data of a generator of their own, so that dropout alone draws from the default one.
    auto generator = at::detail::createCPUGenerator(100 * step + micro_batch);
    const auto x = torch::randn({2, 1, 4, 4, 4}, generator);
    const tidemark::AmpScope amp(torch::kCPU, torch::kHalf);
    const auto features = blocks->forward(x).mean({2, 3, 4});
    return (head->forward(features).to(torch::kFloat) - x.mean({2, 3, 4})).square().mean();
  }

  [[nodiscard]] std::vector<Tensor> tensors() const {
    auto result = blocks->parameters();
    for (const auto& part : {head->parameters(), blocks->buffers()}) {
      result.insert(result.end(), part.begin(), part.end());
    }
    const auto state = scaler.state();
    result.push_back(torch::tensor({state.scale, static_cast<double>(state.growth_tracker)}));
    return result;
  }

  Sequential blocks;
  torch::nn::Linear head = nullptr;
  std::vector<std::unique_ptr<torch::optim::Optimizer>> optimizers;
  GradScaler scaler{GradScalerOptions().init_scale(1 << 14).growth_interval(6)};
};

// An inf in every fifth step: in the loss of a micro-batch, or in the gradients of the head alone.
enum class Inject { kNothing, kLoss, kHead };

Tensor with_inf(const Tensor& loss, const torch::nn::Linear& head, Inject inject) {
  if (inject == Inject::kHead) {
    const auto term = head->bias.sum() * 0;
    term.register_hook([](const Tensor& gradient) { return gradient * kInf; });
    return loss + term;
  }
  return inject == Inject::kLoss ? loss * kInf : loss;
}

template <class Model>
void train_by_hand(Model& net, int position, Inject inject, double max_norm) {
  for (int step = 0; step < kSteps; ++step) {
    for (int i = 0; i < kMicroBatches; ++i) {
      auto loss = net.loss(step, i);
      if (step % 5 == 3 && i == position) {
        loss = with_inf(loss, net.head, inject);
      }
      net.scaler.scale(loss / kMicroBatches).backward();
    }
    std::vector<Tensor> parameters;
    for (const auto& optimizer : net.optimizers) {
      net.scaler.unscale_(*optimizer);
      for (const auto& parameter : optimizer->param_groups()[0].params()) {
        parameters.push_back(parameter);
      }
    }
    if (max_norm != 0) {
      torch::nn::utils::clip_grad_norm_(parameters, max_norm);
    }
    for (const auto& optimizer : net.optimizers) {
      net.scaler.step(*optimizer);
      optimizer->zero_grad();
    }
    net.scaler.update();
  }
}

template <class Model>
void train_with_accumulator(Model& net, int position, Inject inject, double max_norm,
                            int expected_skips) {
  int skips = 0;
  auto options =
      GradAccumulatorOptions(kMicroBatches).scaler(net.scaler).after_step([&](StepResult result) {
        skips += result == StepResult::kSkipped;
      });
  if (max_norm != 0) {
    options.clip_grad_norm(max_norm);
  }
  GradAccumulator accumulator(net.optimizers, options);
  for (int step = 0; step < kSteps; ++step) {
    for (int i = 0; i < kMicroBatches; ++i) {
      auto loss = net.loss(step, i);
      if (step % 5 == 3 && i == position) {
        loss = with_inf(loss, net.head, inject);
      }
      accumulator.backward(loss, 2);
    }
  }
  EXPECT_EQ(accumulator.windows(), kSteps);
  EXPECT_EQ(skips, expected_skips);
}

template <class Plain, class Accumulated>
void expect_equal(const Plain& plain, const Accumulated& accumulated) {
  const std::vector<Tensor> expected = plain.tensors();
  const std::vector<Tensor> got = accumulated.tensors();
  ASSERT_EQ(got.size(), expected.size());
  for (size_t i = 0; i < got.size(); ++i) {
    EXPECT_TRUE(torch::equal(got[i], expected[i])) << i;
    EXPECT_TRUE(got[i].isfinite().all().item<bool>()) << i;
  }
}

void expect_equal_trainings(bool two_optimizers, int position, Inject inject, double max_norm) {
  SCOPED_TRACE(::testing::Message() << (two_optimizers ? 2 : 1) << " optimizers, inf at "
                                    << position << ", clip " << max_norm);
  Net<torch::nn::Sequential> plain(two_optimizers);
  train_by_hand(plain, position, inject, max_norm);
  Net<tidemark::CheckpointedSequential> accumulated(two_optimizers);
  train_with_accumulator(accumulated, position, inject, max_norm,
                         inject == Inject::kNothing ? 0 : kSteps / 5);
  expect_equal(plain, accumulated);
}

TEST(GradAccumulatorTraining, WithCheckpointsAmpAndScalerHasTheBitsOfThePlainLoop) {
  for (const bool two_optimizers : {false, true}) {
    for (const double max_norm : {0.0, 0.01}) {
      expect_equal_trainings(two_optimizers, 0, Inject::kNothing, max_norm);
    }
  }
}

TEST(GradAccumulatorTraining, WithSkipsAtEveryPositionHasTheBitsOfThePlainLoop) {
  for (const bool two_optimizers : {false, true}) {
    for (int position = 0; position < kMicroBatches; ++position) {
      expect_equal_trainings(two_optimizers, position, Inject::kLoss, 0);
    }
  }
}

// One of two optimizers steps on while the other is skipped.
TEST(GradAccumulatorTraining, WithSkipsOfOneOptimizerHasTheBitsOfThePlainLoop) {
  for (int position = 0; position < kMicroBatches; ++position) {
    expect_equal_trainings(true, position, Inject::kHead, 0);
  }
}

// float64, where the big batch's gradient is had to 15 digits whatever the parts.
TEST(GradAccumulatorTraining, FromPartsOfAnySizeIsThatOfTheBigBatch) {
  const auto train = [](int64_t size) {
    torch::manual_seed(13);
    torch::nn::Sequential model(torch::nn::Linear(5, 7), torch::nn::Tanh(),
                                torch::nn::Linear(7, 2));
    model->to(torch::kDouble);
    torch::optim::SGD sgd(model->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
    GradAccumulator accumulator(sgd,
                                GradAccumulatorOptions().micro_batch(size).clip_grad_norm(0.5));
    std::vector<double> losses;
    for (int step = 0; step < kSteps; ++step) {
      const auto x = torch::randn({12, 5}, torch::kDouble);
      accumulator.accumulate(torch::data::Example<>(x, x.slice(1, 0, 2).sin()), [&](auto part) {
        return torch::mse_loss(model->forward(part.data), part.target);
      });
      losses.push_back(accumulator.window_loss());
    }
    EXPECT_LT(losses.back(), losses.front() / 2);
    return model->parameters();
  };
  const auto big = train(12);
  for (const int64_t size : {1, 4, 5, 7}) {
    const auto parts = train(size);
    for (size_t i = 0; i < big.size(); ++i) {
      EXPECT_TRUE(torch::allclose(parts[i], big[i], 1e-12, 1e-12)) << size;
    }
  }
}

}  // namespace
