// Labelled volumes: sliding windows, scores, and the names of files.

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <stdexcept>
#include <vector>

#include "common/args.h"
#include "common/sliding_window.h"
#include "common/volume_dataset.h"

namespace examples {
namespace {

// 16 slices of 12 x 12 voxels of two classes in a pattern that repeats itself nowhere.
Dataset striped() {
  torch::manual_seed(3);
  const torch::Tensor labels = torch::rand({16, 12, 12}).gt(0.5).to(torch::kUInt8);
  return Dataset::from_volumes(labels.to(torch::kFloat) + 1 + torch::rand({16, 12, 12}), labels);
}

TEST(SlidingWindow, CubesAreTakenFromWhereTheyArePutBack) {
  Dataset data = striped();
  data.scan = data.labels.to(torch::kFloat);
  // a network that reads the class off the voxel
  const auto likelihood = [](const torch::Tensor& cubes) {
    return torch::cat({1 - cubes, cubes}, 1);
  };
  for (const int64_t edge : {4, 5}) {
    for (const Slices slices : {Slices{0, 16}, Slices{7, 9}, Slices{15, 16}}) {
      const torch::Tensor prediction =
          predict_slices(likelihood, data, slices, gaussian_weight(edge), 3);
      EXPECT_TRUE(prediction.equal(data.labels.slice(0, slices.begin, slices.end)))
          << edge << ", slices from " << slices.begin;
    }
  }
}

TEST(SlidingWindow, WhatCountsMoreWins) {
  const Dataset data = striped();
  // right in the middle of a cube, and very sure of the wrong class at its borders
  torch::Tensor weight = torch::zeros({4, 4, 4});
  weight.slice(0, 1, 3).slice(1, 1, 3).slice(2, 1, 3).fill_(1);
  const auto likelihood = [&weight](const torch::Tensor& cubes) {
    const torch::Tensor one = torch::where(weight.eq(1), 0.6, 0.0).expand_as(cubes);
    return torch::cat({torch::where(weight.eq(1), 0.4, 100.0).expand_as(cubes), one}, 1);
  };
  const torch::Tensor inner =
      predict_slices(likelihood, data, {6, 8}, weight, 2).slice(1, 1, 11).slice(2, 1, 11);
  EXPECT_TRUE(inner.eq(1).all().item<bool>());
  EXPECT_TRUE(
      predict_slices(likelihood, data, {6, 8}, torch::ones({4, 4, 4}), 2).eq(0).any().item<bool>());
}

TEST(SlidingWindow, TheGaussianIsOneInTheMiddleAndFallsByItsDeviation) {
  const torch::Tensor odd = gaussian_weight(9);
  EXPECT_FLOAT_EQ(odd[4][4][4].item<float>(), 1);
  // 9/8 voxels are a deviation: exp(-1/2 (1 / (9/8))^2)
  EXPECT_FLOAT_EQ(odd[4][4][5].item<float>(), std::exp(-0.5F * 64 / 81));
  EXPECT_FLOAT_EQ(odd[3][4][5].item<float>(), std::exp(-64.0F / 81));
}

TEST(Dice, IsTwiceTheOverlapOverBothSizes) {
  const torch::Tensor truth = torch::tensor(std::vector<int64_t>{0, 0, 1, 1, kNoClass});
  const torch::Tensor guess = torch::tensor(std::vector<int64_t>{0, 1, 1, 1, 2});
  const auto scores = dice_per_class(guess, truth, 3);
  EXPECT_DOUBLE_EQ(scores[0], 2.0 * 1 / (1 + 2));
  EXPECT_DOUBLE_EQ(scores[1], 2.0 * 2 / (3 + 2));
  EXPECT_TRUE(std::isnan(scores[2]));
}

TEST(Dataset, OneNameOfTwoIsRefused) {
  for (const char* wrong : {"a.pt", "a.pt,", ",b.pt", "a.pt,b.pt,c.pt"}) {
    EXPECT_THROW(Dataset::load(wrong), UsageError) << wrong;
  }
  EXPECT_THROW(Dataset::load("missing.pt,b.pt"), std::runtime_error);
}

}  // namespace
}  // namespace examples
