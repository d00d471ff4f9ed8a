// Labelled objects of the examples: reading, points, voxels and scores, by arithmetic.

#include "common/shapes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <array>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "common/args.h"
#include "common/image.h"
#include "common/shape_picture.h"
#include "common/shape_score.h"
#include "common/shape_score_table.h"
#include "common/shapes_off.h"
#include "common/shapes_voxels.h"
#include "common/voxelise.h"

namespace examples {
namespace {

namespace fs = std::filesystem;

// A folder that is gone after the test.
class ScratchFolder : public testing::Test {
 protected:
  ScratchFolder() {
    std::string name = (fs::temp_directory_path() / "shapes_test_XXXXXX").string();
    folder_ = mkdtemp(name.data());
  }
  ~ScratchFolder() override { fs::remove_all(folder_); }

  std::string write(const std::string& name, const std::string& content) {
    const fs::path path = folder_ / name;
    fs::create_directories(path.parent_path());
    std::ofstream(path) << content;
    return path.string();
  }

  fs::path folder_;
};

std::string message_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "nothing was thrown";
}

// A triangle strip around a box is tedious; its six sides as two triangles each are not.
torch::Tensor box(const std::array<float, 3>& low, const std::array<float, 3>& high,
                  bool with_top = true, bool with_bottom = true) {
  std::vector<torch::Tensor> triangles;
  for (int64_t axis = 0; axis < 3; ++axis) {
    for (int64_t side = 0; side < 2; ++side) {
      if (axis == 1 && (side == 1 ? !with_top : !with_bottom)) {
        continue;
      }
      std::vector<torch::Tensor> corners;
      for (int64_t k = 0; k < 4; ++k) {
        const int64_t u = (k == 1 || k == 2) ? 1 : 0;
        const int64_t v = k >= 2 ? 1 : 0;
        std::array<int64_t, 3> choice{};
        choice[static_cast<size_t>(axis)] = side;
        choice[static_cast<size_t>((axis + 1) % 3)] = u;
        choice[static_cast<size_t>((axis + 2) % 3)] = v;
        torch::Tensor corner = torch::empty({3});
        for (size_t i = 0; i < 3; ++i) {
          corner[static_cast<int64_t>(i)] = choice[i] == 0 ? low[i] : high[i];
        }
        corners.push_back(corner);
      }
      triangles.push_back(torch::stack({corners[0], corners[1], corners[2]}));
      triangles.push_back(torch::stack({corners[0], corners[2], corners[3]}));
    }
  }
  return torch::stack(triangles);
}

int64_t voxels_of(const torch::Tensor& triangles, const VoxelOptions& options) {
  return voxelise(triangles, options).sum().item<int64_t>();
}

TEST(Voxelise, ABoxIsSolidAndItsSurfaceAShell) {
  VoxelOptions options;
  options.size = 12;  // 10 voxels without the margin, 1/10 of the cube each
  options.margin = 1;
  // from voxel 2 to 9 along x, 3 to 8 along y, 4 to 7 along z, its sides in the voxels' middles
  const torch::Tensor sides = box({-0.35F, -0.25F, -0.15F}, {0.35F, 0.25F, 0.15F});
  EXPECT_EQ(voxels_of(sides, options), 8 * 6 * 4);
  options.fill = false;
  EXPECT_EQ(voxels_of(sides, options), 8 * 6 * 4 - 6 * 4 * 2);
  const torch::Tensor grid = voxelise(sides, options);
  EXPECT_EQ(grid.scalar_type(), torch::kUInt8);
  EXPECT_EQ(grid[2][3][4].item<int>(), 1);
  EXPECT_EQ(grid[9][8][7].item<int>(), 1);
  EXPECT_EQ(grid.slice(0, 2, 10).slice(1, 3, 9).slice(2, 4, 8).sum().item<int64_t>(),
            grid.sum().item<int64_t>());
}

TEST(Voxelise, AnOpenCupStaysEmptyInside) {
  VoxelOptions options;
  options.size = 12;
  const torch::Tensor cup = box({-0.35F, -0.35F, -0.35F}, {0.35F, 0.35F, 0.35F}, false, true);
  // 8^3 voxels less the inside, 6 x 6 and 7 high
  EXPECT_EQ(voxels_of(cup, options), 8 * 8 * 8 - 6 * 6 * 7);
}

TEST(Voxelise, TheFloorThatAnObjectStandsOnIsClosed) {
  VoxelOptions options;
  options.size = 12;
  const torch::Tensor bell = box({-0.35F, -0.35F, -0.35F}, {0.35F, 0.35F, 0.35F}, true, false);
  EXPECT_EQ(voxels_of(bell, options), 8 * 8 * 8);
}

TEST(Voxelise, WhatReachesTheBorderIsMovedWithinTheMargin) {
  VoxelOptions options;
  options.size = 6;
  options.margin = 0;
  EXPECT_EQ(voxels_of(box({-0.5F, -0.5F, -0.5F}, {0.5F, 0.5F, 0.5F}), options), 6 * 6 * 6);
  EXPECT_EQ(voxels_of(box({-9, -9, -9}, {9, 9, 9}), options), 6 * 6 * 6);
  options.margin = 1;
  EXPECT_EQ(voxels_of(box({-0.5F, -0.5F, -0.5F}, {0.5F, 0.5F, 0.5F}), options), 4 * 4 * 4);
  options.margin = 3;
  EXPECT_THROW(voxelise(torch::zeros({1, 3, 3}), options), c10::Error);
}

// The table in examples/data/furniture/README.md, which a Python program made.
TEST(Voxelise, FillsTheSharesOfTheGridThatTheFurnituresTableNames) {
  const std::map<std::string, std::pair<double, double>> expected{
      {"chair", {.043, .048}}, {"sofa", {.088, .149}},   {"table", {.050, .057}},
      {"bed", {.078, .103}},   {"lamp", {.028, .034}},   {"cabinet", {.105, .255}},
      {"plant", {.061, .078}}, {"vessel", {.088, .157}}, {"sanitary", {.067, .112}}};
  const ShapeSet set = read_shapes("");
  ASSERT_EQ(set.class_names.size(), expected.size());
  std::map<std::string, std::pair<double, double>> sums;
  std::map<std::string, int> counts;
  for (const Shape& shape : set.shapes) {
    const std::string& name = set.class_names[static_cast<size_t>(shape.label)];
    VoxelOptions surface;
    surface.fill = false;
    sums[name].first +=
        voxelise(shape.triangles, surface).to(torch::kFloat64).mean().item<double>();
    sums[name].second += voxelise(shape.triangles).to(torch::kFloat64).mean().item<double>();
    ++counts[name];
  }
  for (const auto& [name, shares] : expected) {
    EXPECT_NEAR(sums[name].first / counts[name], shares.first, 0.00051) << name;
    EXPECT_NEAR(sums[name].second / counts[name], shares.second, 0.00051) << name;
  }
}

TEST(Shapes, TheFurnitureIsAsItsTableSays) {
  const ShapeSet set = read_shapes("");
  EXPECT_EQ(set.shapes.size(), 258);
  EXPECT_EQ(set.part(false).size(), 182);
  EXPECT_EQ(set.part(true).size(), 76);
  EXPECT_EQ(set.class_names.front(), "chair");
  EXPECT_EQ(set.shapes.front().name, "chair/armchair.ply");
  EXPECT_EQ(set.shapes.front().triangles.size(0), 911);
  for (const Shape& shape : set.shapes) {
    const torch::Tensor low = shape.triangles.amin({0, 1});
    const torch::Tensor high = shape.triangles.amax({0, 1});
    EXPECT_NEAR((high - low).max().item<float>(), 1, 1e-5) << shape.name;
    EXPECT_LT((high + low).abs().max().item<float>(), 1e-5) << shape.name;
  }
}

TEST(Shapes, ClassesAreChosenInTheOrderInWhichTheyAreNamed) {
  const ShapeSet set = read_shapes("", {"table", "bed"});
  EXPECT_EQ(set.class_names, (std::vector<std::string>{"table", "bed"}));
  EXPECT_EQ(set.shapes.size(), 42 + 15);
  EXPECT_EQ(set.shapes.back().label, 1);
  EXPECT_THAT(message_of([] { read_shapes("", {"spoon"}); }),
              testing::HasSubstr("has no class 'spoon'; it has chair, sofa"));
}

TEST(Shapes, NamesOfClassesAreSplitAtCommas) {
  EXPECT_EQ(split_class_names("a,b c"), (std::vector<std::string>{"a", "b c"}));
  EXPECT_TRUE(split_class_names("all").empty());
  for (const char* list : {",", "a,", "a,,b", "a,a"}) {
    EXPECT_THROW(split_class_names(list), UsageError) << list;
  }
}

constexpr const char* kTriangleObj = "v 0 0 0\nv 2 0 0\nv 0 4 0\nf 1 2 3\n";

using ShapeFolder = ScratchFolder;

TEST_F(ShapeFolder, AFolderForEachClassNeedsNoTableAndHoldsOutEveryFourth) {
  for (const char* name : {"d.obj", "b.obj", "a.obj", "c.obj", "notes.txt"}) {
    write(std::string("thing/") + name, kTriangleObj);
  }
  const ShapeSet set = read_shapes(folder_.string());
  ASSERT_EQ(set.shapes.size(), 4);
  EXPECT_EQ(set.shapes[0].name, "thing/a.obj");
  EXPECT_EQ(set.part(true).front().name, "thing/d.obj");
  // 2 x 4 x 0 becomes 1/2 x 1 x 0, with its middle in the origin
  EXPECT_TRUE(
      set.shapes[0].triangles.equal(torch::tensor({-.25, -.5, 0., .25, -.5, 0., -.25, .5, 0.})
                                        .to(torch::kFloat)
                                        .view({1, 3, 3})));
}

TEST_F(ShapeFolder, FoldersCalledTrainAndTestAreTheSplit) {
  write("thing/train/a.off", "OFF\n3 1 0\n0 0 0\n1 0 0\n0 1 0\n3 0 1 2\n");
  write("thing/test/b.off", "OFF3 1 0\n0 0 0\n1 0 0\n0 1 0\n3 0 1 2\n");
  const ShapeSet set = read_shapes(folder_.string());
  ASSERT_EQ(set.shapes.size(), 2);
  EXPECT_EQ(set.part(false).front().name, "thing/train/a.off");
  EXPECT_EQ(set.part(true).front().name, "thing/test/b.off");
}

TEST_F(ShapeFolder, SaysWhatIsWrongWithIt) {
  const auto message = [this] { return message_of([this] { read_shapes(folder_.string()); }); };
  EXPECT_THAT(message(), testing::HasSubstr("has no objects"));
  write("thing/a.obj", kTriangleObj);
  EXPECT_THAT(message(),
              testing::HasSubstr("class 'thing' has 1 objects to train with and 0 to test with"));
  write("thing/b.off", "OFF\n3 1 0\n0 0 0\n1 1 1\n2 2 2\n3 0 1 2\n");
  EXPECT_THAT(message(), testing::HasSubstr("b.off: has no surface"));
}

TEST_F(ShapeFolder, SaysWhichLineOfTheTableIsWrong) {
  write("a.obj", kTriangleObj);
  const auto message = [this](const std::string& table) {
    write("objects.csv", table);
    return message_of([this] { read_shapes(folder_.string()); });
  };
  EXPECT_THAT(message(""), testing::HasSubstr("objects.csv: is empty"));
  EXPECT_THAT(message("file,split\na.obj,test\n"),
              testing::HasSubstr("objects.csv:1: has no column 'class'"));
  EXPECT_THAT(message("file,class,split\na.obj,x\n"),
              testing::HasSubstr("objects.csv:2: 2 fields where the first line names 3"));
  EXPECT_THAT(message("file,class,split\n\na.obj,x,both\n"),
              testing::HasSubstr("objects.csv:3: the split is 'both'"));
  EXPECT_THAT(message("file,class,split\n,x,test\n"),
              testing::HasSubstr("objects.csv:2: a file or class without a name"));
  EXPECT_THAT(message("file,class,split\n\"a.obj,x,test\n"),
              testing::HasSubstr("objects.csv:2: a quote that doesn't end"));
  EXPECT_THAT(message("file,class,split\nb.obj,x,test\n"),
              testing::HasSubstr("b.obj: no such file"));
  EXPECT_THAT(message("file,class,split\n\"a.obj\",\"x, \"\"y\"\"\",test\n"),
              testing::HasSubstr("class 'x, \"y\"' has 0 objects to train with"));
}

using OffFile = ScratchFolder;

TEST_F(OffFile, PolygonsBecomeTrianglesAndCommentsAreSkipped) {
  const Mesh mesh = read_off(write(
      "a.off",
      "OFF # four corners\n# a comment\n4 1 0\n\n0 0 0\n1 0 0\n1 1 0 255 0 0\n0 1 0\n4 0 1 2 3\n"));
  ASSERT_EQ(mesh.triangles.size(), 2);
  EXPECT_EQ(mesh.triangles[1].corners[2], (Vector3{0, 1, 0}));
}

TEST_F(OffFile, SaysWhichLineIsWrong) {
  const std::map<std::string, std::string> expected{
      {"PLY\n", "a.off:1: is no OFF file"},
      {"", "a.off:0: the file ends before OFF"},
      {"OFF\n", "a.off:1: the file ends before the numbers of vertices"},
      {"OFF\n3\n", "a.off:2: expected the number of faces"},
      {"OFF\n-3 1 0\n", "a.off:2: expected the number of vertices"},
      {"OFF\n1 1 0\n0 zero 0\n", "a.off:3: expected 3 numbers"},
      {"OFF\n1 1 0\n0 nan 0\n", "a.off:3: expected 3 numbers"},
      {"OFF\n2 1 0\n0 0 0\n", "a.off:3: the file ends before vertex 1 of 2"},
      {"OFF\n1 1 0\n0 0 0\n", "a.off:3: the file ends before face 0 of 1"},
      {"OFF\n1 1 0\n0 0 0\n3 0 0 1\n", "a.off:4: a face names vertex 1 of 1"},
      {"OFF\n1 1 0\n0 0 0\n3 0 0\n", "a.off:4: expected the number of a vertex"},
      {"OFF\n1 1 0\n0 0 0\n2 0 0\n", "a.off: has no triangles"}};
  for (const auto& [content, message] : expected) {
    const std::string path = write("a.off", content);
    EXPECT_THAT(message_of([&] { read_off(path); }), testing::HasSubstr(message)) << content;
  }
  EXPECT_THAT(message_of([this] { read_off((folder_ / "b.off").string()); }),
              testing::HasSubstr("b.off: no such file"));
}

TEST(SampleSurface, PointsLieEvenlyOnTheAreaWithTheNormalsOfTheirTriangles) {
  // in the plane z = 0 with an area of 1/2, and in y = 2 with 3/2, wound the other way
  const torch::Tensor triangles =
      torch::tensor({0., 0., 0., 1., 0., 0., 0., 1., 0., 0., 2., 0., 3., 2., 0., 0., 2., 1.})
          .to(torch::kFloat)
          .view({2, 3, 3});
  const SurfacePoints all = sample_surface(triangles, 40000, 7);
  const torch::Tensor second = all.points.select(1, 1) > 1.5;
  EXPECT_NEAR(second.to(torch::kFloat).mean().item<float>(), 0.75, 0.01);
  const torch::Tensor first = all.points.index({~second});
  EXPECT_EQ(first.select(1, 2).abs().max().item<float>(), 0);
  EXPECT_GE(first.min().item<float>(), 0);
  EXPECT_LE((first.select(1, 0) + first.select(1, 1)).max().item<float>(), 1 + 1e-6);
  // an even triangle has its mean point where its corners have theirs
  EXPECT_NEAR(first.select(1, 0).mean().item<float>(), 1.0 / 3, 0.01);
  EXPECT_NEAR(first.select(1, 1).mean().item<float>(), 1.0 / 3, 0.01);
  EXPECT_TRUE(all.normals.index({~second}).allclose(torch::tensor({0.F, 0.F, 1.F})));
  EXPECT_TRUE(all.normals.index({second}).allclose(torch::tensor({0.F, -1.F, 0.F})));
}

TEST(SampleSurface, TheSeedAloneDecides) {
  const torch::Tensor sides = box({-1, -1, -1}, {1, 1, 1});
  const torch::Tensor points = sample_surface(sides, 50, 3).points;
  torch::manual_seed(99);
  EXPECT_TRUE(sample_surface(sides, 50, 3).points.equal(points));
  EXPECT_FALSE(sample_surface(sides, 50, 4).points.equal(points));
  EXPECT_THROW(sample_surface(torch::zeros({2, 3, 3}), 5, 0), std::runtime_error);
}

torch::Tensor voxel_at(int64_t x, int64_t y, int64_t z) {
  torch::Tensor grid = torch::zeros({1, 8, 8, 8});
  grid[0][x][y][z] = 1;
  return grid;
}

TEST(ShapeScore, TheDistanceOfTwoVoxelsIsThatOfTheirPlaces) {
  EXPECT_FLOAT_EQ(shape_distances(voxel_at(0, 0, 0), voxel_at(2, 3, 6)).item<float>(), 7);
  EXPECT_EQ(shape_distances(voxel_at(1, 2, 3), voxel_at(1, 2, 3)).item<float>(), 0);
}

TEST(ShapeScore, TheDistanceIsTheMeanOfBothDirections) {
  // one voxel, and two that are 0 and 4 away: 0 from the one, (0 + 4) / 2 back
  const torch::Tensor one = voxel_at(1, 1, 1);
  const torch::Tensor two = one + voxel_at(1, 5, 1);
  EXPECT_FLOAT_EQ(shape_distances(one, two).item<float>(), (0 + 2) / 2.0);
  EXPECT_FLOAT_EQ(shape_distances(two, one).item<float>(), (0 + 2) / 2.0);
}

TEST(ShapeScore, EmptyShapesAreADiagonalAway) {
  const torch::Tensor empty = torch::zeros({1, 8, 8, 8});
  EXPECT_FLOAT_EQ(shape_distances(empty, voxel_at(0, 0, 0)).item<float>(), std::sqrt(3.0) * 8);
  EXPECT_EQ(shape_distances(empty, empty).item<float>(), 0);
}

TEST(ShapeScore, CoverageCountsHeldOutShapesThatAreNearestToSome) {
  const torch::Tensor held_out =
      torch::cat({voxel_at(0, 0, 0), voxel_at(0, 0, 4), voxel_at(7, 7, 7), voxel_at(7, 0, 0)});
  // two near the first, one near the second, none near the others
  const torch::Tensor generated =
      torch::cat({voxel_at(0, 0, 0), voxel_at(0, 1, 0), voxel_at(0, 0, 5)});
  const ShapeScore score = score_shapes(generated, held_out);
  EXPECT_DOUBLE_EQ(score.coverage, 2.0 / 4);
  // nearest generated: itself, 1 away, sqrt(49 + 49 + 4) and 7
  EXPECT_NEAR(score.minimum_matching_distance, (0 + 1 + std::sqrt(102.0) + 7) / 4, 1e-5);
  EXPECT_DOUBLE_EQ(score_shapes(held_out, held_out).coverage, 1);
  EXPECT_DOUBLE_EQ(score_shapes(held_out, held_out).minimum_matching_distance, 0);
}

TEST(ShapeScore, RefusesWhatIsNoListOfShapes) {
  EXPECT_THROW(shape_distances(torch::zeros({8, 8, 8}), torch::zeros({1, 8, 8, 8})), c10::Error);
  EXPECT_THROW(shape_distances(torch::zeros({1, 8, 8, 8}), torch::zeros({1, 4, 4, 4})), c10::Error);
  EXPECT_THROW(shape_distances(torch::zeros({0, 8, 8, 8}), torch::zeros({1, 8, 8, 8})), c10::Error);
}

TEST(ShapeScore, TheMeanShapeHasTheVoxelsThatMostShapesHave) {
  // 3, 2 and 1 of three shapes: 2 voxels on average
  const torch::Tensor a = voxel_at(1, 1, 1);
  const torch::Tensor b = voxel_at(2, 2, 2);
  const torch::Tensor c = voxel_at(3, 3, 3);
  EXPECT_TRUE(mean_shape(torch::cat({a + b + c, a + b, a})).equal((a + b)[0]));
}

TEST(ShapeScore, TheGoalIsACoverageAndAShareOfTheMeanShapesDistance) {
  const torch::Tensor train = torch::cat({voxel_at(0, 0, 0), voxel_at(0, 0, 0), voxel_at(0, 4, 0)});
  const torch::Tensor held_out = torch::cat({voxel_at(0, 0, 0), voxel_at(0, 6, 0)});
  // the mean shape is 0 and 6 away, which is 3; this one 1 and 5, and it covers the second only
  const torch::Tensor generated = voxel_at(0, 5, 0).expand({4, 8, 8, 8});
  const auto passes = [&](double coverage, double share) {
    return print_shape_scores(generated, train, held_out, {coverage, share});
  };
  EXPECT_TRUE(passes(0.5, 1.01));
  EXPECT_FALSE(passes(0.5, 0.99));
  EXPECT_FALSE(passes(0.51, 1.01));
  EXPECT_THROW(print_shape_scores(generated.slice(0, 0, 1), train, held_out, {0, 1}), c10::Error);
}

TEST(VoxelShapes, VariantsFollowTheirShapeAndHeldOutOnesHaveNone) {
  // leans to +x, so that mirroring shows
  const torch::Tensor wedge =
      torch::tensor({-.5, -.5, 0., .5, -.5, 0., .5, .5, 0.}).to(torch::kFloat).view({1, 3, 3});
  ShapeSet set;
  set.class_names = {"a", "b"};
  set.shapes = {{"one", 0, false, wedge}, {"two", 1, true, wedge}, {"three", 1, false, wedge}};
  const VoxelShapes shapes = voxelise_shapes(set, 16, 3, 5);
  EXPECT_EQ(shapes.train.sizes(), torch::IntArrayRef({6, 16, 16, 16}));
  EXPECT_TRUE(shapes.train_labels.equal(torch::tensor({0, 0, 0, 1, 1, 1}, torch::kInt64)));
  EXPECT_TRUE(shapes.held_out_labels.equal(torch::tensor({1}, torch::kInt64)));
  VoxelOptions options;
  options.size = 16;
  EXPECT_TRUE(shapes.train[0].equal(voxelise(wedge, options)));
  EXPECT_TRUE(shapes.held_out[0].equal(shapes.train[0]));
  const auto on_the_right = [](const torch::Tensor& grid) {
    return grid.slice(0, 8).sum().item<int64_t>() > grid.slice(0, 0, 8).sum().item<int64_t>();
  };
  EXPECT_TRUE(on_the_right(shapes.train[0]));
  EXPECT_FALSE(on_the_right(shapes.train[1]));
  EXPECT_TRUE(on_the_right(shapes.train[2]));
  for (const torch::Tensor& grid : shapes.train.unbind()) {
    // the longest side, and nothing but it, fills the grid up to its margin
    const torch::Tensor x = grid.amax({1, 2}).nonzero();
    const torch::Tensor y = grid.amax({0, 2}).nonzero();
    EXPECT_EQ(std::max(x.numel(), y.numel()), 14);
  }
  EXPECT_TRUE(voxelise_shapes(set, 16, 3, 5).train.equal(shapes.train));
  EXPECT_FALSE(voxelise_shapes(set, 16, 3, 6).train.equal(shapes.train));
}

using ShapePicture = ScratchFolder;

TEST_F(ShapePicture, IsWrittenForRowsOfDifferentLengths) {
  if (!Image::can_save()) {
    GTEST_SKIP() << "built without libpng";
  }
  const std::string path = (folder_ / "shapes.png").string();
  draw_shapes(path, {{"one", voxel_at(0, 1, 2)}, {"", torch::ones({3, 8, 8, 8}, torch::kUInt8)}});
  EXPECT_GT(fs::file_size(path), 500);
}

}  // namespace
}  // namespace examples
