// Memory tests of a 3D U-Net: that checkpointing saves what it is there for, that training does not
// grow, that it fits, and that it survives running out of memory. See README.md.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <tidemark/checkpointed_sequential.h>
#include <tidemark/gtest/failing_allocations.h>
#include <tidemark/gtest/growth.h>
#include <tidemark/gtest/leak_listener.h>
#include <tidemark/gtest/matchers.h>
#include <tidemark/gtest/memory_cap.h>
#include <tidemark/gtest/record.h>
#include <tidemark/memory/held_bytes_scope.h>
#include <tidemark/memory/measure.h>
#include <tidemark/memory/memory_scope.h>
#include <torch/torch.h>

#include <cstdint>
#include <string>

#include "unet.h"

namespace {

using namespace tidemark::gtest;
using ::testing::AllOf;
using ::testing::Not;
using tidemark::measure;
using tidemark::measure_series;
using tidemark::measure_steps;
using tidemark::StepMemory;
using torch::Tensor;

constexpr int64_t kChannels = 8;
constexpr int64_t kBatch = 2;

/// Bytes of a float32 batch of so many channels of side^3 voxels.
int64_t float_bytes(int64_t channels, int64_t side) {
  return kBatch * channels * side * side * side * 4;
}

/// A network, its optimizer and a batch.
class Training {
 public:
  explicit Training(bool checkpointed, int64_t side = 16)
      : net_(kChannels, checkpointed),
        optimizer_(net_->parameters(), torch::optim::AdamOptions(1e-3)),
        scan_(torch::randn({kBatch, 1, side, side, side})),
        labels_(torch::randint(2, {kBatch, side, side, side}, torch::kLong)) {}

  Tensor step() {
    Tensor loss = torch::nn::functional::cross_entropy(net_(scan_), labels_);
    loss.backward();
    optimizer_.step();
    optimizer_.zero_grad();
    return loss;
  }

  /// A step like those that follow: the first one allocates Adam's state.
  [[nodiscard]] StepMemory measure_second_step() {
    step();
    return measure([&] { step(); });
  }

  UNet net_;
  torch::optim::Adam optimizer_;
  Tensor scan_;
  Tensor labels_;
};

TEST(UNetMemory, CheckpointingHalvesWhatIsHeldAndSavesAThirdOfThePeak) {
  const auto plain = record(Training(false).measure_second_step(), "plain");
  const auto checkpointed = record(Training(true).measure_second_step(), "checkpointed");
  EXPECT_THAT(checkpointed, AllOf(HoldsAtMostFractionOf(0.5, plain), SavesAtLeast(0.3, plain)));
}

TEST(UNetMemory, CheckpointedHoldsTheInputsOfItsStages) {
  const int64_t fine = float_bytes(kChannels, 16);
  const int64_t middle = float_bytes(2 * kChannels, 8);
  const int64_t coarse = float_bytes(4 * kChannels, 4);
  const int64_t scan = float_bytes(1, 16);
  const int64_t labels = 2 * scan;  // int64
  const int64_t log_probabilities = float_bytes(2, 16);
  const int64_t weight_sum = 4;
  const int64_t stages = scan + fine + middle + coarse + middle;
  EXPECT_THAT(Training(true).measure_second_step(),
              HoldsAtMost(stages + fine + log_probabilities + labels + weight_sum));
}

/// A step of a chain of equal blocks.
template <class Chain>
auto chain_step(Chain chain, int64_t blocks) {
  for (int64_t i = 0; i < blocks; ++i) {
    chain->push_back(ConvBlock(2, 2));
  }
  return [chain, x = torch::randn({kBatch, 2, 6, 6, 6})]() mutable {
    chain->forward(x).sum().backward();
  };
}

TEST(ChainMemory, GrowsLikeTheSquareRootOfTheDepth) {
  const auto checkpointed = measure_series({4, 16, 64}, [](int64_t blocks) {
    return chain_step(tidemark::CheckpointedSequential(), blocks);
  });
  for (const auto& [blocks, memory] : checkpointed) {
    record(memory, "blocks_" + std::to_string(blocks));
  }
  EXPECT_THAT(checkpointed, AllOf(GrowsLikeSqrt(), GrowsLikeSqrt(&StepMemory::peak)));

  // and a plain chain does not, or this test would prove nothing
  const auto plain = measure_series(
      {4, 16, 64}, [](int64_t blocks) { return chain_step(torch::nn::Sequential(), blocks); });
  EXPECT_THAT(plain, Not(GrowsLikeSqrt()));
}

TEST(UNetMemory, DoesNotGrowFromStepToStep) {
  Training training(true);
  double sum = 0;
  EXPECT_THAT(measure_steps(5, [&] { sum += training.step().item<double>(); }), DoesNotGrow());
}

TEST(UNetMemory, ValidationHoldsNothingForBackward) {
  UNet net(kChannels, true);
  const auto scan = torch::randn({kBatch, 1, 16, 16, 16});
  EXPECT_THAT(measure([&] {
                const torch::NoGradGuard no_grad;
                return net(scan);
              }),
              AllOf(HoldsAtMost(0), LeavesNothingBehind()));
}

TEST(UNetMemory, ALossThatIsKeptHoldsNothingAfterItsBackward) {
  Training training(true);
  const tidemark::HeldBytesScope held;
  const Tensor loss = training.step();
  EXPECT_GT(held.peak(), 0);
  EXPECT_EQ(held.current(), 0);
}

TEST(UNetMemory, TrainsWhereThePlainOneRunsOut) {
  Training plain(false);
  Training checkpointed(true);
  const int64_t plain_peak = plain.measure_second_step().peak;
  const int64_t checkpointed_peak = checkpointed.measure_second_step().peak;
  ASSERT_LT(checkpointed_peak, plain_peak);
  {
    const MemoryCap cap((checkpointed_peak + plain_peak) / 2);
    EXPECT_NO_THROW(checkpointed.step());
    EXPECT_THROW(plain.step(), c10::OutOfMemoryError);
  }
  EXPECT_NO_THROW(plain.step());
}

TEST(UNetMemory, EveryAllocationMayFailAndTrainingGoesOn) {
  Training training(true, 4);
  training.step();
  const tidemark::MemoryScope memory;
  const auto look = [&](const FailedAllocation& failure) {
    EXPECT_TRUE(failure.is_out_of_memory()) << failure;
    training.optimizer_.zero_grad();
    EXPECT_THAT(memory, ReturnsToBaseline()) << failure;
    return !HasFailure();  // one report is enough
  };
  EXPECT_GT(for_each_failing_allocation([&] { training.step(); }, look), 0);
}

}  // namespace

int main(int argc, char** argv) {
  ::testing::InitGoogleMock(&argc, argv);
  fail_on_leaks();
  return RUN_ALL_TESTS();
}
