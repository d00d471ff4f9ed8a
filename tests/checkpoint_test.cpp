// checkpoint(): what goes in, what comes out, and when it is a plain call.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <tidemark/checkpoint.h>
#include <torch/torch.h>

#include <array>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "support/plain_and_checkpointed.h"

namespace {

using tidemark::checkpoint;
using tidemark::CheckpointOptions;
using tidemark::tests::expect_equal_to_plain;
using torch::Tensor;
namespace nn = torch::nn;

Tensor leaf(at::IntArrayRef sizes) { return torch::randn(sizes).requires_grad_(); }

TEST(Checkpoint, TakesIntegerBoolAndUndefinedTensors) {
  expect_equal_to_plain([](auto& region, auto& record) {
    const Tensor x = leaf({4, 3});
    const auto [y, mask, none] = region(
        [](const Tensor& a, const Tensor& index, const Tensor& keep, const Tensor& bias) {
          EXPECT_FALSE(bias.defined());
          Tensor out = a.exp().index_select(0, index).masked_fill(keep, 0.5);
          return std::make_tuple(out * out, keep, bias);
        },
        x, torch::tensor({2, 0, 1}), torch::eye(3, torch::kBool), Tensor());
    EXPECT_EQ(mask.scalar_type(), torch::kBool);
    EXPECT_FALSE(none.defined());
    y.sum().backward();
    record("x", x.grad());
  });
}

TEST(Checkpoint, TakesAndReturnsNestedContainers) {
  using Levels = std::vector<std::pair<Tensor, std::optional<Tensor>>>;
  expect_equal_to_plain([](auto& region, auto& record) {
    const Tensor a = leaf({3}), b = leaf({3}), c = leaf({3}), d = leaf({3}), e = leaf({3});
    const auto out = region(
        [](std::tuple<Tensor, std::array<Tensor, 2>> first, const Levels& levels,
           const std::optional<Tensor>& absent) {
          EXPECT_FALSE(absent.has_value());
          Levels result;
          for (const auto& [tensor, scale] : levels) {
            result.emplace_back(
                tensor.exp() * std::get<0>(first),
                scale.has_value() ? std::optional<Tensor>(scale->sin()) : std::nullopt);
          }
          return std::make_pair(result, std::array<Tensor, 2>{std::get<1>(first)[0].cos(),
                                                              std::get<1>(first)[1].tanh()});
        },
        std::make_tuple(a * 1, std::array<Tensor, 2>{b, c}), Levels{{d, std::nullopt}, {e, d * 2}},
        std::optional<Tensor>());
    Tensor loss = out.second[0].sum() + out.second[1].sum();
    for (const auto& [tensor, scale] : out.first) {
      loss = loss + tensor.sum() + (scale.has_value() ? scale->sum() : torch::zeros({}));
    }
    loss.backward();
    for (const Tensor& input : {a, b, c, d, e}) {
      record("input", input.grad());
    }
  });
}

struct Camera {
  double focal;
  std::string name;
  Tensor pose;
};

TEST(Checkpoint, TakesPlainValuesAndStructs) {
  expect_equal_to_plain([](auto& region, auto& record) {
    const Tensor x = leaf({4, 3});
    const Camera camera{2.5, "left", torch::randn({3, 3})};
    auto [y, seen] = region(
        [](const Tensor& a, int times, bool flip, const std::string& text, const Camera& c) {
          Tensor out = a.mm(c.pose).sin() * c.focal * times;
          return std::make_pair(flip ? out.flip({0}) * out : out, Camera{1.0, text + c.name, out});
        },
        x, 3, true, std::string("the "), camera);
    EXPECT_EQ(seen.name, "the left");
    (y.sum() + seen.pose.square().sum()).backward();
    record("x", x.grad());
  });
}

TEST(Checkpoint, KeepsItsOwnCopyOfArrayRefsAndStringViews) {
  const Tensor x = leaf({2, 3});
  Tensor y;
  {
    std::vector<int64_t> sizes{3, 2};
    std::vector<Tensor> tensors{x, x * 2};
    std::string name = "a name that is too long for the small-string buffer";
    y = checkpoint(
        [](at::IntArrayRef shape, at::TensorList list, std::string_view text,
           std::optional<at::IntArrayRef> twice, at::OptionalIntArrayRef thrice) {
          EXPECT_EQ(text, "a name that is too long for the small-string buffer");
          EXPECT_EQ(shape, twice.value());
          EXPECT_EQ(shape, thrice.value());
          EXPECT_EQ(list.size(), 2U);
          return (list[0] * list[1]).exp().view(shape).sin();
        },
        at::IntArrayRef(sizes), at::TensorList(tensors), std::string_view(name),
        std::optional<at::IntArrayRef>(sizes), at::OptionalIntArrayRef(sizes));
    sizes.assign({9, 9});
    tensors.assign({Tensor(), Tensor()});
    name.assign(name.size(), 'x');
  }
  y.sum().backward();
  const Tensor expected = torch::autograd::grad({(x * (x * 2)).exp().sin().sum()}, {x})[0];
  EXPECT_TRUE(torch::equal(x.grad(), expected));
}

TEST(Checkpoint, KeepsItsOwnCopyOfItsArguments) {
  const Tensor x = leaf({3});
  std::vector<Tensor> list{x};
  double scale = 2;
  const Tensor y = checkpoint(
      [](const std::vector<Tensor>& tensors, double by) { return (tensors[0] * by).exp(); }, list,
      scale);
  list[0] = torch::zeros({3});
  scale = 5;
  y.sum().backward();
  EXPECT_TRUE(torch::equal(x.grad(), (x.detach() * 2).exp() * 2));
}

TEST(Checkpoint, StartsFromTheSameStateOfAMutableCallable) {
  expect_equal_to_plain([](auto& region, auto& record) {
    const Tensor x = leaf({3});
    region([times = 1](const Tensor& a) mutable { return (a * ++times).exp(); }, x)
        .sum()
        .backward();
    record("x", x.grad());
  });
}

Tensor cubed(const Tensor& x) { return x * x * x; }

TEST(Checkpoint, CallsFunctionsModulesAndStdFunctions) {
  const Tensor x = torch::tensor({1.0, 2.0}).requires_grad_();
  checkpoint(cubed, x).sum().backward();
  checkpoint(&cubed, x).sum().backward();
  checkpoint(std::function<Tensor(Tensor)>(cubed), x).sum().backward();
  EXPECT_TRUE(torch::equal(x.grad(), torch::tensor({9.0, 36.0})));

  nn::Linear linear(nn::LinearOptions(2, 2).bias(false));
  checkpoint(linear, torch::ones({3, 2})).sum().backward();
  EXPECT_TRUE(torch::equal(linear->weight.grad(), torch::full({2, 2}, 3.0)));
}

TEST(Checkpoint, ReturnsWhatTheCallableReturns) {
  const Tensor x = leaf({3});
  EXPECT_EQ(checkpoint([](const Tensor& a) { return a.numel(); }, x), 3);
  EXPECT_EQ(checkpoint([] { return std::string("text"); }), "text");
  bool called = false;
  checkpoint([&](const Tensor& a) { called = a.exp().requires_grad(); }, x);
  EXPECT_TRUE(called);
  const auto pair = checkpoint([](const Tensor& a) { return std::make_pair(a.exp(), 2); }, x);
  EXPECT_EQ(pair.second, 2);
  // A reference becomes a value: what it refers to is gone with the call.
  const auto referring = [](const Tensor& a) -> const Tensor& { return a; };
  static_assert(std::is_same_v<decltype(checkpoint(referring, x)), Tensor>);
}

TEST(Checkpoint, ReturnsTheArgumentsThemselvesWhereTheCallableDoes) {
  const Tensor x = leaf({2, 3});
  const auto [same, view, saved] =
      checkpoint([](const Tensor& a) { return std::make_tuple(a, a.view({6}), a.exp()); }, x);
  EXPECT_TRUE(same.is_same(x));
  EXPECT_TRUE(view.is_alias_of(x));
  EXPECT_TRUE(view.is_view());
  (same.sum() + view.square().sum() + saved.sum()).backward();
  EXPECT_TRUE(torch::equal(x.grad(), 1 + 2 * x.detach() + x.detach().exp()));
}

TEST(Checkpoint, OutputsThatAliasArgumentsKeepTheirGradients) {
  expect_equal_to_plain([](auto& region, auto& record) {
    const Tensor x = leaf({2, 3});
    const Tensor h = x * 2;
    auto [same, view, saved] = region(
        [](const Tensor& a) { return std::make_tuple(a, a.t(), (a * a.detach()).exp()); }, h);
    (saved.t() * view + same.t()).exp().sum().backward();
    record("x", x.grad());
  });
}

TEST(Checkpoint, OutputsRequireGradWhereThePlainOnesDo) {
  nn::Linear frozen(3, 3);
  frozen->weight.requires_grad_(false);
  frozen->bias.requires_grad_(false);
  auto fn = [frozen](const Tensor& a) mutable {
    return std::vector<Tensor>{a.exp(), a.argmax(1), a.detach() * 2, frozen(torch::ones({2, 3})),
                               a > 0,   frozen(a)};
  };
  const Tensor x = leaf({2, 3});
  const auto plain = fn(x);
  const auto outputs = checkpoint(fn, x);
  ASSERT_EQ(outputs.size(), plain.size());
  for (std::size_t i = 0; i < plain.size(); ++i) {
    EXPECT_EQ(outputs[i].requires_grad(), plain[i].requires_grad()) << i;
    EXPECT_EQ(outputs[i].is_leaf(), plain[i].is_leaf()) << i;
  }
  EXPECT_FALSE(checkpoint(frozen, torch::ones({2, 3})).requires_grad());
}

TEST(Checkpoint, AnUnusedOutputCostsNothing) {
  expect_equal_to_plain([](auto& region, auto& record) {
    const Tensor x = leaf({3});
    const auto [used, unused] =
        region([](const Tensor& a) { return std::make_pair(a.exp(), a.sin()); }, x);
    used.sum().backward();
    record("x", x.grad());
  });
}

TEST(Checkpoint, ARegionWhoseOutputsAreUnusedIsNeverReRun) {
  expect_equal_to_plain(
      [](auto& region, auto& record) {
        const Tensor x = leaf({3});
        region([](const Tensor& a) { return std::make_pair(a.exp(), a.sin()); }, x);
        (x * 2).sum().backward();
        record("x", x.grad());
      },
      /*reruns=*/false);
}

TEST(Checkpoint, CapturedTensorsGetGradients) {
  expect_equal_to_plain([](auto& region, auto& record) {
    const Tensor weight = leaf({3}), x = leaf({3});
    const Tensor h = weight.exp();  // a captured tensor with history
    region([weight, h](const Tensor& a) { return (a * weight).sin() * h; }, x).sum().backward();
    record("weight", weight.grad());
    record("x", x.grad());
  });
}

TEST(Checkpoint, WithoutGradModeIsAPlainCall) {
  const Tensor x = leaf({3});
  const auto token = std::make_shared<int>(0);
  const auto region = [token](const Tensor& a) {
    EXPECT_EQ(tidemark::detail::EngineLink::innermost_maker(), nullptr);
    EXPECT_FALSE(torch::GradMode::is_enabled());
    return a.exp();
  };
  const auto use_count = [&] { return token.use_count(); };
  const auto before = use_count();
  torch::NoGradGuard no_grad;
  const Tensor y = checkpoint(region, x);
  EXPECT_TRUE(torch::equal(y, x.exp()));
  EXPECT_FALSE(y.requires_grad());
  EXPECT_EQ(use_count(), before) << "the region is still held";
}

TEST(Checkpoint, InInferenceModeIsAPlainCall) {
  c10::InferenceMode inference;
  const Tensor x = torch::rand({3});
  const Tensor y = checkpoint(
      [](const Tensor& a) {
        EXPECT_EQ(tidemark::detail::EngineLink::innermost_maker(), nullptr);
        return a.exp();
      },
      x);
  EXPECT_TRUE(y.is_inference());
  EXPECT_TRUE(torch::equal(y, x.exp()));
}

TEST(Checkpoint, KeepsNothingWhenNoGradientFlows) {
  const auto token = std::make_shared<int>(0);
  const Tensor y = checkpoint([token](const Tensor& a) { return a.exp().sin(); }, torch::rand({3}));
  EXPECT_FALSE(y.requires_grad());
  EXPECT_EQ(token.use_count(), 1) << "the region is still held";
}

TEST(Checkpoint, BumpsNoVersionOfASavedTensor) {
  const Tensor x = leaf({3}), weight = leaf({3});
  Tensor inner;
  const Tensor y = checkpoint(
      [weight, &inner](const Tensor& a) {
        inner = a * weight;
        return inner.exp();
      },
      x);
  const auto version = inner._version();
  EXPECT_EQ(version, 0);
  y.sum().backward();
  EXPECT_EQ(x._version(), 0);
  EXPECT_EQ(weight._version(), 0);
  EXPECT_EQ(y._version(), 0);
}

TEST(CheckpointOptionsTest, HaveTheDefaultsThatTheirDocumentationNames) {
  const CheckpointOptions options;
  EXPECT_EQ(options.name(), "");
  EXPECT_TRUE(options.preserve_rng());
  EXPECT_FALSE(options.early_stop());
}

TEST(CheckpointOptionsTest, CanBePassedAsLvalueAndRvalue) {
  const Tensor x = leaf({3});
  const auto options = CheckpointOptions().name("enc").preserve_rng(false).early_stop(true);
  CheckpointOptions copy = options;
  const auto region = [](const Tensor& a) { return a.exp(); };
  (checkpoint(options, region, x) + checkpoint(copy, region, x) +
   checkpoint(CheckpointOptions().name("dec"), region, x))
      .sum()
      .backward();
  EXPECT_TRUE(torch::equal(x.grad(), x.detach().exp() * 3));
}

}  // namespace
