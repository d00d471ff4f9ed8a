// Values under AmpScope: reported losses of precision, and training that must come out right.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <tidemark/amp_cast.h>
#include <tidemark/amp_scope.h>
#include <tidemark/grad_scaler.h>
#include <torch/torch.h>

#include <cmath>
#include <limits>
#include <utility>
#include <vector>

namespace {

using tidemark::amp_cast;
using tidemark::AmpOptions;
using tidemark::AmpScope;
using tidemark::GradScaler;
using tidemark::StepResult;
using torch::kBFloat16;
using torch::kCPU;
using torch::kFloat;
using torch::kHalf;
using torch::Tensor;
namespace F = torch::nn::functional;

// --- weights that are used more than once ---

/// The gradient of a weight that 256 products with 1/512 and one with 1 use.
float gradient_of_a_reused_weight(bool cache) {
  const auto w = torch::ones({1, 1}).requires_grad_();
  auto loss = torch::zeros({});
  {
    const AmpScope amp(kCPU, AmpOptions(kBFloat16).cache(cache));
    for (int i = 0; i < 256; ++i) {
      loss = loss + torch::full({1, 1}, 1.0 / 512).mm(w).to(kFloat).sum();
    }
    loss = loss + torch::ones({1, 1}).mm(w).to(kFloat).sum();
  }
  loss.backward();
  return w.grad().item<float>();
}

TEST(AmpNumerics, GradientsOfAReusedWeightAreExactWithoutTheCache) {
  EXPECT_EQ(gradient_of_a_reused_weight(false), 1.5F);
}

TEST(AmpNumerics, GradientsOfAReusedWeightAreAddedInHalfPrecisionWithTheCache) {
  EXPECT_EQ(gradient_of_a_reused_weight(true), 1.0F);  // as documented: bfloat16 has 1 + 1/128 next
}

TEST(AmpNumerics, ALinearModuleIsNotCached) {
  torch::nn::Linear linear(torch::nn::LinearOptions(1, 1).bias(false));
  const AmpScope amp(kCPU);
  const auto value_with = [&](double weight) {
    const torch::NoGradGuard no_grad;
    linear->weight.fill_(weight);
    const torch::AutoGradMode grad_mode(true);
    return linear(torch::ones({1, 1})).item<float>();
  };
  EXPECT_EQ(value_with(1), 1);
  EXPECT_EQ(value_with(2), 2);
}

// --- a first pass without grad ---

template <class Guard>
void expect_gradients_after_a_pass_under() {
  torch::nn::Conv3d conv(1, 1, 1);
  const auto x = torch::randn({1, 1, 2, 2, 2});
  std::vector<std::pair<Tensor, Tensor>> grads;
  for (const bool first_pass : {false, true}) {
    conv->zero_grad();
    Tensor y;
    {
      const AmpScope amp(kCPU);
      if (first_pass) {
        const Guard guard;
        (void)conv(x);
      }
      y = conv(x);
    }
    ASSERT_TRUE(y.requires_grad());
    y.to(kFloat).square().sum().backward();
    ASSERT_TRUE(conv->weight.grad().defined());
    ASSERT_TRUE(conv->bias.grad().defined());
    grads.emplace_back(conv->weight.grad().clone(), conv->bias.grad().clone());
  }
  EXPECT_TRUE(torch::equal(grads[0].first, grads[1].first));
  EXPECT_TRUE(torch::equal(grads[0].second, grads[1].second));
}

TEST(AmpNumerics, APassWithoutGradModeTakesNoGradientsFromTheNext) {
  expect_gradients_after_a_pass_under<torch::NoGradGuard>();
}

TEST(AmpNumerics, APassInInferenceModeTakesNoGradientsFromTheNext) {
  expect_gradients_after_a_pass_under<c10::InferenceMode>();
}

// --- backward ---

TEST(AmpNumerics, BackwardInsideTheScopeGivesTheSameBits) {
  torch::manual_seed(3);
  torch::nn::Sequential net(torch::nn::Conv3d(2, 4, 3), torch::nn::BatchNorm3d(4),
                            torch::nn::ReLU(), torch::nn::Conv3d(4, 4, 2), torch::nn::Flatten(),
                            torch::nn::Linear(4, 3));
  const auto x = torch::randn({3, 2, 4, 4, 4});
  const auto target = torch::tensor({0, 1, 2});
  std::vector<std::vector<Tensor>> grads(2);
  for (const bool inside : {false, true}) {
    net->zero_grad();
    {
      Tensor loss;
      {
        const AmpScope amp(kCPU);
        loss = F::cross_entropy(net->forward(x), target);
        if (inside) {
          loss.backward();
        }
      }
      if (!inside) {
        loss.backward();
      }
    }
    for (const auto& parameter : net->parameters()) {
      grads[inside].push_back(parameter.grad().clone());
    }
  }
  for (std::size_t i = 0; i < grads[0].size(); ++i) {
    EXPECT_TRUE(torch::equal(grads[0][i], grads[1][i])) << i;
  }
}

TEST(AmpNumerics, UpsamplingAddsItsGradientsExactly) {
  const auto size = std::vector<int64_t>{20, 20, 20};
  for (const auto dtype : {kBFloat16, kHalf}) {
    for (const bool trilinear : {false, true}) {
      auto options = F::InterpolateFuncOptions().size(size).mode(torch::kNearest);
      if (trilinear) {
        options.mode(torch::kTrilinear).align_corners(false);
      }
      const auto x = torch::ones({1, 1, 1, 1, 1}).requires_grad_();
      Tensor y;
      {
        const AmpScope amp(kCPU, dtype);
        y = F::interpolate(amp_cast(x), options);
      }
      y.sum().backward();
      EXPECT_EQ(x.grad().item<float>(), 8000) << dtype << trilinear;
    }
  }
}

// --- range and precision ---

TEST(AmpNumerics, ASumOnTheCpuIsRoundedToItsDtype) {
  const AmpScope amp(kCPU);
  const auto sum = torch::ones({70000}, kBFloat16).sum();
  EXPECT_EQ(sum.scalar_type(), kBFloat16);
  EXPECT_NEAR(sum.item<float>(), 70000, 0.004 * 70000);
}

TEST(AmpNumerics, ASumThatOverflowsHalfIsRightInFullPrecision) {
  const auto ones = torch::ones({70000}, kHalf);
  const AmpScope amp(kCPU, kHalf);
  EXPECT_TRUE(std::isinf(ones.sum().item<float>()));
  const AmpScope off = AmpScope::off(kCPU);
  EXPECT_EQ(amp_cast(kFloat, ones).sum().item<float>(), 70000);
}

TEST(AmpNumerics, AnEpsilonThatHalfCannotHoldWorksInFullPrecision) {
  const auto dice = [](const Tensor& p, const Tensor& t) {
    return 1 - 2 * (p * t).sum() / (p.sum() + t.sum() + 1e-8);
  };
  const auto empty = torch::zeros({4}, kHalf);
  const AmpScope amp(kCPU, kHalf);
  EXPECT_EQ(torch::full({}, 1e-8, kHalf).item<float>(), 0);
  EXPECT_TRUE(std::isnan(dice(empty, empty).item<float>()));
  const AmpScope off = AmpScope::off(kCPU);
  EXPECT_EQ(dice(amp_cast(kFloat, empty), amp_cast(kFloat, empty)).item<float>(), 1);
}

TEST(AmpNumerics, AMaskOfTheLowestHalfGivesNoNan) {
  const AmpScope amp(kCPU, kHalf);
  const auto scores = torch::randn({1, 2, 3}).bmm(torch::randn({1, 3, 2}));
  ASSERT_EQ(scores.scalar_type(), kHalf);
  const auto mask = torch::tensor({{{true, true}, {true, false}}});
  EXPECT_THROW((void)scores.masked_fill(mask, -1e9), std::exception);  // 65504 is the largest
  const auto lowest = static_cast<double>(std::numeric_limits<at::Half>::lowest());
  const auto weights = scores.masked_fill(mask, lowest).softmax(2).to(kFloat);
  EXPECT_TRUE(torch::equal(weights, torch::tensor({{{0.5F, 0.5F}, {0.F, 1.F}}})));
}

TEST(AmpNumerics, GridSampleTakesAHalfVolumeWithAFloat32Grid) {
  const AmpScope amp(kCPU);
  const auto y =
      F::grid_sample(torch::ones({1, 1, 2, 2, 2}, kBFloat16), torch::zeros({1, 1, 1, 1, 3}),
                     F::GridSampleFuncOptions().align_corners(false));
  EXPECT_EQ(y.scalar_type(), kFloat);
  EXPECT_EQ(y.item<float>(), 1);
}

// --- training ---

TEST(AmpTraining, HalfWithAGradScalerSkipsAStepThatIsNanAndGoesOn) {
  torch::nn::Conv3d conv(torch::nn::Conv3dOptions(1, 1, 1).bias(false));
  {
    const torch::NoGradGuard no_grad;
    conv->weight.fill_(1);
  }
  torch::optim::SGD sgd(conv->parameters(), 0.25);
  GradScaler scaler(tidemark::GradScalerOptions().init_scale(1024));
  std::vector<float> weights;
  std::vector<StepResult> results;
  for (int step = 0; step < 4; ++step) {
    sgd.zero_grad();
    Tensor loss;
    {
      const AmpScope amp(kCPU, kHalf);
      const auto bad = std::numeric_limits<double>::quiet_NaN();
      loss = conv(torch::full({1, 1, 2, 2, 2}, step == 2 ? bad : 1)).to(kFloat).square().mean();
    }
    scaler.scale(loss).backward();
    results.push_back(scaler.step(sgd));
    scaler.update();
    weights.push_back(conv->weight.item<float>());
  }
  const auto stepped = StepResult::kStepped;
  EXPECT_EQ(results, (std::vector{stepped, stepped, StepResult::kSkipped, stepped}));
  EXPECT_EQ(weights, (std::vector{0.5F, 0.25F, 0.25F, 0.125F}));
}

TEST(AmpTraining, Bfloat16NeedsNoScaler) {
  torch::manual_seed(0);
  torch::nn::Sequential net(torch::nn::Conv3d(1, 4, 3), torch::nn::ReLU(), torch::nn::Flatten(),
                            torch::nn::Linear(32, 2));
  torch::optim::SGD sgd(net->parameters(), 0.1);
  const auto x = torch::randn({2, 1, 4, 4, 4});
  const auto target = torch::tensor({0, 1});
  float last = std::numeric_limits<float>::infinity();
  for (int step = 0; step < 5; ++step) {
    sgd.zero_grad();
    Tensor loss;
    {
      const AmpScope amp(kCPU, kBFloat16);
      loss = F::cross_entropy(net->forward(x), target);
    }
    loss.backward();
    sgd.step();
    EXPECT_LT(loss.item<float>(), last);
    last = loss.item<float>();
  }
}

}  // namespace
