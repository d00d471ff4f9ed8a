// What the examples write with --save and read with --resume.

#include "common/training_state.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <tidemark/grad_scaler.h>
#include <torch/torch.h>

#include <cstdio>
#include <string>
#include <vector>

#include "common/args.h"

namespace examples {
namespace {

using ::testing::HasSubstr;

// A training of one layer.
struct Training {
  TrainingState state(const std::string& settings = "seed 1") {
    return TrainingState(settings, losses)
        .add("model", *layer)
        .add("optimizer", optimizer)
        .add("scaler", scaler);
  }

  void step() {
    optimizer.zero_grad();
    const torch::Tensor loss = layer(torch::randn({4, 3})).square().mean();
    scaler.scale(loss).backward();
    scaler.step(optimizer);
    scaler.update();
    losses.push_back(loss.item<double>());
  }

  torch::nn::Linear layer{3, 2};
  torch::optim::Adam optimizer{layer->parameters(), 0.1};
  tidemark::GradScaler scaler;
  std::vector<double> losses;
};

class TrainingStateTest : public ::testing::Test {
 protected:
  ~TrainingStateTest() override { std::remove(path_.c_str()); }

  const std::string path_ = ::testing::TempDir() + "tidemark_training_state.pt";
};

TEST_F(TrainingStateTest, AResumedRunGoesOnAsIfItHadNeverStopped) {
  Training whole;
  whole.step();
  whole.state().save(path_);
  whole.step();
  whole.step();

  torch::manual_seed(99);
  Training resumed;
  resumed.state().resume(path_, 3, torch::kCPU);
  EXPECT_EQ(resumed.losses.size(), 1);
  resumed.step();
  resumed.step();
  EXPECT_EQ(resumed.losses, whole.losses);
  EXPECT_TRUE(resumed.layer->weight.equal(whole.layer->weight));
}

TEST_F(TrainingStateTest, OtherSettingsAreRefusedAndChangeNothing) {
  Training first;
  first.step();
  first.state("seed 1").save(path_);
  Training second;
  const torch::Tensor before = second.layer->weight.detach().clone();
  try {
    second.state("seed 2").resume(path_, 9, torch::kCPU);
    FAIL() << "resumed";
  } catch (const UsageError& error) {
    EXPECT_THAT(error.what(), HasSubstr("comes from a run with seed 1; this one has seed 2"));
  }
  EXPECT_TRUE(second.losses.empty());
  EXPECT_TRUE(second.layer->weight.equal(before));
}

TEST_F(TrainingStateTest, ARunThatIsOverIsRefused) {
  Training training;
  training.step();
  training.state().save(path_);
  EXPECT_THROW(training.state().resume(path_, 1, torch::kCPU), UsageError);
  EXPECT_NO_THROW(training.state().resume(path_, 2, torch::kCPU));
}

TEST_F(TrainingStateTest, WhatIsNoTrainingStateIsRefused) {
  Training training;
  EXPECT_THROW(training.state().resume(path_, 1, torch::kCPU), std::runtime_error);
  torch::save(torch::ones({2}), path_);
  try {
    training.state().resume(path_, 1, torch::kCPU);
    FAIL() << "resumed";
  } catch (const std::runtime_error& error) {
    EXPECT_THAT(error.what(), HasSubstr("is no training state that --save wrote"));
  }
}

TEST(MeanOfTen, TakesTheTenBeforeAPlaceOrAsManyAsThereAre) {
  const std::vector<double> losses{12, 0, 1, 1, 1, 1, 1, 1, 1, 1, 1, 2};
  EXPECT_DOUBLE_EQ(mean_of_ten(losses, 1), 12);
  EXPECT_DOUBLE_EQ(mean_of_ten(losses, 2), 6);
  EXPECT_DOUBLE_EQ(mean_of_ten(losses, 12), 1.1);
}

}  // namespace
}  // namespace examples
