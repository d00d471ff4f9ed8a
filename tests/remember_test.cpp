#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <tidemark/checkpoint.h>
#include <tidemark/detail/rng_state.h>
#include <tidemark/remember.h>
#include <torch/torch.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "support/plain_and_checkpointed.h"
#include "support/thrown_text.h"

namespace {

using testing::HasSubstr;
using tidemark::checkpoint;
using tidemark::recomputing;
using tidemark::remember;
using tidemark::tests::expect_equal_to_plain;
using tidemark::tests::Record;
using tidemark::tests::thrown_text;
using torch::Tensor;

Tensor points() { return torch::rand({32, 3}).requires_grad_(); }

Tensor k_nearest(const Tensor& p, int64_t k) {
  return std::get<1>(torch::cdist(p, p).topk(k, 1, /*largest=*/false));
}

// Farthest point sampling from a random start, as PointNet++ has it.
Tensor farthest_points(const Tensor& p, int64_t count) {
  Tensor distance = torch::full({p.size(0)}, 1e10);
  int64_t farthest = torch::randint(p.size(0), {1}).item<int64_t>();
  std::vector<int64_t> chosen;
  for (int64_t i = 0; i < count; ++i) {
    chosen.push_back(farthest);
    distance = torch::minimum(distance, (p - p[farthest]).square().sum(1));
    farthest = distance.argmax().item<int64_t>();
  }
  return torch::tensor(chosen);
}

TEST(Remember, IsAPlainCallOutsideOfARegion) {
  int calls = 0;
  EXPECT_EQ(remember([&] { return ++calls; }), 1);
  EXPECT_EQ(remember([&] { return ++calls; }), 2);
  EXPECT_FALSE(recomputing());
}

TEST(Remember, RunsNeighbourSearchAndSamplingOnce) {
  const auto searches = std::make_shared<int>(0);
  expect_equal_to_plain([&](auto& region, Record& record) {
    const Tensor p = points();
    torch::nn::Linear layer(3, 8);
    region(
        [layer, searches](Tensor t) mutable {
          const auto [centres, neighbours] = remember([&] {
            torch::NoGradGuard no_grad;
            ++*searches;
            return std::pair(farthest_points(t, 8), k_nearest(t, 4));
          });
          const Tensor groups = t.index({neighbours.index_select(0, centres)});
          return torch::dropout(layer(groups), 0.5, true).relu().amax(1);
        },
        p * 1)
        .sum()
        .backward();
    record("points.grad", p.grad());
    record("layer", *layer);
  });
  EXPECT_EQ(*searches, 3);  // plain, and two checkpointed runs
}

// A scatter that adds in whatever order threads come, as it would on a device.
TEST(Remember, ReplaysANonDeterministicOp) {
  const auto runs = std::make_shared<int>(0);
  const Tensor x = torch::rand({4}).requires_grad_();
  const Tensor y = checkpoint(
      [runs](Tensor t) {
        const Tensor noisy = remember([&] { return t + static_cast<float>(++*runs); });
        return noisy.exp();
      },
      x * 1);
  y.sum().backward();
  EXPECT_EQ(*runs, 1);
  EXPECT_TRUE(torch::equal(x.grad(), y.detach()));
}

TEST(Remember, GradientsFlowThroughIt) {
  expect_equal_to_plain([](auto& region, Record& record) {
    const Tensor x = torch::rand({4}).requires_grad_();
    const Tensor w = torch::rand({4}).requires_grad_();
    region(
        [w](Tensor t) {
          const Tensor product = remember([&] { return (t * w).sin(); });
          return (product * t).exp();
        },
        x * 1)
        .sum()
        .backward();
    record("x.grad", x.grad());
    record("w.grad", w.grad());
  });
}

TEST(Remember, KeepsRandomNumbersBehindItInStep) {
  expect_equal_to_plain([](auto& region, Record& record) {
    const Tensor x = torch::rand({64}).requires_grad_();
    region(
        [](Tensor t) {
          t = torch::dropout(t, 0.5, true);
          const Tensor order = remember([&] { return torch::randperm(64); });
          return torch::dropout(t.index_select(0, order).sin(), 0.5, true);
        },
        x * 1)
        .exp()
        .sum()
        .backward();
    record("x.grad", x.grad());
  });
}

TEST(Remember, DrawsOnceAlsoWhereTheRegionDrawsNothingElse) {
  expect_equal_to_plain([](auto& region, Record& record) {
    const Tensor x = torch::rand({64}).requires_grad_();
    for (int step = 0; step < 3; ++step) {
      region(
          [](Tensor t) {
            return t.index_select(0, remember([&] { return torch::randperm(64); })).sin();
          },
          x * 1)
          .exp()
          .sum()
          .backward();
      record("drawn between", torch::rand({4}));
    }
    record("x.grad", x.grad());
  });
}

TEST(Remember, NestedRegionsReplayWhatTheOutermostForwardRemembered) {
  const auto runs = std::make_shared<int>(0);
  expect_equal_to_plain([&](auto& region, Record& record) {
    const Tensor x = torch::rand({4}).requires_grad_();
    const auto inner = [runs](Tensor t) {
      const int step = remember([&] { return ++*runs; });
      return (t * static_cast<float>(step % 1 + 2)).sin();
    };
    region([inner, region](Tensor t) { return region(inner, region(inner, t)).exp(); }, x * 1)
        .sum()
        .backward();
    record("x.grad", x.grad());
  });
  EXPECT_EQ(*runs, 6);  // two calls for each of plain and two checkpointed runs
}

TEST(Remember, MoreCallsInTheRerunAreRefused) {
  const auto more = std::make_shared<bool>(false);
  const Tensor y = checkpoint(
      [more](Tensor t) {
        const int once = remember([] { return 2; });
        const int twice = *more ? remember([] { return 3; }) : 3;
        return (t * static_cast<float>(once * twice)).sin();
      },
      torch::rand({4}).requires_grad_() * 1);
  *more = true;
  EXPECT_THAT(thrown_text([&] { y.sum().backward(); }).value_or(""), HasSubstr("remember()"));
}

TEST(Remember, AnotherTypeInTheRerunIsRefused) {
  const auto other = std::make_shared<bool>(false);
  const Tensor y = checkpoint(
      [other](Tensor t) {
        const double factor = *other ? remember([] { return std::string("2"); }).size()
                                     : remember([] { return 2.0; });
        return (t * factor).sin();
      },
      torch::rand({4}).requires_grad_() * 1);
  *other = true;
  EXPECT_THAT(thrown_text([&] { y.sum().backward(); }).value_or(""), HasSubstr("of another type"));
}

TEST(Remember, MayCallItselfAndRegions) {
  const auto runs = std::make_shared<int>(0);
  expect_equal_to_plain([&](auto& region, Record& record) {
    const Tensor x = torch::rand({4}).requires_grad_();
    region(
        [runs, region](Tensor t) {
          const Tensor first = remember([&] {
            const Tensor inner = remember([&] { return t.detach() + 1; });
            ++*runs;
            return region([](Tensor s) { return s.sin().exp(); }, t * inner);
          });
          const Tensor second = remember([&] { return t.detach() * 3; });
          return (first * second).sin();
        },
        x * 1)
        .sum()
        .backward();
    record("x.grad", x.grad());
  });
  EXPECT_EQ(*runs, 3);
}

// What is remembered may be a view of a parameter, and that is watched like any other.
TEST(Remember, ViewsOfParametersAreStillWatched) {
  const Tensor weight = torch::rand({4, 4}).requires_grad_();
  const Tensor y = checkpoint(
      [weight](Tensor t) {
        const Tensor view = remember([&] { return weight.t(); });
        return t.sin().matmul(view).exp();
      },
      torch::rand({4, 4}).requires_grad_() * 1);
  weight.data().mul_(2);
  EXPECT_TRUE(thrown_text([&] { y.sum().backward(); }).has_value());
}

TEST(Recomputing, TellsTheRerunFromTheForward) {
  const auto seen = std::make_shared<std::vector<bool>>();
  const Tensor x = torch::rand({4}).requires_grad_();
  const Tensor y = checkpoint(
      [seen](Tensor t) {
        seen->push_back(recomputing());
        return checkpoint(
            [seen](Tensor s) {
              seen->push_back(recomputing());
              return s.sin();
            },
            t.exp());
      },
      x * 1);
  EXPECT_EQ(*seen, (std::vector<bool>{false, false}));
  y.sum().backward();
  // The inner region's re-run, the outer's, and the inner one's forward inside of that.
  for (std::size_t i = 2; i < seen->size(); ++i) {
    EXPECT_TRUE((*seen)[i]);
  }
  EXPECT_GT(seen->size(), 2u);
  EXPECT_FALSE(recomputing());
}

TEST(Remember, WithoutPreserveRngTheGeneratorStandsWhereItStoodOrTheForwardIsRefused) {
  const Tensor x = torch::rand({8}).requires_grad_();
  const auto text = thrown_text([&] {
    const Tensor y = checkpoint(
        tidemark::CheckpointOptions().preserve_rng(false),
        [](Tensor t) {
          return t.index_select(0, remember([] { return torch::randperm(8); })).exp();
        },
        x * 1);
    torch::rand({4});
    const auto before = tidemark::detail::CpuRngState::now();
    y.sum().backward();
    EXPECT_TRUE(tidemark::detail::CpuRngState::now() == before);
    EXPECT_TRUE(torch::equal(x.grad(), x.detach().exp()));
  });
  if (text.has_value()) {
    EXPECT_THAT(*text, HasSubstr("preserve_rng"));
  }
}

// A batch norm that sums its statistics over all processes: the sum must not be asked for twice.
TEST(Remember, ACollectiveIsCalledOnceForEachForward) {
  const auto calls = std::make_shared<int>(0);
  expect_equal_to_plain([calls](auto& region, Record& record) {
    *calls = 0;
    const Tensor x = torch::rand({6, 3}).requires_grad_();
    const Tensor loss = region(
                            [calls](Tensor t) {
                              const Tensor mean = remember([&] {
                                ++*calls;
                                return t.mean(0);  // all_reduce
                              });
                              return (t - mean).sin();
                            },
                            x * 1)
                            .square()
                            .sum();
    loss.backward({}, /*retain_graph=*/true);
    loss.backward();
    EXPECT_EQ(*calls, 1);
    record("x.grad", x.grad());
  });
}

TEST(Remember, FewerCallsInTheRerunAreNeverSilentlyWrong) {
  const auto first = std::make_shared<bool>(true);
  const Tensor constant = torch::full({4}, 5.0);
  const Tensor y = checkpoint(
      [first, constant](Tensor t) {
        const Tensor a = *first ? remember([] { return torch::full({4}, 2.0); }) : constant;
        const Tensor b = remember([] { return torch::full({4}, 3.0); });
        return (t * a * b).sin();
      },
      torch::rand({4}).requires_grad_() * 1);
  *first = false;
  EXPECT_TRUE(thrown_text([&] { y.sum().backward(); }).has_value());
}

}  // namespace
