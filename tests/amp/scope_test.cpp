// What a scope sets and puts back, whom it concerns, and that no cast of a weight outlives it.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <tidemark/amp_scope.h>
#include <torch/torch.h>

#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "../support/threads.h"
#include "../support/thrown_text.h"

namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Optional;
using tidemark::AmpOptions;
using tidemark::AmpScope;
using tidemark::tests::on_threads;
using tidemark::tests::thrown_text;
using torch::kBFloat16;
using torch::kCPU;
using torch::kCUDA;
using torch::kFloat;
using torch::kHalf;
using torch::Tensor;

static_assert(!std::is_copy_constructible_v<AmpScope> && !std::is_move_constructible_v<AmpScope> &&
              !std::is_copy_assignable_v<AmpScope> && !std::is_move_assignable_v<AmpScope>);

int nesting() {
  const int inner = at::autocast::increment_nesting();
  at::autocast::decrement_nesting();
  return inner - 1;
}

/// All that a scope may change on a thread.
auto state() {
  return std::tuple(AmpScope::enabled(kCPU), AmpScope::dtype(kCPU), AmpScope::enabled(kCUDA),
                    AmpScope::dtype(kCUDA), AmpScope::cache_enabled(), nesting());
}

const auto kNothing = std::tuple(false, kBFloat16, false, kHalf, true, 0);

Tensor square() { return torch::ones({2, 2}); }
at::ScalarType mm_dtype() { return square().mm(square()).scalar_type(); }

/// What `action` warns of on this thread.
template <class Action>
std::vector<std::string> warnings_of(Action&& action) {
  struct Handler final : c10::WarningHandler {
    void process(const c10::Warning& warning) override { texts.push_back(warning.msg()); }
    std::vector<std::string> texts;
  };
  Handler handler;
  const c10::WarningUtils::WarningHandlerGuard guard(&handler);
  action();
  return handler.texts;
}

// --- settings ---

TEST(AmpScope, SetsAutocastAndPutsBackWhatWas) {
  ASSERT_EQ(state(), kNothing);
  {
    const AmpScope amp(kCPU, AmpOptions(kHalf).cache(false));
    EXPECT_EQ(state(), std::tuple(true, kHalf, false, kHalf, false, 1));
    EXPECT_EQ(mm_dtype(), kHalf);
  }
  EXPECT_EQ(state(), kNothing);
  EXPECT_EQ(mm_dtype(), kFloat);
}

TEST(AmpScope, DefaultsToTorchsDtypeOfTheDevice) {
  EXPECT_EQ(AmpScope::dtype(kCPU), kBFloat16);
  EXPECT_EQ(AmpScope::dtype(kCUDA), kHalf);
  const torch::Device device("cpu");
  const AmpScope amp(device);
  EXPECT_EQ(mm_dtype(), kBFloat16);
}

TEST(AmpScope, TakesADtypeInPlaceOfOptions) {
  const AmpScope amp(kCPU, kHalf);
  EXPECT_EQ(mm_dtype(), kHalf);
}

TEST(AmpScope, WithoutADtypeInheritsThatOfTheScopeAround) {
  const AmpScope outer(kCPU, kHalf);
  {
    const AmpScope inner(kCPU);
    EXPECT_EQ(mm_dtype(), kHalf);
  }
  const AmpScope off = AmpScope::off(kCPU);
  const AmpScope inner(kCPU);
  EXPECT_EQ(mm_dtype(), kHalf);
}

TEST(AmpScope, WithoutACacheOptionInheritsThatOfTheScopeAround) {
  const AmpScope outer(kCPU, AmpOptions().cache(false));
  {
    const AmpScope inner(kCPU);
    EXPECT_FALSE(AmpScope::cache_enabled());
  }
  const AmpScope inner(kCPU, AmpOptions().cache(true));
  EXPECT_TRUE(AmpScope::cache_enabled());
}

TEST(AmpScope, OffRunsABlockInFullPrecision) {
  const AmpScope outer(kCPU);
  {
    const AmpScope off = AmpScope::off(kCPU);
    EXPECT_FALSE(AmpScope::enabled(kCPU));
    EXPECT_EQ(mm_dtype(), kFloat);
    {
      const AmpScope inner(kCPU);
      EXPECT_EQ(mm_dtype(), kBFloat16);
    }
    EXPECT_EQ(mm_dtype(), kFloat);
  }
  EXPECT_EQ(mm_dtype(), kBFloat16);
}

TEST(AmpScope, ConcernsOneTypeOfDevice) {
  const AmpScope amp(kCPU, kHalf);
  EXPECT_FALSE(AmpScope::enabled(kCUDA));
  const AmpScope off = AmpScope::off(kCUDA);  // also where there is no CUDA
  EXPECT_TRUE(AmpScope::enabled(kCPU));
  EXPECT_EQ(mm_dtype(), kHalf);
}

TEST(AmpScope, AnExceptionPutsBackEverything) {
  const AmpScope outer(kCPU, kHalf);
  const auto before = state();
  EXPECT_THROW(
      {
        const AmpScope amp(kCPU, AmpOptions(kBFloat16).cache(false));
        const AmpScope off = AmpScope::off(kCPU);
        const AmpScope inner(kCPU, kHalf);
        (void)square().mm(torch::ones({3, 3}));
      },
      c10::Error);
  EXPECT_EQ(state(), before);
  EXPECT_EQ(mm_dtype(), kHalf);
}

// --- what it refuses ---

TEST(AmpScope, RefusesADtypeThatAutocastDoesNotHave) {
  for (const auto dtype : {kFloat, torch::kDouble, torch::kInt, torch::kFloat8_e4m3fn}) {
    const auto text = thrown_text([&] { const AmpScope amp(kCPU, dtype); });
    EXPECT_THAT(text, Optional(HasSubstr(std::string("can't run in ") + c10::toString(dtype))));
    EXPECT_THAT(text, Optional(HasSubstr("cpu; it can in BFloat16 and Half")));
    EXPECT_THAT(text, Optional(HasSubstr("AmpScope::off(device)")));
    EXPECT_EQ(state(), kNothing);
  }
}

TEST(AmpScope, RefusesADtypeThatSomebodyElseHasSet) {
  at::autocast::set_autocast_dtype(kCPU, kFloat);
  EXPECT_THAT(thrown_text([] { const AmpScope amp(kCPU); }), Optional(HasSubstr("Float on cpu")));
  at::autocast::set_autocast_dtype(kCPU, kBFloat16);
  EXPECT_EQ(state(), kNothing);
}

TEST(AmpScope, RefusesADeviceThatIsNotThere) {
  // One of these is in no machine.
  for (const auto type : {kCUDA, torch::kXPU, torch::kMPS}) {
    if (!c10::impl::hasDeviceGuardImpl(type)) {
      const auto text = thrown_text([&] { const AmpScope amp(type); });
      EXPECT_THAT(text, Optional(HasSubstr("there is no " + c10::DeviceTypeName(type, true))));
      EXPECT_THAT(text, Optional(HasSubstr("Autocast can run on cpu")));
      EXPECT_EQ(state(), kNothing);
    }
  }
}

TEST(AmpScope, RefusesADeviceWithoutAutocast) {
  for (const bool enabled : {true, false}) {
    const auto text =
        thrown_text([&] { const AmpScope amp(torch::kMeta, AmpOptions().enabled(enabled)); });
    EXPECT_THAT(text, Optional(HasSubstr("no autocast for meta. It can run on cpu")));
    EXPECT_EQ(state(), kNothing);
  }
  EXPECT_FALSE(AmpScope::enabled(torch::kMeta));
  EXPECT_THAT(thrown_text([] { (void)AmpScope::dtype(torch::kMeta); }),
              Optional(HasSubstr("no autocast for meta")));
}

// --- threads and order ---

TEST(AmpScope, IsItsThreadsOwn) {
  const AmpScope amp(kCPU, kHalf);
  on_threads(2, [](int i) {
    EXPECT_EQ(state(), kNothing);
    const AmpScope own(kCPU, AmpOptions(kBFloat16).cache(i == 0));
    EXPECT_EQ(mm_dtype(), kBFloat16);
  });
  EXPECT_EQ(state(), std::tuple(true, kHalf, false, kHalf, true, 1));
}

TEST(AmpScope, ThatEndsOnAnotherThreadWarnsAndLeavesThatThreadAlone) {
  std::unique_ptr<AmpScope> scope;
  on_threads(1, [&](int) { scope = std::make_unique<AmpScope>(kCPU, kHalf); });
  const AmpScope own(kCPU);
  const auto before = state();
  EXPECT_THAT(warnings_of([&] { scope.reset(); }), ElementsAre(HasSubstr("on another thread")));
  EXPECT_EQ(state(), before);
}

TEST(AmpScope, ThatEndsOutOfOrderWarnsAndHoldsUntilTheInnerOnesEnd) {
  std::optional<AmpScope> outer;
  std::optional<AmpScope> middle;
  std::optional<AmpScope> inner;
  outer.emplace(kCPU, AmpOptions(kHalf).cache(false));
  middle.emplace(kCPU, kBFloat16);
  inner.emplace(kCPU, AmpOptions().enabled(false));
  const auto out_of_order = ElementsAre(HasSubstr("before one that was opened inside"));
  EXPECT_THAT(warnings_of([&] { outer.reset(); }), out_of_order);
  EXPECT_EQ(state(), std::tuple(false, kBFloat16, false, kHalf, false, 2));
  EXPECT_THAT(warnings_of([&] { middle.reset(); }), out_of_order);
  EXPECT_EQ(state(), std::tuple(false, kBFloat16, false, kHalf, false, 1));
  EXPECT_THAT(warnings_of([&] { inner.reset(); }), IsEmpty());
  EXPECT_EQ(state(), kNothing);
}

TEST(AmpScope, ASiblingMayEndBeforeTheNextBegins) {
  EXPECT_THAT(warnings_of([] {
                const AmpScope outer(kCPU);
                for (int i = 0; i < 3; ++i) {
                  const AmpScope inner(kCPU, kHalf);
                }
              }),
              IsEmpty());
  EXPECT_EQ(state(), kNothing);
}

// --- the weight cache ---

/// References to a weight, also those that the cache has.
auto references(const Tensor& tensor) {
  return std::pair(tensor.use_count(), tensor.weak_use_count());
}

struct ConvNet {
  torch::nn::Conv3d conv{torch::nn::Conv3dOptions(1, 1, 1).bias(false)};
  Tensor x = torch::ones({1, 1, 2, 2, 2});

  ConvNet() { set(1); }
  void set(double value) {
    const torch::NoGradGuard no_grad;
    conv->weight.fill_(value);
  }
  Tensor operator()() { return conv(x); }
  float value() { return (*this)().mean().item<float>(); }
};

TEST(AmpCache, TrainingUsesTheWeightsOfTheLastStep) {
  ConvNet net;
  torch::optim::SGD sgd(net.conv->parameters(), 0.25);
  const auto before = references(net.conv->weight);
  double last = 2;
  for (int step = 0; step < 4; ++step) {
    sgd.zero_grad();
    Tensor loss;
    {
      const AmpScope amp(kCPU);
      loss = net().square().mean();
    }
    loss.backward();
    sgd.step();
    EXPECT_LT(loss.item<double>(), last) << "step " << step;
    last = loss.item<double>();
  }
  EXPECT_EQ(last, 1.0 / 64);  // w halves with each step
  EXPECT_EQ(references(net.conv->weight), before);
}

TEST(AmpCache, IsEmptyAfterTheOutermostScope) {
  ConvNet net;
  const auto before = references(net.conv->weight);
  {
    const AmpScope outer(kCPU);
    {
      const AmpScope inner(kCPU);
      (void)net();
    }
    EXPECT_NE(references(net.conv->weight), before);
  }
  EXPECT_EQ(references(net.conv->weight), before);
}

TEST(AmpCache, OfAWorkerThreadIsEmptiedToo) {
  ConvNet net;
  const auto before = references(net.conv->weight);
  on_threads(1, [&](int) {
    const AmpScope amp(kCPU);
    (void)net();
  });
  EXPECT_EQ(references(net.conv->weight), before);
}

TEST(AmpCache, IsEmptyAfterAnException) {
  ConvNet net;
  const auto before = references(net.conv->weight);
  try {
    const AmpScope amp(kCPU);
    (void)net();
    throw std::runtime_error("no");
  } catch (const std::runtime_error&) {
  }
  EXPECT_EQ(references(net.conv->weight), before);
}

TEST(AmpCache, AnOutermostScopeDoesNotUseWhatOthersHaveLeft) {
  ConvNet net;
  at::autocast::set_autocast_enabled(kCPU, true);  // as C++ without a scope does
  EXPECT_EQ(net.value(), 1);
  at::autocast::set_autocast_enabled(kCPU, false);
  net.set(2);
  const AmpScope amp(kCPU);
  EXPECT_EQ(net.value(), 2);
}

TEST(AmpCache, AChangedWeightIsUsedInANewScopeAndAfterRefresh) {
  ConvNet net;
  const AmpScope amp(kCPU);
  EXPECT_EQ(net.value(), 1);
  net.set(0);
  EXPECT_EQ(net.value(), 1);  // the trap
  AmpScope::refresh();
  EXPECT_EQ(net.value(), 0);
}

TEST(AmpCache, AScopeOfTheSameSettingsSharesTheCasts) {
  ConvNet net;
  const AmpScope amp(kCPU);
  EXPECT_EQ(net.value(), 1);
  net.set(0);
  const AmpScope inner(kCPU);
  EXPECT_EQ(net.value(), 1);
}

TEST(AmpCache, AnInnerScopeOfAnotherDtypeDoesNotUseTheCastsAround) {
  ConvNet net;
  const AmpScope outer(kCPU, kBFloat16);
  EXPECT_EQ(net().scalar_type(), kBFloat16);
  const AmpScope inner(kCPU, kHalf);
  EXPECT_EQ(net().scalar_type(), kHalf);
}

TEST(AmpCache, AnInnerScopeOfAnotherDtypeLeavesNoCastsBehind) {
  ConvNet net;
  const AmpScope outer(kCPU, kBFloat16);
  {
    const AmpScope inner(kCPU, kHalf);
    EXPECT_EQ(net().scalar_type(), kHalf);
  }
  EXPECT_EQ(net().scalar_type(), kBFloat16);
}

TEST(AmpCache, SwitchingItOnFindsNothingOld) {
  ConvNet net;
  const AmpScope outer(kCPU);
  EXPECT_EQ(net.value(), 1);
  const AmpScope without(kCPU, AmpOptions().cache(false));
  net.set(2);
  EXPECT_EQ(net.value(), 2);
  const AmpScope with(kCPU, AmpOptions().cache(true));
  EXPECT_EQ(net.value(), 2);
}

TEST(AmpCache, WithoutItNothingIsKept) {
  ConvNet net;
  const auto before = references(net.conv->weight);
  const AmpScope amp(kCPU, AmpOptions().cache(false));
  (void)net();
  EXPECT_EQ(references(net.conv->weight), before);
}

}  // namespace
