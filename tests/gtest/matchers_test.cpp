#include <gmock/gmock.h>
#include <gtest/gtest-spi.h>
#include <gtest/gtest.h>
#include <tidemark/gtest/matchers.h>
#include <tidemark/memory/bytes.h>
#include <tidemark/memory/measure.h>
#include <torch/torch.h>

#include <limits>
#include <string>
#include <vector>

#include "../support/thrown_text.h"

namespace {

using namespace tidemark::literals;
using ::testing::AllOf;
using ::testing::DescribeMatcher;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::Not;
using tidemark::MemoryScope;
using tidemark::StepMemory;
using tidemark::gtest::AllocatesNothing;
using tidemark::gtest::HoldsAtMost;
using tidemark::gtest::HoldsAtMostFractionOf;
using tidemark::gtest::LeavesNothingBehind;
using tidemark::gtest::PeaksAtMost;
using tidemark::gtest::PeaksAtMostFractionOf;
using tidemark::gtest::ReturnsToBaseline;
using tidemark::gtest::SavesAtLeast;
using tidemark::tests::thrown_text;

StepMemory step_of(int64_t peak, int64_t held, int64_t leftover = 0) {
  StepMemory step;
  step.peak = peak;
  step.held = held;
  step.leftover = leftover;
  return step;
}

/// What a failing EXPECT_THAT adds to the value.
template <class Matcher, class Value>
std::string explain(const Matcher& matcher, const Value& value) {
  ::testing::StringMatchResultListener listener;
  ::testing::ExplainMatchResult(matcher, value, &listener);
  return listener.str();
}

template <class Matcher>
std::string describe(const Matcher& matcher) {
  return DescribeMatcher<const StepMemory&>(matcher);
}

TEST(PeaksAtMost, PassesUpToTheLimitAndFailsOneByteAbove) {
  EXPECT_THAT(step_of(2_MiB, 0), PeaksAtMost(2_MiB));
  EXPECT_THAT(step_of(0, 0), PeaksAtMost(0));
  EXPECT_THAT(step_of(2_MiB + 1, 0), Not(PeaksAtMost(2_MiB)));
}

TEST(PeaksAtMost, ExplainsByHowMuch) {
  EXPECT_EQ(describe(PeaksAtMost(2_MiB)), "peaks at no more than 2.0 MiB (2097152 bytes)");
  EXPECT_EQ(describe(Not(PeaksAtMost(2_MiB))), "peaks at more than 2.0 MiB (2097152 bytes)");
  EXPECT_EQ(explain(PeaksAtMost(2_MiB), step_of(3_MiB, 0)),
            "whose peak is 3.0 MiB (3145728 bytes), 1.0 MiB (1048576 bytes) above the limit");
  EXPECT_EQ(explain(PeaksAtMost(2_MiB), step_of(2_MiB - 100, 0)),
            "whose peak is 2.0 MiB (2097052 bytes), 100 bytes below the limit");
  EXPECT_EQ(explain(PeaksAtMost(7), step_of(7, 0)), "whose peak is 7 bytes, exactly the limit");
}

TEST(HoldsAtMost, PassesUpToTheLimitAndFailsOneByteAbove) {
  EXPECT_THAT(step_of(9_MiB, 2_MiB), HoldsAtMost(2_MiB));
  EXPECT_THAT(step_of(9_MiB, 2_MiB + 1), Not(HoldsAtMost(2_MiB)));
}

TEST(HoldsAtMost, ExplainsByHowMuch) {
  EXPECT_EQ(describe(HoldsAtMost(2_MiB)), "holds no more than 2.0 MiB (2097152 bytes)");
  EXPECT_EQ(explain(HoldsAtMost(2_MiB), step_of(0, 3_MiB)),
            "which holds 3.0 MiB (3145728 bytes), 1.0 MiB (1048576 bytes) above the limit");
}

TEST(SavesAtLeast, ComparesPeaksWithTheBaseline) {
  const auto plain = step_of(10_MiB, 1);
  EXPECT_THAT(step_of(6_MiB, 5_MiB), SavesAtLeast(0.4, plain));
  EXPECT_THAT(step_of(6_MiB + 1, 0), Not(SavesAtLeast(0.4, plain)));
  EXPECT_THAT(step_of(0, 0), SavesAtLeast(1, plain));
  EXPECT_THAT(step_of(1, 0), Not(SavesAtLeast(1, plain)));
}

TEST(SavesAtLeast, RoundingOfTheFractionDoesNotFailAnExactSaving) {
  for (int64_t percent = 1; percent <= 100; ++percent) {
    const double fraction = static_cast<double>(percent) / 100;
    const auto plain = step_of(1'000'000'000'000, 0);
    const int64_t exact = 10'000'000'000 * (100 - percent);
    EXPECT_THAT(step_of(exact, 0), SavesAtLeast(fraction, plain));
    EXPECT_THAT(step_of(exact + 1, 0), Not(SavesAtLeast(fraction, plain)));
  }
}

TEST(SavesAtLeast, ExplainsInPercentOfTheBaseline) {
  const auto matcher = SavesAtLeast(0.4, step_of(10_MiB, 0));
  EXPECT_EQ(describe(matcher),
            "peaks at no more than 6.0 MiB (6291456 bytes), which is 60.0 % of the baseline's "
            "10.0 MiB (10485760 bytes)");
  EXPECT_EQ(explain(matcher, step_of(7_MiB, 0)),
            "whose peak is 7.0 MiB (7340032 bytes), 70.0 % of the baseline's, 1.0 MiB (1048576 "
            "bytes) above the limit");
}

TEST(HoldsAtMostFractionOf, ComparesHeldBytesWithTheBaseline) {
  const auto plain = step_of(1, 10_MiB);
  EXPECT_THAT(step_of(99_MiB, 5_MiB), HoldsAtMostFractionOf(0.5, plain));
  EXPECT_THAT(step_of(0, 5_MiB + 1), Not(HoldsAtMostFractionOf(0.5, plain)));
  EXPECT_EQ(explain(HoldsAtMostFractionOf(0.5, plain), step_of(0, 6_MiB)),
            "which holds 6.0 MiB (6291456 bytes), 60.0 % of the baseline's, 1.0 MiB (1048576 "
            "bytes) above the limit");
}

TEST(PeaksAtMostFractionOf, ComparesPeaksWithTheBaseline) {
  const auto plain = step_of(10_MiB, 1);
  EXPECT_THAT(step_of(5_MiB, 9_MiB), PeaksAtMostFractionOf(0.5, plain));
  EXPECT_THAT(step_of(5_MiB + 1, 0), Not(PeaksAtMostFractionOf(0.5, plain)));
  EXPECT_THAT(step_of(10_MiB, 0), PeaksAtMostFractionOf(1, plain));
  EXPECT_THAT(step_of(10_MiB + 1, 0), Not(PeaksAtMostFractionOf(1, plain)));
  EXPECT_EQ(describe(PeaksAtMostFractionOf(0.5, plain)),
            "peaks at no more than 5.0 MiB (5242880 bytes), which is 50.0 % of the baseline's 10.0 "
            "MiB (10485760 bytes)");
  EXPECT_EQ(explain(PeaksAtMostFractionOf(0.5, plain), step_of(6_MiB, 0)),
            "whose peak is 6.0 MiB (6291456 bytes), 60.0 % of the baseline's, 1.0 MiB (1048576 "
            "bytes) above the limit");
}

TEST(AllocatesNothing, FailsForOneBlockEvenIfItIsFreedAgain) {
  torch::Tensor x = torch::ones({4});
  EXPECT_THAT(tidemark::measure([&] { x.mul_(x).relu_(); }), AllocatesNothing());
  const auto step = tidemark::measure([&] { x* x; });
  EXPECT_THAT(step, Not(AllocatesNothing()));
  EXPECT_EQ(describe(AllocatesNothing()), "allocates nothing");
  EXPECT_EQ(describe(Not(AllocatesNothing())), "allocates something");
  StepMemory blocks;
  EXPECT_EQ(explain(AllocatesNothing(), blocks), "");
  blocks.allocations = 1;
  blocks.allocated = 16;
  EXPECT_EQ(explain(AllocatesNothing(), blocks), "which allocates 1 block of 16 bytes");
  blocks.allocations = 3;
  blocks.allocated = 3_KiB;
  EXPECT_EQ(explain(AllocatesNothing(), blocks),
            "which allocates 3 blocks of together 3.0 KiB (3072 bytes)");
}

TEST(ReturnsToBaseline, FailsWhileMoreOrFewerBytesAreLive) {
  auto older = torch::ones({1024}, torch::kByte);
  const MemoryScope scope;
  EXPECT_THAT(scope, ReturnsToBaseline());
  {
    const auto x = torch::ones({2048}, torch::kByte);
    EXPECT_THAT(scope, Not(ReturnsToBaseline()));
    EXPECT_EQ(explain(ReturnsToBaseline(), scope),
              "where 2.0 KiB (2048 bytes) more are live than at its opening");
    EXPECT_NONFATAL_FAILURE(EXPECT_THAT(scope, ReturnsToBaseline()), "2.0 KiB (2048 bytes) more");
    EXPECT_EQ(::testing::PrintToString(scope),
              "MemoryScope opened at " + tidemark::detail::format_exactly(scope.baseline()));
  }
  EXPECT_THAT(scope, ReturnsToBaseline());
  EXPECT_EQ(explain(ReturnsToBaseline(), scope), "");
  older.reset();
  EXPECT_THAT(scope, Not(ReturnsToBaseline()));
  EXPECT_EQ(explain(ReturnsToBaseline(), scope),
            "where 1.0 KiB (1024 bytes) fewer are live than at its opening");
  EXPECT_EQ(DescribeMatcher<const MemoryScope&>(ReturnsToBaseline()), "is back at its baseline");
  EXPECT_EQ(DescribeMatcher<const MemoryScope&>(Not(ReturnsToBaseline())),
            "is not at its baseline");
}

TEST(LeavesNothingBehind, PassesAtZeroAndBelowAndFailsAtOneByte) {
  EXPECT_THAT(step_of(1, 1, 0), LeavesNothingBehind());
  EXPECT_THAT(step_of(1, 1, -5), LeavesNothingBehind());
  EXPECT_THAT(step_of(1, 1, 1), Not(LeavesNothingBehind()));
  EXPECT_EQ(describe(LeavesNothingBehind()), "leaves no bytes behind");
  EXPECT_THAT(explain(LeavesNothingBehind(), step_of(0, 0, 4_KiB)),
              HasSubstr("which leaves 4.0 KiB (4096 bytes) behind"));
  EXPECT_EQ(explain(LeavesNothingBehind(), step_of(0, 0, -5)),
            "which frees 5 bytes more than it allocates");
}

TEST(MemoryMatchers, NonsensicalArgumentsAreErrorsThatSayWhatIsAllowed) {
  const auto plain = step_of(10, 10);
  EXPECT_THAT(*thrown_text([] { static_cast<void>(PeaksAtMost(-1)); }),
              AllOf(HasSubstr("PeaksAtMost"), HasSubstr("-1"), HasSubstr("0 bytes or more")));
  EXPECT_THAT(*thrown_text([] { static_cast<void>(HoldsAtMost(-1)); }), HasSubstr("HoldsAtMost"));
  for (const double fraction : {0.0, -0.1, 1.01, std::numeric_limits<double>::quiet_NaN(),
                                std::numeric_limits<double>::infinity()}) {
    EXPECT_THAT(*thrown_text([&] { static_cast<void>(SavesAtLeast(fraction, plain)); }),
                HasSubstr("must be above 0 and at most 1"));
    EXPECT_THAT(*thrown_text([&] { static_cast<void>(HoldsAtMostFractionOf(fraction, plain)); }),
                HasSubstr("must be above 0 and at most 1"));
    EXPECT_THAT(*thrown_text([&] { static_cast<void>(PeaksAtMostFractionOf(fraction, plain)); }),
                HasSubstr("must be above 0 and at most 1"));
  }
  EXPECT_THAT(*thrown_text([] { static_cast<void>(SavesAtLeast(0.5, step_of(0, 10))); }),
              AllOf(HasSubstr("peaks at 0 bytes"), HasSubstr("Measure the plain step first")));
  EXPECT_THAT(*thrown_text([] { static_cast<void>(HoldsAtMostFractionOf(0.5, step_of(10, 0))); }),
              HasSubstr("holds 0 bytes"));
  EXPECT_THAT(*thrown_text([] { static_cast<void>(PeaksAtMostFractionOf(0.5, step_of(0, 1))); }),
              AllOf(HasSubstr("PeaksAtMostFractionOf"), HasSubstr("peaks at 0 bytes")));
}

TEST(MemoryMatchers, ComposeWithOtherMatchers) {
  const auto plain = step_of(10, 10);
  const std::vector<StepMemory> steps{step_of(1, 1), step_of(2, 2)};
  EXPECT_THAT(steps, Each(AllOf(PeaksAtMost(2), HoldsAtMost(2), SavesAtLeast(0.5, plain),
                                HoldsAtMostFractionOf(0.5, plain), LeavesNothingBehind())));
  EXPECT_THAT(&steps[0], ::testing::Pointee(PeaksAtMost(1)));
  EXPECT_TRUE(::testing::Matches(PeaksAtMost(1))(steps[0]));
}

TEST(MemoryMatchers, FailingExpectationShowsAllFiguresAndTheExcess) {
  const auto step = step_of(3_MiB, 1_KiB);
  EXPECT_NONFATAL_FAILURE(EXPECT_THAT(step, PeaksAtMost(2_MiB)),
                          "peak 3.0 MiB (3145728 bytes), held 1.0 KiB (1024 bytes)");
  EXPECT_NONFATAL_FAILURE(EXPECT_THAT(step, PeaksAtMost(2_MiB)), "above the limit");
}

TEST(MemoryMatchers, CatchAPlantedLeakAndAPlantedOvershoot) {
  std::vector<torch::Tensor> leak;
  const auto leaking = tidemark::measure([&] { leak.push_back(torch::empty({1024, 1024})); });
  EXPECT_THAT(leaking, Not(LeavesNothingBehind()));
  const auto overshooting = tidemark::measure([] { torch::empty({2, 1024, 1024}); });
  EXPECT_THAT(overshooting, AllOf(LeavesNothingBehind(), Not(PeaksAtMost(8_MiB - 1))));
}

const torch::Tensor g_made_before_main = torch::ones({1000});

TEST(MemoryMatchers, MeterIsThereBeforeMainSoThatTheFirstMeasureKnowsAllBlocks) {
  auto before = torch::ones({1000});
  const auto step = tidemark::measure([&] { before.reset(); });
  EXPECT_EQ(step.leftover, -4000);
  EXPECT_TRUE(g_made_before_main.defined());
}

}  // namespace
