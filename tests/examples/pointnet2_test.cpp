// The PointNet++ of the examples: sampling and searching by hand, the same network with and without
// checkpoints, clouds and scores by arithmetic.

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <filesystem>
#include <sstream>
#include <string>
#include <vector>

#include "common/image.h"
#include "pointnet2/cloud_picture.h"
#include "pointnet2/clouds.h"
#include "pointnet2/compare.h"
#include "pointnet2/neighbours.h"
#include "pointnet2/network.h"
#include "pointnet2/options.h"
#include "pointnet2/score.h"
#include "pointnet2/train.h"

namespace pointnet2 {
namespace {

// Points on the x axis.
torch::Tensor on_a_line(std::vector<float> places) {
  const auto count = static_cast<int64_t>(places.size());
  torch::Tensor xyz = torch::zeros({1, count, 3});
  xyz.select(2, 0).copy_(torch::tensor(places));
  return xyz;
}

torch::Tensor integers(std::vector<int64_t> values, torch::IntArrayRef sizes) {
  return torch::tensor(values, torch::kInt64).view(sizes);
}

TEST(PointNet2Neighbours, FarthestPointsHalveTheLargestGap) {
  // from 0 the farthest is 8; then 3, which is 3 from 0 and 5 from 8; then 6 (2), not 1 (1)
  const torch::Tensor xyz = on_a_line({0, 1, 3, 8, 6});
  EXPECT_TRUE(farthest_points(xyz, 4).equal(integers({0, 3, 2, 4}, {1, 4})));
  EXPECT_TRUE(
      farthest_points(torch::cat({xyz, xyz.flip(1)}), 2).equal(integers({0, 3, 0, 4}, {2, 2})));
  EXPECT_THROW(farthest_points(xyz, 6), c10::Error);
}

TEST(PointNet2Neighbours, BallsTakeTheFirstPointsAndRepeatTheFirst) {
  const torch::Tensor xyz = on_a_line({0, 1, 3, 8, 2.5F});
  const torch::Tensor centres = integers({2, 3}, {1, 2});
  // nearer than 2.25 to 3: 1, 3 and 2.5; to 8: itself
  EXPECT_TRUE(ball_query(xyz, centres, 2.25, 3).equal(integers({1, 2, 4, 3, 3, 3}, {1, 2, 3})));
  EXPECT_TRUE(ball_query(xyz, centres, 2.25, 2).equal(integers({1, 2, 3, 3}, {1, 2, 2})));
}

TEST(PointNet2Neighbours, TheThreeNearestCountByInverseSquaredDistance) {
  const Nearest nearest = three_nearest(on_a_line({0}), on_a_line({4, -1, 100, 2}));
  EXPECT_TRUE(nearest.indices.equal(integers({1, 3, 0}, {1, 1, 3})));
  // 1, 1/4 and 1/16 of a sum of 21/16
  EXPECT_TRUE(nearest.weights.allclose(torch::tensor({16.0F, 4.0F, 1.0F}).view({1, 1, 3}) / 21));
  // a point that is there itself
  EXPECT_NEAR(
      three_nearest(on_a_line({2}), on_a_line({4, -1, 100, 2})).weights[0][0][0].item<float>(), 1,
      1e-6);
}

TEST(PointNet2Neighbours, OfFewerThanThreePointsEachCountsOnce) {
  const Nearest nearest = three_nearest(on_a_line({0}), on_a_line({1, 2}));
  EXPECT_TRUE(nearest.indices.equal(integers({0, 1, 1}, {1, 1, 3})));
  EXPECT_TRUE(nearest.weights.allclose(torch::tensor({0.8F, 0.2F, 0.0F}).view({1, 1, 3})));
}

TEST(PointNet2Neighbours, RowsOfEachCloudAreItsOwn) {
  const torch::Tensor rows = torch::arange(12.0).view({2, 3, 2}).set_requires_grad(true);
  const torch::Tensor taken = take_rows(rows, integers({2, 2, 0, 1}, {2, 1, 2}));
  EXPECT_TRUE(
      taken.equal(torch::tensor({4.0, 5.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0}).view({2, 1, 2, 2})));
  taken.sum().backward();
  EXPECT_TRUE(
      rows.grad().select(2, 0).equal(torch::tensor({0.0, 0.0, 2.0, 1.0, 1.0, 0.0}).view({2, 3})));
}

NetworkOptions small(bool segments) {
  NetworkOptions options;
  options.segments = segments;
  options.points = 256;
  options.channels = 8;
  options.neighbours = 8;
  options.classes = 5;
  return options;
}

TEST(PointNet2Network, ScoresOfACloudOrOfEachPoint) {
  const torch::Tensor xyz = torch::rand({3, 256, 3});
  EXPECT_EQ(make_pointnet2(small(false), true)->forward(xyz).sizes(), torch::IntArrayRef({3, 5}));
  EXPECT_EQ(make_pointnet2(small(true), true)->forward(xyz).sizes(),
            torch::IntArrayRef({3, 256, 5}));
}

TEST(PointNet2Network, FilesOfThePlainNetworkLoadIntoTheCheckpointedOne) {
  for (const bool segments : {false, true}) {
    const std::shared_ptr<torch::nn::Module> plain = make_pointnet2(small(segments), false);
    std::shared_ptr<torch::nn::Module> checkpointed = make_pointnet2(small(segments), true);
    EXPECT_EQ(plain->named_parameters().keys(), checkpointed->named_parameters().keys());
    std::stringstream file;
    torch::save(plain, file);
    torch::load(checkpointed, file);
    for (const auto& item : plain->named_parameters()) {
      EXPECT_TRUE(item.value().equal(checkpointed->named_parameters()[item.key()])) << item.key();
    }
  }
}

TEST(PointNet2Network, CheckpointsChangeNeitherGradientsNorRunningStatistics) {
  for (const bool segments : {false, true}) {
    torch::manual_seed(1);
    const auto plain = make_pointnet2(small(segments), false);
    torch::manual_seed(1);
    const auto checkpointed = make_pointnet2(small(segments), true);
    const torch::Tensor xyz = torch::rand({3, 256, 3});
    const torch::Tensor labels = segments ? torch::randint(5, {3, 256}, torch::kInt64)
                                          : torch::randint(5, {3}, torch::kInt64);
    for (PointNet2* net : {plain.get(), checkpointed.get()}) {
      torch::manual_seed(2);
      for (int step = 0; step < 2; ++step) {
        classification_loss(net->forward(xyz), labels).backward();
      }
    }
    for (const auto& item : plain->named_parameters()) {
      EXPECT_TRUE(item.value().grad().equal(checkpointed->named_parameters()[item.key()].grad()))
          << item.key();
    }
    for (const auto& item : plain->named_buffers()) {
      EXPECT_TRUE(item.value().equal(checkpointed->named_buffers()[item.key()])) << item.key();
    }
  }
}

TEST(PointNet2Compare, TheSavingFollowsFromTheShapes) {
  // 64 centres of 8 neighbours with 8 + 8 + 16 channels, 16 of 16 with twice as many, and globally
  // 16 of 32 + 64; two floats each
  EXPECT_EQ(least_held_saving(small(false), 3), 3 * 2 * 4 * (64 * 8 * 32 + 16 * 16 * 64 + 16 * 96));
  // 32 of 8, 8 of 16, 2 of 16; 256 points of 16 + 16, 32 of 32 + 16, 8 of 32 + 32, whose last ReLU
  // is kept
  EXPECT_EQ(least_held_saving(small(true), 1),
            4 * (2 * (32 * 8 * 32 + 8 * 16 * 64 + 2 * 16 * 128) + 256 * (64 - 16) + 32 * (96 - 16) +
                 8 * (128 - 32)));
}

// An object of each of two classes: a square on the floor, of points at its corners, and a line.
Objects two_objects() {
  torch::Tensor surface = torch::zeros({2, 4, 3});
  surface[0].copy_(
      torch::tensor({-0.5, 0.0, -0.5, 0.5, 0.0, -0.5, -0.5, 0.0, 0.5, 0.5, 0.0, 0.5}).view({4, 3}));
  surface[1].select(1, 1).copy_(torch::tensor({-0.5, -0.25, 0.25, 0.5}));
  return {surface, integers({0, 1}, {2})};
}

TEST(PointNet2Clouds, ObjectsAreCentredInTheUnitBall) {
  const Clouds clouds =
      draw_objects(two_objects(), integers({1, 0, 1}, {3}), 64, {0.2, 180, true, 0});
  EXPECT_TRUE(clouds.labels.equal(integers({1, 0, 1}, {3})));
  EXPECT_TRUE(clouds.xyz.norm(2, {-1}).amax(1).allclose(torch::ones({3})));
  EXPECT_LT(clouds.xyz.mean(1).abs().max().item<float>(), 1e-5);
  // about the upright axis a line that stands stays one
  EXPECT_LT(clouds.xyz[0].select(1, 0).abs().max().item<float>(), 1e-5);
}

TEST(PointNet2Clouds, ScenesHaveFourObjectsOnAFloor) {
  const Clouds scenes =
      draw_scenes(two_objects(), integers({0, 1, 1, 1, 0, 0, 0, 1}, {8}), 128, 2, {});
  EXPECT_EQ(scenes.xyz.sizes(), torch::IntArrayRef({2, 128, 3}));
  EXPECT_TRUE(scenes.labels.eq(2).sum(1).equal(integers({16, 16}, {2})));
  EXPECT_TRUE(scenes.labels.eq(0).sum(1).equal(integers({28, 84}, {2})));
  const torch::Tensor height = scenes.xyz.select(2, 1);
  EXPECT_EQ(height.min().item<float>(), 0);
  EXPECT_EQ(height.masked_select(scenes.labels.ne(1)).max().item<float>(), 0);
  EXPECT_GT(height.max().item<float>(), 0.75F);
  // four places, one in each quarter
  const torch::Tensor lines = scenes.xyz[0].index({scenes.labels[0].eq(1)});
  EXPECT_EQ(lines.select(1, 0).lt(0).sum().item<int64_t>(), 28);
  EXPECT_EQ(lines.select(1, 2).lt(0).sum().item<int64_t>(), 28);
}

TEST(PointNet2Clouds, OwnGeneratorsGiveTheSameCloudsAndLeaveTheDefaultAlone) {
  Dataset data{{"square", "line"}, two_objects(), two_objects()};
  for (const char* task : {"classify", "segment"}) {
    const Options options(task);
    torch::manual_seed(1);
    const torch::Tensor next = torch::rand({1});
    torch::manual_seed(1);
    const Clouds a = draw_held_out_clouds(data, options, 3);
    EXPECT_TRUE(torch::rand({1}).equal(next));
    EXPECT_TRUE(a.xyz.equal(draw_held_out_clouds(data, options, 3).xyz));
    EXPECT_FALSE(a.xyz.equal(draw_held_out_clouds(data, options, 4).xyz));
  }
}

TEST(PointNet2Score, ByTheConfusionOfClasses) {
  const torch::Tensor counts =
      confusion(integers({0, 0, 0, 1, 1, 3}, {6}), integers({0, 0, 1, 1, 3, 3}, {6}), 4);
  EXPECT_TRUE(counts.equal(integers({2, 1, 0, 0, 0, 1, 0, 1, 0, 0, 0, 0, 0, 0, 0, 1}, {4, 4})));
  EXPECT_NEAR(accuracy(counts), 4.0 / 6, 1e-12);
  const std::vector<double> ious = class_ious(counts);
  EXPECT_NEAR(ious[0], 2.0 / 3, 1e-12);
  EXPECT_NEAR(ious[1], 1.0 / 3, 1e-12);
  EXPECT_TRUE(std::isnan(ious[2]));
  EXPECT_NEAR(ious[3], 1.0 / 2, 1e-12);
  EXPECT_NEAR(mean_of_numbers(ious), 0.5, 1e-12);
  EXPECT_EQ(mean_of_numbers({}), 0);
}

TEST(PointNet2Options, DefaultsFollowTheTaskAndWhatIsGivenWins) {
  const auto parse = [](std::vector<std::string> words) {
    words.insert(words.begin(), "pointnet2");
    std::vector<char*> argv;
    for (std::string& word : words) {
      argv.push_back(word.data());
    }
    argv.push_back(nullptr);
    return Options::parse(static_cast<int>(words.size()), argv.data());
  };
  EXPECT_EQ(parse({}).points, 512);
  EXPECT_EQ(parse({"--task", "segment"}).points, 2048);
  EXPECT_EQ(parse({"--points", "1024", "--task", "segment"}).points, 1024);
  EXPECT_EQ(parse({"--task", "segment", "--quick"}).points, 512);
  EXPECT_EQ(parse({"--quick", "--steps", "3"}).steps, 3);
}

TEST(PointNet2Train, TheRateHalvesAfterAHalfLife) {
  Options options;
  options.lr = 0.5;
  options.half_life = 20;
  EXPECT_DOUBLE_EQ(learning_rate(options, 0), 0.05);
  EXPECT_DOUBLE_EQ(learning_rate(options, 20), 0.25);
  EXPECT_DOUBLE_EQ(learning_rate(options, 60), 0.0625);
}

TEST(PointNet2Picture, DrawsCloudsOfAnyShape) {
  if (!examples::Image::can_save()) {
    GTEST_SKIP() << "built without libpng";
  }
  const std::string path = testing::TempDir() + "/pointnet2_picture.png";
  draw_clouds(path,
              {{"LINE", 0, {{on_a_line({0, 1})[0], integers({0, 1}, {2}), "NOTE"}}},
               {"POINT", 12, {{on_a_line({0})[0], integers({12}, {1}), ""}}}},
              40, std::vector<std::string>(13, "CLASS"));
  EXPECT_GT(std::filesystem::file_size(path), 100);
  EXPECT_THROW(draw_clouds("/no such folder/a.png", {}, 40, {}), std::runtime_error);
}

}  // namespace
}  // namespace pointnet2
