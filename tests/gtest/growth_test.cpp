#include <gmock/gmock.h>
#include <gtest/gtest-spi.h>
#include <gtest/gtest.h>
#include <tidemark/checkpointed_sequential.h>
#include <tidemark/gtest/growth.h>
#include <tidemark/memory/bytes.h>
#include <tidemark/memory/measure.h>
#include <torch/torch.h>

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "../support/thrown_text.h"

namespace {

using namespace tidemark::literals;
using ::testing::AllOf;
using ::testing::DescribeMatcher;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::Optional;
using tidemark::measure_series;
using tidemark::measure_steps;
using tidemark::SizedStep;
using tidemark::StepMemory;
using tidemark::gtest::DoesNotGrow;
using tidemark::gtest::GrowsAtMostLike;
using tidemark::gtest::GrowsLikeSqrt;
using tidemark::tests::thrown_text;
using torch::Tensor;

template <class Matcher, class Value>
std::string explain(const Matcher& matcher, const Value& value) {
  ::testing::StringMatchResultListener listener;
  ::testing::ExplainMatchResult(matcher, value, &listener);
  return listener.str();
}

Tensor bytes(int64_t count) { return torch::empty({count}, torch::kUInt8); }

std::vector<StepMemory> leftovers(const std::vector<int64_t>& bytes) {
  std::vector<StepMemory> steps;
  for (const int64_t leftover : bytes) {
    steps.emplace_back().leftover = leftover;
  }
  return steps;
}

std::vector<SizedStep> held(const std::vector<std::pair<int64_t, int64_t>>& sizes_and_bytes) {
  std::vector<SizedStep> series;
  for (const auto& [size, bytes] : sizes_and_bytes) {
    series.push_back({size, {}});
    series.back().memory.held = bytes;
  }
  return series;
}

TEST(MeasureSteps, MeasuresEachRunOfTheSameStep) {
  std::vector<Tensor> kept;
  const auto steps = measure_steps(3, [&] {
    bytes(1_MiB);
    kept.push_back(bytes(1_KiB * static_cast<int64_t>(kept.size() + 1)));
  });
  ASSERT_EQ(steps.size(), 3);
  for (int64_t i = 0; i < 3; ++i) {
    EXPECT_EQ(steps[i].leftover, (i + 1) * 1_KiB);
    EXPECT_EQ(steps[i].peak, 1_MiB);
    EXPECT_EQ(steps[i].allocations, 2);
  }
}

TEST(MeasureSteps, RefusesNoSteps) {
  int runs = 0;
  EXPECT_THAT(thrown_text([&] { static_cast<void>(measure_steps(0, [&] { ++runs; })); }),
              Optional(AllOf(HasSubstr("got 0 steps"), HasSubstr("give 1 or more"))));
  EXPECT_EQ(runs, 0);
}

TEST(MeasureSeries, MeasuresTheSecondRunOfEachSize) {
  std::vector<int64_t> made;
  const auto series = measure_series({3, 1, 2}, [&](int64_t size) {
    made.push_back(size);
    return [size, state = Tensor()]() mutable {
      if (!state.defined()) {
        state = bytes(5_MiB);  // what only a first step allocates
      }
      bytes(size * 1_KiB);
    };
  });
  EXPECT_THAT(made, ::testing::ElementsAre(3, 1, 2));
  ASSERT_EQ(series.size(), 3);
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(series[i].size, made[i]);
    EXPECT_EQ(series[i].memory.peak, made[i] * 1_KiB);
    EXPECT_EQ(series[i].memory.leftover, 0);
  }
  EXPECT_EQ(::testing::PrintToString(series[1]),
            "size 1: peak 1.0 KiB (1024 bytes), held 0 bytes, leftover 0 bytes, allocated 1.0 KiB "
            "(1024 bytes) in 1 block");
}

TEST(MeasureSeries, FreesTheModelOfOneSizeBeforeTheNextOne) {
  const tidemark::MemoryScope memory;
  const auto series =
      measure_series({2, 3}, [](int64_t size) { return [kept = bytes(size * 1_MiB)] {}; });
  EXPECT_EQ(memory.peak(), 3_MiB);
}

TEST(MeasureSeries, RefusesSizesBelowOne) {
  const auto make_step = [](int64_t) { return [] {}; };
  EXPECT_THAT(thrown_text([&] {
                static_cast<void>(measure_series({4, 0}, make_step));
              }),
              Optional(HasSubstr("the size 0; give 1 or more")));
}

TEST(DoesNotGrow, JudgesTheStepsBehindTheWarmUp) {
  EXPECT_THAT(leftovers({5000, 0, 0}), DoesNotGrow());
  EXPECT_THAT(leftovers({5000, 0, -7}), DoesNotGrow());
  EXPECT_THAT(leftovers({5000, 0, 1}), Not(DoesNotGrow()));
  EXPECT_THAT(leftovers({5000, 4, 0}), Not(DoesNotGrow()));
  EXPECT_THAT(leftovers({5000, 4, 0}), DoesNotGrow(2));
  EXPECT_THAT(leftovers({0}), DoesNotGrow(0));
  EXPECT_THAT(leftovers({1}), Not(DoesNotGrow(0)));
}

TEST(DoesNotGrow, IsNotAppeasedByAnotherStepThatFrees) {
  EXPECT_THAT(leftovers({5000, -4000, 4, 4, 4}), Not(DoesNotGrow()));
}

TEST(DoesNotGrow, ExplainsStepByStep) {
  EXPECT_EQ(
      explain(DoesNotGrow(), leftovers({5000, 4, 0, 4})),
      "which leaves bytes behind in 2 of 3 steps after the first, in sum 8 bytes; step by step: "
      "5000 (warm-up), 4, 0, 4");
  EXPECT_EQ(explain(DoesNotGrow(), leftovers({5000, 0})), "");
  const auto describe = [](const auto& matcher) {
    return DescribeMatcher<const std::vector<StepMemory>&>(matcher);
  };
  EXPECT_EQ(describe(DoesNotGrow()), "leaves nothing behind in any step after the first");
  EXPECT_EQ(describe(DoesNotGrow(2)), "leaves nothing behind in any step after the first 2");
  EXPECT_EQ(describe(DoesNotGrow(0)), "leaves nothing behind in any step");
  EXPECT_EQ(describe(Not(DoesNotGrow())), "leaves bytes behind in some step after the first");
  EXPECT_NONFATAL_FAILURE(EXPECT_THAT(leftovers({9, 1_MiB}), DoesNotGrow()),
                          "in sum 1.0 MiB (1048576 bytes); step by step: 9 (warm-up), 1048576");
}

TEST(DoesNotGrow, RefusesNonsense) {
  EXPECT_THAT(thrown_text([] { static_cast<void>(DoesNotGrow(-1)); }),
              Optional(AllOf(HasSubstr("-1 steps"), HasSubstr("0 or more"))));
  for (const auto& steps : {leftovers({}), leftovers({1})}) {
    EXPECT_THAT(thrown_text([&] { explain(DoesNotGrow(), steps); }),
                Optional(HasSubstr("Measure more steps")));
    EXPECT_THAT(thrown_text([&] { explain(Not(DoesNotGrow()), steps); }),
                Optional(HasSubstr("Measure more steps")));
  }
}

/// A training loop whose first step allocates gradients and Adam's state.
class Training {
 public:
  Tensor step() {
    optimizer_.zero_grad();
    auto loss = net_(torch::ones({4, 16})).square().mean();
    loss.backward();
    optimizer_.step();
    return loss;
  }

 private:
  torch::nn::Linear net_{16, 16};
  torch::optim::Adam optimizer_{net_->parameters()};
};

TEST(DoesNotGrow, IsNotFooledByTheFirstStepsGradientsAndOptimizerState) {
  Training training;
  const auto steps = measure_steps(4, [&] { training.step(); });
  EXPECT_GE(steps[0].leftover, 3 * (16 * 16 + 16) * 4);  // a gradient and Adam's two averages
  EXPECT_THAT(steps, DoesNotGrow());
  EXPECT_THAT(steps, Not(DoesNotGrow(0)));
}

TEST(DoesNotGrow, CatchesAVectorOfLosses) {
  Training training;
  std::vector<Tensor> losses;
  EXPECT_THAT(measure_steps(4, [&] { losses.push_back(training.step()); }), Not(DoesNotGrow()));
  std::vector<Tensor> values;  // without its graph a loss is one float
  const auto steps = measure_steps(4, [&] { values.push_back(training.step().detach()); });
  EXPECT_THAT(explain(DoesNotGrow(), steps),
              HasSubstr("in 3 of 3 steps after the first, in sum 12 bytes"));
}

TEST(GrowsAtMostLike, FitsPowerLawsToTheirExponents) {
  const auto linear = held({{1, 10}, {10, 100}, {100, 1000}});
  const auto constant = held({{1, 10}, {10, 10}, {100, 10}});
  const auto square = held({{1, 10}, {10, 1000}, {100, 100'000}});
  EXPECT_THAT(linear, AllOf(GrowsAtMostLike(1), Not(GrowsAtMostLike(0.89))));
  EXPECT_THAT(square, AllOf(GrowsAtMostLike(2), Not(GrowsAtMostLike(1.89))));
  EXPECT_THAT(constant, GrowsAtMostLike(0));
  EXPECT_THAT(explain(GrowsAtMostLike(1), linear), HasSubstr("size^1.00"));
  EXPECT_THAT(explain(GrowsAtMostLike(1), constant), HasSubstr("size^0.00"));
  EXPECT_THAT(explain(GrowsAtMostLike(1), square), HasSubstr("size^2.00"));
}

// log2 of the sizes 0, 1, 2 and of the bytes 0, 1, 1: the slope is (1 * 1/3) / 2 + ... = 1/2.
TEST(GrowsAtMostLike, FitsByLeastSquares) {
  EXPECT_THAT(explain(GrowsAtMostLike(1), held({{1, 1}, {2, 2}, {4, 2}})), HasSubstr("size^0.50:"));
  EXPECT_THAT(explain(GrowsAtMostLike(1), held({{4, 2}, {1, 1}, {2, 2}})), HasSubstr("size^0.50:"));
}

TEST(GrowsLikeSqrt, TellsSquareRootFromLinear) {
  EXPECT_THAT(held({{4, 200}, {16, 400}, {64, 800}}), GrowsLikeSqrt());
  EXPECT_THAT(held({{4, 200}, {16, 800}, {64, 3200}}), Not(GrowsLikeSqrt()));
}

TEST(GrowsLikeSqrt, JudgesHeldBytesOrThePeak) {
  auto series = held({{4, 200}, {16, 400}, {64, 800}});
  for (auto& step : series) {
    step.memory.peak = step.size;
  }
  EXPECT_THAT(series, GrowsLikeSqrt(&StepMemory::held));
  EXPECT_THAT(series, Not(GrowsLikeSqrt(&StepMemory::peak)));
  EXPECT_EQ(explain(GrowsLikeSqrt(&StepMemory::peak), series),
            "whose peak bytes fit size^1.00: 4 bytes at 4, 16 bytes at 16, 64 bytes at 64");
}

TEST(GrowsLikeSqrt, ExplainsFiguresAndFit) {
  const auto describe = [](const auto& matcher) {
    return DescribeMatcher<const std::vector<SizedStep>&>(matcher);
  };
  EXPECT_EQ(describe(GrowsLikeSqrt()),
            "grows no faster in held bytes than size^0.50 (a fitted exponent up to 0.60 counts as "
            "that)");
  EXPECT_EQ(describe(Not(GrowsAtMostLike(1, &StepMemory::peak))),
            "grows faster in peak bytes than size^1.00 (a fitted exponent up to 1.10 counts as "
            "that)");
  const auto series = held({{4, 1_KiB}, {16, 4_KiB}, {64, 16_KiB}});
  EXPECT_NONFATAL_FAILURE(
      EXPECT_THAT(series, GrowsLikeSqrt()),
      "whose held bytes fit size^1.00: 1.0 KiB at 4, 4.0 KiB at 16, 16.0 KiB at 64");
}

TEST(GrowsAtMostLike, RefusesNonsense) {
  for (const double exponent :
       {-0.5, std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()}) {
    EXPECT_THAT(thrown_text([&] { static_cast<void>(GrowsAtMostLike(exponent)); }),
                Optional(HasSubstr("must be 0 or more")));
  }
  EXPECT_THAT(thrown_text([] { static_cast<void>(GrowsAtMostLike(1, &StepMemory::allocations)); }),
              Optional(HasSubstr("&StepMemory::held or &StepMemory::peak")));
  const auto refusal = [](const std::vector<SizedStep>& series) {
    return thrown_text([&] { explain(Not(GrowsLikeSqrt()), series); });
  };
  EXPECT_THAT(refusal({}), Optional(HasSubstr("has 0 different sizes; give at least 3")));
  EXPECT_THAT(refusal(held({{4, 1}, {4, 1}, {16, 1}})), Optional(HasSubstr("2 different sizes")));
  EXPECT_THAT(refusal(held({{4, 1}, {9, 0}, {16, 1}})),
              Optional(HasSubstr("at size 9 the held bytes are 0")));
  EXPECT_THAT(refusal(held({{0, 1}, {9, 1}, {16, 1}})),
              Optional(HasSubstr("one of the sizes is 0")));
}

/// A step of a chain of blocks, each of which saves one tensor.
template <class Chain>
auto chain_step(Chain chain, int64_t blocks) {
  for (int64_t i = 0; i < blocks; ++i) {
    chain->push_back(torch::nn::Functional([](const Tensor& x) { return x.sin(); }));
  }
  return [chain, x = torch::ones({1000}, torch::requires_grad())]() mutable {
    chain->forward(x + 1).sum().backward();
  };
}

TEST(GrowsLikeSqrt, HoldsForACheckpointedChainAndFailsForAPlainOne) {
  const auto plain = measure_series(
      {4, 16, 64}, [](int64_t blocks) { return chain_step(torch::nn::Sequential(), blocks); });
  EXPECT_EQ(plain[0].memory.held, 4 * 4000);
  EXPECT_EQ(plain[2].memory.held, 64 * 4000);
  EXPECT_THAT(plain, AllOf(GrowsAtMostLike(1), Not(GrowsLikeSqrt())));
  EXPECT_THAT(plain, Not(GrowsLikeSqrt(&StepMemory::peak)));
  const auto checkpointed = measure_series({4, 16, 64}, [](int64_t blocks) {
    return chain_step(tidemark::CheckpointedSequential(), blocks);
  });
  // n blocks in s = sqrt(n) segments: the inputs of s - 1 segments, and the last one's s blocks
  EXPECT_EQ(checkpointed[0].memory.held, (1 + 2) * 4000);
  EXPECT_EQ(checkpointed[2].memory.held, (7 + 8) * 4000);
  EXPECT_THAT(checkpointed, AllOf(GrowsLikeSqrt(), GrowsLikeSqrt(&StepMemory::peak)));
}

}  // namespace
