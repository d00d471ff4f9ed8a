// Exceptions from inside of a region: they arrive as they were thrown, and afterwards everything
// works as if the region had not been there.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <tidemark/checkpoint.h>
#include <torch/csrc/autograd/anomaly_mode.h>
#include <torch/torch.h>

#include <memory>
#include <stdexcept>
#include <string>
#include <type_traits>

#include "support/counted_tensor.h"
#include "support/plain_and_checkpointed.h"
#include "support/thrown_text.h"

namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Optional;
using ::testing::StrEq;
using ::testing::ThrowsMessage;
using tidemark::checkpoint;
using tidemark::CheckpointOptions;
using tidemark::tests::alive;
using tidemark::tests::CheckpointedRegions;
using tidemark::tests::CountedExp;
using tidemark::tests::expect_equal_to_plain;
using tidemark::tests::thrown_text;
using torch::Tensor;
namespace nn = torch::nn;

Tensor leaf(at::IntArrayRef sizes) { return torch::randn(sizes).requires_grad_(); }

class FullDisk : public std::runtime_error {
 public:
  FullDisk() : std::runtime_error("the disk is full") {}
};

TEST(CheckpointErrors, AnExceptionInTheForwardPassesAsItIs) {
  for (const bool early_stop : {false, true}) {
    const auto options = CheckpointOptions().name("enc1").early_stop(early_stop);
    const auto step = [&] {
      checkpoint(
          options,
          [](const Tensor& a) {
            const Tensor y = CountedExp::apply(a);
            if (y.defined()) {
              throw FullDisk();
            }
            return y;
          },
          leaf({3}));
    };
    EXPECT_THAT(step, ThrowsMessage<FullDisk>(StrEq("the disk is full")));
    EXPECT_EQ(alive(), 0);
    EXPECT_EQ(tidemark::detail::EngineLink::innermost_maker(), nullptr);
    EXPECT_FALSE(tidemark::recomputing());
  }
}

TEST(CheckpointErrors, AnExceptionInTheReRunPassesAsItIs) {
  for (const bool early_stop : {false, true}) {
    const auto options = CheckpointOptions().name("enc1").early_stop(early_stop);
    const auto step = [&] {
      checkpoint(
          options,
          [](const Tensor& a) {
            const Tensor y = CountedExp::apply(a);
            if (tidemark::recomputing()) {
              throw FullDisk();
            }
            return y.exp();
          },
          leaf({3}))
          .sum()
          .backward();
    };
    EXPECT_THAT(step, ThrowsMessage<FullDisk>(StrEq("the disk is full")));
    EXPECT_EQ(alive(), 0);
    EXPECT_EQ(tidemark::detail::EngineLink::innermost_maker(), nullptr);
    EXPECT_FALSE(tidemark::recomputing());
  }
}

TEST(CheckpointErrors, AnExceptionInAnInnerRegionPassesThroughTheOuterOne) {
  const auto inner = [](const Tensor& a) {
    const Tensor y = a.exp();
    if (tidemark::recomputing()) {
      throw FullDisk();
    }
    return y.exp();
  };
  const auto outer = [inner](const Tensor& a) { return checkpoint(inner, a.sin()).tanh(); };
  const auto step = [&] { checkpoint(outer, leaf({3})).sum().backward(); };
  EXPECT_THAT(step, ThrowsMessage<FullDisk>(StrEq("the disk is full")));
  EXPECT_EQ(tidemark::detail::EngineLink::innermost_maker(), nullptr);
}

TEST(CheckpointErrors, ALibTorchErrorInTheReRunKeepsItsText) {
  const auto step = [&] {
    checkpoint(
        [](const Tensor& a) {
          const Tensor y = a.exp();
          TORCH_CHECK_VALUE(!tidemark::recomputing(), "a value of ", 5);
          return y.exp();
        },
        leaf({3}))
        .sum()
        .backward();
  };
  EXPECT_THROW(step(), c10::ValueError);
  EXPECT_THAT(thrown_text(step), Optional(HasSubstr("a value of 5")));
}

TEST(CheckpointErrors, WhatIsNoExceptionArrivesAsOneThatNamesTheRegion) {
  const Tensor y = checkpoint(
      CheckpointOptions().name("enc1"),
      [](const Tensor& a) {
        Tensor out = a.exp();
        if (tidemark::recomputing()) {
          throw 42;
        }
        return out.exp();
      },
      leaf({3}));
  EXPECT_THAT(thrown_text([&] { y.sum().backward(); }),
              Optional(AllOf(HasSubstr("'enc1'"), HasSubstr("no std::exception"))));
  EXPECT_EQ(tidemark::detail::EngineLink::innermost_maker(), nullptr);
}

TEST(CheckpointErrors, WhatIsNoExceptionPassesFromTheForwardAsItIs) {
  const auto region = [](const Tensor& a) {
    if (a.exp().defined()) {
      throw 42;
    }
    return a;
  };
  EXPECT_THROW(checkpoint(region, leaf({3})), int);
  EXPECT_EQ(tidemark::detail::EngineLink::innermost_maker(), nullptr);
}

// --- afterwards ---

TEST(CheckpointErrors, AfterAFailedForwardTrainingGoesOnAsPlain) {
  expect_equal_to_plain([](auto& region, auto& record) {
    nn::Linear layer(4, 4);
    torch::optim::SGD optimizer(layer->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
    const Tensor x = leaf({3, 4});
    for (int step = 0; step < 4; ++step) {
      optimizer.zero_grad();
      const auto run = [&] {
        region(
            [layer, step](const Tensor& a) mutable {
              Tensor y = torch::dropout(layer(a).exp(), 0.5, true);
              if (step == 1) {
                throw FullDisk();
              }
              return layer(y.tanh());
            },
            x)
            .sum()
            .backward();
      };
      if (step == 1) {
        EXPECT_THROW(run(), FullDisk);
      } else {
        run();
        optimizer.step();
      }
      record("layer", *layer);
    }
    record("x", x.grad());
  });
}

TEST(CheckpointErrors, AfterAFailedReRunTrainingGoesOnAsPlain) {
  expect_equal_to_plain([](auto& region, auto& record) {
    constexpr bool checkpointed =
        std::is_same_v<std::decay_t<decltype(region)>, CheckpointedRegions>;
    nn::Linear layer(4, 4);
    torch::optim::SGD optimizer(layer->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
    const Tensor x = leaf({3, 4});
    for (int step = 0; step < 4; ++step) {
      const Tensor loss = region(
                              [layer, step](const Tensor& a) mutable {
                                Tensor y = torch::dropout(layer(a).exp(), 0.5, true);
                                if (step == 1 && tidemark::recomputing()) {
                                  throw FullDisk();
                                }
                                return layer(y.tanh());
                              },
                              x)
                              .sum();
      if (step == 1) {
        if (checkpointed) {
          EXPECT_THROW(loss.backward(), FullDisk);
        }
        EXPECT_TRUE(torch::GradMode::is_enabled());
        EXPECT_FALSE(at::autocast::is_autocast_enabled(at::kCPU));
        record("random numbers after the failure", torch::rand({4}));
      } else {
        loss.backward();
        optimizer.step();
        record("layer", *layer);
        record("x", x.grad());
      }
      optimizer.zero_grad();
      x.mutable_grad() = Tensor();
    }
  });
}

TEST(CheckpointErrors, AFailedBackwardMayBeRetriedOnARetainedGraph) {
  for (const bool early_stop : {false, true}) {
    const auto fails = std::make_shared<bool>(true);
    const Tensor x = leaf({3});
    const Tensor loss = checkpoint(
                            CheckpointOptions().early_stop(early_stop),
                            [fails](const Tensor& a) {
                              const Tensor y = CountedExp::apply(a);
                              if (tidemark::recomputing() && *fails) {
                                throw FullDisk();
                              }
                              return y.exp() * torch::dropout(y, 0.5, true);
                            },
                            x)
                            .sum();
    for (int i = 0; i < 2; ++i) {
      EXPECT_THROW(loss.backward({}, /*retain_graph=*/true), FullDisk);
      EXPECT_FALSE(x.grad().defined());
      EXPECT_EQ(alive(), 0);
    }
    *fails = false;
    loss.backward({}, /*retain_graph=*/true);
    const Tensor first = x.grad().clone();
    EXPECT_TRUE(first.isfinite().all().item<bool>());
    x.mutable_grad() = Tensor();
    loss.backward();
    EXPECT_TRUE(torch::equal(x.grad(), first));
    EXPECT_EQ(alive(), 0);
  }
}

// --- anomaly mode ---

TEST(CheckpointErrors, AnomalyModeChangesNoGradient) {
  expect_equal_to_plain([](auto& region, auto& record) {
    const torch::autograd::DetectAnomalyGuard anomaly;
    const Tensor x = leaf({3});
    region([](const Tensor& a) { return a.exp().sin(); }, x).sum().backward();
    record("x", x.grad());
  });
}

TEST(CheckpointErrors, AnomalyModeFindsNansInARegion) {
  const torch::autograd::DetectAnomalyGuard anomaly;
  const auto step = [] {
    checkpoint([](const Tensor& a) { return (a * 0).sqrt() * 0; }, leaf({3})).sum().backward();
  };
  EXPECT_THAT(thrown_text(step), Optional(HasSubstr("SqrtBackward0' returned nan")));
  EXPECT_EQ(tidemark::detail::EngineLink::innermost_maker(), nullptr);
}

TEST(CheckpointErrors, UnderAnomalyModeAnExceptionInTheReRunPassesAsItIs) {
  const torch::autograd::DetectAnomalyGuard anomaly;
  const auto step = [] {
    checkpoint(
        [](const Tensor& a) {
          const Tensor y = a.exp();
          if (tidemark::recomputing()) {
            throw FullDisk();
          }
          return y.exp();
        },
        leaf({3}))
        .sum()
        .backward();
  };
  EXPECT_THAT(step, ThrowsMessage<FullDisk>(StrEq("the disk is full")));
}

}  // namespace
