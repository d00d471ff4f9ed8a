// The U-Net of the examples: its losses by arithmetic, and the same network with and without
// checkpoints.

#include <gtest/gtest.h>
#include <tidemark/memory/bytes.h>
#include <torch/torch.h>

#include <cmath>
#include <sstream>
#include <vector>

#include "common/volume_dataset.h"
#include "unet3d/compare.h"
#include "unet3d/loss.h"
#include "unet3d/network.h"
#include "unet3d/options.h"

namespace unet3d {
namespace {

using namespace tidemark::literals;

TEST(UNet3dLoss, EqualScoresCostTheLogarithmAndHalfOfTheDice) {
  // two classes with 4 of 8 voxels each; the guess is 1/2 everywhere:
  // Dice = (2 * 4 / 2 + 1) / (8 / 2 + 4 + 1) = 5/9
  torch::Tensor labels = torch::zeros({1, 2, 2, 2}, torch::kInt64);
  labels.slice(1, 1).fill_(1);
  const torch::Tensor loss = segmentation_loss(torch::zeros({1, 2, 2, 2, 2}), labels);
  EXPECT_NEAR(loss.item<double>(), std::log(2.0) + 1 - 5.0 / 9, 1e-6);
}

TEST(UNet3dLoss, VoxelsWithoutAClassDoNotCount) {
  torch::Tensor labels = torch::zeros({1, 2, 2, 2}, torch::kInt64);
  labels.slice(1, 1).fill_(examples::kNoClass);
  torch::Tensor scores = torch::randn({1, 2, 2, 2, 2});
  const torch::Tensor before = segmentation_loss(scores, labels);
  scores.slice(2, 1).mul_(-3);
  EXPECT_TRUE(segmentation_loss(scores, labels).equal(before));
}

TEST(UNet3dLoss, ThatOfABatchIsTheMeanOfItsPatches) {
  const torch::Tensor scores = torch::randn({3, 4, 4, 4, 4});
  const torch::Tensor labels = torch::randint(4, {3, 4, 4, 4}, torch::kInt64);
  double sum = 0;
  for (int64_t i = 0; i < 3; ++i) {
    sum += segmentation_loss(scores.narrow(0, i, 1), labels.narrow(0, i, 1)).item<double>();
  }
  EXPECT_NEAR(segmentation_loss(scores, labels).item<double>(), sum / 3, 1e-5);
}

TEST(UNet3dLoss, EachResolutionHasHalfTheWeightOfTheOneAbove) {
  const torch::Tensor labels = torch::randint(2, {1, 4, 4, 4}, torch::kInt64);
  const torch::Tensor fine = torch::randn({1, 2, 4, 4, 4});
  const torch::Tensor coarse = torch::randn({1, 2, 2, 2, 2});
  const torch::Tensor every_other = labels.slice(1, 0, 4, 2).slice(2, 0, 4, 2).slice(3, 0, 4, 2);
  const double expected = (segmentation_loss(fine, labels).item<double>() +
                           0.5 * segmentation_loss(coarse, every_other).item<double>()) /
                          1.5;
  EXPECT_NEAR(deep_supervision_loss({fine, coarse}, labels).item<double>(), expected, 1e-6);
}

TEST(UNet3d, ReturnsTheScoresOfEachResolutionFinestFirst) {
  const auto net = make_unet3d(2, 3, 5, /*checkpointed=*/true);
  const std::vector<torch::Tensor> scores = net->forward(torch::randn({1, 1, 8, 16, 8}));
  ASSERT_EQ(scores.size(), 2);
  EXPECT_EQ(scores[0].sizes(), torch::IntArrayRef({1, 5, 8, 16, 8}));
  EXPECT_EQ(scores[1].sizes(), torch::IntArrayRef({1, 5, 4, 8, 4}));
}

TEST(UNet3d, FilesOfThePlainNetworkLoadIntoTheCheckpointedOne) {
  const std::shared_ptr<torch::nn::Module> plain = make_unet3d(2, 2, 3, /*checkpointed=*/false);
  const std::shared_ptr<torch::nn::Module> checkpointed = make_unet3d(2, 2, 3, true);
  EXPECT_EQ(plain->named_parameters().keys(), checkpointed->named_parameters().keys());
  std::stringstream file;
  torch::save(plain, file);
  std::shared_ptr<torch::nn::Module> loaded = checkpointed;
  torch::load(loaded, file);
  for (const auto& item : plain->named_parameters()) {
    EXPECT_TRUE(item.value().equal(checkpointed->named_parameters()[item.key()])) << item.key();
  }
}

TEST(UNet3dCompare, TheSavingFollowsFromTheShapes) {
  Options options;
  options.levels = 2;
  options.channels = 8;
  options.patch = 32;
  // 2 patches of 8 channels are 2 MiB, the 16 channels at half the edge 512 KiB: encoder 3.25,
  // last decoder 6, bottom 3
  EXPECT_EQ(least_held_saving(options, 2), 2_MiB * 13 / 4 + 2_MiB * 6 + 512_KiB * 3);
}

}  // namespace
}  // namespace unet3d
