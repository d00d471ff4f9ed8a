// Gradients, divided by the scale once, whatever they are of.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <tidemark/detail/unscale.h>
#include <tidemark/grad_scaler.h>
#include <torch/torch.h>

#include <cstddef>
#include <cstdint>
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

TEST(GradScalerUnscale, DividesGradientsInPlaceBeforeTheStep) {
  GradScaler scaler(GradScalerOptions().init_scale(1024));
  const auto w = weight(1);
  SGD sgd({w}, 0.25);
  backward(scaler, w, 2);
  EXPECT_EQ(grad_value(w), 2048);
  const auto* grad = w.grad().unsafeGetTensorImpl();
  scaler.unscale_(sgd);
  EXPECT_EQ(grad_value(w), 2);
  EXPECT_EQ(w.grad().unsafeGetTensorImpl(), grad);
  EXPECT_EQ(scaler.step(sgd), StepResult::kStepped);
  EXPECT_EQ(grad_value(w), 2);
  EXPECT_EQ(value(w), 0.5);
}

TEST(GradScalerUnscale, TakesEveryDtypeAndLooksForInfInIt) {
  for (const auto dtype : {torch::kBFloat16, torch::kFloat, torch::kDouble}) {
    GradScaler scaler(GradScalerOptions().init_scale(4));
    const auto w = weight(1, dtype);
    const auto other = weight(1);
    SGD sgd(std::vector<Tensor>{other, w}, 0.5);
    backward(scaler, w, 8);
    backward(scaler, other, 16);
    EXPECT_EQ(grad_value(w), 32);
    EXPECT_EQ(scaler.step(sgd), StepResult::kStepped);
    EXPECT_EQ(grad_value(w), 8);
    EXPECT_EQ(grad_value(other), 16);
    EXPECT_EQ(value(w), -3);
    scaler.update();

    for (const double bad : {kInf, -kInf, kNaN}) {
      sgd.zero_grad();
      backward(scaler, other, 1);
      w.mutable_grad() = torch::tensor({1.0, bad}, dtype);
      EXPECT_EQ(scaler.step(sgd), StepResult::kSkipped);
      scaler.update();
    }
    EXPECT_EQ(value(w), -3);
    EXPECT_EQ(scaler.get_scale(), 0.5);
  }
}

TEST(GradScalerUnscale, TakesComplexGradients) {
  GradScaler scaler(GradScalerOptions().init_scale(4));
  const auto w = torch::zeros({2}, torch::kComplexFloat).requires_grad_();
  SGD sgd({w}, 1);
  (void)scaler.scale(torch::ones({}));
  w.mutable_grad() = torch::complex(torch::full({2}, 8.0), torch::full({2}, -4.0));
  scaler.unscale_(sgd);
  EXPECT_TRUE(torch::view_as_real(w.grad()).equal(torch::tensor({{2.F, -1.F}, {2.F, -1.F}})));

  scaler.update();
  w.mutable_grad() = torch::complex(torch::ones({2}), torch::tensor({1.F, kInf}));
  EXPECT_EQ(scaler.step(sgd), StepResult::kSkipped);
}

TEST(GradScalerUnscale, UnscalesAParameterThatIsListedTwiceOnce) {
  GradScaler scaler(GradScalerOptions().init_scale(2));
  const auto w = weight(1);
  SGD in_one_group({w, w}, 0.1);
  SGD in_two_groups(
      std::vector<torch::optim::OptimizerParamGroup>{torch::optim::OptimizerParamGroup({w}),
                                                     torch::optim::OptimizerParamGroup({w})},
      torch::optim::SGDOptions(0.1));
  for (auto* sgd : {&in_one_group, &in_two_groups}) {
    sgd->zero_grad();
    backward(scaler, w, 4);
    scaler.unscale_(*sgd);
    EXPECT_EQ(grad_value(w), 4);
    scaler.update();
  }
}

TEST(GradScalerUnscale, UnscalesAParameterOfTwoOptimizersOnceAndTellsBothOfItsInf) {
  GradScaler scaler(GradScalerOptions().init_scale(8).growth_interval(1000));
  const auto shared = weight(1);
  const auto own = weight(1);
  SGD first({shared}, 0.5);
  SGD second(std::vector<Tensor>{own, shared}, 0.25);
  backward(scaler, shared, 2);
  backward(scaler, own, 4);
  scaler.unscale_(first);
  scaler.unscale_(second);
  EXPECT_EQ(grad_value(shared), 2);
  EXPECT_EQ(grad_value(own), 4);
  EXPECT_EQ(scaler.step(first), StepResult::kStepped);
  EXPECT_EQ(scaler.step(second), StepResult::kStepped);
  EXPECT_EQ(value(shared), 1 - 0.5 * 2 - 0.25 * 2);
  EXPECT_EQ(value(own), 0);
  scaler.update();

  first.zero_grad();
  second.zero_grad();
  backward(scaler, shared, kInf);
  backward(scaler, own, 4);
  EXPECT_EQ(scaler.step(first), StepResult::kSkipped);
  EXPECT_EQ(scaler.step(second), StepResult::kSkipped);
}

TEST(GradScalerUnscale, UnscalesNewGradientsOfASharedParameterInTheSameUpdate) {
  GradScaler scaler(GradScalerOptions().init_scale(8));
  const auto shared = weight(1);
  SGD first({shared}, 0.5);
  SGD second({shared}, 0.5);
  backward(scaler, shared, 2);
  scaler.step(first);
  first.zero_grad();
  backward(scaler, shared, 4);
  scaler.step(second);
  EXPECT_EQ(grad_value(shared), 4);
  EXPECT_EQ(value(shared), -2);
}

TEST(GradScalerUnscale, KnowsEachOfManySharedGradientsInWhateverOrderTheyWereUnscaled) {
  GradScaler scaler(GradScalerOptions().init_scale(8));
  std::vector<Tensor> all;
  std::vector<std::vector<Tensor>> groups(3);
  for (int i = 0; i < 30; ++i) {
    all.push_back(weight(1));
    groups[i % 3].push_back(all.back());
    backward(scaler, all.back(), i);
  }
  for (const auto& group : {groups[1], groups[2], groups[0]}) {
    scaler.unscale_(group);
  }
  SGD sgd(all, 0.5);
  EXPECT_EQ(scaler.step(sgd), StepResult::kStepped);
  for (int i = 0; i < 30; ++i) {
    EXPECT_EQ(grad_value(all[i]), i);
    EXPECT_EQ(value(all[i]), 1 - 0.5 * i);
  }
}

TEST(GradScalerUnscale, RefusesASharedGradientThatWasWrittenToAfterItWasUnscaled) {
  GradScaler scaler(GradScalerOptions().init_scale(8));
  const auto shared = weight(1);
  SGD first({shared}, 0.5);
  SGD second({shared}, 0.5);
  SGD third({shared}, 0.5);
  backward(scaler, shared, 2);
  scaler.unscale_(first);
  scaler.unscale_(second);
  backward(scaler, shared, 2);  // on top
  EXPECT_THAT(thrown_text([&] { scaler.step(third); }),
              Optional(AllOf(HasSubstr("written to since"), HasSubstr("[2]"), HasSubstr("SGD"))));
  EXPECT_EQ(value(shared), 1);
}

TEST(GradScalerUnscale, SumsDuplicatesOfSparseGradientsBeforeItLooksForInf) {
  GradScaler scaler(GradScalerOptions().init_scale(4));
  const auto w = weight(1);
  SGD sgd({w}, 0.5);
  (void)scaler.scale(torch::ones({}));
  const auto sparse = [](float value) {
    return torch::sparse_coo_tensor(torch::tensor({{0, 0}}), torch::tensor({value, value}), {2});
  };
  w.mutable_grad() = sparse(4);
  EXPECT_EQ(scaler.step(sgd), StepResult::kStepped);
  EXPECT_TRUE(w.grad().to_dense().equal(torch::tensor({2.F, 0.F})));
  EXPECT_TRUE(w.equal(torch::tensor({0.F, 1.F})));
  scaler.update();

  w.mutable_grad() = sparse(3e38F);
  EXPECT_THAT(scaler.nonfinite_grads(sgd), ::testing::SizeIs(1));
  EXPECT_EQ(scaler.step(sgd), StepResult::kSkipped);
}

TEST(GradScalerUnscale, RefusesHalfGradientsBeforeItTouchesAny) {
  GradScaler scaler(GradScalerOptions().init_scale(4));
  const auto single = weight(1);
  const auto half = weight(1, torch::kHalf);
  SGD sgd(std::vector<Tensor>{single, half}, 0.5);
  backward(scaler, single, 1);
  backward(scaler, half, 2);
  const auto text = AllOf(HasSubstr("parameter 1 of group 0, of shape [2]"), HasSubstr("float16"),
                          HasSubstr("AmpScope"), HasSubstr("allow_fp16_grads(true)"));
  EXPECT_THAT(thrown_text([&] { scaler.unscale_(sgd); }), Optional(text));
  EXPECT_THAT(thrown_text([&] { scaler.step(sgd); }), Optional(text));
  EXPECT_EQ(grad_value(single), 4);
  EXPECT_EQ(value(single), 1);
  EXPECT_THAT(thrown_text([&] { scaler.update(); }), Optional(HasSubstr("without a step()")));

  GradScaler allowing(GradScalerOptions().init_scale(4).allow_fp16_grads(true));
  sgd.zero_grad();
  backward(allowing, half, 2);
  EXPECT_EQ(allowing.step(sgd), StepResult::kStepped);
  EXPECT_EQ(grad_value(half), 2);
  EXPECT_EQ(value(half), 0);
}

TEST(GradScalerUnscale, UnscalesTheGradientOfANonLeafOnceAndNeverLooksForInfInIt) {
  GradScaler scaler(GradScalerOptions().init_scale(4).growth_interval(1));
  const auto w = weight(1);
  SGD sgd({w}, 0.5);
  const auto means = w * 2;
  means.retain_grad();
  scaler.scale((means * 3).sum()).backward();
  scaler.unscale_(means.grad());
  EXPECT_EQ(grad_value(means), 3);
  EXPECT_THAT(thrown_text([&] { scaler.unscale_(means.grad()); }),
              Optional(HasSubstr("already unscaled")));
  EXPECT_EQ(grad_value(means), 3);
  means.grad().fill_(kInf);
  EXPECT_EQ(scaler.step(sgd), StepResult::kStepped);
  EXPECT_EQ(grad_value(w), 6);
  scaler.update();
  EXPECT_EQ(scaler.get_scale(), 8);
  means.grad().fill_(8);
  scaler.unscale_(means.grad());  // in the next update again
  EXPECT_EQ(grad_value(means), 1);
}

TEST(GradScalerUnscale, CountsALeafsGradientThatWasUnscaledByItself) {
  GradScaler scaler(GradScalerOptions().init_scale(4));
  const auto w = weight(1);
  SGD sgd({w}, 0.5);
  backward(scaler, w, 2);
  scaler.unscale_(w.grad());
  EXPECT_EQ(scaler.step(sgd), StepResult::kStepped);
  EXPECT_EQ(grad_value(w), 2);
  EXPECT_EQ(value(w), 0);
}

TEST(GradScalerUnscale, RefusesTensorsThatAreNoGradients) {
  GradScaler scaler;
  const auto w = weight(1);
  EXPECT_THAT(thrown_text([&] { scaler.unscale_(torch::ones({2})); }),
              Optional(HasSubstr("before scale()")));
  backward(scaler, w, 1);
  EXPECT_THAT(thrown_text([&] { scaler.unscale_(Tensor()); }), Optional(HasSubstr("retain_grad")));
  EXPECT_THAT(thrown_text([&] { scaler.unscale_(w); }), Optional(HasSubstr("pass its grad()")));
  EXPECT_THAT(thrown_text([&] { scaler.unscale_(torch::ones({2}, torch::kHalf)); }),
              Optional(HasSubstr("float16")));
  EXPECT_EQ(value(w), 1);
}

TEST(GradScalerUnscale, FollowsParametersThatAreReplacedBetweenSteps) {
  GradScaler scaler(GradScalerOptions().init_scale(4));
  auto w = weight(1);
  SGD sgd({w}, 0.5);
  for (const double step : {1, 2, 3}) {
    backward(scaler, w, step);
    EXPECT_EQ(scaler.step(sgd), StepResult::kStepped);
    EXPECT_EQ(value(w), 1 - 0.5 * step);
    scaler.update();
    w = weight(1);
    sgd.param_groups()[0].params() = {w};
  }
}

TEST(GradScalerUnscale, KeepsNeitherParametersNorGradientsAlive) {
  GradScaler scaler;
  auto w = weight(1);
  SGD sgd({w}, 0.5);
  backward(scaler, w, 1);
  const auto uses = w.use_count();
  const auto grad_uses = w.grad().use_count();
  scaler.unscale_(sgd);
  scaler.step(sgd);
  EXPECT_EQ(w.use_count(), uses);
  EXPECT_EQ(w.grad().use_count(), grad_uses);
}

TEST(GradScalerUnscale, UnscalesGradientsThatArePartOfAGraph) {
  GradScaler scaler(GradScalerOptions().init_scale(4));
  const auto w = weight(3);
  SGD sgd({w}, 0.5);
  scaler.scale((w * w).sum()).backward({}, /*retain_graph=*/true, /*create_graph=*/true);
  EXPECT_EQ(scaler.step(sgd), StepResult::kStepped);
  EXPECT_EQ(grad_value(w), 6);
  EXPECT_EQ(value(w), 0);
  sgd.zero_grad();
}

// The path for devices whose kernel lacks bfloat16, against the kernel that has it.
TEST(CheckAndUnscaleByParts, EqualsTheKernelBitForBit) {
  torch::manual_seed(1);
  const auto inverse = torch::full({}, 1.0 / 3.0);
  for (const auto dtype : {torch::kBFloat16, torch::kHalf, torch::kFloat, torch::kDouble}) {
    std::vector<Tensor> kernel;
    std::vector<Tensor> parts;
    for (const auto& sizes : std::vector<std::vector<int64_t>>{{}, {1}, {1000}, {3, 4, 5}, {0}}) {
      const auto gradient = (torch::randn(sizes) * 100).to(dtype);
      kernel.push_back(gradient.clone());
      parts.push_back(gradient.clone());
    }
    auto kernel_found = torch::zeros({});
    auto parts_found = torch::zeros({});
    at::_amp_foreach_non_finite_check_and_unscale_(kernel, kernel_found, inverse);
    tidemark::detail::check_and_unscale_by_parts(parts, parts_found, inverse);
    for (size_t i = 0; i < kernel.size(); ++i) {
      EXPECT_TRUE(parts[i].equal(kernel[i])) << dtype << " " << i;
    }
    EXPECT_EQ(parts_found.item<float>(), 0);
  }
}

TEST(CheckAndUnscaleByParts, FindsInfAndNaNInAnyOfTheGradients) {
  for (const float bad : {kInf, -kInf, kNaN}) {
    for (const int place : {0, 1}) {
      std::vector<Tensor> gradients(2);
      gradients[place] = torch::tensor({1.F, bad}).to(torch::kBFloat16);
      gradients[1 - place] = torch::full({2}, 8.0, torch::kBFloat16);
      auto found = torch::zeros({});
      tidemark::detail::check_and_unscale_by_parts(gradients, found, torch::full({}, 0.25));
      EXPECT_EQ(found.item<float>(), 1);
      EXPECT_EQ(value(gradients[1 - place]), 2);
    }
  }
  auto found = torch::ones({});
  tidemark::detail::check_and_unscale_by_parts({torch::ones({2})}, found, torch::ones({}));
  EXPECT_EQ(found.item<float>(), 1) << "what was found before is forgotten";
}

}  // namespace
