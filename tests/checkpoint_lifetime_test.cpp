// Nothing that a region saved outlives the pass that needs it, however the step ends.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <tidemark/checkpoint.h>
#include <torch/torch.h>
#include <unistd.h>

#include <functional>
#include <memory>
#include <stdexcept>
#include <vector>

#include "support/counted_tensor.h"
#include "support/own_process.h"
#include "support/thrown_text.h"

namespace {

using tidemark::checkpoint;
using tidemark::CheckpointOptions;
using tidemark::tests::alive;
using tidemark::tests::counted;
using tidemark::tests::CountedExp;
using torch::Tensor;
namespace nn = torch::nn;

Tensor leaf(at::IntArrayRef sizes) { return torch::randn(sizes).requires_grad_(); }

/// Saves counted tensors: by an op, and by a custom Function that saves its output.
Tensor saving(const Tensor& a) { return CountedExp::apply(a).sin() * counted({3}); }

/// Runs `step` often, with early_stop off and on, and expects nothing to be left.
void expect_no_leak(const std::function<void(const CheckpointOptions&)>& step, int steps = 1000) {
  for (const bool early_stop : {false, true}) {
    SCOPED_TRACE(early_stop ? "early_stop on" : "early_stop off");
    const int before = alive();
    for (int i = 0; i < steps; ++i) {
      step(CheckpointOptions().early_stop(early_stop));
    }
    EXPECT_EQ(alive(), before);
    EXPECT_EQ(tidemark::detail::EngineLink::innermost_maker(), nullptr);
  }
}

TEST(CheckpointLifetime, AThousandStepsLeakNothing) {
  expect_no_leak([](const CheckpointOptions& options) {
    checkpoint(options, saving, leaf({3})).sum().backward();
  });
}

TEST(CheckpointLifetime, AThousandStepsOfNestedRegionsLeakNothing) {
  expect_no_leak([](const CheckpointOptions& options) {
    checkpoint(
        options,
        [options](const Tensor& a) {
          return checkpoint(options, saving, checkpoint(options, saving, a)).exp();
        },
        leaf({3}))
        .sum()
        .backward();
  });
}

TEST(CheckpointLifetime, AThousandGraphsDroppedWithoutBackwardLeakNothing) {
  expect_no_leak([](const CheckpointOptions& options) { checkpoint(options, saving, leaf({3})); });
}

TEST(CheckpointLifetime, AThousandForwardsThatThrowLeakNothing) {
  expect_no_leak([](const CheckpointOptions& options) {
    const auto region = [](const Tensor& a) -> Tensor {
      const Tensor y = saving(a);
      throw std::runtime_error(y.numel() == 3 ? "stop" : "other");
    };
    EXPECT_THROW(checkpoint(options, region, leaf({3})), std::runtime_error);
  });
}

TEST(CheckpointLifetime, AThousandReRunsThatThrowLeakNothing) {
  expect_no_leak([](const CheckpointOptions& options) {
    const Tensor y = checkpoint(
        options,
        [call = std::make_shared<int>(0)](const Tensor& a) {
          const Tensor out = saving(a);
          if ((*call)++ > 0) {
            throw std::runtime_error("stop");
          }
          return out.exp();
        },
        leaf({3}));
    EXPECT_THROW(y.sum().backward(), std::runtime_error);
  });
}

TEST(CheckpointLifetime, AThousandPartialBackwardsLeakNothing) {
  expect_no_leak([](const CheckpointOptions& options) {
    const Tensor x = leaf({3}), weight = leaf({3});
    const Tensor y = checkpoint(
        options, [weight](const Tensor& a) { return saving(a) * saving(weight).tanh(); }, x);
    y.sum().backward({}, /*retain_graph=*/true, false, std::vector<Tensor>{x});
  });
}

TEST(CheckpointLifetime, AThousandDoubleBackwardsLeakNothing) {
  expect_no_leak([](const CheckpointOptions& options) {
    const Tensor x = leaf({3}), scale = counted({3});
    const Tensor y = checkpoint(
        options, [scale](const Tensor& a) { return (a * scale).exp().sin(); }, x);
    const Tensor slope = torch::autograd::grad({y.sum()}, {x}, {}, true, /*create_graph=*/true)[0];
    torch::autograd::grad({slope.square().sum()}, {x});
  });
}

TEST(CheckpointLifetime, NothingIsHeldBetweenForwardAndBackward) {
  const Tensor x = leaf({3});
  const int before = alive();
  const Tensor y = checkpoint(saving, x);
  EXPECT_EQ(alive(), before);
  const Tensor plain = saving(x);
  EXPECT_GT(alive(), before) << "the same region without checkpoint() holds nothing: a vain test";
}

TEST(CheckpointLifetime, RecomputedTensorsAreFreedWithThePassThoughTheGraphIsRetained) {
  const Tensor x = leaf({3}), weight = leaf({3});
  const int before = alive();
  const Tensor loss =
      checkpoint([weight](const Tensor& a) { return saving(a) * saving(weight).tanh(); }, x).sum();
  loss.backward({}, /*retain_graph=*/true);
  EXPECT_EQ(alive(), before);
  loss.backward({}, true, false, std::vector<Tensor>{x});  // asks for some of them only
  EXPECT_EQ(alive(), before);
}

TEST(CheckpointLifetime, AFailedPassFreesWhatItRecomputedAndMayBeRepeated) {
  const Tensor x = leaf({3});
  const int before = alive();
  const auto fails = std::make_shared<bool>(false);
  const Tensor middle = checkpoint(
      [fails](const Tensor& a) {
        TORCH_CHECK(!*fails, "fails");
        return (a * 2).exp();
      },
      x);
  const Tensor loss = checkpoint(saving, middle).sum();
  *fails = true;
  EXPECT_THROW(loss.backward({}, /*retain_graph=*/true), c10::Error);
  EXPECT_EQ(alive(), before);
  *fails = false;
  loss.backward();
  EXPECT_TRUE(torch::equal(x.grad(), torch::autograd::grad({saving((x * 2).exp()).sum()}, {x})[0]));
}

TEST(CheckpointLifetime, ArgumentsAndCapturesAreFreedWithTheGraph) {
  const int before = alive();
  const auto token = std::make_shared<int>(0);
  {
    const Tensor y =
        checkpoint([token, captured = counted({3})](
                       const Tensor& a, const Tensor& b) { return (a * b * captured).exp(); },
                   leaf({3}), counted({3}));
    EXPECT_EQ(alive(), before + 2);
    y.sum().backward();
    EXPECT_EQ(alive(), before) << "y is alive, its graph is freed";
  }
  EXPECT_EQ(token.use_count(), 1);
}

// The module holds its last features, whose graph holds the region, whose callable holds the
// module.
TEST(CheckpointLifetime, AModuleThatKeepsAnIntermediateIsFreedOnceBackwardIsOver) {
  struct Net : nn::Module {
    Tensor forward(const Tensor& x) {
      features = x.exp() * counted({3});
      return features.sin();
    }
    Tensor features;
  };
  const int before = alive();
  std::weak_ptr<Net> watched;
  {
    const auto net = std::make_shared<Net>();
    watched = net;
    checkpoint([net](const Tensor& a) { return net->forward(a); }, leaf({3})).sum().backward();
  }
  EXPECT_TRUE(watched.expired());
  EXPECT_EQ(alive(), before);
}

TEST(CheckpointLifetime, ALongChainOfRegionsIsDroppedWithoutRecursion) {
  Tensor h = leaf({1});
  for (int i = 0; i < 30000; ++i) {
    h = checkpoint([](const Tensor& a) { return a.sin(); }, h);
  }
}

/// exp(x) kept past save_for_backward, where no region sees it.
struct KeepsInSavedData : torch::autograd::Function<KeepsInSavedData> {
  static Tensor forward(torch::autograd::AutogradContext* context, const Tensor& x) {
    Tensor y = counted(x.sizes());
    y.copy_(x.exp());
    context->saved_data["y"] = y;
    return y * 1;
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list grads) {
    return {grads[0] * context->saved_data["y"].toTensor()};
  }
};

TEST(CheckpointLifetime, WhatAFunctionKeepsInSavedDataIsHeldAsWithoutARegion) {
  const int before = alive();
  const Tensor x = leaf({3});
  {
    const Tensor y =
        checkpoint([](const Tensor& a) { return KeepsInSavedData::apply(a).sin(); }, x);
    EXPECT_EQ(alive(), before + 1) << "documented: use save_for_backward";
    y.sum().backward();
    EXPECT_TRUE(torch::equal(
        x.grad(), torch::autograd::grad({KeepsInSavedData::apply(x).sin().sum()}, {x})[0]));
  }
  EXPECT_EQ(alive(), before);
}

TEST(CheckpointLifetime, AProcessThatForksAfterABackwardTrainsInTheChild) {
  tidemark::tests::expect_in_own_process([] {
    const auto step = [] {
      const Tensor x = leaf({3});
      checkpoint([](const Tensor& a) { return torch::dropout(a.exp(), 0.5, true).sin(); }, x)
          .sum()
          .backward();
      return x.grad().defined();
    };
    EXPECT_TRUE(step());
    const pid_t child = fork();
    if (child == 0) {
      _exit(step() ? 0 : 1);
    }
    int status = 0;
    waitpid(child, &status, 0);
    EXPECT_TRUE(WIFEXITED(status));
    EXPECT_EQ(WEXITSTATUS(status), 0);
  });
}

// Left there, it is a cycle: the module holds the graph, whose region holds the module.
TEST(CheckpointLifetime, AKeptIntermediateIsFreedWithoutBackwardOnceTheUserClearsIt) {
  struct Net : torch::nn::Module {
    Tensor forward(const Tensor& x) {
      features = x.exp() * counted({3});
      return features.sin();
    }
    Tensor features;
  };
  const int before = alive();
  std::weak_ptr<Net> watched;
  {
    const auto net = std::make_shared<Net>();
    watched = net;
    checkpoint([net](const Tensor& a) { return net->forward(a); }, leaf({3}));
    net->features.reset();
  }
  EXPECT_TRUE(watched.expired());
  EXPECT_EQ(alive(), before);
}

// The refused write has given the argument a graph that leads into the region.
TEST(CheckpointLifetime, ARefusedForwardThatWroteInPlaceLeaksNothing) {
  const int before = alive();
  for (const bool captured : {false, true}) {
    const Tensor x = leaf({3}) * counted({3});
    const Tensor w = leaf({3});
    EXPECT_ANY_THROW(captured
                         ? checkpoint([x, w](const Tensor& a) { return (x.mul_(w) * a).exp(); }, w)
                         : checkpoint([w](Tensor a) { return a.mul_(w).exp(); }, x));
    EXPECT_THAT(tidemark::tests::thrown_text([&] { x.sum().backward(); }).value_or("accepted"),
                ::testing::HasSubstr("forward of a checkpointed region failed"));
  }
  EXPECT_EQ(alive(), before);
}

}  // namespace
