// The scale that follows from the steps, and what is told about skipped ones.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <tidemark/detail/loss_scale.h>
#include <tidemark/detail/unscale.h>
#include <tidemark/grad_scaler.h>
#include <torch/torch.h>

#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "../support/host_reads.h"
#include "../support/thrown_text.h"
#include "weights.h"

namespace {

using namespace tidemark::tests;
using ::testing::HasSubstr;
using ::testing::Optional;
using tidemark::GradScaler;
using tidemark::GradScalerOptions;
using tidemark::StepResult;
using torch::Tensor;
using torch::optim::SGD;

TEST(GradScalerUpdate, ReadsTheDeviceOncePerStepAndNowhereElse) {
  GradScaler scaler(GradScalerOptions().growth_interval(1));
  const auto w = weight(1);
  const auto brain = weight(1, torch::kBFloat16);
  SGD first({w}, 0.5);
  SGD second({brain}, 0.5);
  const auto loss = (w * 2).sum() + brain.sum();
  const HostReads reads;
  const auto scaled = scaler.scale(std::vector<Tensor>{loss, loss.to(torch::kHalf)});
  EXPECT_EQ(HostReads::taken(), 0);
  scaled[0].backward();
  HostReads::taken();
  scaler.unscale_(first);
  auto found = torch::zeros({});
  tidemark::detail::check_and_unscale_by_parts({brain.grad()}, found, torch::ones({}));
  EXPECT_EQ(HostReads::taken(), 0);
  scaler.step(first);
  EXPECT_EQ(HostReads::taken(), 1);
  scaler.step(second);
  EXPECT_EQ(HostReads::taken(), 1);
  scaler.update();
  EXPECT_EQ(HostReads::taken(), 0);
  scaler.step(std::vector<Tensor>{w}, [](const Tensor&, const Tensor&) {});
  EXPECT_EQ(HostReads::taken(), 1);
  scaler.update(16.0);
  EXPECT_EQ(HostReads::taken(), 0);
}

TEST(GradScalerUpdate, GrowsAfterTheIntervalAndCountsAnew) {
  GradScaler scaler(GradScalerOptions().init_scale(8).growth_factor(4).growth_interval(3));
  for (const double scale : {8, 8, 32, 32, 32, 128}) {
    update_with(scaler, 0);
    EXPECT_EQ(scaler.get_scale(), scale);
  }
}

TEST(GradScalerUpdate, GrowsWhenTheIntervalIsLoweredBelowTheCount) {
  GradScaler scaler(GradScalerOptions().init_scale(8).growth_interval(100));
  for (int i = 0; i < 10; ++i) {
    update_with(scaler, 0);
  }
  scaler.set_growth_interval(5);
  EXPECT_EQ(scaler.state().growth_tracker, 10);
  update_with(scaler, 0);
  EXPECT_EQ(scaler.get_scale(), 16);
  EXPECT_EQ(scaler.state().growth_tracker, 0);
}

TEST(GradScalerUpdate, StopsAtMinScaleAndComesBack) {
  for (const double min_scale : {static_cast<double>(std::numeric_limits<float>::min()), 1.0}) {
    GradScaler scaler(GradScalerOptions().min_scale(min_scale).growth_interval(1));
    for (int i = 0; i < 200; ++i) {
      update_with(scaler, kInf);
    }
    EXPECT_EQ(scaler.get_scale(), min_scale);
    EXPECT_EQ(scaler.consecutive_skips(), 200);
    update_with(scaler, 1);
    EXPECT_EQ(scaler.get_scale(), 2 * min_scale);
    EXPECT_EQ(scaler.consecutive_skips(), 0);
  }
  EXPECT_EQ(GradScalerOptions().min_scale(), std::numeric_limits<float>::min());
}

TEST(GradScalerUpdate, StaysFiniteAndWithinMaxScale) {
  GradScaler unbounded(GradScalerOptions().init_scale(0x1p127).growth_interval(1));
  GradScaler bounded(GradScalerOptions().init_scale(64).max_scale(100).growth_interval(1));
  for (int i = 0; i < 5; ++i) {
    update_with(unbounded, 0);
    update_with(bounded, 0);
    EXPECT_EQ(unbounded.get_scale(), 0x1p127);
    EXPECT_EQ(bounded.get_scale(), 100);
  }
}

TEST(GradScalerUpdate, TakesANewScaleAndLeavesTheCount) {
  GradScaler scaler(GradScalerOptions().min_scale(2).max_scale(1e6).growth_interval(3));
  update_with(scaler, 0);
  scaler.update(1024);
  EXPECT_EQ(scaler.get_scale(), 1024);
  scaler.update(torch::full({1}, 512.0, torch::kDouble));
  EXPECT_EQ(scaler.get_scale(), 512);
  EXPECT_EQ(scaler.state().growth_tracker, 1);
  scaler.update(1.0);
  EXPECT_EQ(scaler.get_scale(), 2);
  scaler.update(1e7);
  EXPECT_EQ(scaler.get_scale(), 1e6);
}

TEST(GradScalerUpdate, ANewScaleEndsTheUpdate) {
  GradScaler scaler(GradScalerOptions().init_scale(4));
  const auto w = weight(1);
  SGD sgd({w}, 0.5);
  backward(scaler, w, 1);
  scaler.step(sgd);
  scaler.update(8.0);
  sgd.zero_grad();
  backward(scaler, w, 1);
  EXPECT_EQ(grad_value(w), 8);
  EXPECT_EQ(scaler.step(sgd), StepResult::kStepped);
  EXPECT_EQ(grad_value(w), 1);
}

TEST(GradScalerUpdate, RefusesWhatIsNoScale) {
  GradScaler scaler(GradScalerOptions().init_scale(4));
  (void)scaler.scale(torch::ones({}));
  for (const double bad : {0.0, -1.0, 1e39, 1e-40, double{kInf}, double{kNaN}}) {
    EXPECT_THAT(thrown_text([&] { scaler.update(bad); }), Optional(HasSubstr("update() got")));
    EXPECT_THAT(thrown_text([&] { scaler.update(torch::full({}, bad, torch::kDouble)); }),
                Optional(HasSubstr("update() got")));
  }
  for (const auto& bad : {Tensor(), torch::ones({2}), torch::ones({}).requires_grad_(),
                          torch::ones({}, torch::kLong)}) {
    EXPECT_THAT(thrown_text([&] { scaler.update(bad); }), Optional(HasSubstr("one element")));
  }
  EXPECT_EQ(scaler.get_scale(), 4);
}

// What update(tensor) does for a tensor on a device, which it can't look at.
TEST(LossScale, KeepsItsValueWhereATensorHoldsNoScale) {
  tidemark::detail::LossScale scale(GradScalerOptions().init_scale(4).max_scale(100));
  scale.start(torch::kCPU);
  for (const double bad : {0.0, -1.0, 1e39, 1e-40, double{kInf}, double{kNaN}}) {
    scale.set(torch::full({1}, bad, torch::kDouble));
    EXPECT_EQ(scale.state().scale, 4);
  }
  scale.set(torch::full({1}, 16.0));
  EXPECT_EQ(scale.state().scale, 16);
  scale.set(torch::full({1}, 1000.0));
  EXPECT_EQ(scale.state().scale, 100);
}

TEST(GradScalerSkips, AreCountedPerUpdateAndEndWithACleanOne) {
  GradScaler scaler;
  const auto good = weight(1);
  const auto bad = weight(1);
  SGD first({bad}, 0.5);
  SGD second({good}, 0.5);
  SGD third({bad}, 0.5);
  for (int update = 1; update <= 3; ++update) {
    first.zero_grad();
    backward(scaler, bad, kInf);
    backward(scaler, good, 0);
    scaler.step(first);
    scaler.step(second);
    scaler.step(third);
    EXPECT_EQ(scaler.consecutive_skips(), update);
    scaler.update();
    EXPECT_EQ(scaler.consecutive_skips(), update);
  }
  first.zero_grad();
  second.zero_grad();
  scaler.step(first);
  scaler.update();
  EXPECT_EQ(scaler.consecutive_skips(), 3) << "no gradients, no news";
  update_with(scaler, 0);
  EXPECT_EQ(scaler.consecutive_skips(), 0);
}

TEST(GradScalerSkips, ThrowAtTheLimitAndNameTheParameters) {
  GradScaler scaler(GradScalerOptions().max_consecutive_skips(3));
  const auto good = weight(1);
  const auto bad = weight(1);
  SGD sgd(std::vector<Tensor>{good, bad}, 0.5);
  const auto skip = [&] {
    sgd.zero_grad();
    backward(scaler, good, 1);
    backward(scaler, bad, kInf);
    return scaler.step(sgd);
  };
  for (int update = 0; update < 2; ++update) {
    EXPECT_EQ(skip(), StepResult::kSkipped);
    scaler.update();
  }
  const auto text =
      Optional(AllOf(HasSubstr("3 updates in a row"), HasSubstr("16384"), HasSubstr("model"),
                     HasSubstr("parameter (group 0, index 1, shape [2]): 2 inf or NaN"),
                     Not(HasSubstr("index 0"))));
  EXPECT_THAT(thrown_text(skip), text);
  // The update can be finished, and training goes on if the reason is gone.
  scaler.update();
  EXPECT_EQ(scaler.get_scale(), 8192);
  update_with(scaler, 0);
  EXPECT_EQ(scaler.consecutive_skips(), 0);
  EXPECT_EQ(value(good), 1);
}

TEST(GradScalerReport, NamesParametersWithGradientsThatAreNotFinite) {
  GradScaler scaler;
  torch::nn::Sequential model(torch::nn::Linear(3, 2), torch::nn::Linear(2, 1));
  const auto parameters = model->parameters();
  SGD sgd(
      std::vector<torch::optim::OptimizerParamGroup>{
          torch::optim::OptimizerParamGroup({parameters[0], parameters[1]}),
          torch::optim::OptimizerParamGroup({parameters[2], parameters[3]})},
      torch::optim::SGDOptions(0.1));
  scaler.scale(model->forward(torch::ones({1, 3})).sum()).backward();
  EXPECT_THAT(scaler.nonfinite_grads(sgd), ::testing::IsEmpty());
  parameters[0].grad()[0].fill_(kNaN);
  parameters[3].grad().fill_(kInf);
  EXPECT_EQ(scaler.step(sgd), StepResult::kSkipped);
  const auto found = scaler.nonfinite_grads(sgd, model->named_parameters());
  ASSERT_EQ(found.size(), 2U);
  EXPECT_EQ(found[0].name, "0.weight");
  EXPECT_EQ(found[0].group, 0U);
  EXPECT_EQ(found[0].index, 0U);
  EXPECT_THAT(found[0].shape, ::testing::ElementsAre(2, 3));
  EXPECT_EQ(found[0].nonfinite, 3);
  EXPECT_EQ(found[1].name, "1.bias");
  EXPECT_EQ(found[1].group, 1U);
  EXPECT_EQ(found[1].index, 1U);
  EXPECT_EQ(::testing::PrintToString(found[1]),
            "1.bias (group 1, index 1, shape [1]): 1 inf or NaN");
  EXPECT_EQ(scaler.nonfinite_grads(sgd)[1].name, "");
  EXPECT_EQ(scaler.nonfinite_grads(parameters)[1].index, 3U);
}

}  // namespace
