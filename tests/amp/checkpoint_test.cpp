// Checkpointed regions and AmpScope in every combination: what they leave behind is, bit by bit,
// what the same code leaves without checkpoint().

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <tidemark/amp_cast.h>
#include <tidemark/amp_function.h>
#include <tidemark/amp_scope.h>
#include <tidemark/checkpoint.h>
#include <torch/torch.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "../support/plain_and_checkpointed.h"
#include "../support/threads.h"

namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::SizeIs;
using tidemark::amp_cast;
using tidemark::AmpBackward;
using tidemark::AmpForward;
using tidemark::AmpOptions;
using tidemark::AmpScope;
using tidemark::checkpoint;
using tidemark::tests::expect_equal_to_plain;
using tidemark::tests::on_threads;
using torch::kBFloat16;
using torch::kCPU;
using torch::kFloat;
using torch::kHalf;
using torch::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;
namespace nn = torch::nn;

/// Convolutions, whose weights are cached, a norm in mixed dtypes and a Linear, whose weight is
/// not.
struct BlockImpl : nn::Module {
  BlockImpl() {
    register_module("conv", conv);
    register_module("norm", norm);
    register_module("linear", linear);
  }
  Tensor forward(const Tensor& x) {
    return linear(conv(norm(conv(x)).relu()).flatten(2)).reshape_as(x);
  }
  nn::Conv3d conv{nn::Conv3dOptions(2, 2, 3).padding(1)};
  nn::GroupNorm norm{1, 2};
  nn::Linear linear{27, 27};
};
TORCH_MODULE(Block);

/// Where the scope is that a region runs under, and what it sets.
struct Forward {
  bool scope_outside;
  bool scope_inside;
  bool off_inside;
  std::optional<bool> cache_inside;
  bool no_grad_first;
};

/// Two regions that share a block, another use of it between them, and one outside.
template <class Region>
Tensor run(Region& region, const Forward& what, Block block, const Tensor& x) {
  auto body = [what, block](const Tensor& a) mutable {
    std::optional<AmpScope> scope;
    if (what.scope_inside) {
      AmpOptions options;
      options.cache(what.cache_inside);
      scope.emplace(kCPU, options);
    }
    Tensor y = block(a);
    if (what.off_inside) {
      const AmpScope off = AmpScope::off(kCPU);
      y = block(amp_cast(kFloat, y).sin());
      EXPECT_EQ(y.scalar_type(), kFloat);
    }
    return block(y).sin();
  };
  if (what.no_grad_first) {
    const torch::NoGradGuard no_grad;
    (void)block->conv(x);
    (void)body(x);
  }
  Tensor y = block->conv(x);
  y = region(body, y.to(kFloat));
  y = block->conv(y.to(kFloat));
  y = region(body, y.to(kFloat));
  return y.to(kFloat).square().mean();
}

enum class BackwardAt { kOutside, kInside, kUnderOtherDtype, kOnAnotherThread };

void expect_equal_to_plain_for(const Forward& what, bool cache, BackwardAt where) {
  expect_equal_to_plain([&](auto& region, auto& record) {
    Block block;
    const auto x = torch::randn({1, 2, 3, 3, 3}).requires_grad_();
    Tensor loss;
    {
      std::optional<AmpScope> amp;
      if (what.scope_outside) {
        amp.emplace(kCPU, AmpOptions(kBFloat16).cache(cache));
      }
      loss = run(region, what, block, x);
      if (where == BackwardAt::kInside) {
        loss.backward();
      }
    }
    if (where == BackwardAt::kOutside) {
      loss.backward();
    } else if (where == BackwardAt::kOnAnotherThread) {
      on_threads(1, [&](int) { loss.backward(); });
    } else if (where == BackwardAt::kUnderOtherDtype) {
      const AmpScope other(kCPU, kHalf);
      EXPECT_EQ(block->conv(x).scalar_type(), kHalf);
      loss.backward();
      EXPECT_EQ(block->conv(x).scalar_type(), kHalf);
    }
    record("loss", loss);
    record("x", x.grad());
    record("block", *block);
  });
  EXPECT_FALSE(AmpScope::enabled(kCPU));
  EXPECT_TRUE(AmpScope::cache_enabled());
  EXPECT_EQ(AmpScope::dtype(kCPU), kBFloat16);
}

template <class Visit>
void for_each_backward(Visit&& visit) {
  for (const bool no_grad_first : {false, true}) {
    for (const bool off_inside : {false, true}) {
      for (const auto where : {BackwardAt::kOutside, BackwardAt::kInside,
                               BackwardAt::kUnderOtherDtype, BackwardAt::kOnAnotherThread}) {
        SCOPED_TRACE("no_grad_first " + std::to_string(no_grad_first) + ", off_inside " +
                     std::to_string(off_inside) + ", backward " +
                     std::to_string(static_cast<int>(where)));
        visit(no_grad_first, off_inside, where);
      }
    }
  }
}

TEST(AmpCheckpoint, EqualsPlainWithTheScopeAroundRegions) {
  for (const bool cache : {true, false}) {
    SCOPED_TRACE(cache ? "cache on" : "cache off");
    for_each_backward([&](bool no_grad_first, bool off_inside, BackwardAt where) {
      expect_equal_to_plain_for({true, false, off_inside, std::nullopt, no_grad_first}, cache,
                                where);
    });
  }
}

TEST(AmpCheckpoint, EqualsPlainWithTheScopeInsideRegions) {
  for (const bool cache : {true, false}) {
    SCOPED_TRACE(cache ? "cache on" : "cache off");
    for_each_backward([&](bool no_grad_first, bool off_inside, BackwardAt where) {
      expect_equal_to_plain_for({false, true, off_inside, cache, no_grad_first}, true, where);
    });
  }
}

TEST(AmpCheckpoint, EqualsPlainWithScopesAroundAndInsideRegions) {
  for (const bool cache : {true, false}) {
    SCOPED_TRACE(cache ? "cache on" : "cache off");
    for_each_backward([&](bool no_grad_first, bool off_inside, BackwardAt where) {
      expect_equal_to_plain_for({true, true, off_inside, !cache, no_grad_first}, cache, where);
      expect_equal_to_plain_for({true, true, off_inside, std::nullopt, no_grad_first}, cache,
                                where);
    });
  }
}

TEST(AmpCheckpoint, EqualsPlainForALayerUsedBeforeAndInsideOfARegion) {
  for (const bool cache : {true, false}) {
    expect_equal_to_plain([&](auto& region, auto& record) {
      nn::Linear linear(8, 8);
      nn::Conv1d conv(8, 8, 1);
      const auto x = torch::randn({4, 8}).requires_grad_();
      Tensor y;
      {
        const AmpScope amp(kCPU, AmpOptions().cache(cache));
        y = conv(linear(x).unsqueeze(2)).squeeze(2);
        y = region([=](const Tensor& a) mutable { return conv(linear(a).relu().unsqueeze(2)); }, y);
      }
      y.to(kFloat).square().mean().backward();
      record("x", x.grad());
      record("linear", *linear);
      record("conv", *conv);
    });
  }
}

TEST(AmpCheckpoint, TheReRunSeesTheDtypesOfTheForward) {
  for (const auto dtype : {kBFloat16, kHalf}) {
    std::vector<at::ScalarType> seen;
    const auto x = torch::randn({4, 8}).requires_grad_();
    nn::Linear linear(8, 8);
    Tensor y;
    {
      const AmpScope amp(kCPU, dtype);
      y = checkpoint(
          [&seen, linear](const Tensor& a) mutable {
            const auto h = linear(a);
            seen.push_back(h.scalar_type());
            seen.push_back(amp_cast(a).scalar_type());
            return h.sin();
          },
          x);
    }
    on_threads(1, [&](int) { y.to(kFloat).sum().backward(); });
    EXPECT_THAT(seen, AllOf(SizeIs(4), Each(dtype)));
  }
}

/// x * w, in float32 or as the scope says, with a backward of its own.
template <bool full_precision>
struct Product : torch::autograd::Function<Product<full_precision>> {
  static Tensor forward(AutogradContext* context, Tensor x, Tensor w) {
    std::optional<AmpForward> amp;
    if (full_precision) {
      amp.emplace(context, kFloat, x, w);
    } else {
      amp.emplace(context);
    }
    context->save_for_backward({x, w});
    return x.mm(w);
  }
  static variable_list backward(AutogradContext* context, variable_list grads) {
    const AmpBackward amp(context);
    const auto saved = context->get_saved_variables();
    return {grads[0].mm(saved[1].t()), saved[0].t().mm(grads[0])};
  }
};

template <bool full_precision>
void expect_equal_to_plain_with_a_function() {
  expect_equal_to_plain([](auto& region, auto& record) {
    nn::Linear linear(8, 8);
    const auto x = torch::randn({4, 8}).requires_grad_();
    const auto w = torch::randn({8, 8}).requires_grad_();
    Tensor y;
    {
      const AmpScope amp(kCPU);
      y = region(
          [linear](const Tensor& a, const Tensor& b) mutable {
            return linear(Product<full_precision>::apply(linear(a), b)).sin();
          },
          x, w);
    }
    y.to(kFloat).square().mean().backward();
    record("x", x.grad());
    record("w", w.grad());
    record("linear", *linear);
  });
}

TEST(AmpCheckpoint, EqualsPlainWithACustomFunctionInTheRegion) {
  expect_equal_to_plain_with_a_function<false>();
}

TEST(AmpCheckpoint, EqualsPlainWithACustomFunctionInFullPrecisionInTheRegion) {
  expect_equal_to_plain_with_a_function<true>();
}

TEST(AmpCheckpoint, VerifyFindsEveryReRunBitEqual) {
  for (const bool cache : {true, false}) {
    Block block;
    const auto x = torch::randn({1, 2, 3, 3, 3}).requires_grad_();
    Tensor y;
    {
      const AmpScope amp(kCPU, AmpOptions().cache(cache));
      y = checkpoint(
          tidemark::CheckpointOptions().verify(true),
          [block](const Tensor& a) mutable { return block(block(a)); }, x);
    }
    EXPECT_NO_THROW(y.to(kFloat).square().mean().backward());
  }
}

TEST(AmpCheckpoint, TrainingUsesTheWeightsOfTheLastStep) {
  expect_equal_to_plain([](auto& region, auto& record) {
    Block block;
    torch::optim::SGD sgd(block->parameters(), 0.1);
    const auto x = torch::randn({1, 2, 3, 3, 3});
    const auto references = block->conv->weight.weak_use_count();
    for (int step = 0; step < 3; ++step) {
      sgd.zero_grad();
      Tensor loss;
      {
        const AmpScope amp(kCPU);
        auto y = region([block](const Tensor& a) mutable { return block(a); }, x);
        loss = region([block](const Tensor& a) mutable { return block(a); }, y)
                   .to(kFloat)
                   .square()
                   .mean();
      }
      loss.backward();
      sgd.step();
      record("loss", loss);
    }
    record("block", *block);
    EXPECT_EQ(block->conv->weight.weak_use_count(), references);
  });
}

}  // namespace
