#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <tidemark/gtest/failing_allocations.h>
#include <tidemark/gtest/matchers.h>
#include <tidemark/memory/memory_scope.h>
#include <torch/torch.h>

#include <cstdint>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "../support/thrown_text.h"

namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Optional;
using ::testing::StartsWith;
using tidemark::gtest::FailedAllocation;
using tidemark::gtest::for_each_failing_allocation;
using tidemark::gtest::MemoryCap;
using tidemark::tests::thrown_text;

torch::Tensor bytes(int64_t count) { return torch::empty({count}, torch::kByte); }

std::string print(const FailedAllocation& failure) {
  std::ostringstream out;
  out << failure;
  return std::move(out).str();
}

TEST(ForEachFailingAllocation, FailsEachAllocationOnceAndEndsWhenARunPasses) {
  std::vector<int> reached;
  std::vector<int64_t> numbers;
  const int64_t allocations = for_each_failing_allocation(
      [&] {
        reached.push_back(0);
        const auto first = bytes(1);
        reached.back() = 1;
        const auto second = bytes(2);
        reached.back() = 2;
      },
      [&](const FailedAllocation& failure) {
        numbers.push_back(failure.number);
        EXPECT_TRUE(failure.is_out_of_memory());
        EXPECT_FALSE(failure.swallowed());
        EXPECT_NO_THROW(bytes(1000));
      });
  EXPECT_EQ(allocations, 2);
  EXPECT_THAT(reached, ElementsAre(0, 1, 2));
  EXPECT_THAT(numbers, ElementsAre(1, 2));
}

TEST(ForEachFailingAllocation, StepWithoutAllocationsRunsOnce) {
  int runs = 0;
  EXPECT_EQ(for_each_failing_allocation([&] { ++runs; }, [](const FailedAllocation&) { FAIL(); }),
            0);
  EXPECT_EQ(runs, 1);
}

TEST(ForEachFailingAllocation, TellsOfAStepThatSwallowsTheError) {
  std::vector<bool> swallowed;
  for_each_failing_allocation(
      [] {
        bytes(1);
        try {
          bytes(2);
        } catch (const c10::OutOfMemoryError&) {
        }
      },
      [&](const FailedAllocation& failure) {
        swallowed.push_back(failure.swallowed());
        EXPECT_EQ(failure.is_out_of_memory(), !failure.swallowed());
        if (failure.swallowed()) {
          EXPECT_EQ(print(failure), "when allocation 2 failed, the step threw nothing");
          EXPECT_EQ(failure.what(), "");
        }
      });
  EXPECT_THAT(swallowed, ElementsAre(false, true));
}

TEST(ForEachFailingAllocation, TellsOfAnErrorThatHidesTheReason) {
  std::vector<std::string> texts;
  for_each_failing_allocation(
      [] {
        try {
          bytes(7);
        } catch (const std::exception&) {
          throw std::runtime_error("cannot load the batch");
        }
        try {
          bytes(8);
        } catch (const std::exception&) {
          throw 8;  // not even an exception
        }
        bytes(9);
      },
      [&](const FailedAllocation& failure) {
        texts.push_back(print(failure));
        EXPECT_EQ(failure.is_out_of_memory(), failure.number == 3);
      });
  EXPECT_THAT(texts,
              ElementsAre("when allocation 1 failed, the step threw cannot load the batch",
                          "when allocation 2 failed, the step threw something without a text",
                          AllOf(StartsWith("when allocation 3 failed, the step threw tidemark: "),
                                HasSubstr("9 bytes"))));
}

TEST(ForEachFailingAllocation, PassesOnWhatAStepThrowsByItself) {
  int runs = 0;
  EXPECT_THAT(thrown_text([&] {
                for_each_failing_allocation(
                    [&] {
                      ++runs;
                      bytes(1);
                      throw std::runtime_error("a fault of the step");
                    },
                    [](const FailedAllocation& failure) { EXPECT_EQ(failure.number, 1); });
              }),
              Optional(std::string("a fault of the step")));
  EXPECT_EQ(runs, 2);
  EXPECT_NO_THROW({ const MemoryCap cap(0); }) << "a cap was left behind";
}

TEST(ForEachFailingAllocation, PassesOnWhatTheVisitorThrows) {
  EXPECT_THROW(
      for_each_failing_allocation(
          [] { bytes(1); }, [](const FailedAllocation&) { throw std::runtime_error("visitor"); }),
      std::runtime_error);
  EXPECT_NO_THROW({ const MemoryCap cap(0); }) << "a cap was left behind";
}

TEST(ForEachFailingAllocation, EndsWhenTheVisitorHasSeenEnough) {
  int visits = 0;
  const int64_t runs = for_each_failing_allocation(
      [] {
        for (int i = 0; i < 10; ++i) {
          bytes(1);
        }
      },
      [&](const FailedAllocation& failure) {
        ++visits;
        return failure.number < 3;
      });
  EXPECT_EQ(visits, 3);
  EXPECT_EQ(runs, 3);
}

TEST(ForEachFailingAllocation, EndsForAStepThatNeverEnds) {
  int visits = 0;
  EXPECT_THAT(thrown_text([&] {
                for_each_failing_allocation(
                    [blocks = 0]() mutable {
                      ++blocks;
                      for (int i = 0; i < blocks; ++i) {
                        bytes(1);
                      }
                    },
                    [&](const FailedAllocation&) { ++visits; }, 20);
              }),
              Optional(AllOf(HasSubstr("after 20 runs"), HasSubstr("allow for more runs"))));
  EXPECT_EQ(visits, 20);
}

TEST(ForEachFailingAllocation, ATrainingStepThrowsOutOfMemoryEachTimeAndLeavesNothing) {
  torch::nn::Conv3d convolution(torch::nn::Conv3dOptions(1, 2, 3));
  torch::optim::SGD optimizer(convolution->parameters(), 0.1);
  const auto x = torch::ones({1, 1, 5, 5, 5});
  const tidemark::MemoryScope memory;
  int64_t in_backward = 0;
  const int64_t allocations = for_each_failing_allocation(
      [&] {
        // two branches: when one fails, the engine keeps the other
        const auto y = convolution->forward(x);
        const auto loss = y.exp().sum() + y.square().exp().sum();
        ++in_backward;
        loss.backward();
        optimizer.step();
      },
      [&](const FailedAllocation& failure) {
        EXPECT_TRUE(failure.is_out_of_memory()) << failure;
        optimizer.zero_grad();
        EXPECT_THAT(memory, tidemark::gtest::ReturnsToBaseline()) << failure;
      });
  EXPECT_GE(in_backward, 3);
  EXPECT_GT(allocations, in_backward);
}

}  // namespace
