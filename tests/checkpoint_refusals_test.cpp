// What a checkpointed region refuses, and that the text says which tensor, which region and what to
// do. Nothing of this may end in a wrong gradient or a crash.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <tidemark/checkpoint.h>
#include <torch/torch.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "support/autograd_functions.h"
#include "support/plain_and_checkpointed.h"
#include "support/thrown_text.h"

namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::Optional;
using tidemark::checkpoint;
using tidemark::CheckpointOptions;
using tidemark::tests::CheckpointedRegions;
using tidemark::tests::PlainRegions;
using tidemark::tests::thrown_text;
using torch::Tensor;
namespace nn = torch::nn;

Tensor leaf(at::IntArrayRef sizes) { return torch::randn(sizes).requires_grad_(); }

CheckpointOptions named(const char* name) { return CheckpointOptions().name(name); }

// --- what plain autograd refuses ---

/// Steps that end in a backward which plain autograd refuses; the region is plain or checkpointed.
struct RefusedSteps {
  template <class Region>
  static std::vector<std::pair<const char*, std::function<void()>>> all(const Region& region) {
    const auto exp_of = [](const Tensor& a) { return a.exp(); };
    return {
        {"a saved output written to after the region",
         [=] {
           Tensor y = region(exp_of, leaf({3}));
           y.mul_(2);
           y.sum().backward();
         }},
        {"a saved output written to through a view",
         [=] {
           Tensor y = region(exp_of, leaf({3, 2}));
           y[0].zero_();
           y.sum().backward();
         }},
        {"a saved output written to through its detached alias",
         [=] {
           Tensor y = region(exp_of, leaf({3}));
           y.detach().mul_(2);
           y.sum().backward();
         }},
        {"a saved output written to between two passes",
         [=] {
           Tensor y = region(exp_of, leaf({3}));
           const Tensor loss = y.sum();
           loss.backward({}, /*retain_graph=*/true);
           {
             torch::NoGradGuard no_grad;
             y.mul_(2);
           }
           loss.backward();
         }},
        {"a tensor written to inside the region after it was saved",
         [=] {
           region(
               [](const Tensor& a) {
                 Tensor s = a.exp();
                 s.mul_(3);
                 return s.sin();
               },
               leaf({3}))
               .sum()
               .backward();
         }},
        {"a saved input written to inside the region",
         [=] {
           region(
               [](const Tensor& a) {
                 Tensor s = a * 2;
                 const Tensor t = s.sin();
                 s.add_(1);
                 return t * s;
               },
               leaf({3}))
               .sum()
               .backward();
         }},
        {"an argument written to after the region",
         [=] {
           Tensor h = leaf({3}) * 1;
           const Tensor y = region([](const Tensor& a) { return a * a; }, h);
           h.add_(1);
           y.sum().backward();
         }},
        {"a captured parameter written to after the region",
         [=] {
           Tensor weight = leaf({3});
           const Tensor y = region([weight](const Tensor& a) { return a * weight; }, leaf({3}));
           {
             torch::NoGradGuard no_grad;
             weight.mul_(2);
           }
           y.sum().backward();
         }},
        {"a captured buffer written to after the region",
         [=] {
           Tensor buffer = torch::rand({3});
           const Tensor y = region([buffer](const Tensor& a) { return a * buffer; }, leaf({3}));
           buffer.add_(1);
           y.sum().backward();
         }},
        {"a mask written to after the region",
         [=] {
           Tensor mask = torch::eye(3, torch::kBool);
           const Tensor y =
               region([](const Tensor& a, const Tensor& m) { return a.exp().masked_fill(m, 0); },
                      leaf({3, 3}), mask);
           mask.logical_not_();
           y.sum().backward();
         }},
        {"what a custom Function saved, written to after it",
         [=] {
           region(
               [](const Tensor& a) {
                 Tensor s = a * 2;
                 const Tensor y = tidemark::tests::UnpacksTwice::apply(s, a);
                 s.zero_();
                 return y;
               },
               leaf({3}) * 1)
               .sum()
               .backward();
         }},
        {"an in-place result written to again",
         [=] {
           Tensor y = region([](const Tensor& a) { return (a * 2).tanh_(); }, leaf({3}));
           y.add_(1);
           y.sum().backward();
         }},
    };
  }
};

TEST(CheckpointRefusals, WhatPlainAutogradRefusesIsRefused) {
  constexpr const char* kText = "has been modified by an inplace operation";
  const auto plain = RefusedSteps::all(PlainRegions());
  const auto checkpointed = RefusedSteps::all(CheckpointedRegions(named("enc1")));
  const auto early = RefusedSteps::all(CheckpointedRegions(named("enc1").early_stop(true)));
  for (std::size_t i = 0; i < plain.size(); ++i) {
    SCOPED_TRACE(plain[i].first);
    EXPECT_THAT(thrown_text(plain[i].second), Optional(HasSubstr(kText)));
    EXPECT_THAT(
        thrown_text(checkpointed[i].second),
        Optional(AllOf(HasSubstr(kText), HasSubstr("region 'enc1'"), HasSubstr(" on cpu"))));
    EXPECT_THAT(thrown_text(early[i].second),
                Optional(AllOf(HasSubstr(kText), HasSubstr("region 'enc1'"))));
  }
}

TEST(CheckpointRefusals, AWrittenArgumentIsNamedEvenWhereOnlyTheReRunNeedsIt) {
  Tensor h = leaf({2, 3}) * 1;
  const Tensor y = checkpoint(
      named("dec"), [](const Tensor&, const Tensor& b) { return (b + 1).exp(); }, leaf({3}), h);
  h.relu_();
  EXPECT_THAT(thrown_text([&] { y.sum().backward(); }),
              Optional(AllOf(HasSubstr("argument tensor #1 of checkpointed region 'dec'"),
                             HasSubstr("version 1; expected version 0"), HasSubstr("Clone it"))));
}

// --- arguments that the region itself writes to ---

TEST(CheckpointRefusals, ARegionThatWritesToItsArgumentIsRefusedInTheForward) {
  const std::vector<std::pair<const char*, std::function<Tensor(Tensor)>>> regions = {
      {"relu_", [](Tensor a) { return a.relu_().sin(); }},
      {"a view", [](Tensor a) { return a.exp() * a.view({6}).narrow(0, 1, 2).zero_().sum(); }},
      {"without grad mode",
       [](Tensor a) {
         const Tensor y = (a * 2).exp();
         torch::NoGradGuard no_grad;
         a.add_(1);
         return y;
       }},
      {"a detached alias",
       [](Tensor a) {
         const Tensor y = (a * 2).exp();
         a.detach().add_(1);
         return y;
       }},
      {"a custom Function", [](Tensor a) { return tidemark::tests::ExpInPlace::apply(a); }}};
  for (const auto& [name, region] : regions) {
    SCOPED_TRACE(name);
    EXPECT_THAT(
        thrown_text([&, region = region] {
          checkpoint(named("enc1"), region, leaf({2, 3}) * 1);
        }),
        Optional(AllOf(HasSubstr("checkpointed region 'enc1' writes to its argument in place"),
                       HasSubstr("argument tensor #0"), HasSubstr("Clone"))));
  }
}

TEST(CheckpointRefusals, TheArgumentWrittenToIsNamedByItsPlaceAmongAllTensors) {
  const auto region = [](const Tensor& a, std::vector<Tensor> b, std::pair<int, Tensor> c) {
    Tensor y = a.exp() * b[1] * c.second;
    b[1].add_(1);
    return y;
  };
  const std::vector<Tensor> list{leaf({3}) * 1, leaf({3}) * 1};
  EXPECT_THAT(
      thrown_text([&] { checkpoint(region, leaf({3}), list, std::make_pair(1, leaf({3}))); }),
      Optional(AllOf(HasSubstr("a checkpointed region writes"), HasSubstr("argument tensor #2"))));
}

TEST(CheckpointRefusals, ARegionMayWriteToAnArgumentWhenNothingIsSaved) {
  Tensor h = torch::ones({3});
  const Tensor x = leaf({3});
  const Tensor y = checkpoint([](Tensor a, const Tensor& b) { return a.add_(1) + b; }, h, x);
  y.sum().backward();
  EXPECT_TRUE(torch::equal(x.grad(), torch::ones({3})));
}

TEST(CheckpointRefusals, InferenceTensorsAreRefusedAsArguments) {
  Tensor made;
  {
    c10::InferenceMode inference;
    made = torch::ones({3});
  }
  EXPECT_THAT(thrown_text([&] {
                checkpoint(
                    named("enc1"), [](const Tensor& a) { return a + 1; }, made);
              }),
              Optional(AllOf(HasSubstr("argument tensor #0 of checkpointed region 'enc1'"),
                             HasSubstr("inference mode"), HasSubstr("Clone"))));
}

// --- re-runs that do something else ---

/// A region that calls `first` in the forward and `again` when it is re-run.
auto first_then(Tensor (*first)(const Tensor&), Tensor (*again)(const Tensor&)) {
  return [first, again, call = std::make_shared<int>(0)](const Tensor& a) {
    return (*call)++ == 0 ? first(a) : again(a);
  };
}

struct Mismatch {
  const char* name;
  Tensor (*first)(const Tensor&);
  Tensor (*again)(const Tensor&);
  std::vector<const char*> texts;
};

std::vector<Mismatch> mismatches() {
  return {
      {"more",
       [](const Tensor& a) { return a.exp(); },
       [](const Tensor& a) { return a.exp().narrow(0, 0, 2).tanh(); },
       {"saved 1 tensors for backward in the forward and more when it was re-run",
        "Float [2, 3] on cpu"}},
      {"fewer",
       [](const Tensor& a) { return a.exp().tanh(); },
       [](const Tensor& a) { return a.exp(); },
       {"saved 2 tensors for backward in the forward and only 1 when it was re-run"}},
      {"none",
       [](const Tensor& a) { return a.exp().tanh(); },
       [](const Tensor& a) { return a + 1; },
       {"saved 2 tensors for backward in the forward and only 0 when it was re-run"}},
      {"another shape",
       [](const Tensor& a) { return a.exp(); },
       [](const Tensor& a) { return a.narrow(0, 0, 2).exp(); },
       {"saved tensor #0", "Float [4, 3] on cpu", "Float [2, 3] on cpu"}},
      {"another number of dimensions",
       [](const Tensor& a) { return a.exp(); },
       [](const Tensor& a) { return a.flatten().exp(); },
       {"saved tensor #0", "Float [4, 3] on cpu", "Float [12] on cpu"}},
      {"another dtype",
       [](const Tensor& a) { return a.exp().tanh(); },
       [](const Tensor& a) { return a.exp().to(torch::kDouble).tanh(); },
       {"saved tensor #1", "Float [4, 3] on cpu", "Double [4, 3] on cpu"}},
      {"another device",
       [](const Tensor& a) { return a.exp().tanh(); },
       [](const Tensor& a) { return a.exp().to(torch::kMeta).tanh(); },
       {"saved tensor #1", "Float [4, 3] on cpu", "Float [4, 3] on meta"}},
      {"another layout",
       [](const Tensor& a) { return a.exp().tanh(); },
       [](const Tensor& a) { return a.exp().to_sparse().tanh(); },
       {"saved tensor #1", "Float [4, 3] on cpu", "(Sparse)"}},
      {"empty",
       [](const Tensor& a) { return a.exp(); },
       [](const Tensor& a) { return torch::empty({0}).mul(a.sum()).exp(); },
       {"Float [4, 3] on cpu"}},
  };
}

TEST(CheckpointRefusals, AReRunThatSavesOtherTensorsIsAnErrorThatShowsBoth) {
  for (const bool early_stop : {false, true}) {
    for (const Mismatch& mismatch : mismatches()) {
      if (early_stop && std::string(mismatch.name) == "more") {
        continue;  // the re-run ends before it
      }
      SCOPED_TRACE(mismatch.name);
      const Tensor y = checkpoint(named("enc1").early_stop(early_stop),
                                  first_then(mismatch.first, mismatch.again), leaf({4, 3}));
      const auto text = thrown_text([&] { y.sum().backward(); });
      EXPECT_THAT(text, Optional(HasSubstr("checkpointed region 'enc1'")));
      for (const char* part : mismatch.texts) {
        EXPECT_THAT(text, Optional(HasSubstr(part)));
      }
      EXPECT_EQ(tidemark::detail::EngineLink::innermost_maker(), nullptr);
    }
  }
}

TEST(CheckpointRefusals, ARegionThatSwallowsTheErrorOfItsReRunIsStillAnError) {
  const auto region = [call = std::make_shared<int>(0)](const Tensor& a) {
    try {
      return ((*call)++ == 0 ? a.exp() : a.narrow(0, 0, 2).exp()).sin();
    } catch (const std::exception&) {
      return a.exp().sin();
    }
  };
  const Tensor y = checkpoint(named("enc1"), region, leaf({4, 3}));
  EXPECT_THAT(thrown_text([&] { y.sum().backward(); }), Optional(HasSubstr("region 'enc1'")));
}

TEST(CheckpointRefusals, ANewForwardAfterARefusedReRunTrains) {
  const Tensor x = leaf({4, 3});
  for (const Mismatch& mismatch : mismatches()) {
    const Tensor bad = checkpoint(first_then(mismatch.first, mismatch.again), x);
    EXPECT_THROW(bad.sum().backward(), c10::Error);
    x.mutable_grad() = Tensor();
    checkpoint([](const Tensor& a) { return (a * 1).exp().tanh(); }, x).sum().backward();
    EXPECT_TRUE(torch::equal(x.grad(), torch::autograd::grad({x.exp().tanh().sum()}, {x})[0]));
  }
}

template <class Net>
void expect_mode_switch_refused(const char* what, Net net, const Tensor& x) {
  SCOPED_TRACE(what);
  for (const bool train_first : {true, false}) {
    net->train(train_first);
    const Tensor y = checkpoint(
        named("enc1"), [net](const Tensor& a) mutable { return net->forward(a); }, x);
    net->train(!train_first);
    EXPECT_THAT(thrown_text([&] { y.sum().backward(); }),
                Optional(AllOf(HasSubstr("region 'enc1'"), HasSubstr("train() and eval()"))));
  }
}

TEST(CheckpointRefusals, SwitchingModeBetweenForwardAndBackwardIsAnErrorAndNoCrash) {
  const Tensor x = leaf({2, 4, 4, 4, 4});
  expect_mode_switch_refused("BatchNorm3d", nn::BatchNorm3d(4), x);
  expect_mode_switch_refused("Conv3d, BatchNorm3d",
                             nn::Sequential(nn::Conv3d(4, 4, 1), nn::BatchNorm3d(4)), x);
  expect_mode_switch_refused(
      "InstanceNorm3d",
      nn::InstanceNorm3d(nn::InstanceNorm3dOptions(4).affine(true).track_running_stats(true)), x);
  expect_mode_switch_refused("Dropout", nn::Sequential(nn::Linear(4, 4), nn::Dropout(0.5)), x);
}

TEST(CheckpointRefusals, AParameterThatWasEmptiedIsAnErrorAndNoCrash) {
  nn::Sequential net(nn::Conv3d(4, 4, 1), nn::BatchNorm3d(4), nn::Flatten(), nn::Linear(32, 2));
  const Tensor x = leaf({2, 4, 2, 2, 2});
  for (auto& parameter : net->named_parameters()) {
    SCOPED_TRACE(parameter.key());
    const Tensor data = parameter.value().detach().clone();
    const Tensor y = checkpoint([net](const Tensor& a) mutable { return net->forward(a); }, x);
    parameter.value().set_data(torch::empty({0}));
    EXPECT_NE(thrown_text([&] { y.sum().backward(); }), std::nullopt);
    parameter.value().set_data(data);
  }
}

TEST(CheckpointRefusals, FreezingAParameterBetweenForwardAndBackwardIsNeverSilentlyWrong) {
  const Tensor x = leaf({3, 4});
  nn::Linear net(4, 4);
  const Tensor expected = torch::autograd::grad({net(x).exp().sum()}, {x})[0];
  const Tensor y = checkpoint([net](const Tensor& a) mutable { return net(a).exp(); }, x);
  net->weight.requires_grad_(false);
  if (!thrown_text([&] { y.sum().backward(); }).has_value()) {
    EXPECT_TRUE(torch::equal(x.grad(), expected));
  }
}

// --- state that the region reads or writes besides its arguments ---

TEST(CheckpointRefusals, ARegionThatWritesToACapturedTensorItSavesIsNeverSilentlyWrong) {
  const Tensor x = leaf({3});
  Tensor steps = torch::ones({3});
  const Tensor y = checkpoint(
      named("enc1"),
      [steps](const Tensor& a) {
        steps.add_(1);
        return a * steps;
      },
      x);
  if (!thrown_text([&] { y.sum().backward(); }).has_value()) {
    EXPECT_TRUE(torch::equal(x.grad(), torch::full({3}, 2.0)));
  }
}

TEST(CheckpointRefusals, AParameterThatIsReadButNotSavedIsNeverSilentlyWrongAfterAnUpdate) {
  const Tensor x = leaf({3});
  const Tensor bias = torch::zeros({3}).requires_grad_();
  const Tensor y = checkpoint([bias](const Tensor& a) { return (a + bias).exp(); }, x);
  const Tensor expected = y.detach().clone();  // exp is its own derivative
  {
    torch::NoGradGuard no_grad;
    bias.add_(1);
  }
  if (!thrown_text([&] { y.sum().backward(); }).has_value()) {
    EXPECT_TRUE(torch::equal(x.grad(), expected));
  }
}

}  // namespace
