// Random numbers of a region: its re-run draws what its forward drew, or backward is refused.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <tidemark/checkpoint.h>
#include <torch/torch.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "support/plain_and_checkpointed.h"
#include "support/random_ops.h"
#include "support/thrown_text.h"

namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Optional;
using tidemark::checkpoint;
using tidemark::CheckpointOptions;
using tidemark::tests::expect_equal_to_plain;
using tidemark::tests::thrown_text;
using torch::Tensor;
namespace nn = torch::nn;

Tensor leaf(at::IntArrayRef sizes) { return torch::randn(sizes).requires_grad_(); }

Tensor noisy(const Tensor& a) { return torch::dropout(a.exp(), 0.5, true).sin(); }

TEST(CheckpointRng, EachRandomOpIsRepeated) {
  for (const auto& [name, op] : tidemark::tests::random_ops()) {
    SCOPED_TRACE(name);
    expect_equal_to_plain([op = op](auto& region, auto& record) {
      const Tensor x = (torch::rand({4, 4}) * 0.8 + 0.1).requires_grad_();
      // Twice, and something behind it, so that other random numbers would give other gradients.
      const Tensor y = region(
          [op](const Tensor& a) { return (op(a.sin()).sum() * a + op(a)).exp().log1p().sum(); }, x);
      record("y", y);
      y.backward();
      record("x", x.grad());
    });
  }
}

TEST(CheckpointRng, ARegionThatSeedsTheGeneratorItselfIsRepeated) {
  expect_equal_to_plain([](auto& region, auto& record) {
    const Tensor x = leaf({4, 4});
    region(
        [](const Tensor& a) {
          const Tensor first = noisy(a);
          torch::manual_seed(3);
          return noisy(first);
        },
        x)
        .sum()
        .backward();
    record("x", x.grad());
  });
}

TEST(CheckpointRng, TheSpareNormalSampleIsRepeatedToo) {
  expect_equal_to_plain([](auto& region, auto& record) {
    const Tensor x = leaf({3});
    torch::randn({1});  // leaves the second number of its pair to the next
    region([](const Tensor& a) { return (a + torch::randn({3})).exp(); }, x).sum().backward();
    record("x", x.grad());
    record("next", torch::randn({1}));
    torch::randn({1}, torch::kDouble);
    region([](const Tensor& a) { return (a + torch::randn({3}, torch::kDouble)).exp(); }, x)
        .sum()
        .backward();
    record("x", x.grad());
    record("next", torch::randn({1}, torch::kDouble));
  });
}

TEST(CheckpointRng, DrawsBetweenForwardAndBackwardChangeNothing) {
  expect_equal_to_plain([](auto& region, auto& record) {
    const Tensor x = leaf({4, 4});
    const Tensor loss = region(noisy, x).sum();
    record("between", torch::rand({100}));
    loss.backward({}, /*retain_graph=*/true);
    record("between passes", torch::rand({100}));
    loss.backward();
    record("x", x.grad());
  });
}

TEST(CheckpointRng, AnUnusedRandomRegionLeavesTheGeneratorAlone) {
  expect_equal_to_plain(
      [](auto& region, auto& record) {
        const Tensor x = leaf({4, 4});
        const Tensor y = region(noisy, x);
        (x * 2).sum().backward();
        record("next", torch::rand({4}));
      },
      /*reruns=*/false);
}

// --- preserve_rng off ---

TEST(CheckpointRng, WithoutPreserveRngARegionThatDrawsIsRefused) {
  for (const auto& [name, op] : tidemark::tests::random_ops()) {
    SCOPED_TRACE(name);
    const Tensor x = (torch::rand({4, 4}) * 0.8 + 0.1).requires_grad_();
    EXPECT_THAT(thrown_text([&, op = op] {
                  checkpoint(
                      CheckpointOptions().name("enc1").preserve_rng(false),
                      [op](const Tensor& a) { return (op(a) * a).exp(); }, x);
                }),
                Optional(AllOf(HasSubstr("checkpointed region 'enc1' drew random numbers"),
                               HasSubstr("preserve_rng"))));
    EXPECT_EQ(tidemark::detail::EngineLink::innermost_maker(), nullptr);
  }
}

TEST(CheckpointRng, WithoutPreserveRngARegionThatDrawsNothingTrains) {
  const Tensor x = leaf({3});
  checkpoint(
      CheckpointOptions().preserve_rng(false), [](const Tensor& a) { return a.exp().sin(); }, x)
      .sum()
      .backward();
  EXPECT_TRUE(torch::equal(x.grad(), torch::autograd::grad({x.exp().sin().sum()}, {x})[0]));
}

TEST(CheckpointRng, WithoutPreserveRngANestedRegionThatDrawsIsRefused) {
  const Tensor x = leaf({4, 4});
  EXPECT_THAT(thrown_text([&] {
                checkpoint(
                    CheckpointOptions().preserve_rng(false),
                    [](const Tensor& a) { return checkpoint(noisy, a) * a; }, x);
              }),
              Optional(HasSubstr("drew random numbers")));
}

TEST(CheckpointRng, WithoutPreserveRngAndWithRecordFunctionOffNothingIsSilentlyWrong) {
  const Tensor x = torch::ones({64}).requires_grad_();
  at::RecordFunctionGuard off(/*is_enabled=*/false);
  const auto text = thrown_text([&] {
    const Tensor y = checkpoint(CheckpointOptions().preserve_rng(false), noisy, x);
    const Tensor expected = torch::where(y == 0, 0, 2 * x.exp() * torch::cos(2 * x.exp()));
    y.sum().backward();
    EXPECT_TRUE(torch::allclose(x.grad(), expected));
  });
  (void)text;  // refused is fine
}

// --- other generators and other threads ---

TEST(CheckpointRng, AGeneratorPassedToAnOpIsNeverSilentlyWrong) {
  at::Generator generator = at::detail::createCPUGenerator(5);
  const Tensor x = torch::ones({64}).requires_grad_();
  const auto text = thrown_text([&] {
    const Tensor y = checkpoint(
        [generator](const Tensor& a) {
          return a.exp() * torch::bernoulli(torch::full_like(a, 0.5), generator);
        },
        x);
    const Tensor expected = y.detach().clone();  // exp(x) or 0: its own derivative
    y.sum().backward();
    EXPECT_TRUE(torch::equal(x.grad(), expected));
  });
  (void)text;  // refused is fine
}

// The other thread draws as many numbers in the forward as in the re-run, at another moment: the
// generator ends in the same state both times.
TEST(CheckpointRng, AnotherThreadThatDrawsAsMuchAtAnotherMomentIsNoticed) {
  const Tensor x = torch::ones({64}).requires_grad_();
  const auto draw_elsewhere = [] { std::thread([] { torch::rand({16}); }).join(); };
  const Tensor y = checkpoint(
      [draw_elsewhere, call = std::make_shared<int>(0)](const Tensor& a) {
        const bool first = (*call)++ == 0;
        if (!first) {
          draw_elsewhere();
        }
        const Tensor out = a.exp() * torch::rand({64}).round();
        if (first) {
          draw_elsewhere();
        }
        return out;
      },
      x);
  const Tensor expected = y.detach().clone();  // exp(x) or 0: its own derivative
  const auto text = thrown_text([&] { y.sum().backward(); });
  EXPECT_THAT(text, Optional(HasSubstr("Another thread drew")));
  if (!text.has_value()) {
    EXPECT_TRUE(torch::equal(x.grad(), expected)) << "silently wrong";
  }
}

TEST(CheckpointRng, AReRunThatDrawsOtherNumbersIsRefusedAlsoWhereNobodyObserves) {
  const Tensor x = leaf({4, 4});
  const Tensor y = checkpoint(
      CheckpointOptions().name("enc1").observe(false),
      [call = std::make_shared<int>(0)](const Tensor& a) {
        if ((*call)++ > 0) {
          torch::rand({1});
        }
        return noisy(a);
      },
      x);
  EXPECT_THAT(thrown_text([&] { y.sum().backward(); }),
              Optional(AllOf(HasSubstr("checkpointed region 'enc1' drew random numbers"),
                             HasSubstr("default generator of the CPU"),
                             HasSubstr("Another thread drew from it"))));
}

/// While alive, another thread draws from the default generator without pause.
class BackgroundDraws {
 public:
  ~BackgroundDraws() {
    stop_ = true;
    thread_.join();
  }

 private:
  std::atomic<bool> stop_{false};
  std::thread thread_{[this] {
    while (!stop_) {
      torch::rand({8});
      std::this_thread::yield();
    }
  }};
};

TEST(CheckpointRng, ABackgroundThreadThatDrawsNeverDisturbsARegionThatDoesNot) {
  const BackgroundDraws draws;
  const Tensor x = torch::linspace(0, 1, 64).requires_grad_();
  const auto region = [](const Tensor& a) { return a.exp().sin().tanh(); };
  const Tensor expected = torch::autograd::grad({region(x).sum()}, {x})[0];
  for (int i = 0; i < 300; ++i) {
    EXPECT_TRUE(
        torch::equal(torch::autograd::grad({checkpoint(region, x).sum()}, {x})[0], expected));
  }
}

// Augmentation on a loader's thread must not see the same numbers twice.
TEST(CheckpointRng, TheReRunOfARegionThatDrawsNothingRepeatsNoNumbersOfOtherThreads) {
  std::vector<float> drawn;
  const auto draw_elsewhere = [&] {
    std::thread([&] { drawn.push_back(torch::rand({1}).item<float>()); }).join();
  };
  const Tensor y = checkpoint(
      [&](const Tensor& a) {
        draw_elsewhere();
        return (a * 2).exp();
      },
      leaf({3}));
  y.sum().backward();
  draw_elsewhere();
  ASSERT_EQ(drawn.size(), 3U);
  EXPECT_NE(drawn[0], drawn[1]);
  EXPECT_NE(drawn[1], drawn[2]);
}

TEST(CheckpointRng, ThreadsThatShareTheDefaultGeneratorAreNeverSilentlyWrong) {
  constexpr int kThreads = 8;
  constexpr int kSteps = 500;
  std::atomic<int> equal{0}, refused{0}, wrong{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&] {
      for (int step = 0; step < kSteps; ++step) {
        const Tensor x = torch::ones({16}).requires_grad_();
        const Tensor y = checkpoint(
            [](const Tensor& a) {
              return torch::dropout(torch::dropout(a.exp(), 0.5, true), 0.5, true);
            },
            x);
        const Tensor expected = y.detach().clone();  // 4 exp(x) or 0: its own derivative
        try {
          y.sum().backward();
          ++(torch::equal(x.grad(), expected) ? equal : wrong);
        } catch (const c10::Error&) {
          ++refused;
        }
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  EXPECT_EQ(wrong, 0) << equal << " equal, " << refused << " refused";
  RecordProperty("refused", refused);
  EXPECT_EQ(equal + refused + wrong, kThreads * kSteps);
}

// What is not filled yet of a fresh tensor holds whatever the memory held before.
TEST(CheckpointRng, NoiseInPartOfAFreshTensorIsRepeated) {
  const auto garbage = std::make_shared<float>(0.F);
  expect_equal_to_plain([garbage](auto& region, auto& record) {
    const Tensor x = leaf({4, 8});
    region(
        [garbage](const Tensor& a) {
          Tensor noise = torch::empty({4, 8});
          std::fill_n(noise.data_ptr<float>(), noise.numel(), ++*garbage);
          for (int64_t row = 0; row < noise.size(0); ++row) {
            noise[row].normal_();
          }
          return (a * noise).exp();
        },
        x)
        .sum()
        .backward();
    record("x", x.grad());
  });
}

TEST(CheckpointRng, MasksAreRepeatedWhateverTheArgumentsAreNestedIn) {
  struct Batch {
    Tensor points;
    std::vector<Tensor> features;
  };
  expect_equal_to_plain([](auto& region, auto& record) {
    const Tensor x = leaf({4, 4}), y = leaf({4, 4});
    region(
        [](const Batch& batch, const std::vector<Tensor>& list) {
          return noisy(batch.points) * noisy(batch.features[0]) * noisy(list[0]);
        },
        Batch{x * 1, {y * 1}}, std::vector<Tensor>{x * 2})
        .sum()
        .backward();
    record("x", x.grad());
    record("y", y.grad());
  });
}

TEST(CheckpointRng, WithoutPreserveRngAndWithoutObservationARegionThatDrawsIsRefused) {
  const Tensor x = leaf({4, 4});
  EXPECT_THAT(thrown_text([&] {
                checkpoint(CheckpointOptions().preserve_rng(false).observe(false), noisy, x);
              }),
              Optional(HasSubstr("drew random numbers")));
}

}  // namespace
