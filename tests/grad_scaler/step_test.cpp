// Steps that are taken, skipped and refused.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <tidemark/grad_scaler.h>
#include <torch/torch.h>

#include <functional>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

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

// Counts its steps, and throws in them if told so.
class CountingSGD : public SGD {
 public:
  using SGD::SGD;
  Tensor step(LossClosure closure = nullptr) override {
    ++steps;
    if (fails) {
      for (const auto& parameter : param_groups()[0].params()) {
        parameter.grad().mul_(1);  // as one that adds weight decay does
      }
      throw std::runtime_error("no memory for the momentum");
    }
    return SGD::step(std::move(closure));
  }
  int steps = 0;
  bool fails = false;
};

TEST(GradScalerStep, StepsOnceWithUnscaledGradients) {
  GradScaler scaler;
  const auto w = weight(1);
  CountingSGD sgd({w}, 0.25);
  backward(scaler, w, 2);
  EXPECT_EQ(scaler.step(sgd), StepResult::kStepped);
  EXPECT_EQ(value(w), 0.5);
  EXPECT_EQ(sgd.steps, 1);
  scaler.update();
  EXPECT_EQ(sgd.steps, 1);
  EXPECT_EQ(scaler.get_scale(), 65536);
  EXPECT_EQ(scaler.state().growth_tracker, 1);
}

TEST(GradScalerStep, SkipsAndBacksOffAfterInfOrNaN) {
  for (const double bad : {kInf, -kInf, kNaN}) {
    for (const bool unscaled_before : {false, true}) {
      GradScaler scaler;
      const auto w = weight(1);
      CountingSGD sgd({w}, 0.25);
      backward(scaler, w, 1);
      scaler.step(sgd);
      scaler.update();
      const auto before = w.detach().clone();
      sgd.zero_grad();
      backward(scaler, w, bad);
      if (unscaled_before) {
        scaler.unscale_(sgd);
      }
      EXPECT_EQ(scaler.step(sgd), StepResult::kSkipped);
      scaler.update();
      EXPECT_TRUE(w.equal(before));
      EXPECT_EQ(sgd.steps, 1);
      EXPECT_EQ(scaler.get_scale(), 32768);
      EXPECT_EQ(scaler.state().growth_tracker, 0);
    }
  }
}

TEST(GradScalerStep, SkipsOnlyTheOptimizerWithInfAndBacksOffOnce) {
  GradScaler scaler;
  const auto good = weight(1);
  const auto bad = weight(1);
  SGD first({good}, 0.5);
  SGD second({bad}, 0.5);
  SGD third({weight(1)}, 0.5);
  backward(scaler, good, 2);
  backward(scaler, bad, kInf);
  EXPECT_EQ(scaler.step(first), StepResult::kStepped);
  EXPECT_EQ(scaler.step(second), StepResult::kSkipped);
  EXPECT_EQ(scaler.step(third), StepResult::kNoGrads);
  scaler.update();
  EXPECT_EQ(value(good), 0);
  EXPECT_EQ(value(bad), 1);
  EXPECT_EQ(scaler.get_scale(), 32768);
}

TEST(GradScalerStep, TellsThatThereWereNoGradients) {
  GradScaler scaler(GradScalerOptions().init_scale(4).growth_interval(2));
  const auto w = weight(1);
  CountingSGD sgd({w}, 0.5);
  CountingSGD idle({weight(1)}, 0.5);
  for (const double scale : {4, 8}) {
    backward(scaler, w, 0);
    scaler.unscale_(idle);
    EXPECT_EQ(scaler.step(sgd), StepResult::kStepped);
    EXPECT_EQ(scaler.step(idle), StepResult::kNoGrads);
    scaler.update();
    EXPECT_EQ(scaler.get_scale(), scale);
    // None has any: neither the scale nor the count of clean updates moves.
    sgd.zero_grad();
    EXPECT_EQ(scaler.step(sgd), StepResult::kNoGrads);
    EXPECT_EQ(scaler.step(idle), StepResult::kNoGrads);
    scaler.update();
    EXPECT_EQ(scaler.get_scale(), scale);
    EXPECT_EQ(scaler.state().growth_tracker, scale == 4 ? 1 : 0);
  }
  EXPECT_EQ(sgd.steps, 2);
  EXPECT_EQ(idle.steps, 0);
}

TEST(GradScalerStep, RefusesCallsInTheWrongOrder) {
  GradScaler scaler(GradScalerOptions().init_scale(4));
  const auto w = weight(1);
  SGD sgd({w}, 0.5);
  const auto before_scale =
      Optional(AllOf(HasSubstr("before scale()"), HasSubstr("scaler.scale(loss).backward()")));
  EXPECT_THAT(thrown_text([&] { scaler.unscale_(sgd); }), before_scale);
  EXPECT_THAT(thrown_text([&] { scaler.step(sgd); }), before_scale);
  EXPECT_THAT(thrown_text([&] { scaler.update(); }), before_scale);
  EXPECT_THAT(thrown_text([&] { scaler.update(2.0); }), before_scale);

  backward(scaler, w, 1);
  EXPECT_THAT(thrown_text([&] { scaler.update(); }),
              Optional(AllOf(HasSubstr("without a step()"), HasSubstr("not optimizer.step()"))));
  scaler.unscale_(sgd);
  EXPECT_THAT(thrown_text([&] { scaler.unscale_(sgd); }),
              Optional(AllOf(HasSubstr("unscale_() was already called"),
                             HasSubstr("torch::optim::SGD"), HasSubstr("last backward()"))));
  EXPECT_EQ(grad_value(w), 1);
  scaler.step(sgd);
  EXPECT_EQ(value(w), 0.5);
  EXPECT_THAT(thrown_text([&] { scaler.unscale_(sgd); }),
              Optional(HasSubstr("unscale_() was called after step()")));
  EXPECT_THAT(thrown_text([&] { scaler.step(sgd); }),
              Optional(HasSubstr("step() was already called")));
  EXPECT_EQ(value(w), 0.5);
  EXPECT_EQ(grad_value(w), 1);
  scaler.update();
  EXPECT_EQ(scaler.state().growth_tracker, 1);
  EXPECT_EQ(scaler.step(sgd), StepResult::kStepped) << "the next update's";
}

TEST(GradScalerStep, CanBeRetriedAfterTheOptimizerThrew) {
  GradScaler scaler(GradScalerOptions().init_scale(4));
  const auto w = weight(1);
  CountingSGD sgd({w}, 0.5);
  backward(scaler, w, 2);
  sgd.fails = true;
  EXPECT_THAT(thrown_text([&] { scaler.step(sgd); }), Optional(HasSubstr("no memory")));
  sgd.fails = false;
  EXPECT_EQ(scaler.step(sgd), StepResult::kStepped);
  EXPECT_EQ(value(w), 0);
  scaler.update();
  EXPECT_EQ(scaler.state().growth_tracker, 1);
}

TEST(GradScalerStep, RefusesLBFGSBeforeAnythingIsTouched) {
  for (const bool enabled : {true, false}) {
    GradScaler scaler(GradScalerOptions().init_scale(4).enabled(enabled));
    const auto w = weight(1);
    torch::optim::LBFGS lbfgs({w}, 1);
    backward(scaler, w, 1);
    const auto gradient = w.grad().clone();
    for (const auto& text :
         {thrown_text([&] { scaler.step(lbfgs); }), thrown_text([&] { scaler.unscale_(lbfgs); })}) {
      EXPECT_THAT(text, Optional(AllOf(HasSubstr("LBFGS"), HasSubstr("closure"))));
    }
    EXPECT_EQ(value(w), 1);
    EXPECT_TRUE(w.grad().equal(gradient));
  }
}

template <class... Arguments>
using StepWith =
    decltype(std::declval<GradScaler&>().step(std::declval<SGD&>(), std::declval<Arguments>()...));
template <class Void, class... Arguments>
struct CanStep : std::false_type {};
template <class... Arguments>
struct CanStep<std::void_t<StepWith<Arguments...>>, Arguments...> : std::true_type {};

TEST(GradScalerStep, RefusesClosuresWhenItIsCompiled) {
  const auto closure = [] { return torch::ones({}); };
  const auto own_step = [](const Tensor&, const Tensor&) {};
  static_assert(!CanStep<void, decltype(closure)>::value);
  static_assert(!CanStep<void, std::function<Tensor()>>::value);
  static_assert(CanStep<void, decltype(own_step)>::value);
  static_assert(CanStep<void>::value);
  static_assert(!std::is_copy_constructible_v<GradScaler>);
  static_assert(!std::is_copy_assignable_v<GradScaler>);
}

// SGD writes by data(), which leaves the counters alone; tidemark and autograd go by them.
TEST(GradScalerStep, MovesTheVersionOfWhatItStepsAndOfNothingElse) {
  for (const bool enabled : {true, false}) {
    GradScaler scaler(GradScalerOptions().enabled(enabled));
    const auto w = weight(1);
    const auto idle = weight(1);
    SGD sgd(std::vector<Tensor>{w, idle}, 0.5);
    const auto version = w._version();
    const auto idle_version = idle._version();
    backward(scaler, w, 1);
    scaler.step(sgd);
    scaler.update();
    EXPECT_GT(w._version(), version);
    EXPECT_EQ(idle._version(), idle_version);
  }
  GradScaler scaler;
  const auto w = weight(1);
  SGD sgd({w}, 0.5);
  const auto version = w._version();
  backward(scaler, w, kInf);
  EXPECT_EQ(scaler.step(sgd), StepResult::kSkipped);
  EXPECT_EQ(w._version(), version);
}

TEST(GradScalerStep, PassesEverythingThroughIfDisabled) {
  GradScaler scaler(GradScalerOptions().enabled(false));
  const auto w = weight(1);
  CountingSGD sgd({w}, 0.5);
  backward(scaler, w, 1);
  EXPECT_EQ(grad_value(w), 1);
  scaler.unscale_(sgd);
  scaler.unscale_(sgd);
  scaler.unscale_(w.grad());
  EXPECT_EQ(scaler.step(sgd), StepResult::kStepped);
  EXPECT_EQ(value(w), 0.5);
  EXPECT_EQ(scaler.step(sgd), StepResult::kStepped);
  scaler.update();
  scaler.update(2.0);
  EXPECT_FALSE(scaler.is_enabled());
  EXPECT_EQ(scaler.get_scale(), 1);
  sgd.zero_grad();
  EXPECT_EQ(scaler.step(sgd), StepResult::kStepped);
  EXPECT_EQ(sgd.steps, 3);
}

// A step of its own that divides by the scale as it goes, as a fused kernel does.
struct OwnSGD {
  explicit OwnSGD(std::vector<Tensor> weights) : parameters(std::move(weights)) {}
  void operator()(const Tensor& grad_scale, const Tensor& found_inf) {
    scales.push_back(grad_scale.item<float>());
    EXPECT_EQ(found_inf.item<float>(), 0);
    for (auto& parameter : parameters) {
      parameter.sub_(0.5 * parameter.grad().to(torch::kFloat) / grad_scale);
    }
  }
  std::vector<Tensor> parameters;
  std::vector<double> scales;
};

TEST(GradScalerOwnStep, GetsScaledGradientsAndTheirScale) {
  GradScaler scaler(GradScalerOptions().init_scale(4));
  const auto w = weight(1);
  SGD sgd({w}, 0.5);
  OwnSGD own({w});
  const auto version = w._version();
  backward(scaler, w, 2);
  EXPECT_EQ(scaler.step(sgd, std::ref(own)), StepResult::kStepped);
  EXPECT_EQ(grad_value(w), 8);
  EXPECT_EQ(value(w), 0);
  EXPECT_GT(w._version(), version + 1) << "own.sub_() moves it by one";
  scaler.update();
  EXPECT_EQ(scaler.state().growth_tracker, 1);
  EXPECT_THAT(own.scales, ::testing::ElementsAre(4));
}

TEST(GradScalerOwnStep, GetsScaleOneAfterUnscale) {
  GradScaler scaler(GradScalerOptions().init_scale(4));
  const auto w = weight(1);
  const std::vector<Tensor> parameters{w};
  OwnSGD own(parameters);
  backward(scaler, w, 2);
  scaler.unscale_(parameters);
  EXPECT_EQ(grad_value(w), 2);
  EXPECT_EQ(scaler.step(parameters, std::ref(own)), StepResult::kStepped);
  EXPECT_EQ(value(w), 0);
  EXPECT_THAT(own.scales, ::testing::ElementsAre(1));
  EXPECT_THAT(thrown_text([&] { scaler.step(parameters, std::ref(own)); }),
              Optional(HasSubstr("already called for this list of parameters")));
}

TEST(GradScalerOwnStep, IsNotCalledAfterInfNorWithoutGradients) {
  for (const bool unscaled_before : {false, true}) {
    GradScaler scaler;
    const auto w = weight(1);
    const std::vector<Tensor> parameters{w};
    OwnSGD own(parameters);
    (void)scaler.scale(torch::ones({}));
    EXPECT_EQ(scaler.step(parameters, std::ref(own)), StepResult::kNoGrads);
    scaler.update();
    backward(scaler, w, kInf);
    if (unscaled_before) {
      scaler.unscale_(parameters);
    }
    EXPECT_EQ(scaler.step(parameters, std::ref(own)), StepResult::kSkipped);
    scaler.update();
    EXPECT_EQ(scaler.get_scale(), 32768);
    EXPECT_EQ(value(w), 1);
    EXPECT_THAT(own.scales, ::testing::IsEmpty());
  }
}

TEST(GradScalerOwnStep, TakesHalfGradientsThatItUnscalesItself) {
  GradScaler scaler(GradScalerOptions().init_scale(4));
  const auto w = weight(1, torch::kHalf);
  OwnSGD own({w});
  backward(scaler, w, 2);
  EXPECT_EQ(scaler.step(own.parameters, std::ref(own)), StepResult::kStepped);
  EXPECT_EQ(value(w), 0);
}

TEST(GradScalerOwnStep, GetsScaleOneIfAnotherOptimizerUnscaledASharedParameter) {
  GradScaler scaler(GradScalerOptions().init_scale(4));
  const auto shared = weight(1);
  const auto other = weight(1);
  SGD sgd({shared}, 0.25);
  OwnSGD own({shared, other});
  backward(scaler, shared, 2);
  backward(scaler, other, 4);
  scaler.step(sgd);
  EXPECT_EQ(scaler.step(own.parameters, std::ref(own)), StepResult::kStepped);
  EXPECT_EQ(value(shared), 1 - 0.25 * 2 - 0.5 * 2);
  EXPECT_EQ(value(other), 1 - 0.5 * 4);
  EXPECT_THAT(own.scales, ::testing::ElementsAre(1));
}

TEST(GradScalerOwnStep, GetsScaleOneIfDisabled) {
  GradScaler scaler(GradScalerOptions().enabled(false));
  const auto w = weight(1);
  OwnSGD own({w});
  backward(scaler, w, 2);
  EXPECT_EQ(scaler.step(own.parameters, std::ref(own)), StepResult::kStepped);
  EXPECT_EQ(value(w), 0);
  EXPECT_THAT(own.scales, ::testing::ElementsAre(1));
}

}  // namespace
