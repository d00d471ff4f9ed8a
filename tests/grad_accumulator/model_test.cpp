// What a model has beside its gradients: running statistics, half precision parameters, memory.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <tidemark/grad_accumulator.h>
#include <tidemark/memory/memory_scope.h>
#include <torch/torch.h>

#include <cmath>
#include <cstdint>
#include <memory>
#include <optional>
#include <stdexcept>
#include <vector>

#include "../support/thrown_text.h"
#include "support.h"

namespace {

using namespace tidemark::tests;
using tidemark::BatchNormPolicy;
using tidemark::GradAccumulator;
using tidemark::GradAccumulatorOptions;
using tidemark::GradScaler;
using tidemark::GradScalerOptions;
using tidemark::MemoryScope;
using torch::Tensor;
using torch::optim::SGD;

// A batch of 4 volumes, whose statistics are the same in both halves.
Tensor even_volumes() {
  torch::manual_seed(6);
  const auto half = torch::randn({2, 1, 2, 3, 4}) + 5;
  return torch::cat({half, half.flip(-1)});
}

struct BatchNormNet {
  explicit BatchNormNet(std::optional<double> momentum = 0.1)
      : norm(torch::nn::BatchNorm3dOptions(1).momentum(momentum)),
        model(torch::nn::Sequential(norm)),
        sgd(model->parameters(), 0.1) {}

  Tensor loss(const Tensor& x) { return model->forward(x).square().mean(); }

  torch::nn::BatchNorm3d norm;
  torch::nn::Sequential model;
  SGD sgd;
};

TEST(GradAccumulatorBatchNorm, MovesAsFarAsOneBigBatchWhereMomentumIsCorrected) {
  const auto x = even_volumes();
  const double mean = x.mean().item<double>();
  BatchNormNet big;
  big.loss(x);
  EXPECT_NEAR(value(big.norm->running_mean), 0.1 * mean, 1e-6);
  for (const bool whole : {false, true}) {
    for (const auto policy : {BatchNormPolicy::kPlain, BatchNormPolicy::kCorrectMomentum}) {
      BatchNormNet net;
      GradAccumulator accumulator(
          net.sgd, GradAccumulatorOptions(2).module(net.model).batch_norm(policy).micro_batch(2));
      if (whole) {
        accumulator.accumulate(x, [&](const Tensor& part) { return net.loss(part); });
      } else {
        accumulator.backward(net.loss(x.slice(0, 0, 2)));
        accumulator.backward(net.loss(x.slice(0, 2, 4)));
      }
      const bool corrected = policy == BatchNormPolicy::kCorrectMomentum;
      EXPECT_NEAR(value(net.norm->running_mean), (corrected ? 0.1 : 0.19) * mean, 1e-6);
      if (corrected) {
        // The variance of n values has n - 1 degrees of freedom: 47 in a half, 95 in the whole.
        const double of_half = x.slice(0, 0, 2).var().item<double>();
        EXPECT_NEAR(value(net.norm->running_var), 0.9 + 0.1 * of_half, 1e-6);
        EXPECT_NEAR(value(net.norm->running_var), value(big.norm->running_var), 0.1 * of_half / 47);
      }
    }
  }
}

TEST(GradAccumulatorBatchNorm, CorrectsMomentaForAsLongAsItLives) {
  BatchNormNet net;
  torch::nn::InstanceNorm3d instance(
      torch::nn::InstanceNorm3dOptions(1).track_running_stats(true).momentum(0.19));
  net.model->push_back(instance);
  BatchNormNet cumulative(std::nullopt);
  net.model->push_back(cumulative.norm);
  const auto policy =
      GradAccumulatorOptions(2).module(net.model).batch_norm(BatchNormPolicy::kCorrectMomentum);
  {
    GradAccumulator accumulator(net.sgd, policy);
    EXPECT_NEAR(*net.norm->options.momentum(), 1 - std::sqrt(0.9), 1e-12);
    EXPECT_NEAR(instance->options.momentum(), 0.1, 1e-12);
    EXPECT_EQ(cumulative.norm->options.momentum(), std::nullopt);
    const auto x = even_volumes();
    // In accumulate() a window has other numbers of micro-batches, also when that fails.
    int calls = 0;
    EXPECT_THROW(accumulator.accumulate(x,
                                        [&](const Tensor& part) -> Tensor {
                                          EXPECT_EQ(*net.norm->options.momentum(), 0.1);
                                          ++calls;
                                          net.model->forward(part);
                                          throw std::runtime_error("no loss");
                                        }),
                 std::runtime_error);
    EXPECT_EQ(calls, 1);
    EXPECT_EQ(value(net.norm->running_mean), 0);
    EXPECT_NEAR(*net.norm->options.momentum(), 1 - std::sqrt(0.9), 1e-12);
    // A schedule, as PointNet++ has.
    net.norm->options.momentum(0.36);
    accumulator.backward(net.loss(x));
    accumulator.flush();
    EXPECT_NEAR(*net.norm->options.momentum(), 0.2, 1e-12);
  }
  EXPECT_EQ(*net.norm->options.momentum(), 0.36);
  EXPECT_EQ(instance->options.momentum(), 0.19);
  {
    GradAccumulator accumulator(net.sgd, policy);
    net.norm->options.momentum(0.5);
  }
  EXPECT_EQ(*net.norm->options.momentum(), 0.5);
}

TEST(GradAccumulatorBatchNorm, WithoutMomentumIsTheMeanOfAllBatches) {
  const auto x = even_volumes();
  BatchNormNet net(std::nullopt);
  GradAccumulator accumulator(net.sgd, GradAccumulatorOptions(2).module(net.model).batch_norm(
                                           BatchNormPolicy::kCorrectMomentum));
  accumulator.backward(net.loss(x.slice(0, 0, 2)));
  accumulator.backward(net.loss(x.slice(0, 2, 4)));
  EXPECT_NEAR(value(net.norm->running_mean), x.mean().item<double>(), 1e-6);
}

TEST(GradAccumulatorBatchNorm, MovesOncePerWindowWhereOnlyTheFirstCounts) {
  const auto x = torch::cat({even_volumes(), even_volumes() * 3});
  BatchNormNet first;
  first.loss(x.slice(0, 0, 4));
  for (const bool whole : {false, true}) {
    BatchNormNet net;
    GradAccumulator accumulator(net.sgd, GradAccumulatorOptions(2)
                                             .module(net.model)
                                             .batch_norm(BatchNormPolicy::kFirstOnly)
                                             .micro_batch(4));
    if (whole) {
      accumulator.accumulate(x, [&](const Tensor& part) { return net.loss(part); });
    } else {
      accumulator.backward(net.loss(x.slice(0, 0, 4)));
      accumulator.backward(net.loss(x.slice(0, 4, 8)));
    }
    const auto expected = first.norm->buffers();
    for (size_t i = 0; i < expected.size(); ++i) {
      EXPECT_TRUE(torch::equal(net.norm->buffers()[i], expected[i])) << i;
    }
    EXPECT_EQ(value(net.norm->num_batches_tracked), 1);
    // The next window's first counts again.
    accumulator.backward(net.loss(x.slice(0, 4, 8)));
    accumulator.flush();
    EXPECT_EQ(value(net.norm->num_batches_tracked), 2);
    // A window that is given up, too, has had one.
    accumulator.backward(net.loss(x.slice(0, 0, 4)));
    const auto after_first = net.norm->running_mean.clone();
    net.loss(x.slice(0, 4, 8));
    accumulator.discard();
    EXPECT_TRUE(torch::equal(net.norm->running_mean, after_first));
  }
}

// On the stack there is nothing to share.
TEST(GradAccumulatorBatchNorm, IsFoundInModulesOfAnyKind) {
  struct Net : torch::nn::Module {
    Net() { register_module("norm", norm); }
    torch::nn::BatchNorm1d norm{torch::nn::BatchNorm1dOptions(2).momentum(0.19)};
  };
  Net on_stack;
  const auto shared = std::make_shared<Net>();
  torch::nn::BatchNorm2d root(torch::nn::BatchNorm2dOptions(2).momentum(0.19));
  const auto options = [] {
    return GradAccumulatorOptions(2).batch_norm(BatchNormPolicy::kCorrectMomentum);
  };
  {
    GradAccumulator first(options().module(on_stack));
    GradAccumulator second(options().module(shared));
    GradAccumulator third(options().module(root));
    EXPECT_NEAR(*on_stack.norm->options.momentum(), 0.1, 1e-12);
    EXPECT_NEAR(*shared->norm->options.momentum(), 0.1, 1e-12);
    EXPECT_NEAR(*root->options.momentum(), 0.1, 1e-12);
  }
  EXPECT_EQ(*on_stack.norm->options.momentum(), 0.19);
}

// Gradients of 2 for 256 items and of 1 for 1 item, 256 times, are 768/512 = 1 + 256/512 on
// average; beside 512 a single 1 is lost in bfloat16.
TEST(GradAccumulatorDtype, Float32SumsKeepWhatBFloat16Loses) {
  for (const auto accumulate : {std::optional<torch::ScalarType>(), std::optional(torch::kFloat)}) {
    const auto w = weight(0, torch::kBFloat16);
    RecordingSGD sgd({w});
    GradAccumulator accumulator(sgd, GradAccumulatorOptions(512).accumulate_dtype(accumulate));
    accumulator.backward((w * 2).sum(), 256);
    for (int i = 0; i < 256; ++i) {
      accumulator.backward(w.sum());
    }
    EXPECT_EQ(w.grad().scalar_type(), accumulate.value_or(torch::kBFloat16));
    accumulator.flush();
    EXPECT_EQ(value(sgd.gradients[0]), accumulate.has_value() ? 1.5 : 1.0);
    EXPECT_EQ(sgd.gradients[0].scalar_type(), torch::kBFloat16);
  }
}

TEST(GradAccumulatorDtype, Float32SumsAreWithinARoundingOfFloat64) {
  torch::manual_seed(8);
  const auto gradients = torch::rand({64, 1000}, torch::kDouble).to(torch::kBFloat16);
  const auto exact = gradients.to(torch::kDouble).mean(0);
  const auto error = [&](std::optional<torch::ScalarType> dtype) {
    const auto w = torch::zeros({1000}, torch::kBFloat16).requires_grad_();
    RecordingSGD sgd({w});
    GradAccumulator accumulator(sgd, GradAccumulatorOptions(64).accumulate_dtype(dtype));
    for (const auto& gradient : gradients.unbind()) {
      accumulator.backward((w * gradient).sum());
    }
    return ((sgd.gradients[0].to(torch::kDouble) - exact) / exact).abs().max().item<double>();
  };
  // bfloat16 has 8 bits, so rounding once costs up to 2^-8; float32 sums add less than 2^-17.
  const double once = std::ldexp(1, -8) + std::ldexp(1, -17);
  EXPECT_LE(error(torch::kFloat), once);
  EXPECT_GT(error(std::nullopt), 4 * once);
}

TEST(GradAccumulatorDtype, WorksWithOptimizersOfHalfParameters) {
  for (const auto dtype : {torch::kBFloat16, torch::kHalf}) {
    GradScaler scaler(GradScalerOptions().init_scale(1024));
    const auto w = torch::ones({3}, dtype).requires_grad_();
    const auto v = torch::ones({3}, dtype).requires_grad_();
    const auto wide = torch::ones({3}).requires_grad_();
    const auto plain = torch::ones({3}, dtype).requires_grad_();
    torch::optim::Adam adam(std::vector<Tensor>{w, wide}, torch::optim::AdamOptions(0.125));
    SGD sgd({v}, 0.125);
    torch::optim::Adam plain_adam(std::vector<Tensor>{plain}, torch::optim::AdamOptions(0.125));
    GradAccumulator accumulator(
        {&adam, &sgd},
        GradAccumulatorOptions(2).scaler(scaler).clip_grad_norm(100).accumulate_dtype(
            torch::kFloat));
    for (int window = 0; window < 3; ++window) {
      accumulator.backward((w + v + wide).sum());
      accumulator.backward((w + v + wide).sum() * 3);
      plain.mutable_grad() = torch::full({3}, 2.0, dtype);
      plain_adam.step();
    }
    EXPECT_TRUE(torch::equal(w, plain));
    EXPECT_TRUE(v.equal(torch::full({3}, 1 - 3 * 0.125 * 2, dtype)));
    EXPECT_EQ(w.scalar_type(), dtype);
  }
}

// A step of a chain of 4 big layers, of so many micro-batches.
struct Chain {
  static torch::nn::Sequential make() {
    torch::manual_seed(1);
    torch::nn::Sequential model;
    for (int i = 0; i < 4; ++i) {
      model->push_back(torch::nn::Linear(64, 64));
      model->push_back(torch::nn::Tanh());
    }
    return model;
  }
  Tensor loss(const Tensor& x) { return model->forward(x).square().mean(); }

  torch::nn::Sequential model = make();
  SGD sgd{model->parameters(), 0.1};
};

TEST(GradAccumulatorMemory, PeakDoesNotGrowWithTheNumberOfMicroBatches) {
  constexpr int64_t kGradients = 4 * (64 * 64 + 64) * 4;
  constexpr int64_t kNumbers = 32;  // bytes: the sum of the losses, the divided loss
  const auto x = torch::randn({256, 64});
  const auto peak = [&](int micro_batches, bool plain, bool whole) {
    Chain chain;
    GradAccumulator accumulator(chain.sgd, GradAccumulatorOptions(micro_batches).micro_batch(256));
    int64_t bytes = 0;
    for (int window = 0; window < 2; ++window) {
      const MemoryScope scope;
      if (whole) {
        accumulator.accumulate(x.expand({micro_batches, 256, 64}).reshape({-1, 64}),
                               [&](const Tensor& part) { return chain.loss(part); });
      }
      for (int i = 0; i < micro_batches && !whole; ++i) {
        if (plain) {
          (chain.loss(x) / micro_batches).backward();
        } else {
          accumulator.backward(chain.loss(x));
        }
      }
      if (plain) {
        chain.sgd.step();
        chain.sgd.zero_grad();
      }
      bytes = scope.peak();
    }
    return bytes;
  };
  const int64_t one = peak(1, false, false);
  const int64_t four = peak(4, false, false);
  EXPECT_EQ(peak(16, false, false), four);
  EXPECT_GT(one, 8 * 256 * 64 * 4) << "all activations";
  // From the second micro-batch on the gradients are there beside the activations.
  EXPECT_GE(four, one);
  EXPECT_LE(four, one + kGradients + kNumbers);
  for (const int micro_batches : {1, 4, 16}) {
    EXPECT_LE(peak(micro_batches, false, false) - peak(micro_batches, true, false), kNumbers)
        << "on top of the common loop";
  }
  // A whole batch is there beside the rest, but no copy of it.
  EXPECT_EQ(peak(16, false, true) - peak(4, false, true), 12 * 256 * 64 * 4);
}

TEST(GradAccumulatorMemory, NothingIsLeftBetweenWindows) {
  Chain chain;
  GradAccumulator accumulator(chain.sgd, GradAccumulatorOptions(3));
  const auto x = torch::randn({8, 64});
  const MemoryScope scope;
  for (int i = 0; i < 9; ++i) {
    accumulator.backward(chain.loss(x));
  }
  EXPECT_LE(scope.current(), 8) << "the loss";
}

TEST(GradAccumulatorMemory, FailedTriesAreLetGo) {
  Chain chain;
  GradAccumulator accumulator(chain.sgd);
  const auto x = torch::randn({64, 64});
  std::vector<int64_t> live;
  const MemoryScope scope;
  (void)warnings_of([&] {
    accumulator.accumulate(x, [&](const Tensor& part) {
      live.push_back(scope.current());
      auto loss = chain.loss(part);
      if (part.size(0) > 16) {
        (void)torch::empty({int64_t{1} << 46});
      }
      return loss;
    });
  });
  ASSERT_EQ(live.size(), 2U + 4U);
  EXPECT_EQ(live[0], 0);
  EXPECT_EQ(live[1], 0);
  EXPECT_EQ(live[2], 0);
}

}  // namespace
