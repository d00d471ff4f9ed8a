// The GAN of the examples: its losses by arithmetic, and the same training with and without
// checkpoints, penalties and scaled losses.

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <sstream>
#include <vector>

#include "common/technique_table.h"
#include "voxel_gan/compare.h"
#include "voxel_gan/loss.h"
#include "voxel_gan/network.h"
#include "voxel_gan/options.h"
#include "voxel_gan/train.h"

namespace voxel_gan {
namespace {

using examples::largest_difference;

GanOptions small_networks(bool layer_norm = false, bool checkpointed = false) {
  GanOptions options;
  options.channels = 2;
  options.latent = 3;
  options.layer_norm = layer_norm;
  options.checkpointed = checkpointed;
  return options;
}

TEST(GanLoss, EqualScoresCostTheCrossEntropyOfAGuess) {
  // scores of 0 are a guess of 1/2: ln 2 for whatever truth
  const torch::Tensor zeros = torch::zeros({4});
  EXPECT_NEAR(discriminator_loss(zeros, zeros, false).item<double>(), 2 * std::log(2.0), 1e-6);
  EXPECT_NEAR(generator_loss(zeros, false).item<double>(), std::log(2.0), 1e-6);
}

TEST(GanLoss, RealShapesAreBelievedByNineTenths) {
  // -0.9 ln s(2) - 0.1 ln(1 - s(2)) = ln(1 + e^-2) + 0.1 * 2, and ln(1 + e^-3) for the generated
  const torch::Tensor loss =
      discriminator_loss(torch::full({4}, 2.0), torch::full({4}, -3.0), false);
  EXPECT_NEAR(loss.item<double>(), std::log1p(std::exp(-2.0)) + 0.2 + std::log1p(std::exp(-3.0)),
              1e-6);
}

TEST(GanLoss, WassersteinsAreDifferencesOfMeans) {
  const torch::Tensor real = torch::tensor({1.0, 3.0});
  const torch::Tensor fake = torch::tensor({-1.0, 2.0});
  EXPECT_DOUBLE_EQ(discriminator_loss(real, fake, true).item<double>(), 0.5 - 2);
  EXPECT_DOUBLE_EQ(generator_loss(fake, true).item<double>(), -0.5);
}

TEST(GanLoss, ThePenaltyIsTheMeanSquareOfWhatNormsAreOffOne) {
  // norms 5 and 0: (4^2 + 1^2) / 2
  torch::Tensor gradients = torch::zeros({2, 1, 2, 2, 2});
  gradients[0][0][0][0][0] = 3;
  gradients[0][0][1][1][1] = -4;
  EXPECT_NEAR(distance_from_unit_norm(gradients).item<double>(), (16 + 1) / 2.0, 1e-4);
}

TEST(GanLoss, ShapesBetweenLieOnTheLineFromGeneratedToReal) {
  const torch::Tensor real = torch::full({5, 1, 2, 2, 2}, 3.0);
  const torch::Tensor fake = torch::full({5, 1, 2, 2, 2}, 1.0);
  const torch::Tensor between = shapes_between(real, fake);
  EXPECT_TRUE(between.requires_grad());
  EXPECT_GE(between.min().item<double>(), 1);
  EXPECT_LE(between.max().item<double>(), 3);
  EXPECT_EQ(between.flatten(1).std(1).max().item<double>(), 0);  // one place for each shape
  EXPECT_GT(between.std().item<double>(), 0);
}

TEST(Gan, GeneratesVoxelsAndJudgesThem) {
  Gan gan(small_networks());
  const torch::Tensor shapes = gan->generate(torch::randn({2, 3}));
  EXPECT_EQ(shapes.sizes(), torch::IntArrayRef({2, 1, kSize, kSize, kSize}));
  EXPECT_GE(shapes.min().item<double>(), 0);
  EXPECT_LE(shapes.max().item<double>(), 1);
  EXPECT_EQ(gan->judge(shapes).sizes(), torch::IntArrayRef({2}));
}

TEST(Gan, WithLayerNormScoresDoNotDependOnTheOtherShapes) {
  const torch::Tensor shapes = torch::rand({3, 1, kSize, kSize, kSize});
  Gan layer(small_networks(/*layer_norm=*/true));
  EXPECT_TRUE(layer->judge(shapes)[0].allclose(layer->judge(shapes.slice(0, 0, 2))[0]));
  Gan batch(small_networks(/*layer_norm=*/false));
  EXPECT_FALSE(batch->judge(shapes)[0].allclose(batch->judge(shapes.slice(0, 0, 2))[0]));
}

TEST(Gan, TheAverageKeepsItsShareOfParametersAndStatistics) {
  Gan gan(small_networks());
  const torch::NoGradGuard no_grad;
  const auto weight = [](const torch::nn::Sequential& network) {
    return network->parameters()[0].flatten()[0].item<double>();
  };
  EXPECT_EQ(weight(gan->average), weight(gan->generator));
  gan->average->parameters()[0].fill_(1);
  gan->generator->parameters()[0].fill_(3);
  gan->average->buffers()[0].fill_(1);
  gan->generator->buffers()[0].fill_(5);
  gan->update_average(0.75);
  EXPECT_DOUBLE_EQ(weight(gan->average), 0.75 * 1 + 0.25 * 3);
  EXPECT_DOUBLE_EQ(gan->average->buffers()[0][0].item<double>(), 0.75 * 1 + 0.25 * 5);
}

TEST(Gan, SamplesComeFromTheAverageAndMoveNoStatistics) {
  Gan gan(small_networks());
  const torch::Tensor before = gan->average->buffers()[0].clone();
  const torch::Tensor latent = torch::randn({2, 3});
  const torch::Tensor samples = gan->sample(latent);
  gan->generate(latent);
  EXPECT_FALSE(samples.requires_grad());
  EXPECT_TRUE(gan->sample(latent).equal(samples));
  EXPECT_TRUE(gan->average->buffers()[0].equal(before));
}

// A training step of both networks by hand: the generator runs once without gradient and once with.
std::vector<torch::Tensor> after_a_step(Gan& gan, bool penalised) {
  torch::manual_seed(5);
  const torch::Tensor real = torch::rand({2, 1, kSize, kSize, kSize});
  torch::Tensor fake;
  {
    const torch::NoGradGuard no_grad;
    fake = gan->generate(torch::randn({2, 3}));
  }
  torch::Tensor loss = discriminator_loss(gan->judge(real), gan->judge(fake), penalised);
  if (penalised) {
    const torch::Tensor between = shapes_between(real, fake);
    const torch::Tensor slopes =
        torch::autograd::grad({gan->judge(between).sum()}, {between}, {}, true, true)[0];
    loss = loss + 10 * distance_from_unit_norm(slopes);
  }
  loss.backward();
  set_learning(*gan->discriminator, false);
  generator_loss(gan->judge(gan->generate(torch::randn({2, 3}))), penalised).backward();
  set_learning(*gan->discriminator, true);
  std::vector<torch::Tensor> result;
  for (const torch::Tensor& parameter : gan->parameters()) {
    result.push_back(parameter.grad());
  }
  for (const torch::Tensor& buffer : gan->buffers()) {
    result.push_back(buffer);
  }
  return result;
}

TEST(Gan, CheckpointsChangeNeitherGradientsNorRunningStatistics) {
  for (const bool penalised : {false, true}) {
    torch::manual_seed(1);
    Gan plain(small_networks(penalised, false));
    torch::manual_seed(1);
    Gan checkpointed(small_networks(penalised, true));
    ASSERT_EQ(largest_difference(plain->parameters(), checkpointed->parameters()), 0);
    const auto expected = after_a_step(plain, penalised);
    EXPECT_EQ(largest_difference(after_a_step(checkpointed, penalised), expected), 0) << penalised;
    // two forwards of the generator, not four: the re-runs count nothing
    EXPECT_EQ(checkpointed->generator->named_buffers()["2.num_batches_tracked"].item<int64_t>(), 2);
    if (!penalised) {
      EXPECT_EQ(
          checkpointed->discriminator->named_buffers()["3.num_batches_tracked"].item<int64_t>(), 3);
    }
  }
}

TEST(Gan, TheDiscriminatorsParametersGetNoGradientWhileTheGeneratorLearns) {
  for (const bool checkpointed : {false, true}) {
    Gan gan(small_networks(false, checkpointed));
    set_learning(*gan->discriminator, false);
    generator_loss(gan->judge(gan->generate(torch::randn({2, 3}))), false).backward();
    for (const torch::Tensor& parameter : gan->discriminator->parameters()) {
      EXPECT_FALSE(parameter.grad().defined());
    }
    for (const torch::Tensor& parameter : gan->generator->parameters()) {
      EXPECT_TRUE(parameter.grad().defined());
    }
  }
}

examples::VoxelShapes random_shapes() {
  torch::manual_seed(2);
  const auto voxels = [](int64_t count) {
    return (torch::rand({count, kSize, kSize, kSize}) < 0.1).to(torch::kUInt8);
  };
  return {{"thing"},
          voxels(6),
          torch::zeros({6}, torch::kInt64),
          voxels(2),
          torch::zeros({2}, torch::kInt64)};
}

Options small_training() {
  Options options;
  options.batch = 2;
  options.channels = 2;
  options.latent = 3;
  options.accumulate = 2;
  return options;
}

std::vector<torch::Tensor> after_three_steps(const examples::VoxelShapes& shapes,
                                             const Options& options) {
  torch::manual_seed(3);
  Trainer trainer(options, shapes);
  for (int step = 0; step < 3; ++step) {
    trainer.step();
  }
  std::vector<torch::Tensor> result = trainer.gan()->parameters();
  for (const torch::Tensor& buffer : trainer.gan()->buffers()) {
    result.push_back(buffer);
  }
  return result;
}

TEST(GanTrainer, AllTechniquesTogetherLearnWhatNoneDoes) {
  const examples::VoxelShapes shapes = random_shapes();
  for (const double penalty : {0.0, 10.0}) {
    Options plain = small_training();
    plain.gradient_penalty = penalty;
    plain.checkpoint = "off";
    Options all = plain;
    all.checkpoint = "on";
    all.scale_losses = true;
    EXPECT_EQ(largest_difference(after_three_steps(shapes, all), after_three_steps(shapes, plain)),
              0)
        << penalty;
    Options other = all;
    other.lr = 2 * plain.lr;
    EXPECT_GT(
        largest_difference(after_three_steps(shapes, other), after_three_steps(shapes, plain)), 0);
  }
}

TEST(GanCompare, TheLoopsOfTheProgramAgree) {
  Options options = small_training();
  EXPECT_TRUE(compare_first_steps(random_shapes(), options));
}

TEST(GanCompare, RegionsHoldTwoBatchesOfVoxelsAndSomeNumbers) {
  // 32^3 floats are 128 KiB; real and generated, and 64 bytes for each shape
  EXPECT_EQ(most_held(3), 3 * (2 * 128 * 1024 + 64));
}

}  // namespace
}  // namespace voxel_gan
