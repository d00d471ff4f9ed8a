// Casts of nested values, and custom autograd Functions that run as their forward did.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <tidemark/amp_cast.h>
#include <tidemark/amp_function.h>
#include <tidemark/amp_scope.h>
#include <torch/torch.h>

#include <map>
#include <optional>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "../support/threads.h"
#include "../support/thrown_text.h"

namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Optional;
using ::testing::SizeIs;
using tidemark::amp_cast;
using tidemark::AmpBackward;
using tidemark::AmpForward;
using tidemark::AmpOptions;
using tidemark::AmpScope;
using tidemark::tests::on_threads;
using tidemark::tests::thrown_text;
using torch::kBFloat16;
using torch::kCPU;
using torch::kFloat;
using torch::kHalf;
using torch::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

Tensor leaf(at::ScalarType dtype = kFloat) {
  return torch::randn({3, 3}).to(dtype).requires_grad_();
}

// --- amp_cast ---

struct Rendering {
  Tensor rgb;
  std::vector<Tensor> levels;
  std::map<std::string, std::optional<Tensor>> extra;
  int64_t samples = 0;
};

TEST(AmpCast, ReachesEveryTensorOfANestedValue) {
  const Rendering in{torch::ones({2}), {torch::ones({1}), torch::ones({3})}, {}, 7};
  auto with_extra = in;
  with_extra.extra["depth"] = torch::ones({4});
  with_extra.extra["none"] = std::nullopt;
  const auto [out, weights] = amp_cast(kHalf, std::pair(with_extra, torch::ones({5})));
  EXPECT_EQ(out.rgb.scalar_type(), kHalf);
  EXPECT_EQ(out.levels.at(1).scalar_type(), kHalf);
  EXPECT_EQ(out.extra.at("depth")->scalar_type(), kHalf);
  EXPECT_EQ(out.extra.at("none"), std::nullopt);
  EXPECT_EQ(out.samples, 7);
  EXPECT_EQ(weights.scalar_type(), kHalf);
  EXPECT_EQ(with_extra.rgb.scalar_type(), kFloat);
}

TEST(AmpCast, LeavesAloneWhatAutocastLeavesAlone) {
  const std::vector<Tensor> in{torch::ones({2}, torch::kDouble), torch::ones({2}, torch::kLong),
                               torch::ones({2}, torch::kBool),   Tensor(),
                               torch::ones({2}, torch::kMeta),   torch::ones({2}, kHalf)};
  const auto out = amp_cast(kHalf, in);
  for (std::size_t i = 0; i < in.size(); ++i) {
    EXPECT_TRUE(out[i].is_same(in[i])) << i;
  }
}

TEST(AmpCast, GradientsFlowBackInTheDtypeOfTheTensor) {
  const auto x = leaf();
  (amp_cast(kHalf, x) * 3).sum().backward();
  EXPECT_TRUE(torch::equal(x.grad(), torch::full({3, 3}, 3.0)));
}

TEST(AmpCast, MakesAVectorOfAList) {
  const std::vector<Tensor> in{torch::ones({2}), torch::ones({2})};
  const std::vector<Tensor> out = amp_cast(kHalf, at::TensorList(in));
  EXPECT_EQ(out.at(1).scalar_type(), kHalf);
}

TEST(AmpCast, RefusesADtypeWithoutGradients) {
  for (const auto dtype : {torch::kLong, torch::kBool, torch::kComplexFloat}) {
    EXPECT_THAT(thrown_text([&] { (void)amp_cast(dtype, torch::ones({2})); }),
                Optional(HasSubstr(std::string("amp_cast: tensors can't be cast to ") +
                                   c10::toString(dtype))));
  }
}

TEST(AmpCast, WithoutADtypeTakesThatOfTheScope) {
  const std::vector<Tensor> in{torch::ones({2}), torch::ones({2}, kHalf)};
  const auto dtypes = [&] {
    const auto out = amp_cast(in);
    return std::vector{out[0].scalar_type(), out[1].scalar_type()};
  };
  EXPECT_THAT(dtypes(), ElementsAre(kFloat, kHalf));
  const AmpScope amp(kCPU, kBFloat16);
  EXPECT_THAT(dtypes(), ElementsAre(kBFloat16, kBFloat16));
  {
    const AmpScope inner(kCPU, kHalf);
    EXPECT_THAT(dtypes(), ElementsAre(kHalf, kHalf));
  }
  const AmpScope off = AmpScope::off(kCPU);
  EXPECT_THAT(dtypes(), ElementsAre(kFloat, kHalf));
}

TEST(AmpCast, JoinsTheOtherHalfDtypeWhichAutocastRefuses) {
  const AmpScope amp(kCPU, kBFloat16);
  const std::vector<Tensor> parts{torch::ones({2}, kHalf), torch::ones({2})};
  EXPECT_THAT(thrown_text([&] { (void)torch::cat(parts); }),
              Optional(HasSubstr("Unexpected floating ScalarType")));
  EXPECT_EQ(torch::cat(amp_cast(parts)).scalar_type(), kBFloat16);
}

// --- Functions that run as their forward did ---

struct Seen {
  at::ScalarType mm;
  bool cache;

  static Seen now() {
    return {torch::ones({1, 1}).mm(torch::ones({1, 1})).scalar_type(), AmpScope::cache_enabled()};
  }
  bool operator==(const Seen& other) const { return mm == other.mm && cache == other.cache; }
};

/// a.mm(b), with a backward of its own that notes what it runs under.
struct MatMul : torch::autograd::Function<MatMul> {
  static Tensor forward(AutogradContext* context, const Tensor& a, const Tensor& b) {
    const AmpForward amp(context);
    seen.push_back(Seen::now());
    context->save_for_backward({a, b});
    return a.mm(b);
  }
  static variable_list backward(AutogradContext* context, variable_list grads) {
    const AmpBackward amp(context);
    seen.push_back(Seen::now());
    const auto saved = context->get_saved_variables();
    return {grads[0].mm(saved[1].t()), saved[0].t().mm(grads[0])};
  }

  static inline std::vector<Seen> seen;
};

TEST(AmpFunction, BackwardRunsUnderTheSettingsOfItsForward) {
  for (const auto dtype : {kBFloat16, kHalf, kFloat}) {
    for (const bool cache : {true, false}) {
      MatMul::seen.clear();
      const auto a = leaf();
      Tensor y;
      {
        const AmpScope amp(
            kCPU, dtype == kFloat ? AmpOptions().enabled(false) : AmpOptions(dtype).cache(cache));
        y = MatMul::apply(a, leaf());
      }
      const bool kept = dtype == kFloat || cache;
      const auto loss = y.to(kFloat).sum();
      loss.backward({}, /*keep_graph=*/true);
      on_threads(1, [&](int) { loss.backward({}, true); });
      {
        const AmpScope other(kCPU, AmpOptions(dtype == kHalf ? kBFloat16 : kHalf).cache(!cache));
        const auto before = Seen::now();
        loss.backward();
        EXPECT_EQ(Seen::now(), before);
      }
      EXPECT_THAT(MatMul::seen, AllOf(SizeIs(4), Each(Seen{dtype, kept}))) << dtype << cache;
      EXPECT_FALSE(AmpScope::enabled(kCPU));
    }
  }
}

TEST(AmpFunction, GradientsAreThoseOfAutograd) {
  torch::manual_seed(1);
  const auto a = leaf();
  const auto b = leaf();
  std::vector<variable_list> grads;
  for (const bool own : {false, true}) {
    Tensor y;
    {
      const AmpScope amp(kCPU);
      y = own ? MatMul::apply(a, b) : a.mm(b);
    }
    EXPECT_EQ(y.scalar_type(), kBFloat16);
    grads.push_back(torch::autograd::grad({y.to(kFloat).square().sum()}, {a, b}));
  }
  for (const int i : {0, 1}) {
    EXPECT_EQ(grads[1][i].scalar_type(), kFloat);
    EXPECT_TRUE(torch::equal(grads[0][i], grads[1][i])) << i;
  }
}

/// conv1d in backward, so that a weight is cast there.
struct ConvInBackward : torch::autograd::Function<ConvInBackward> {
  static Tensor forward(AutogradContext* context, const Tensor& x, const Tensor& weight) {
    const AmpForward amp(context);
    context->saved_data["weight"] = weight;
    return x.clone();
  }
  static variable_list backward(AutogradContext* context, variable_list grads) {
    const AmpBackward amp(context);
    const torch::AutoGradMode grad_mode(true);
    const auto weight = context->saved_data["weight"].toTensor();
    return {torch::conv1d(grads[0], weight).detach().to(kFloat), Tensor()};
  }
};

TEST(AmpFunction, BackwardAndAScopeAroundItDoNotMixTheirCasts) {
  const auto weight = torch::ones({1, 1, 1}).requires_grad_();
  const auto x = torch::ones({1, 1, 1}).requires_grad_();
  Tensor y;
  {
    const AmpScope amp(kCPU, kBFloat16);
    y = ConvInBackward::apply(x, weight);
  }
  const AmpScope other(kCPU, kHalf);
  EXPECT_EQ(torch::conv1d(x, weight).scalar_type(), kHalf);
  y.sum().backward();
  EXPECT_EQ(x.grad().item<float>(), 1);
  EXPECT_EQ(torch::conv1d(x, weight).scalar_type(), kHalf);
}

struct BackwardAlone : torch::autograd::Function<BackwardAlone> {
  static Tensor forward(AutogradContext*, const Tensor& x) { return x.clone(); }
  static variable_list backward(AutogradContext* context, variable_list grads) {
    const AmpBackward amp(context);
    return grads;
  }
};

TEST(AmpFunction, BackwardOfAForwardThatSaidNothingIsRefused) {
  EXPECT_THAT(thrown_text([] { BackwardAlone::apply(leaf()).sum().backward(); }),
              Optional(HasSubstr("Begin it with `tidemark::AmpForward amp(context);`")));
}

// --- Functions in full precision ---

/// x * w in a "kernel" that knows float32 only.
struct Float32Kernel : torch::autograd::Function<Float32Kernel> {
  static Tensor forward(AutogradContext* context, Tensor x, Tensor w) {
    const AmpForward amp(context, kFloat, x, w);
    seen.push_back(Seen::now().mm);
    context->save_for_backward({x, w});
    return kernel(x, w);
  }
  static variable_list backward(AutogradContext* context, variable_list grads) {
    const AmpBackward amp(context);
    seen.push_back(Seen::now().mm);
    const auto saved = context->get_saved_variables();
    return {kernel(grads[0], saved[1]), kernel(grads[0], saved[0])};
  }
  static Tensor kernel(const Tensor& a, const Tensor& b) {
    TORCH_CHECK(a.scalar_type() == kFloat && b.scalar_type() == kFloat, "float32 only");
    return a * b;
  }

  static inline std::vector<at::ScalarType> seen;
};

TEST(AmpFunction, FullPrecisionCastsInputsAndSwitchesAutocastOff) {
  Float32Kernel::seen.clear();
  const auto x = leaf(kBFloat16);
  const auto w = leaf();
  const AmpScope amp(kCPU);
  const auto y = Float32Kernel::apply(x, w);
  EXPECT_EQ(Seen::now().mm, kBFloat16);
  EXPECT_TRUE(torch::equal(y, x.detach().to(kFloat) * w.detach()));
  y.sum().backward();
  EXPECT_THAT(Float32Kernel::seen, ElementsAre(kFloat, kFloat));
  EXPECT_TRUE(torch::equal(x.grad(), w.detach().to(kBFloat16)));
  EXPECT_TRUE(torch::equal(w.grad(), x.detach().to(kFloat)));
  EXPECT_EQ(Seen::now().mm, kBFloat16);
}

TEST(AmpFunction, FullPrecisionHoldsWhereverBackwardIsCalled) {
  Float32Kernel::seen.clear();
  Tensor y;
  {
    const AmpScope amp(kCPU);
    y = Float32Kernel::apply(leaf(kBFloat16), leaf());
  }
  y.sum().backward({}, /*keep_graph=*/true);
  on_threads(1, [&](int) {
    const AmpScope amp(kCPU, kHalf);
    y.sum().backward();
  });
  EXPECT_THAT(Float32Kernel::seen, ElementsAre(kFloat, kFloat, kFloat));
}

TEST(AmpFunction, FullPrecisionWithoutAScopeTakesInputsAsTheyAre) {
  EXPECT_THAT(thrown_text([] { (void)Float32Kernel::apply(leaf(kBFloat16), leaf()); }),
              Optional(HasSubstr("float32 only")));
  const AmpScope off = AmpScope::off(kCPU);
  EXPECT_THAT(thrown_text([] { (void)Float32Kernel::apply(leaf(kBFloat16), leaf()); }),
              Optional(HasSubstr("float32 only")));
}

TEST(AmpFunction, FullPrecisionCastsNestedInputsButNotFloat64) {
  AutogradContext context;
  const AmpScope scope(kCPU);
  std::vector<Tensor> list{torch::ones({1}, kHalf), torch::ones({1}, torch::kDouble)};
  std::optional<Tensor> none;
  const AmpForward amp(&context, kFloat, list, none);
  EXPECT_EQ(list[0].scalar_type(), kFloat);
  EXPECT_EQ(list[1].scalar_type(), torch::kDouble);
}

TEST(AmpFunction, ScopesOfAForwardOrBackwardThatThrowsAreClosed) {
  const AmpScope scope(kCPU, kHalf);
  AutogradContext context;
  auto x = torch::ones({1});
  EXPECT_THROW(
      {
        const AmpForward amp(&context, kFloat, x);
        throw std::runtime_error("no");
      },
      std::runtime_error);
  EXPECT_EQ(Seen::now().mm, kHalf);
  EXPECT_THROW(
      {
        const AmpBackward amp(&context);
        EXPECT_EQ(Seen::now().mm, kFloat);
        throw std::runtime_error("no");
      },
      std::runtime_error);
  EXPECT_EQ(Seen::now().mm, kHalf);
}

TEST(AmpFunction, FullPrecisionRefusesADtypeWithoutGradientsAndChangesNothing) {
  const AmpScope scope(kCPU);
  AutogradContext context;
  auto x = torch::ones({1});
  EXPECT_THAT(thrown_text([&] { const AmpForward amp(&context, torch::kLong, x); }),
              Optional(HasSubstr("AmpForward: tensors can't be cast to Long")));
  EXPECT_EQ(x.scalar_type(), kFloat);
  EXPECT_TRUE(AmpScope::enabled(kCPU));
}

}  // namespace
