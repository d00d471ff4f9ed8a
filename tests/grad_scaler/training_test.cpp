// Whole trainings with a GradScaler: as Python's, and as on paper.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <tidemark/grad_scaler.h>
#include <torch/torch.h>

#include <cstdint>
#include <cstring>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "weights.h"

namespace {

using namespace tidemark::tests;
using tidemark::GradScaler;
using tidemark::GradScalerOptions;
using tidemark::StepResult;
using torch::Tensor;
using torch::optim::SGD;

std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  std::istringstream stream(text);
  for (std::string part; std::getline(stream, part, separator);) {
    parts.push_back(part);
  }
  return parts;
}

float from_bits(const std::string& hex) {
  const auto bits = static_cast<uint32_t>(std::stoul(hex, nullptr, 16));
  float number = 0;
  std::memcpy(&number, &bits, sizeof number);
  return number;
}

// One scaler, and as many optimizers of one weight each as the recording has.
struct Replay {
  explicit Replay(const std::vector<std::string>& config)
      : scaler(GradScalerOptions()
                   .init_scale(std::stod(config[2]))
                   .growth_factor(std::stod(config[3]))
                   .backoff_factor(std::stod(config[4]))
                   .growth_interval(std::stoll(config[5]))) {
    for (int i = 0; i < std::stoi(config[6]); ++i) {
      weights.push_back(torch::ones({1}).requires_grad_());
      optimizers.push_back(std::make_unique<SGD>(std::vector<Tensor>{weights.back()}, 0.125));
    }
  }

  void step(const std::string& action, const std::vector<std::string>& inputs) {
    for (size_t i = 0; i < weights.size(); ++i) {
      optimizers[i]->zero_grad();
      auto expected = StepResult::kNoGrads;
      if (inputs[i] != "none") {
        const auto x = from_bits(inputs[i]);
        scaler.scale((weights[i] * x).sum()).backward();
        expected = std::isfinite(x) ? StepResult::kStepped : StepResult::kSkipped;
      }
      EXPECT_EQ(scaler.step(*optimizers[i]), expected);
    }
    if (action.rfind("interval=", 0) == 0) {
      scaler.set_growth_interval(std::stoll(action.substr(9)));
    }
    if (action.rfind("scale=", 0) == 0) {
      scaler.update(from_bits(action.substr(6)));
    } else {
      scaler.update();
    }
  }

  GradScaler scaler;
  std::vector<Tensor> weights;
  std::vector<std::unique_ptr<SGD>> optimizers;
};

TEST(GradScalerTraining, FollowsPythonsScalerBitForBit) {
  std::ifstream recording(TIDEMARK_TEST_DATA_DIR "/trajectory.csv");
  ASSERT_TRUE(recording.is_open());
  std::unique_ptr<Replay> replay;
  std::string config;
  int configs = 0;
  int steps = 0;
  for (std::string line; std::getline(recording, line);) {
    const auto fields = split(line, ',');
    if (fields[0] == "config") {
      config = fields[1];
      replay = std::make_unique<Replay>(fields);
      ++configs;
    } else if (fields[0] == "step") {
      ++steps;
      replay->step(fields[1], split(fields[2], ' '));
      const auto state = replay->scaler.state();
      const auto weights = split(fields[5], ' ');
      bool equal =
          state.scale == from_bits(fields[3]) && state.growth_tracker == std::stoll(fields[4]);
      for (size_t i = 0; i < weights.size(); ++i) {
        equal = equal && replay->weights[i].item<float>() == from_bits(weights[i]);
      }
      ASSERT_TRUE(equal) << config << ", step " << steps << ": " << line << "\nscale "
                         << state.scale << ", tracker " << state.growth_tracker << ", weights "
                         << replay->weights;
    }
  }
  EXPECT_EQ(configs, 4);
  EXPECT_EQ(steps, 4 * 500);
}

// The loss is 2^-26 h^2 / 2 of h = half(w), so h's gradient is 2^-26 w, which float16, whose least
// number is 2^-24, rounds to 0 for w = 1. With learning rate 2^25 each step halves w.
Tensor tiny_loss(const Tensor& w) {
  const auto h = w.to(torch::kHalf);
  return h.to(torch::kFloat).square().sum() * (0.5 / (1 << 26));
}

TEST(GradScalerTraining, TrainsWhereHalfGradientsWouldBeZero) {
  const auto frozen = weight(1);
  SGD plain({frozen}, 1 << 25);
  for (int step = 0; step < 10; ++step) {
    plain.zero_grad();
    tiny_loss(frozen).backward();
    EXPECT_EQ(grad_value(frozen), 0);
    plain.step();
  }
  EXPECT_EQ(value(frozen), 1);

  GradScaler scaler;
  const auto w = weight(1);
  SGD sgd({w}, 1 << 25);
  for (int step = 0; step < 10; ++step) {
    sgd.zero_grad();
    scaler.scale(tiny_loss(w)).backward();
    ASSERT_EQ(scaler.step(sgd), StepResult::kStepped);
    scaler.update();
    EXPECT_EQ(value(w), 1.0 / (2 << step));
  }
}

TEST(GradScalerTraining, SettlesAfterAFewSkipsWhereTheFirstScaleOverflows) {
  GradScaler scaler;
  const auto w = weight(1);
  SGD sgd({w}, 0.125);
  // The gradient of half(w) is 4: 4 * 2^14 = 65536 is inf in float16, 4 * 2^13 is not.
  for (const double expected : {32768, 16384, 8192, 8192, 8192}) {
    sgd.zero_grad();
    scaler.scale((w.to(torch::kHalf).to(torch::kFloat) * 4).sum()).backward();
    scaler.step(sgd);
    scaler.update();
    EXPECT_EQ(scaler.get_scale(), expected);
  }
  EXPECT_EQ(value(w), 1 - 2 * 0.125 * 4);
}

TEST(GradScalerTraining, SkipsANaNOfTheModelAndTrainsOn) {
  GradScaler scaler;
  const auto w = weight(0);
  torch::optim::Adam adam({w}, 0.125);
  Tensor before;
  for (int step = 1; step <= 4; ++step) {
    adam.zero_grad();
    before = w.detach().clone();
    backward(scaler, w, step == 3 ? kNaN : 1);
    EXPECT_EQ(scaler.step(adam), step == 3 ? StepResult::kSkipped : StepResult::kStepped);
    scaler.update();
    EXPECT_EQ(w.equal(before), step == 3);
  }
  EXPECT_EQ(scaler.get_scale(), 32768);
  EXPECT_FALSE(w.isnan().any().item<bool>());
}

TEST(GradScalerTraining, ChangesWeightsAsWithoutAScaler) {
  GradScaler scaler(GradScalerOptions().init_scale(1024).growth_interval(1));
  const auto w = weight(1);
  const auto reference = weight(1);
  SGD sgd({w}, torch::optim::SGDOptions(0.1).momentum(0.9).weight_decay(0.01));
  SGD plain({reference}, torch::optim::SGDOptions(0.1).momentum(0.9).weight_decay(0.01));
  for (int step = 0; step < 20; ++step) {
    sgd.zero_grad();
    plain.zero_grad();
    scaler.scale((w - 3).square().sum()).backward();
    (reference - 3).square().sum().backward();
    scaler.step(sgd);
    scaler.update();
    plain.step();
    EXPECT_TRUE(w.equal(reference)) << step;
  }
}

// A loss that is scaled by hand inside the model as well, and unscaled in its gradient there.
TEST(GradScalerTraining, GoesTogetherWithALossScaleOfTheModelsOwn) {
  GradScaler scaler(GradScalerOptions().init_scale(1024));
  const auto w = weight(1);
  SGD sgd({w}, 0.5);
  const auto inner = w * 1;
  inner.register_hook([](const Tensor& gradient) { return gradient / 128; });
  scaler.scale((inner * 3).sum() * 128).backward();
  scaler.step(sgd);
  EXPECT_EQ(grad_value(w), 3);
  EXPECT_EQ(value(w), -0.5);
}

TEST(GradScalerTraining, ClipsUnscaledGradients) {
  GradScaler scaler(GradScalerOptions().init_scale(1024));
  const auto w = torch::zeros({1}).requires_grad_();
  SGD sgd({w}, 1);
  scaler.scale(w.sum() * 4).backward();
  scaler.unscale_(sgd);
  EXPECT_EQ(torch::nn::utils::clip_grad_norm_({w}, 1.0), 4);
  EXPECT_NEAR(grad_value(w), 1, 1e-6);
  EXPECT_EQ(scaler.step(sgd), StepResult::kStepped);
  EXPECT_NEAR(value(w), -1, 1e-6);
}

TEST(GradScalerTraining, AccumulatesGradientsOfOneScale) {
  GradScaler scaler(GradScalerOptions().init_scale(8).growth_interval(1));
  const auto w = weight(1);
  SGD sgd({w}, 0.25);
  for (int window = 0; window < 2; ++window) {
    sgd.zero_grad();
    backward(scaler, w, 1);
    backward(scaler, w, 2);
    scaler.step(sgd);
    scaler.update();
  }
  EXPECT_EQ(value(w), 1 - 2 * 0.25 * 3);
  EXPECT_EQ(scaler.get_scale(), 32);
}

// d/dw of |dloss/dw| with loss = w^2 / 2 is 1 for w > 0.
TEST(GradScalerTraining, TakesAGradientPenalty) {
  GradScaler scaler(GradScalerOptions().init_scale(8));
  const auto w = torch::full({1}, 3.0).requires_grad_();
  SGD sgd({w}, 0.5);
  const auto loss = w.square().sum() / 2;
  const auto gradients = torch::autograd::grad({scaler.scale(loss)}, {w}, {}, true, true);
  const auto penalty = (gradients[0] / scaler.get_scale()).abs().sum();
  EXPECT_EQ(penalty.item<float>(), 3);
  scaler.scale(loss + penalty).backward();
  EXPECT_EQ(scaler.step(sgd), StepResult::kStepped);
  EXPECT_EQ(grad_value(w), 4);
  EXPECT_EQ(value(w), 1);
}

// C++'s StepLR keeps the learning rate at its first call and halves it at each later one.
TEST(GradScalerTraining, TellsASchedulerWhichStepsCount) {
  GradScaler scaler;
  const auto w = weight(1);
  SGD sgd({w}, 1);
  torch::optim::StepLR scheduler(sgd, /*step_size=*/1, /*gamma=*/0.5);
  std::vector<double> rates;
  for (const double gradient : {1.F, kInf, 1.F, kNaN, 1.F, 1.F}) {
    sgd.zero_grad();
    backward(scaler, w, gradient);
    const auto result = scaler.step(sgd);
    scaler.update();
    if (result == StepResult::kStepped) {
      scheduler.step();
    }
    rates.push_back(sgd.param_groups()[0].options().get_lr());
  }
  EXPECT_THAT(rates, ::testing::ElementsAre(1, 1, 0.5, 0.5, 0.25, 0.125));
}

TEST(GradScalerTraining, ASkippedWindowLeavesNothingBehindForTheNext) {
  GradScaler scaler;
  const auto w = weight(1);
  SGD sgd({w}, torch::optim::SGDOptions(0.25).momentum(0.5));
  for (const double gradient : {kInf, 2.F}) {
    sgd.zero_grad();
    backward(scaler, w, gradient);
    scaler.step(sgd);
    scaler.update();
  }
  EXPECT_EQ(value(w), 0.5);
}

}  // namespace
