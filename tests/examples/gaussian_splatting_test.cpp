// The Gaussians of the examples: pictures by arithmetic and by a loop over pixels, and what
// densification does to parameters and their optimizers.

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "common/technique_table.h"
#include "gaussian_splatting/compare.h"
#include "gaussian_splatting/densify.h"
#include "gaussian_splatting/gaussians.h"
#include "gaussian_splatting/model.h"
#include "gaussian_splatting/options.h"
#include "gaussian_splatting/scene.h"
#include "gaussian_splatting/splat.h"
#include "gaussian_splatting/splat_ply.h"
#include "gaussian_splatting/train.h"

namespace gaussian_splatting {
namespace {

constexpr int64_t kEdge = 16;
constexpr double kFocal = 32;

// At (0, 0, 2), looking at the origin, y up.
Camera front_camera() {
  const auto options = torch::kFloat64;
  return {torch::tensor({0.0, 0.0, 2.0}, options),
          torch::tensor({1.0, 0.0, 0.0, 0.0, -1.0, 0.0, 0.0, 0.0, -1.0}, options).view({3, 3}),
          kFocal, kEdge, kEdge};
}

// One round Gaussian, the same from all sides.
Gaussians round_gaussian(const std::vector<double>& mean, double deviation, double opacity,
                         const std::vector<double>& colour) {
  const auto options = torch::kFloat64;
  return {torch::tensor(mean, options).view({1, 3}),
          torch::full({1, 3}, std::log(deviation), options),
          torch::tensor({1.0, 0.0, 0.0, 0.0}, options).view({1, 4}),
          torch::full({1, 1}, std::log(opacity / (1 - opacity)), options),
          (torch::tensor(colour, options).view({1, 1, 3}) - 0.5) / kHarmonic0,
          torch::zeros({1, 3, 3}, options)};
}

Gaussians join(const Gaussians& a, const Gaussians& b) {
  auto joined = a.tensors();
  for (size_t i = 0; i < joined.size(); ++i) {
    joined[i] = torch::cat({joined[i], b.tensors()[i]});
  }
  return Gaussians::of(joined);
}

Gaussians random_gaussians(int64_t count, torch::ScalarType dtype) {
  torch::manual_seed(3);
  return {0.3 * torch::randn({count, 3}, dtype), -2 + 0.5 * torch::randn({count, 3}, dtype),
          torch::randn({count, 4}, dtype),       torch::randn({count, 1}, dtype),
          torch::randn({count, 1, 3}, dtype),    0.3 * torch::randn({count, 3, 3}, dtype)};
}

std::vector<torch::Tensor> gradients_of(const Gaussians& gaussians) {
  std::vector<torch::Tensor> gradients;
  for (const torch::Tensor& tensor : gaussians.tensors()) {
    gradients.push_back(tensor.grad());
  }
  return gradients;
}

TEST(Splat, ProjectsTheMeanAndLinearisesTheCovariance) {
  // depth 2, so 16 pixels for 1 across; 0.25 to the right and 0.5 up
  const Projected projected =
      project(round_gaussian({0.25, 0.5, 0}, 0.1, 0.5, {0, 0, 0}), front_camera());
  EXPECT_NEAR(projected.centres[0][0].item<double>(), 8 + 4, 1e-9);
  EXPECT_NEAR(projected.centres[0][1].item<double>(), 8 - 8, 1e-9);
  EXPECT_NEAR(projected.depths[0].item<double>(), 2, 1e-9);
  // the rows of the Jacobian are (16, 0, -16 / 8) and (0, 16, 16 / 4)
  const double xx = 0.01 * (256 + 4) + kBlur;
  const double xy = 0.01 * -2 * 4;
  const double yy = 0.01 * (256 + 16) + kBlur;
  const double determinant = xx * yy - xy * xy;
  EXPECT_NEAR(projected.conics[0][0].item<double>(), yy / determinant, 1e-9);
  EXPECT_NEAR(projected.conics[0][1].item<double>(), -xy / determinant, 1e-9);
  EXPECT_NEAR(projected.conics[0][2].item<double>(), xx / determinant, 1e-9);
}

TEST(Splat, ACentredGaussianHasItsProfileAndEndsWhereItIsFaint) {
  const double variance = 16 * 16 * 0.01 + kBlur;
  const torch::Tensor image =
      splat(round_gaussian({0, 0, 0}, 0.1, 0.8, {0, 0, 0}), front_camera()).image;
  for (int64_t row = 0; row < kEdge; ++row) {
    for (int64_t column = 0; column < kEdge; ++column) {
      const double dx = static_cast<double>(column) + 0.5 - 8;
      const double dy = static_cast<double>(row) + 0.5 - 8;
      const double alpha = 0.8 * std::exp(-(dx * dx + dy * dy) / (2 * variance));
      EXPECT_NEAR(image[row][column][1].item<double>(), alpha < 1.0 / 255 ? 1 : 1 - alpha, 1e-9);
    }
  }
}

TEST(Splat, CoversAtMostNinetyNineHundredths) {
  const torch::Tensor image =
      splat(round_gaussian({0, 0, 0}, 1, 0.9999, {0, 0, 0}), front_camera()).image;
  EXPECT_NEAR(image[8][8][0].item<double>(), 0.01, 1e-9);
}

TEST(Splat, TheNearerOneCoversTheOther) {
  // the far one is twice as large and twice as far, so both are the same on the screen
  const Gaussians near = round_gaussian({0, 0, 0}, 0.1, 0.6, {1, 0, 0});
  const Gaussians far = round_gaussian({0, 0, -2}, 0.2, 0.7, {0, 0, 1});
  const double shape = std::exp(-0.5 / (2 * (2.56 + kBlur)));
  const double a = 0.6 * shape;
  const double b = 0.7 * shape;
  for (const Gaussians& both : {join(near, far), join(far, near)}) {
    const torch::Tensor pixel = splat(both, front_camera()).image[8][7];
    const double white = (1 - a) * (1 - b);
    EXPECT_NEAR(pixel[0].item<double>(), a + white, 1e-9);
    EXPECT_NEAR(pixel[1].item<double>(), white, 1e-9);
    EXPECT_NEAR(pixel[2].item<double>(), (1 - a) * b + white, 1e-9);
  }
}

TEST(Splat, WhatIsBehindTheCameraOrBesideThePictureIsNotVisible) {
  const Gaussians gaussians = join(join(round_gaussian({0, 0, 3}, 0.1, 0.5, {0, 0, 0}),
                                        round_gaussian({3, 0, 0}, 0.1, 0.5, {0, 0, 0})),
                                   round_gaussian({0, 0, 0}, 0.1, 0.001, {0, 0, 0}));
  const Splat nothing = splat(gaussians, front_camera());
  EXPECT_FALSE(nothing.visible.any().item<bool>());
  EXPECT_TRUE(nothing.image.eq(1).all().item<bool>());
}

TEST(Splat, ColoursDependOnTheDirectionByTheFirstHarmonics) {
  Gaussians gaussian = round_gaussian({0, 0, 0}, 0.1, 0.5, {0.5, 0.5, 0.5});
  gaussian.sh_rest =
      torch::tensor({0.1, 0.0, 0.0, 0.0, 0.2, 0.0, 0.0, 0.0, 0.3}, torch::kFloat64).view({1, 3, 3});
  // seen from (2, 3, 6) the direction is (-2, -3, -6) / 7
  const torch::Tensor colour =
      gaussian.colours(torch::tensor({2.0, 3.0, 6.0}, torch::kFloat64)).squeeze(0);
  const double harmonic = std::sqrt(3 / (4 * M_PI));
  EXPECT_NEAR(colour[0].item<double>(), 0.5 + harmonic * 0.1 * 3 / 7, 1e-9);
  EXPECT_NEAR(colour[1].item<double>(), 0.5 - harmonic * 0.2 * 6 / 7, 1e-9);
  EXPECT_NEAR(colour[2].item<double>(), 0.5 + harmonic * 0.3 * 2 / 7, 1e-9);
}

// Pixel by pixel over all Gaussians, each from its 3 x 3 covariance.
torch::Tensor picture_by_loops(const Gaussians& gaussians, const Camera& camera) {
  struct Flat {
    double depth;
    torch::Tensor centre, inverse, opacity, colour;
  };
  const torch::Tensor colours = gaussians.colours(camera.position);
  std::vector<Flat> flat;
  for (int64_t i = 0; i < gaussians.count(); ++i) {
    const torch::Tensor q = gaussians.quaternions[i] / gaussians.quaternions[i].norm();
    const torch::Tensor axis = q.narrow(0, 1, 3);
    // Rodrigues: v + 2 w (u x v) + 2 u x (u x v), for each unit vector v
    std::vector<torch::Tensor> columns;
    for (int64_t k = 0; k < 3; ++k) {
      const torch::Tensor unit = torch::eye(3, torch::kFloat64)[k];
      const torch::Tensor once = torch::cross(axis, unit, 0);
      columns.push_back(unit + 2 * q[0] * once + 2 * torch::cross(axis, once, 0));
    }
    const torch::Tensor rotation = torch::stack(columns, 1);
    const torch::Tensor covariance =
        rotation.matmul(torch::diag((2 * gaussians.scales[i]).exp())).matmul(rotation.t());
    const torch::Tensor view = camera.rotation.t();
    const torch::Tensor p = view.matmul(gaussians.means[i] - camera.position);
    const torch::Tensor zero = torch::zeros({}, torch::kFloat64);
    const double most = 1.3 * kEdge / 2 / kFocal;
    const torch::Tensor along = kFocal / p[2];
    const torch::Tensor jacobian =
        torch::stack({along, zero, -along * (p[0] / p[2]).clamp(-most, most), zero, along,
                      -along * (p[1] / p[2]).clamp(-most, most)})
            .view({2, 3});
    const torch::Tensor on_screen =
        jacobian.matmul(view).matmul(covariance).matmul(view.t()).matmul(jacobian.t()) +
        kBlur * torch::eye(2, torch::kFloat64);
    flat.push_back({p[2].item<double>(), p.narrow(0, 0, 2) * along + kEdge / 2.0,
                    on_screen.inverse(), gaussians.opacities[i][0].sigmoid(), colours[i]});
  }
  std::sort(flat.begin(), flat.end(),
            [](const Flat& a, const Flat& b) { return a.depth < b.depth; });

  std::vector<torch::Tensor> pixels;
  for (int64_t row = 0; row < kEdge; ++row) {
    for (int64_t column = 0; column < kEdge; ++column) {
      const torch::Tensor place = torch::tensor(
          {static_cast<double>(column) + 0.5, static_cast<double>(row) + 0.5}, torch::kFloat64);
      torch::Tensor colour = torch::zeros({3}, torch::kFloat64);
      torch::Tensor left = torch::ones({}, torch::kFloat64);
      for (const Flat& gaussian : flat) {
        const torch::Tensor d = place - gaussian.centre;
        const torch::Tensor alpha =
            (gaussian.opacity * (-0.5 * d.dot(gaussian.inverse.matmul(d))).exp())
                .clamp_max(kMostAlpha);
        if (alpha.item<double>() >= kLeastAlpha) {
          colour = colour + left * alpha * gaussian.colour;
          left = left * (1 - alpha);
        }
      }
      pixels.push_back(colour + left);
    }
  }
  return torch::stack(pixels).view({kEdge, kEdge, 3});
}

TEST(Splat, PictureAndGradientsAreThoseOfALoopOverPixelsAndGaussians) {
  const Gaussians by_tiles = random_gaussians(12, torch::kFloat64).as_leaves(torch::kCPU);
  const Gaussians by_loops = by_tiles.as_leaves(torch::kCPU);
  const torch::Tensor weights = torch::randn({kEdge, kEdge, 3}, torch::kFloat64);
  const torch::Tensor shown = splat(by_tiles, front_camera(), {5}).image;
  const torch::Tensor expected = picture_by_loops(by_loops, front_camera());
  EXPECT_TRUE(shown.allclose(expected, 1e-9, 1e-9));
  EXPECT_GT((1 - expected).abs().max().item<double>(), 0.3);
  (shown * weights).sum().backward();
  (expected * weights).sum().backward();
  for (size_t i = 0; i < Gaussians::kNames.size(); ++i) {
    const torch::Tensor gradient = by_loops.tensors()[i].grad();
    EXPECT_GT(gradient.abs().max().item<double>(), 1e-3) << Gaussians::kNames[i];
    EXPECT_TRUE(by_tiles.tensors()[i].grad().allclose(gradient, 1e-7, 1e-9))
        << Gaussians::kNames[i];
  }
}

TEST(Splat, TilesChangeNothingButTheOrderOfSums) {
  const Gaussians gaussians = random_gaussians(200, torch::kFloat64);
  const torch::Tensor whole = splat(gaussians, front_camera(), {kEdge}).image;
  const Splat tiled = splat(gaussians, front_camera(), {3});
  EXPECT_TRUE(tiled.image.allclose(whole, 1e-12, 1e-12));
  EXPECT_LT(tiled.pairs, splat(gaussians, front_camera(), {kEdge}).pairs);
}

TEST(Splat, CheckpointedTilesGiveTheSameBits) {
  const Gaussians plain = random_gaussians(100, torch::kFloat64).as_leaves(torch::kCPU);
  const Gaussians checkpointed = plain.as_leaves(torch::kCPU);
  std::vector<torch::Tensor> centres;
  for (const auto& [gaussians, checkpoint] :
       {std::pair(plain, false), std::pair(checkpointed, true)}) {
    const Splat shown = splat(gaussians, front_camera(), {4, checkpoint});
    shown.image.square().mean().backward();
    centres.push_back(shown.centres.grad());
  }
  EXPECT_EQ(examples::largest_difference(gradients_of(plain), gradients_of(checkpointed)), 0);
  EXPECT_TRUE(centres[0].equal(centres[1]));
  EXPECT_GT(centres[0].abs().max().item<double>(), 0);
}

// Steps with gradients that are all different, so that every row has a state of its own.
void step_with_random_gradients(Model& model) {
  const auto tensors = model.gaussians().tensors();
  for (size_t i = 0; i < tensors.size(); ++i) {
    tensors[i].mutable_grad() = torch::randn_like(tensors[i]);
    model.optimizers()[i].step();
    tensors[i].mutable_grad() = torch::Tensor();
  }
}

torch::optim::AdamParamState& state_of(torch::optim::Adam& optimizer) {
  const torch::Tensor& parameter = optimizer.param_groups().front().params().front();
  return static_cast<torch::optim::AdamParamState&>(
      *optimizer.state().at(parameter.unsafeGetTensorImpl()));
}

TEST(Model, TheStateOfTheOptimizersFollowsTheRowsThatAreKept) {
  Model model(random_gaussians(6, torch::kFloat), torch::kCPU);
  step_with_random_gradients(model);
  step_with_random_gradients(model);
  const auto before = model.gaussians().tensors();
  std::vector<std::pair<torch::Tensor, torch::Tensor>> states;
  for (torch::optim::Adam& optimizer : model.optimizers()) {
    states.emplace_back(state_of(optimizer).exp_avg(), state_of(optimizer).exp_avg_sq());
  }
  const torch::Tensor kept = torch::tensor({4, 0, 3}, torch::kInt64);
  const Gaussians added = random_gaussians(2, torch::kFloat);
  model.replace(kept, added);

  const auto after = model.gaussians().tensors();
  for (size_t i = 0; i < after.size(); ++i) {
    SCOPED_TRACE(Gaussians::kNames[i]);
    torch::optim::Adam& optimizer = model.optimizers()[i];
    EXPECT_TRUE(after[i].is_leaf() && after[i].requires_grad());
    EXPECT_TRUE(optimizer.param_groups().front().params().front().is_same(after[i]));
    EXPECT_EQ(optimizer.state().size(), 1);
    EXPECT_TRUE(after[i].narrow(0, 0, 3).equal(before[i].index_select(0, kept)));
    EXPECT_TRUE(after[i].narrow(0, 3, 2).equal(added.tensors()[i]));
    const auto& state = state_of(optimizer);
    EXPECT_EQ(state.step(), 2);
    EXPECT_TRUE(state.exp_avg().narrow(0, 0, 3).equal(states[i].first.index_select(0, kept)));
    EXPECT_TRUE(state.exp_avg_sq().narrow(0, 0, 3).equal(states[i].second.index_select(0, kept)));
    EXPECT_EQ(state.exp_avg().narrow(0, 3, 2).abs().max().item<float>(), 0);
    EXPECT_EQ(state.exp_avg_sq().narrow(0, 3, 2).abs().max().item<float>(), 0);
  }
  step_with_random_gradients(model);
}

TEST(Model, IsLoadedAlsoWhereTheNumberOfGaussiansIsAnother) {
  Model model(random_gaussians(5, torch::kFloat), torch::kCPU);
  step_with_random_gradients(model);
  model.replace(torch::tensor({0, 2}, torch::kInt64), random_gaussians(7, torch::kFloat));
  model.note(torch::randn({9, 2}), torch::ones({9}, torch::kBool));
  std::stringstream file;
  torch::serialize::OutputArchive out;
  model.save(out);
  out.save_to(file);

  Model loaded(random_gaussians(5, torch::kFloat), torch::kCPU);
  step_with_random_gradients(loaded);
  torch::serialize::InputArchive in;
  in.load_from(file);
  loaded.load(in);
  EXPECT_TRUE(loaded.noted().equal(model.noted()));
  for (Model* each : {&model, &loaded}) {
    torch::manual_seed(1);
    step_with_random_gradients(*each);
  }
  for (size_t i = 0; i < Gaussians::kNames.size(); ++i) {
    EXPECT_TRUE(loaded.gaussians().tensors()[i].equal(model.gaussians().tensors()[i]))
        << Gaussians::kNames[i];
    EXPECT_TRUE(loaded.gaussians().tensors()[i].is_leaf());
    EXPECT_EQ(loaded.optimizers()[i].state().size(), 1);
  }
}

TEST(Model, NotesTheMeanNormOfFiniteGradientsWhereVisible) {
  Model model(random_gaussians(3, torch::kFloat), torch::kCPU);
  const torch::Tensor visible = torch::tensor({true, true, false});
  model.note(torch::tensor({3.0F, 4.0F, 6.0F, 8.0F, 1.0F, 1.0F}).view({3, 2}), visible);
  model.note(torch::tensor({0.0F, 1.0F, INFINITY, 0.0F, 1.0F, 1.0F}).view({3, 2}), visible);
  EXPECT_TRUE(model.noted().equal(torch::tensor({3.0F, 10.0F, 0.0F})));
}

// Five Gaussians: steep and small, steep and large, flat, faint, steep and small but less so.
Gaussians to_densify() {
  Gaussians gaussians = random_gaussians(5, torch::kFloat);
  const float small = std::log(0.01F);
  const float large = std::log(0.1F);
  gaussians.scales = torch::tensor({small, large, large, small, small}).view({5, 1}).repeat({1, 3});
  gaussians.opacities = torch::tensor({0.0F, 0.0F, 0.0F, -9.0F, 0.0F}).view({5, 1});
  return gaussians;
}

void note_steepness(Model& model) {
  model.note(torch::tensor({0.9F, 1.0F, 0.1F, 1.0F, 0.8F}).view({5, 1}).repeat({1, 2}),
             torch::ones({5}, torch::kBool));
}

DensifyOptions half_gradient(int64_t most) {
  DensifyOptions options;
  options.gradient = 0.5;
  options.most = most;
  options.large = 0.05;
  return options;
}

TEST(Densify, ClonesSmallOnesSplitsLargeOnesAndRemovesFaintOnes) {
  Model model(to_densify(), torch::kCPU);
  note_steepness(model);
  const Gaussians before = model.gaussians();
  const Densified done = densify(model, 1, half_gradient(100));
  EXPECT_EQ(done.cloned, 2);
  EXPECT_EQ(done.split, 1);
  EXPECT_EQ(done.pruned, 1);
  // 0, 2 and 4 stay, then the clones of 0 and 4, then the two parts of 1
  const Gaussians& after = model.gaussians();
  ASSERT_EQ(after.count(), 7);
  EXPECT_TRUE(after.means.narrow(0, 0, 5).equal(
      before.means.index_select(0, torch::tensor({0, 2, 4, 0, 4}, torch::kInt64))));
  EXPECT_TRUE(after.scales.narrow(0, 5, 2).allclose(torch::full({2, 3}, std::log(0.1 / 1.6))));
  EXPECT_TRUE(after.sh_dc.narrow(0, 5, 2).equal(before.sh_dc.narrow(0, 1, 1).repeat({2, 1, 1})));
  const torch::Tensor moved = (after.means.narrow(0, 5, 2) - before.means[1]).norm(2, 1);
  EXPECT_TRUE(((moved > 0) & (moved < 0.6)).all().item<bool>());  // six deviations
  EXPECT_EQ(model.noted().abs().max().item<float>(), 0);
}

TEST(Densify, TheSteepestGoFirstWhereThereIsNoRoomForAll) {
  Model model(to_densify(), torch::kCPU);
  note_steepness(model);
  // room for two: the faint one, which can't be chosen, and the large one
  const Densified done = densify(model, 1, half_gradient(7));
  EXPECT_EQ(done.cloned, 0);
  EXPECT_EQ(done.split, 1);
  EXPECT_EQ(model.gaussians().count(), 5);
}

TEST(SplatPly, HoldsWhatViewersOf3dGaussianSplattingRead) {
  const Gaussians gaussians = random_gaussians(3, torch::kFloat);
  const std::string path = testing::TempDir() + "gaussians.ply";
  write_splat_ply(path, gaussians);
  std::ifstream in(path, std::ios::binary);
  const std::string file{std::istreambuf_iterator<char>(in), {}};
  std::filesystem::remove(path);
  std::string header = "ply\nformat binary_little_endian 1.0\nelement vertex 3\n";
  for (const char* name :
       {"x",        "y",        "z",        "nx",       "ny",       "nz",       "f_dc_0",
        "f_dc_1",   "f_dc_2",   "f_rest_0", "f_rest_1", "f_rest_2", "f_rest_3", "f_rest_4",
        "f_rest_5", "f_rest_6", "f_rest_7", "f_rest_8", "opacity",  "scale_0",  "scale_1",
        "scale_2",  "rot_0",    "rot_1",    "rot_2",    "rot_3"}) {
    header += std::string("property float ") + name + "\n";
  }
  header += "end_header\n";
  ASSERT_EQ(file.substr(0, header.size()), header);
  ASSERT_EQ(file.size(), header.size() + sizeof(float) * 3 * 26);
  const auto value = [&](int64_t row, int64_t column) {
    float result = 0;
    std::memcpy(&result,
                &file[header.size() + sizeof(float) * static_cast<size_t>(26 * row + column)],
                sizeof(float));
    return result;
  };
  for (int64_t i = 0; i < 3; ++i) {
    for (int64_t k = 0; k < 3; ++k) {
      EXPECT_EQ(value(i, k), gaussians.means[i][k].item<float>());
      EXPECT_EQ(value(i, 3 + k), 0);
      EXPECT_EQ(value(i, 6 + k), gaussians.sh_dc[i][0][k].item<float>());
      for (int64_t channel = 0; channel < 3; ++channel) {
        EXPECT_EQ(value(i, 9 + 3 * channel + k), gaussians.sh_rest[i][k][channel].item<float>());
      }
      EXPECT_EQ(value(i, 19 + k), gaussians.scales[i][k].item<float>());
    }
    EXPECT_EQ(value(i, 18), gaussians.opacities[i][0].item<float>());
    for (int64_t k = 0; k < 4; ++k) {
      EXPECT_EQ(value(i, 22 + k), gaussians.quaternions[i][k].item<float>());
    }
  }
}

TEST(SplatPly, AFileThatCannotBeWrittenIsAnError) {
  EXPECT_THROW(write_splat_ply(testing::TempDir() + "missing/gaussians.ply",
                               random_gaussians(1, torch::kFloat)),
               std::runtime_error);
}

TEST(InitialGaussians, AreWhereAllViewsShowTheObjectInItsColour) {
  // two cameras that see a green square in the middle of their pictures
  examples::Views views;
  views.poses = examples::poses_around(2, 3);
  views.focal = 2 * kEdge;
  views.images = torch::zeros({2, kEdge, kEdge, 4}, torch::kUInt8);
  views.images.slice(1, 6, 10).slice(2, 6, 10) =
      torch::tensor({0, 255, 0, 255}, torch::kInt64).to(torch::kUInt8);
  torch::manual_seed(0);
  const Gaussians gaussians = initial_gaussians(views, 20, 0.5);
  ASSERT_EQ(gaussians.count(), 20);
  for (int64_t view = 0; view < 2; ++view) {
    const Camera camera = camera_of(views, view, torch::kCPU);
    const torch::Tensor place = to_screen(gaussians.means, camera).first;
    EXPECT_TRUE(((place >= 6) & (place < 10)).all().item<bool>()) << place;
    const torch::Tensor green = torch::tensor({0.0F, 1.0F, 0.0F}).expand({20, 3});
    EXPECT_TRUE(gaussians.colours(camera.position).allclose(green, 1e-4, 1e-4));
  }
}

class TinyTraining : public testing::Test {
 protected:
  TinyTraining() {
    options_.pictures.size = 16;
    options_.pictures.views = 4;
    options_.pictures.hold_out = 4;
    options_.gaussians = 60;
    options_.tile = 8;
    options_.accumulate = 2;
    options_.densify_every = 2;
    options_.densify.gradient = 1e-5;
    scene_ = Scene::load(options_);
  }

  Options options_;
  Scene scene_;
};

TEST_F(TinyTraining, TheLossScaleChangesNoDensification) {
  std::vector<torch::Tensor> noted, means;
  for (const bool scaled : {false, true}) {
    options_.scale_losses = scaled;
    torch::manual_seed(1);
    Trainer trainer(options_, scene_);
    trainer.step();
    noted.push_back(trainer.model().noted());
    trainer.step();
    EXPECT_NE(trainer.model().gaussians().count(), 60);
    trainer.step();
    means.push_back(trainer.model().gaussians().means);
  }
  EXPECT_GT(noted[0].max().item<float>(), 0);
  EXPECT_TRUE(noted[0].equal(noted[1]));
  EXPECT_TRUE(means[0].equal(means[1]));
}

TEST_F(TinyTraining, GradientsOnTheScreenAreThoseOfOneViewHoweverManyMakeAStep) {
  std::vector<torch::Tensor> noted;
  for (const auto& [batch, accumulate] : {std::pair(1, 2), std::pair(2, 1)}) {
    options_.batch = batch;
    options_.accumulate = accumulate;
    torch::manual_seed(1);
    Trainer trainer(options_, scene_);
    trainer.step();
    noted.push_back(trainer.model().noted());
  }
  EXPECT_TRUE(noted[0].allclose(noted[1], 1e-5, 1e-9));

  torch::manual_seed(1);
  const Gaussians gaussians =
      initial_gaussians(scene_.training, 60, scene_.radius).as_leaves(torch::kCPU);
  torch::Tensor sums = torch::zeros({60});
  torch::Tensor times = torch::zeros({60});
  for (const View& view : draw_views(scene_.training, 2, torch::kCPU)) {
    const Splat shown = splat(gaussians, view.camera, {options_.tile});
    torch::l1_loss(shown.image, view.image).backward();
    sums += shown.centres.grad().norm(2, 1);
    times += shown.visible;
  }
  EXPECT_TRUE(noted[0].allclose(sums / times.clamp_min(1), 1e-5, 1e-9));
}

TEST_F(TinyTraining, ALossThatIsNotFiniteStopsTheTraining) {
  Trainer trainer(options_, scene_);
  trainer.step();
  const torch::NoGradGuard no_grad;
  trainer.model().gaussians().sh_dc.fill_(NAN);
  EXPECT_THROW(
      {
        const torch::AutoGradMode grad(true);
        trainer.step();
      },
      std::runtime_error);
}

TEST_F(TinyTraining, TheChecksOfTheTechniquesHold) {
  testing::internal::CaptureStdout();
  const bool passed = compare_first_step(scene_, options_);
  const std::string printed = testing::internal::GetCapturedStdout();
  EXPECT_TRUE(passed) << printed;
}

}  // namespace
}  // namespace gaussian_splatting
