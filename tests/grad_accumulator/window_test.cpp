// Windows: how gradients add up, what ends them, and what is refused.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <tidemark/grad_accumulator.h>
#include <torch/torch.h>

#include <array>
#include <functional>
#include <list>
#include <memory>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "../support/thrown_text.h"
#include "support.h"

namespace {

using namespace tidemark::tests;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Optional;
using tidemark::GradAccumulator;
using tidemark::GradAccumulatorOptions;
using tidemark::GradScaler;
using tidemark::GradScalerOptions;
using tidemark::StepResult;
using torch::Tensor;
using torch::optim::SGD;

std::vector<double> values(const std::vector<Tensor>& tensors) {
  std::vector<double> result;
  for (const auto& tensor : tensors) {
    result.push_back(value(tensor));
  }
  return result;
}

TEST(GradAccumulatorMean, OfEqualMicroBatchesIsTheGradientOfOne) {
  const auto w = weight(8);
  RecordingSGD sgd({w});
  GradAccumulator accumulator(sgd, GradAccumulatorOptions(4));
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(accumulator.micro_steps(), i);
    EXPECT_EQ(accumulator.backward(w.sum()), i == 3);
  }
  EXPECT_THAT(values(sgd.gradients), ElementsAre(1));
  EXPECT_EQ(value(w), 7);
  EXPECT_FALSE(w.grad().defined());
  EXPECT_EQ(accumulator.micro_steps(), 0);
  EXPECT_EQ(accumulator.windows(), 1);
  EXPECT_EQ(accumulator.last_result(), StepResult::kStepped);
}

// mean(w * x) over {1, 2, 3, 4, 10} has the gradient 4; the mean of the means of 3 and 2 has 4.5.
TEST(GradAccumulatorMean, OfUnevenMicroBatchesIsThatOfAllItems) {
  for (const auto dtype : {torch::kFloat, torch::kDouble}) {
    const auto w = weight(1, dtype);
    RecordingSGD sgd({w});
    GradAccumulator accumulator(sgd, GradAccumulatorOptions(2));
    accumulator.backward((w * torch::tensor({1, 2, 3})).mean(), 3);
    accumulator.backward((w * torch::tensor({4, 10})).mean(), 2);
    // Thirds are rounded.
    EXPECT_NEAR(value(sgd.gradients[0]), 4, dtype == torch::kFloat ? 1e-6 : 1e-14);
    EXPECT_NEAR(accumulator.window_loss(), 4, dtype == torch::kFloat ? 1e-6 : 1e-14);
  }
  const auto w = weight(1);
  RecordingSGD sgd({w});
  GradAccumulator accumulator(sgd, GradAccumulatorOptions(2));
  accumulator.backward((w * torch::tensor({1, 2, 3, 10})).mean(), 4);
  accumulator.backward((w * torch::tensor({14})).mean(), 1);
  EXPECT_EQ(value(sgd.gradients[0]), 6);
  EXPECT_EQ(accumulator.window_loss(), 6);
}

// 7 of 8 voxels count in the first volume, 1 in the second.
TEST(GradAccumulatorMean, OfMaskedVoxelsIsThatOfTheWholeBatch) {
  const auto w = torch::tensor({1.0, 2.0}).requires_grad_();
  const auto x = torch::arange(16, torch::kFloat).view({2, 8});
  auto mask = torch::zeros({2, 8}, torch::kBool);
  mask[0].slice(0, 0, 7).fill_(true);
  mask[1][3] = true;
  const auto loss_of = [&](const Tensor& data, const Tensor& counts) {
    return (w[0] * data + w[1]).square().masked_select(counts).mean();
  };
  loss_of(x, mask).backward();
  const auto expected = w.grad().clone();
  RecordingSGD sgd({w});
  GradAccumulator accumulator(sgd, GradAccumulatorOptions(2));
  const auto loss = loss_of(x, mask).item<double>();
  for (int i = 0; i < 2; ++i) {
    accumulator.backward(loss_of(x[i], mask[i]), mask[i].sum().item<int64_t>());
  }
  EXPECT_TRUE(torch::allclose(sgd.gradients[0], expected, 1e-6));
  EXPECT_NEAR(accumulator.window_loss(), loss, 1e-5);
}

TEST(GradAccumulatorMean, HasTheNormOfTheWholeBatch) {
  torch::manual_seed(1);
  torch::nn::Linear model(6, 3);
  const auto x = torch::randn({16, 6});
  model->forward(x).square().mean().backward();
  const double full = torch::nn::utils::clip_grad_norm_(model->parameters(), kInf);
  SGD sgd(model->parameters(), 0.1);
  GradAccumulator accumulator(sgd, GradAccumulatorOptions(4).clip_grad_norm(kInf));
  for (const auto& part : x.chunk(4)) {
    accumulator.backward(model->forward(part).square().mean());
  }
  EXPECT_NEAR(accumulator.grad_norm() / full, 1, 1e-6);
}

// With K = 3 each loss is divided by 3, as in the common loop, bit for bit.
TEST(GradAccumulatorMean, OfEqualWeightsHasTheBitsOfTheCommonLoop) {
  for (const int steps : {1, 2, 3, 4, 7}) {
    for (const double rows : {1.0, 6.0, 0.7}) {
      torch::manual_seed(2);
      const auto w = torch::randn({5}).requires_grad_();
      const auto plain = w.detach().clone().requires_grad_();
      const auto x = torch::randn({steps, 5});
      SGD sgd({w}, 0.1);
      GradAccumulator accumulator(sgd, GradAccumulatorOptions(steps));
      for (int i = 0; i < steps; ++i) {
        ((plain * x[i]).sum().square() / steps).backward();
        accumulator.backward((w * x[i]).sum().square(), rows);
      }
      SGD plain_sgd({plain}, 0.1);
      plain_sgd.step();
      EXPECT_TRUE(torch::equal(w, plain)) << steps << " of " << rows;
    }
  }
}

TEST(GradAccumulatorMean, LosesNoBitsWhereWeightsArePowersOfTwo) {
  const auto w = weight(0);
  RecordingSGD sgd({w});
  GradAccumulator accumulator(sgd, GradAccumulatorOptions(4));
  for (const auto& [count, gradient] :
       std::vector<std::pair<double, double>>{{1, 1 + 1e-6}, {1024, 3}, {2, 5}, {1, 7}}) {
    accumulator.backward(w.sum() * gradient, count);
  }
  EXPECT_EQ(value(sgd.gradients[0]), static_cast<float>((1 + 1e-6F + 3072.0F + 10 + 7) / 1028));
}

// The first micro-batch has 1 voxel, the next 2^20: a float16 gradient of 2^10 must not be
// multiplied by 2^18 on its way.
TEST(GradAccumulatorMean, OverflowsNoFloat16AfterASmallFirstMicroBatch) {
  GradScaler scaler(GradScalerOptions().init_scale(4));
  const auto w = weight(0);
  RecordingSGD sgd({w});
  GradAccumulator accumulator(sgd, GradAccumulatorOptions(4).scaler(scaler));
  for (const double count : {1.0, 1048576.0, 1.0, 1048576.0}) {
    accumulator.backward((w.to(torch::kHalf).to(torch::kFloat) * 1024).sum(), count);
  }
  ASSERT_EQ(accumulator.last_result(), StepResult::kStepped);
  EXPECT_EQ(value(sgd.gradients[0]), 1024);
}

TEST(GradAccumulatorMean, IgnoresMicroBatchesOfNoWeight) {
  const auto w = weight(0);
  RecordingSGD sgd({w});
  GradAccumulator accumulator(sgd, GradAccumulatorOptions(4));
  accumulator.backward(w.sum() * kNaN, 0);
  accumulator.backward(w.sum() * 2, 3);
  accumulator.backward(torch::empty({0}).mean(), 0);
  EXPECT_TRUE(accumulator.backward(w.sum() * 6, 1));
  EXPECT_EQ(value(sgd.gradients[0]), 3);
  EXPECT_EQ(accumulator.window_loss(), 0);
  for (int i = 0; i < 4; ++i) {
    accumulator.backward(w.sum(), 0);
  }
  EXPECT_EQ(accumulator.last_result(), StepResult::kNoGrads);
  EXPECT_TRUE(std::isnan(accumulator.window_loss()));
  EXPECT_EQ(sgd.gradients.size(), 1U);
  EXPECT_EQ(accumulator.windows(), 2);
}

TEST(GradAccumulatorMean, OfAPartialLastWindowIsOverWhatItHas) {
  const auto w = weight(0);
  RecordingSGD sgd({w});
  GradAccumulator accumulator(sgd, GradAccumulatorOptions(4));
  EXPECT_FALSE(accumulator.flush());
  for (const double gradient : {1, 2, 3, 6, 5, 8}) {
    accumulator.backward(w.sum() * gradient);
  }
  EXPECT_EQ(accumulator.micro_steps(), 2);
  EXPECT_TRUE(accumulator.flush());
  EXPECT_FALSE(accumulator.flush());
  EXPECT_THAT(values(sgd.gradients), ElementsAre(3, 6.5));
  EXPECT_EQ(accumulator.windows(), 2);
}

TEST(GradAccumulatorMean, OfLossesIsTheWindowsAndNotTheLastOnes) {
  const auto w = weight(1);
  SGD sgd({w}, 0);
  GradAccumulator accumulator(sgd, GradAccumulatorOptions(4));
  for (const double loss : {1, 2, 3, 10}) {
    EXPECT_THAT(thrown_text([&] { (void)accumulator.window_loss(); }),
                Optional(HasSubstr("no window has ended")));
    accumulator.backward((w * loss).sum());
  }
  EXPECT_EQ(accumulator.window_loss(), 4);
}

TEST(GradAccumulatorMean, DropsMicroBatchesThatAreNotFiniteAndTheirWeights) {
  for (const float bad : {kNaN, kInf}) {
    const auto w = weight(1);
    RecordingSGD sgd({w});
    GradAccumulator accumulator(sgd, GradAccumulatorOptions(4).drop_nonfinite(true));
    for (const float gradient : {1.F, bad, 2.F, 6.F}) {
      accumulator.backward((w * gradient).sum());
    }
    EXPECT_EQ(value(sgd.gradients[0]), 3);
    EXPECT_EQ(accumulator.window_loss(), 3);
    EXPECT_EQ(accumulator.dropped(), 1);
  }
}

TEST(GradAccumulatorOrder, ClipsOnceTheNormalisedAndUnscaledGradient) {
  GradScaler scaler(GradScalerOptions().init_scale(1024));
  const auto w = weight(0);
  RecordingSGD sgd({w});
  GradAccumulator accumulator(sgd, GradAccumulatorOptions(2).scaler(scaler).clip_grad_norm(1.0));
  accumulator.backward(w.sum() * 3);
  EXPECT_EQ(value(w.grad()), 3 * 1024 / 2);
  accumulator.backward(w.sum() * 5);
  EXPECT_EQ(accumulator.grad_norm(), 4);
  EXPECT_NEAR(value(sgd.gradients[0]), 1, 1e-6);
  accumulator.backward(w.sum() / 4);
  accumulator.flush();
  EXPECT_EQ(accumulator.grad_norm(), 0.25);
  EXPECT_EQ(value(sgd.gradients[1]), 0.25);
}

TEST(GradAccumulatorOrder, ClipsAsTorchDoes) {
  for (const double type : {1.0, 2.0, double{kInf}}) {
    torch::manual_seed(3);
    torch::nn::Linear model(4, 4);
    const auto plain = std::dynamic_pointer_cast<torch::nn::LinearImpl>(model->clone());
    const auto x = torch::randn({3, 4});
    plain->forward(x).sum().backward();
    const double norm = torch::nn::utils::clip_grad_norm_(plain->parameters(), 0.3, type);
    SGD plain_sgd(plain->parameters(), 1);
    plain_sgd.step();
    SGD sgd(model->parameters(), 1);
    GradAccumulator accumulator(sgd, GradAccumulatorOptions(1).clip_grad_norm(0.3, type));
    accumulator.backward(model->forward(x).sum());
    EXPECT_EQ(accumulator.grad_norm(), norm);
    EXPECT_TRUE(torch::equal(model->weight, plain->weight)) << type;
    EXPECT_TRUE(torch::equal(model->bias, plain->bias)) << type;
  }
}

TEST(GradAccumulatorOrder, ClipsByValue) {
  const auto w = torch::zeros({3}).requires_grad_();
  RecordingSGD sgd({w});
  GradAccumulator accumulator(sgd, GradAccumulatorOptions(2).clip_grad_value(2));
  accumulator.backward((w * torch::tensor({1, 9, -9})).sum());
  accumulator.backward((w * torch::tensor({2, 9, -9})).sum());
  EXPECT_TRUE(sgd.gradients[0].equal(torch::tensor({1.5, 2.0, -2.0})));
}

TEST(GradAccumulatorOrder, CallsBackOnceAWindowAfterAllElse) {
  GradScaler scaler(GradScalerOptions().init_scale(4));
  const auto w = weight(0);
  SGD sgd({w}, 1);
  torch::optim::StepLR scheduler(sgd, /*step_size=*/1, /*gamma=*/0.5);
  std::vector<StepResult> results;
  std::vector<double> scales;
  GradAccumulator* self = nullptr;
  GradAccumulator accumulator(
      sgd, GradAccumulatorOptions(2).scaler(scaler).after_step([&](StepResult result) {
        results.push_back(result);
        scales.push_back(scaler.get_scale());
        EXPECT_FALSE(w.grad().defined());
        EXPECT_EQ(self->micro_steps(), 0);
        EXPECT_EQ(self->last_result(), result);
        if (result == StepResult::kStepped) {
          scheduler.step();
        }
      }));
  self = &accumulator;
  for (const float gradient : {1.F, 1.F, 1.F, kInf, 1.F, 1.F, 1.F}) {
    accumulator.backward(w.sum() * gradient);
  }
  accumulator.flush();
  EXPECT_THAT(results, ElementsAre(StepResult::kStepped, StepResult::kSkipped, StepResult::kStepped,
                                   StepResult::kStepped));
  EXPECT_THAT(scales, ElementsAre(4, 2, 2, 2));
  // C++'s StepLR keeps the rate at its first call.
  EXPECT_EQ(sgd.param_groups()[0].options().get_lr(), 0.25);
  EXPECT_EQ(value(w), -1 - 1 - 0.5);
}

TEST(GradAccumulatorOrder, ASkippedWindowLeavesNothingBehind) {
  for (const int position : {0, 1, 2}) {
    GradScaler scaler(GradScalerOptions().init_scale(1024));
    const auto w = weight(1);
    SGD sgd({w}, torch::optim::SGDOptions(0.25).momentum(0.5));
    GradAccumulator accumulator(sgd, GradAccumulatorOptions(3).scaler(scaler));
    for (int i = 0; i < 3; ++i) {
      accumulator.backward(w.sum() * (i == position ? kInf : 1.F));
    }
    EXPECT_EQ(accumulator.last_result(), StepResult::kSkipped);
    EXPECT_EQ(value(w), 1);
    EXPECT_FALSE(w.grad().defined());
    EXPECT_EQ(scaler.get_scale(), 512);
    for (int i = 0; i < 3; ++i) {
      accumulator.backward(w.sum() * 2);
    }
    EXPECT_EQ(accumulator.last_result(), StepResult::kStepped);
    EXPECT_EQ(value(w), 0.5);
    EXPECT_EQ(scaler.state().growth_tracker, 1);
  }
}

TEST(GradAccumulatorScaler, ScaleThatChangesWithinAWindowIsRefused) {
  GradScaler scaler(GradScalerOptions().init_scale(1024));
  const auto w = weight(1);
  SGD sgd({w}, 1);
  GradAccumulator accumulator(sgd, GradAccumulatorOptions(2).scaler(scaler));
  accumulator.backward(w.sum());
  EXPECT_THAT(thrown_text([&] { scaler.update(); }), Optional(HasSubstr("without a step()")));
  scaler.update(512.0);
  EXPECT_THAT(thrown_text([&] { accumulator.backward(w.sum()); }),
              Optional(AllOf(HasSubstr("was 1024"), HasSubstr("is 512"),
                             HasSubstr("Leave update() to the accumulator"))));
  EXPECT_EQ(value(w), 1);
  EXPECT_FALSE(w.grad().defined());
  EXPECT_EQ(accumulator.micro_steps(), 0);
  // The same with an optimizer of another loop that shares the scaler and sees an inf.
  const auto other = weight(1);
  SGD other_sgd({other}, 1);
  accumulator.backward(w.sum());
  scaler.scale(other.sum() * kInf).backward();
  scaler.step(other_sgd);
  scaler.update();
  EXPECT_THAT(thrown_text([&] { accumulator.flush(); }), Optional(HasSubstr("is 256")));
  accumulator.backward(w.sum());
  accumulator.backward(w.sum());
  EXPECT_EQ(value(w), 0);
}

TEST(GradAccumulatorScaler, UnscalesAsFloat32WouldHaveBeen) {
  GradScaler scaler(GradScalerOptions().init_scale(65536).growth_interval(1));
  const auto w = weight(1);
  const auto plain = weight(1);
  SGD sgd({w}, 0.1);
  SGD plain_sgd({plain}, 0.1);
  GradAccumulator accumulator(sgd, GradAccumulatorOptions(4).scaler(scaler));
  for (int i = 0; i < 12; ++i) {
    accumulator.backward((w - i).square().sum());
    ((plain - i).square().sum() / 4).backward();
    if (i % 4 == 3) {
      plain_sgd.step();
      plain_sgd.zero_grad();
      EXPECT_TRUE(torch::equal(w, plain));
    }
  }
  EXPECT_EQ(scaler.get_scale(), 65536 * 8);
}

TEST(GradAccumulatorScaler, DisabledIsNone) {
  GradScaler scaler(GradScalerOptions().enabled(false));
  const auto w = weight(1);
  SGD sgd({w}, 1);
  GradAccumulator accumulator(sgd, GradAccumulatorOptions(2).scaler(scaler));
  accumulator.backward(w.sum());
  EXPECT_EQ(value(w.grad()), 0.5);
  accumulator.backward(w.sum());
  EXPECT_EQ(value(w), 0);
}

TEST(GradAccumulatorScaler, ReadsTheDeviceOncePerWindowAndOptimizer) {
  GradScaler scaler;
  const auto w = weight(1);
  const auto brain = weight(1, torch::kBFloat16);
  SGD first({w}, 0.5);
  SGD second({brain}, 0.5);
  const auto forward = [&] { return (w * 2).sum() + brain.sum(); };
  for (const bool scaled : {false, true}) {
    auto options = GradAccumulatorOptions(8)
                       .clip_grad_norm(1.0)
                       .accumulate_dtype(torch::kFloat)
                       .after_step([](StepResult) {});
    if (scaled) {
      options.scaler(scaler);
    }
    GradAccumulator accumulator({first, second}, options);
    const HostReads reads;
    for (int window = 0; window < 2; ++window) {
      for (int i = 0; i < 7; ++i) {
        accumulator.backward(forward(), i + 1);
        EXPECT_EQ(HostReads::taken(), 0);
      }
      accumulator.backward(forward());
      // Each optimizer's step, and whether the scale is still the same.
      EXPECT_EQ(HostReads::taken(), scaled ? 3 : 0);
    }
  }
}

TEST(GradAccumulatorScaler, DropNonfiniteReadsOncePerMicroBatch) {
  const auto w = weight(1);
  SGD sgd({w}, 0.5);
  GradAccumulator accumulator(sgd, GradAccumulatorOptions(4).drop_nonfinite(true));
  const HostReads reads;
  accumulator.backward(w.sum());
  EXPECT_EQ(HostReads::taken(), 1);
  accumulator.discard();
}

TEST(GradAccumulatorOptimizers, OnlyTheOneWithInfIsSkipped) {
  for (const bool clipped : {false, true}) {
    GradScaler scaler;
    const auto good = weight(1);
    const auto bad = weight(1);
    SGD first({good}, 0.5);
    SGD second({bad}, 0.5);
    SGD third({weight(1)}, 0.5);
    auto options = GradAccumulatorOptions(2).scaler(scaler);
    if (clipped) {
      options.clip_grad_norm(2);
    }
    GradAccumulator accumulator({first, second, third}, options);
    accumulator.backward((good * 2).sum() + bad.sum());
    accumulator.backward((good * 2).sum() + (bad * kInf).sum());
    EXPECT_NEAR(value(good), 0, 1e-6);
    EXPECT_EQ(value(bad), 1);
    EXPECT_EQ(scaler.get_scale(), 32768);
    EXPECT_THAT(accumulator.results(),
                ElementsAre(StepResult::kStepped, StepResult::kSkipped, StepResult::kNoGrads));
    EXPECT_EQ(accumulator.last_result(), StepResult::kSkipped);
    if (clipped) {
      EXPECT_EQ(accumulator.grad_norm(), kInf);
    }
  }
}

TEST(GradAccumulatorOptimizers, ClipOverAllOfThemTogether) {
  const auto a = weight(0);
  const auto b = weight(0);
  SGD first({a}, 1);
  SGD second({b}, 1);
  GradAccumulator accumulator({first, second}, GradAccumulatorOptions(1).clip_grad_norm(0.5));
  accumulator.backward((a * 3 + b * 4).sum());
  EXPECT_EQ(accumulator.grad_norm(), 5);
  EXPECT_NEAR(value(a), -0.3, 1e-6);
  EXPECT_NEAR(value(b), -0.4, 1e-6);
}

TEST(GradAccumulatorOptimizers, ComeInAnyContainer) {
  const auto w = weight(0);
  const auto step = [&](GradAccumulator accumulator[]) { accumulator->backward(w.sum()); };
  SGD sgd({w}, 1);
  torch::optim::Adam adam(std::vector<Tensor>{weight(0)});
  std::list<SGD> held;
  held.emplace_back(std::vector<Tensor>{w}, 1);
  std::array<torch::optim::Optimizer*, 2> pointers{&sgd, &adam};
  std::vector<std::unique_ptr<SGD>> unique;
  unique.push_back(std::make_unique<SGD>(std::vector<Tensor>{w}, 1));
  const std::vector<std::shared_ptr<torch::optim::Optimizer>> shared{
      std::make_shared<SGD>(std::vector<Tensor>{w}, 1)};
  std::vector<std::reference_wrapper<SGD>> references{sgd};
  GradAccumulator accumulators[]{
      GradAccumulator({sgd, adam}), GradAccumulator({&sgd, &adam}),
      GradAccumulator(held),        GradAccumulator(pointers),
      GradAccumulator(unique),      GradAccumulator(shared),
      GradAccumulator(references),  GradAccumulator(std::vector<SGD*>{&sgd}),
      GradAccumulator(sgd)};
  for (auto& accumulator : accumulators) {
    step(&accumulator);
  }
  EXPECT_EQ(value(w), -9);
}

TEST(GradAccumulatorOptimizers, MayReplaceParametersBetweenWindows) {
  auto w = weight(0);
  SGD sgd({w}, 1);
  GradAccumulator accumulator(sgd, GradAccumulatorOptions(2).after_step([&](StepResult) {
    w = torch::full({2}, 5.0).requires_grad_();
    sgd.param_groups()[0].params()[0] = w;
  }));
  accumulator.backward(w.sum());
  accumulator.backward(w.sum());
  ASSERT_EQ(w.numel(), 2);
  const auto grown = w;
  accumulator.backward(w.sum());
  accumulator.backward(w.sum());
  EXPECT_TRUE(grown.equal(torch::full({2}, 4.0)));
  // In an open window the gradients so far would be lost.
  accumulator.backward(w.sum());
  sgd.param_groups()[0].params()[0] = weight(1);
  EXPECT_THAT(thrown_text([&] { accumulator.flush(); }),
              Optional(AllOf(HasSubstr("a parameter was replaced"), HasSubstr("after_step()"))));
  accumulator.discard();
}

TEST(GradAccumulatorOptimizers, ShareParameters) {
  GradScaler scaler(GradScalerOptions().init_scale(8));
  const auto w = weight(0);
  SGD first({w, w}, 1);
  SGD second({w}, 0.5);
  GradAccumulator accumulator({first, second}, GradAccumulatorOptions(2).scaler(scaler));
  accumulator.backward(w.sum() * 2);
  accumulator.flush();
  EXPECT_EQ(value(w), -2 - 2 - 1);
}

TEST(GradAccumulatorOptimizers, NoneLeavesTheGradientsToTheCaller) {
  torch::nn::Linear model(2, 1);
  torch::nn::init::zeros_(model->weight);
  int calls = 0;
  GradAccumulator accumulator(
      GradAccumulatorOptions(2).module(model).clip_grad_norm(kInf).after_step(
          [&](StepResult result) {
            ++calls;
            EXPECT_EQ(result, StepResult::kStepped);
            EXPECT_TRUE(model->weight.grad().equal(torch::tensor({{2.0, 3.0}})));
          }));
  for (int window = 0; window < 2; ++window) {
    accumulator.backward(model->forward(torch::tensor({{1.0, 2.0}})).sum());
    accumulator.backward(model->forward(torch::tensor({{3.0, 4.0}})).sum());
    EXPECT_EQ(calls, window + 1);
    EXPECT_TRUE(model->weight.grad().defined());
  }
  EXPECT_FALSE(accumulator.flush());
}

TEST(GradAccumulatorOptimizers, NoneAndAScalerTakeAStepOfOnesOwn) {
  GradScaler scaler(GradScalerOptions().init_scale(8));
  torch::nn::Linear model(torch::nn::LinearOptions(1, 1).bias(false));
  torch::nn::init::zeros_(model->weight);
  GradAccumulator accumulator(GradAccumulatorOptions(2).module(model).scaler(scaler));
  for (int window = 0; window < 2; ++window) {
    accumulator.backward(model->forward(torch::full({1, 1}, 2.0)).sum());
    accumulator.backward(model->forward(torch::full({1, 1}, 4.0)).sum());
    scaler.step(model->parameters(), [&](const Tensor& scale, const Tensor&) {
      EXPECT_EQ(value(scale), 1);
      model->weight.sub_(model->weight.grad());
    });
    scaler.update();
  }
  EXPECT_EQ(value(model->weight), -6);
}

TEST(GradAccumulatorOptimizers, MoveTheVersionsOfWhatTheyStep) {
  const auto w = weight(1);
  const auto idle = weight(1);
  SGD sgd({w, idle}, 0.5);
  GradAccumulator accumulator(sgd, GradAccumulatorOptions(2));
  const auto version = w._version();
  const auto idle_version = idle._version();
  accumulator.backward(w.sum());
  EXPECT_EQ(w._version(), version);
  accumulator.backward(w.sum());
  EXPECT_GT(w._version(), version);
  EXPECT_EQ(idle._version(), idle_version);
}

TEST(GradAccumulatorOptimizers, SkipParametersThatNoMicroBatchUsed) {
  const auto w = weight(1);
  const auto idle = weight(1);
  SGD sgd({w, idle}, torch::optim::SGDOptions(1).weight_decay(1));
  GradAccumulator accumulator(sgd, GradAccumulatorOptions(2));
  accumulator.backward(w.sum());
  accumulator.backward(w.sum());
  EXPECT_EQ(value(idle), 1);
}

TEST(GradAccumulatorRefusal, BadLossesAndWeightsChangeNothing) {
  const auto w = weight(0);
  RecordingSGD sgd({w});
  GradAccumulator accumulator(sgd, GradAccumulatorOptions(2));
  accumulator.backward(w.sum() * 2);
  for (const double bad : {-1.0, double{kNaN}, double{kInf}}) {
    EXPECT_THAT(thrown_text([&] { accumulator.backward(w.sum(), bad); }),
                Optional(HasSubstr("the weight is")));
  }
  const auto refused = [&](const Tensor& loss) {
    return thrown_text([&] { accumulator.backward(loss); });
  };
  EXPECT_THAT(refused(Tensor()), Optional(HasSubstr("an undefined tensor")));
  EXPECT_THAT(refused(w.expand({3})),
              Optional(AllOf(HasSubstr("of shape [3]"), HasSubstr("Call mean()"))));
  EXPECT_THAT(refused(torch::ones({}, torch::kLong)), Optional(HasSubstr("one real number")));
  EXPECT_THAT(refused(w.detach().sum()), Optional(HasSubstr("does not require grad")));
  EXPECT_EQ(accumulator.micro_steps(), 1);
  accumulator.backward(w.sum() * 4);
  EXPECT_EQ(value(sgd.gradients[0]), 3);
}

// Whoever divides, clips, unscales or zeroes within a window would do it twice, or lose it.
TEST(GradAccumulatorRefusal, GradientsThatSomebodyElseChanged) {
  GradScaler scaler(GradScalerOptions().init_scale(4));
  const auto w = weight(0);
  const auto idle = weight(0);
  RecordingSGD sgd({w, idle});
  GradAccumulator accumulator(sgd, GradAccumulatorOptions(2).scaler(scaler));
  const std::vector<std::function<void()>> meddlers{
      [&] { sgd.zero_grad(); },
      [&] { sgd.zero_grad(/*set_to_none=*/false); },
      [&] { w.mutable_grad() = w.grad() / 4; },
      [&] { w.grad().div_(4); },
      [&] { w.sum().backward(); },
      [&] { idle.sum().backward(); },
  };
  for (const auto& meddle : meddlers) {
    accumulator.backward(w.sum() * 2);
    meddle();
    EXPECT_THAT(thrown_text([&] { accumulator.backward(w.sum()); }),
                Optional(AllOf(HasSubstr("was changed by somebody else"), HasSubstr("discard()"))));
    EXPECT_THAT(thrown_text([&] { accumulator.flush(); }), Optional(HasSubstr("micro-batch 1")));
    EXPECT_EQ(accumulator.micro_steps(), 1);
    accumulator.discard();
    scaler.load_state(scaler.state());
    EXPECT_FALSE(w.grad().defined());
  }
  accumulator.backward(w.sum() * 2);
  accumulator.backward(w.sum() * 4);
  EXPECT_EQ(value(sgd.gradients.back()), 3);
}

TEST(GradAccumulatorRefusal, GradientsThatWereUnscaledOrSteppedWith) {
  GradScaler scaler(GradScalerOptions().init_scale(4));
  const auto w = weight(0);
  SGD sgd({w}, 1);
  GradAccumulator accumulator(sgd, GradAccumulatorOptions(2).scaler(scaler));
  for (const bool stepped : {false, true}) {
    accumulator.backward(w.sum());
    if (stepped) {
      scaler.step(sgd);
    } else {
      scaler.unscale_(sgd);
    }
    EXPECT_THAT(thrown_text([&] { accumulator.backward(w.sum()); }),
                Optional(HasSubstr(stepped ? "unscale_() was called after step()"
                                           : "unscale_() was already called")));
    EXPECT_EQ(accumulator.micro_steps(), 0);
    EXPECT_FALSE(w.grad().defined());
  }
  const double before = value(w);
  accumulator.backward(w.sum());
  accumulator.backward(w.sum());
  EXPECT_EQ(value(w), before - 1);
}

TEST(GradAccumulatorRefusal, OptionsThatMakeNoSense) {
  const auto w = weight(0);
  SGD sgd({w}, 1);
  const auto text = [&](const GradAccumulatorOptions& options) {
    return thrown_text([&] { GradAccumulator accumulator(sgd, options); });
  };
  EXPECT_THAT(text(0), Optional(HasSubstr("steps is 0")));
  EXPECT_THAT(text(GradAccumulatorOptions(1).clip_grad_norm(-1)), Optional(HasSubstr("is -1")));
  EXPECT_THAT(text(GradAccumulatorOptions(1).clip_grad_norm(1, 0)),
              Optional(HasSubstr("type of clip_grad_norm is 0")));
  EXPECT_THAT(text(GradAccumulatorOptions(1).clip_grad_value(kNaN)), Optional(HasSubstr("nan")));
  EXPECT_THAT(text(GradAccumulatorOptions(1).clip_grad_value(1).clip_grad_norm(1)),
              Optional(HasSubstr("not by both")));
  EXPECT_THAT(text(GradAccumulatorOptions(1).micro_batch(0)),
              Optional(HasSubstr("micro_batch is 0")));
  EXPECT_THAT(text(GradAccumulatorOptions(1).accumulate_dtype(torch::kLong)),
              Optional(HasSubstr("accumulate_dtype is Long")));
  EXPECT_THAT(text(GradAccumulatorOptions(1).batch_norm(tidemark::BatchNormPolicy::kFirstOnly)),
              Optional(HasSubstr("module(model)")));
  EXPECT_THAT(thrown_text([&] { GradAccumulator accumulator(GradAccumulatorOptions(1)); }),
              Optional(HasSubstr("neither an optimizer nor a module()")));
  EXPECT_THAT(thrown_text([&] {
                GradAccumulator accumulator({sgd, sgd});
              }),
              Optional(HasSubstr("optimizer 1 is listed twice")));
  SGD* null = nullptr;
  EXPECT_THAT(thrown_text([&] {
                GradAccumulator accumulator({&sgd, null});
              }),
              Optional(HasSubstr("optimizer 1 is a null pointer")));
  torch::optim::LBFGS lbfgs({w}, 1);
  EXPECT_THAT(thrown_text([&] { GradAccumulator accumulator(lbfgs); }),
              Optional(HasSubstr("LBFGS")));
  GradAccumulator accumulator(sgd);
  accumulator.backward(w.sum());
  EXPECT_THAT(thrown_text([&] { (void)accumulator.grad_norm(); }),
              Optional(HasSubstr("clip_grad_norm()")));
}

template <class Option>
using SetScaler = decltype(std::declval<GradAccumulatorOptions&>().scaler(std::declval<Option>()));
template <class Option>
using SetModule = decltype(std::declval<GradAccumulatorOptions&>().module(std::declval<Option>()));
template <template <class> class Call, class Option, class = void>
struct Takes : std::false_type {};
template <template <class> class Call, class Option>
struct Takes<Call, Option, std::void_t<Call<Option>>> : std::true_type {};

TEST(GradAccumulatorRefusal, OfTemporariesWhenItIsCompiled) {
  static_assert(Takes<SetScaler, GradScaler&>::value);
  static_assert(!Takes<SetScaler, GradScaler>::value);
  static_assert(Takes<SetModule, torch::nn::Linear&>::value);
  static_assert(Takes<SetModule, torch::nn::LinearImpl&>::value);
  static_assert(Takes<SetModule, const std::shared_ptr<torch::nn::LinearImpl>&>::value);
  static_assert(!Takes<SetModule, torch::nn::Linear>::value);
  static_assert(!std::is_constructible_v<GradAccumulator, SGD>);
  static_assert(std::is_constructible_v<GradAccumulator, SGD&>);
  static_assert(!std::is_copy_constructible_v<GradAccumulator>);
}

TEST(GradAccumulatorErrors, InBackwardGiveTheWindowUp) {
  const auto w = weight(0);
  RecordingSGD sgd({w});
  GradAccumulator accumulator(sgd, GradAccumulatorOptions(2));
  accumulator.backward(w.sum() * 100);
  const auto hidden = w * 2;
  hidden.register_hook([](const Tensor&) -> Tensor { throw std::out_of_range("in a hook"); });
  EXPECT_THROW(accumulator.backward((hidden + w).sum()), std::exception);
  EXPECT_EQ(accumulator.micro_steps(), 0);
  EXPECT_FALSE(w.grad().defined());
  accumulator.backward(w.sum() * 2);
  accumulator.backward(w.sum() * 4);
  EXPECT_THAT(values(sgd.gradients), ElementsAre(3));
}

// Throws in its first step, as one that finds no memory for its state.
class FailingSGD : public SGD {
 public:
  FailingSGD(std::vector<Tensor> parameters, std::function<void()> fail)
      : SGD(std::move(parameters), 1), fail_(std::move(fail)) {}
  Tensor step(LossClosure closure = nullptr) override {
    if (steps++ == 0) {
      fail_();
    }
    return SGD::step(std::move(closure));
  }
  int steps = 0;

 private:
  std::function<void()> fail_;
};

TEST(GradAccumulatorErrors, InAStepGiveTheWindowUpAndTheScalersUpdate) {
  GradScaler scaler(GradScalerOptions().init_scale(4));
  const auto w = weight(0);
  const auto v = weight(0);
  SGD first({v}, 1);
  FailingSGD second({w}, [] { throw std::out_of_range("broken"); });
  GradAccumulator accumulator({first, second}, GradAccumulatorOptions(2).scaler(scaler));
  accumulator.backward((w + v).sum());
  EXPECT_THROW(accumulator.backward((w + v).sum()), std::out_of_range);
  EXPECT_EQ(accumulator.micro_steps(), 0);
  EXPECT_EQ(accumulator.windows(), 0);
  EXPECT_FALSE(w.grad().defined());
  accumulator.backward((w + v).sum());
  accumulator.backward((w + v).sum());
  EXPECT_EQ(value(w), -1);
  EXPECT_EQ(value(v), -2);
  EXPECT_EQ(scaler.state().growth_tracker, 1) << "the window that was given up doesn't count";
}

TEST(GradAccumulatorErrors, OfMemoryInAStepAreReportedAndNotTriedAgain) {
  for (const bool scaled : {false, true}) {
    GradScaler scaler(GradScalerOptions().init_scale(4));
    const auto w = weight(0);
    FailingSGD sgd({w}, [] { (void)torch::empty({int64_t{1} << 46}); });
    auto options = GradAccumulatorOptions(1);
    if (scaled) {
      options.scaler(scaler);
    }
    GradAccumulator accumulator(sgd, options);
    int calls = 0;
    const auto step = [&] {
      accumulator.accumulate(torch::ones({4}), [&](const Tensor& x) {
        ++calls;
        return (w * x).mean();
      });
    };
    EXPECT_THROW(step(), c10::OutOfMemoryError);
    EXPECT_EQ(calls, 1);
    EXPECT_EQ(sgd.steps, 1);
    EXPECT_EQ(accumulator.micro_batch(), std::nullopt);
    FailingSGD again({w}, [] { (void)torch::empty({int64_t{1} << 46}); });
    GradAccumulator other(again);
    EXPECT_THAT(thrown_text([&] { other.backward(w.sum()); }),
                Optional(AllOf(HasSubstr("may be half updated"), HasSubstr("FailingSGD"),
                               HasSubstr("DefaultCPUAllocator"))));
    step();
    EXPECT_EQ(value(w), -1);
  }
}

TEST(GradAccumulatorErrors, OfGradientsThatCantBeUnscaledComeOutAsTheyAre) {
  GradScaler scaler(GradScalerOptions().init_scale(4));
  const auto w = weight(0, torch::kHalf);
  SGD sgd({w}, 1);
  GradAccumulator accumulator(sgd, GradAccumulatorOptions(1).scaler(scaler));
  EXPECT_THAT(thrown_text([&] { accumulator.backward(w.sum()); }),
              Optional(HasSubstr("is float16")));
  EXPECT_EQ(accumulator.micro_steps(), 0);
}

TEST(GradAccumulatorLifetime, WarnsOfAWindowThatNoStepWasTakenFor) {
  const auto w = weight(0);
  SGD sgd({w}, 1);
  const auto run = [&](int micro_batches, bool discard) {
    return warnings_of([&] {
      GradAccumulator accumulator(sgd, GradAccumulatorOptions(4));
      for (int i = 0; i < micro_batches; ++i) {
        accumulator.backward(w.sum());
      }
      if (discard) {
        accumulator.discard();
      }
    });
  };
  EXPECT_THAT(run(6, false),
              ElementsAre(AllOf(HasSubstr("2 micro-batches"), HasSubstr("flush()"))));
  EXPECT_THAT(run(6, true), IsEmpty());
  EXPECT_THAT(run(4, false), IsEmpty());
}

// A GAN's other loss has reached the parameters since the last step.
TEST(GradAccumulatorLifetime, AWindowBeginsWithoutGradients) {
  const auto w = weight(0);
  RecordingSGD sgd({w});
  GradAccumulator accumulator(sgd, GradAccumulatorOptions(2));
  (w.sum() * 100).backward();
  accumulator.backward(w.sum());
  accumulator.backward(w.sum());
  EXPECT_THAT(values(sgd.gradients), ElementsAre(1));
}

TEST(GradAccumulatorLifetime, SparseGradientsAddUp) {
  torch::nn::Embedding table(torch::nn::EmbeddingOptions(4, 1).sparse(true));
  torch::nn::init::zeros_(table->weight);
  GradScaler scaler(GradScalerOptions().init_scale(4));
  SGD sgd(table->parameters(), 1);
  GradAccumulator accumulator(sgd, GradAccumulatorOptions(4).scaler(scaler).clip_grad_norm(kInf));
  accumulator.backward(table->forward(torch::tensor({1, 1})).sum());
  accumulator.backward(table->forward(torch::tensor({1, 2})).sum() * 2);
  accumulator.flush();
  EXPECT_TRUE(table->weight.equal(torch::tensor({0.0, -2.0, -1.0, 0.0}).view({4, 1})));
  EXPECT_NEAR(accumulator.grad_norm(), std::sqrt(5.0), 1e-6);
}

}  // namespace
