// A step with a GradScaler runs out of memory, at every allocation in turn.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <tidemark/checkpoint.h>
#include <tidemark/grad_scaler.h>
#include <torch/torch.h>

#include <functional>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "../support/thrown_text.h"
#include "support.h"

namespace {

using namespace tidemark::tests;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
using testing::Optional;
using tidemark::GradScaler;
using tidemark::GradScalerOptions;
using tidemark::MemoryScope;
using tidemark::StepResult;
using torch::Tensor;
namespace nn = torch::nn;
namespace optim = torch::optim;

using MakeOptimizer =
    std::function<std::unique_ptr<optim::Optimizer>(const std::vector<Tensor>& parameters)>;

std::unique_ptr<optim::Optimizer> make_sgd(const std::vector<Tensor>& parameters) {
  return std::make_unique<optim::SGD>(parameters, optim::SGDOptions(0.1).momentum(0.9));
}
std::unique_ptr<optim::Optimizer> make_adam(const std::vector<Tensor>& parameters) {
  return std::make_unique<optim::Adam>(parameters, optim::AdamOptions(0.1).weight_decay(0.01));
}

// Two optimizers, which share a parameter, and gradients of two dtypes.
struct Training {
  explicit Training(const MakeOptimizer& make) {
    torch::manual_seed(0);
    conv = nn::Conv3d(nn::Conv3dOptions(1, 2, 3));
    bias = torch::randn({2}, torch::kDouble).requires_grad_();
    x = torch::randn({2, 1, 4, 4, 4});
    parameters = conv->parameters();
    parameters.push_back(bias);
    first = make(parameters);
    second = make({bias});
  }
  Tensor loss() const {
    const Tensor y = tidemark::checkpoint(
        [conv = conv](const Tensor& t) mutable { return conv(t).relu().square(); }, x);
    return (y.mean({0, 2, 3, 4}) * bias).sum();
  }

  nn::Conv3d conv{nullptr};
  Tensor bias;
  Tensor x;
  std::vector<Tensor> parameters;
  std::unique_ptr<optim::Optimizer> first;
  std::unique_ptr<optim::Optimizer> second;
  GradScaler scaler{GradScalerOptions().init_scale(1024).growth_interval(2)};
};

// A step, call by call. Each may be tried again where it failed, but for forward and backward,
// which begin anew together.
std::vector<std::function<void(Training&)>> calls() {
  const auto forward_and_backward = [](Training& t) {
    zero_grad(t.parameters);
    const Tensor loss = t.scaler.scale(t.loss());
    loss.backward();
  };
  return {
      forward_and_backward,
      [](Training& t) { t.scaler.unscale_(*t.first); },
      [](Training& t) { t.scaler.unscale_(*t.second); },
      [](Training& t) { t.scaler.step(*t.first); },
      [](Training& t) { t.scaler.step(*t.second); },
      [](Training& t) { t.scaler.update(); },
  };
}
constexpr size_t kFirstStep = 3;
constexpr size_t kSecondStep = 4;

std::tuple<double, double, int64_t, int64_t> scale_of(const Training& t) {
  const auto state = t.scaler.state();
  return {state.scale, state.growth_factor, state.growth_tracker, t.scaler.consecutive_skips()};
}

// Parameters, and with them what the optimizers keep: a second step shows both.
std::vector<Bytes> after_another_step(Training& t) {
  for (const auto& call : calls()) {
    call(t);
  }
  return bytes_of(t.parameters);
}

class WithGradScaler : public testing::TestWithParam<Fails> {
 protected:
  // `warm`: the optimizers have their state already, so that their own steps fail nowhere.
  void expect_nothing_lost(const MakeOptimizer& make, bool warm) {
    const auto start = [&] {
      auto training = std::make_unique<Training>(make);
      if (warm) {
        (void)after_another_step(*training);
      }
      return training;
    };
    std::tuple<double, double, int64_t, int64_t> expected_scale;
    const auto expected = [&] {
      auto training = start();
      for (const auto& call : calls()) {
        call(*training);
      }
      expected_scale = scale_of(*training);
      return after_another_step(*training);
    }();
    for_each_allocation([&](int64_t k) {
      auto training = start();
      size_t at = 0;
      State before(training->parameters);
      auto gradients = gradients_of(training->parameters);
      auto scale = scale_of(*training);
      const auto before_step = bytes_of(training->parameters[0]);
      std::string text;
      const bool failed = [&] {
        const Failing failing(GetParam(), k);
        return runs_out(failing, [&] {
          try {
            for (const auto& call : calls()) {
              before = State(training->parameters);
              gradients = gradients_of(training->parameters);
              scale = scale_of(*training);
              call(*training);
              ++at;
            }
          } catch (const std::exception& error) {
            text = error.what();
            throw;
          }
        });
      }();
      if (!failed) {
        EXPECT_EQ(scale_of(*training), expected_scale);
        EXPECT_EQ(differing(after_another_step(*training), expected), "") << "parameters";
        return false;
      }
      failed_in_[at] = true;
      EXPECT_EQ(scale_of(*training), scale);
      if (text.find("half-way") != std::string::npos) {
        EXPECT_TRUE(at == kFirstStep || at == kSecondStep);
        EXPECT_THAT(text, AllOf(HasSubstr("torch::optim::"), HasSubstr("param groups: 1"),
                                HasSubstr("last checkpoint")));
        half_updated_ |= bytes_of(training->parameters[0]) != before_step;
        training->scaler.update();  // that update ends, and training can go on
        for (auto* optimizer : {training->first.get(), training->second.get()}) {
          optimizer->state().clear();
        }
        (void)after_another_step(*training);
        return true;
      }
      before.expect_same(State(training->parameters));
      if (at > 0) {
        EXPECT_EQ(differing(gradients_of(training->parameters), gradients), "") << "gradients";
      }
      const auto all = calls();
      for (size_t i = at; i < all.size(); ++i) {
        all[i](*training);
      }
      EXPECT_EQ(scale_of(*training), expected_scale);
      EXPECT_EQ(differing(after_another_step(*training), expected), "") << "parameters";
      return true;
    });
  }

  std::vector<bool> failed_in_ = std::vector<bool>(calls().size());  // by the call
  bool half_updated_ = false;
};

TEST_P(WithGradScaler, EveryCallOfAStepWithMomentumMayBeTriedAgain) {
  expect_nothing_lost(make_sgd, /*warm=*/true);
  EXPECT_TRUE(failed_in_[0] && failed_in_[1]);
}

TEST_P(WithGradScaler, AFirstStepWithMomentum) { expect_nothing_lost(make_sgd, /*warm=*/false); }

TEST_P(WithGradScaler, AFirstStepOfAdamSaysThatItEndedHalfWay) {
  expect_nothing_lost(make_adam, /*warm=*/false);
  EXPECT_TRUE(failed_in_[kFirstStep]);
  EXPECT_TRUE(failed_in_[kSecondStep]);
  EXPECT_TRUE(half_updated_) << "as the error says";
}

TEST_P(WithGradScaler, ALaterStepOfAdam) { expect_nothing_lost(make_adam, /*warm=*/true); }

INSTANTIATE_TEST_SUITE_P(OutOfMemory, WithGradScaler,
                         testing::Values(Fails::kOne, Fails::kAllBehind));

TEST(GradScalerOutOfMemory, ItsFirstScaleBeginsNothing) {
  for_each_allocation([&](int64_t k) {
    GradScaler scaler(GradScalerOptions().init_scale(4));
    const Tensor loss = torch::ones({}).requires_grad_();
    const bool failed = [&] {
      const Failing failing(Fails::kOne, k);
      return runs_out(failing, [&] { (void)scaler.scale(loss); });
    }();
    scaler.scale(loss).backward();
    EXPECT_EQ(loss.grad().item<float>(), 4);
    scaler.update(8.0);
    EXPECT_EQ(scaler.state().growth_tracker, 0);
    return failed;
  });
}

// Sparse, complex and half-precision gradients lie in buckets of their own.
TEST(GradScalerOutOfMemory, NoGradientOfAnyKindIsUnscaledTwice) {
  for_each_allocation([&](int64_t k) {
    GradScaler scaler(GradScalerOptions().init_scale(4));
    const Tensor real = torch::zeros({2}).requires_grad_();
    const Tensor bf16 = torch::zeros({2}, torch::kBFloat16).requires_grad_();
    const Tensor complex = torch::zeros({2}, torch::kComplexDouble).requires_grad_();
    nn::Embedding table(nn::EmbeddingOptions(3, 1).sparse(true));
    const Tensor loss = real.sum() + bf16.sum().to(torch::kFloat) +
                        torch::view_as_real(complex).sum().to(torch::kFloat) +
                        table(torch::tensor({1, 1})).sum();
    scaler.scale(loss).backward();
    optim::SGD sgd({real, bf16, complex, table->weight}, 1);
    const bool failed = [&] {
      const Failing failing(Fails::kOne, k);
      return runs_out(failing, [&] { scaler.unscale_(sgd); });
    }();
    if (failed) {
      scaler.unscale_(sgd);
    }
    EXPECT_TRUE(real.grad().eq(1).all().item<bool>());
    EXPECT_TRUE(bf16.grad().eq(1).all().item<bool>());
    EXPECT_TRUE(torch::view_as_real(complex.grad()).eq(1).all().item<bool>());
    EXPECT_EQ(table->weight.grad().to_dense().sum().item<float>(), 2);
    return failed;
  });
}

TEST(GradScalerOutOfMemory, InAStepWithoutAScaleNamesTheOptimizer) {
  GradScaler scaler(GradScalerOptions().enabled(false));
  const Tensor w = torch::zeros({2}).requires_grad_();
  optim::Adam adam({w}, 0.1);
  const auto count = for_each_allocation([&](int64_t k) {
    w.mutable_grad() = torch::ones({2});
    adam.state().clear();
    std::optional<std::string> text;
    const Failing failing(Fails::kOne, k);
    text = thrown_text([&] { scaler.step(adam); });
    if (!text.has_value()) {
      return false;
    }
    if (text->find("half-way") != std::string::npos) {
      EXPECT_THAT(text, Optional(HasSubstr("torch::optim::Adam")));
    }
    return true;
  });
  EXPECT_GT(count, 4);
}

TEST(GradScalerStep, ThatThrowsSomethingElseSaysSoWhereItCanAndKeepsItsType) {
  GradScaler scaler(GradScalerOptions().init_scale(4));
  const Tensor w = torch::zeros({2}).requires_grad_();
  scaler.scale(w.sum()).backward();
  const auto fail = [&](const std::function<void()>& raise) {
    scaler.step({w}, [&](const auto&, const auto&) { raise(); });
  };
  EXPECT_THROW(fail([] { throw std::out_of_range("index"); }), std::out_of_range);
  EXPECT_THROW(fail([] { TORCH_CHECK_VALUE(false, "a value"); }), c10::ValueError);
  EXPECT_THAT(thrown_text([&] { fail([] { TORCH_CHECK_VALUE(false, "a value"); }); }),
              Optional(AllOf(HasSubstr("a value"), HasSubstr("half-way"))));
  EXPECT_THROW(fail([] { throw std::bad_alloc(); }), c10::OutOfMemoryError);
  EXPECT_THROW(fail([] { (void)torch::empty({int64_t{1} << 46}); }), c10::OutOfMemoryError);
}

TEST(GradScaler, DiscardForgetsTheOpenUpdateAndKeepsTheScale) {
  GradScaler scaler(GradScalerOptions().init_scale(4));
  const Tensor w = torch::zeros({2}).requires_grad_();
  optim::SGD sgd({w}, 1);
  scaler.scale(w.sum()).backward();
  scaler.step(sgd);
  scaler.discard();
  EXPECT_EQ(scaler.get_scale(), 4);
  EXPECT_EQ(scaler.state().growth_tracker, 0);
  EXPECT_THAT(thrown_text([&] { scaler.update(); }), Optional(HasSubstr("without a step()")));
  EXPECT_EQ(scaler.step(sgd), StepResult::kStepped) << "the next update's";
}

}  // namespace
