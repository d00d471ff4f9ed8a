// The diffusion model of the examples: its schedule, sampling and codes by arithmetic, and the same
// network with and without checkpoints.

#include <gtest/gtest.h>
#include <tidemark/grad_accumulator.h>
#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <sstream>
#include <vector>

#include "common/ema.h"
#include "voxel_diffusion/compare.h"
#include "voxel_diffusion/network.h"
#include "voxel_diffusion/schedule.h"
#include "voxel_diffusion/shape_code.h"
#include "voxel_diffusion/train.h"

namespace voxel_diffusion {
namespace {

double at(const torch::Tensor& table, int64_t index) { return table[index].item<double>(); }

torch::Tensor times(std::vector<int64_t> steps) { return torch::tensor(steps, torch::kInt64); }

// The smallest networks of each kind; without dropout, to compare batches that are cut differently.
NetworkOptions small_network(bool planar) {
  NetworkOptions options;
  options.in_channels = planar ? 6 : 1;
  options.planar = planar;
  options.fold = 4;
  options.channels = 8;
  options.dropout = 0;
  return options;
}

TEST(NoiseSchedule, IsTheCosineOfNicholAndDhariwal) {
  const NoiseSchedule schedule(4);
  for (int64_t step = 0; step < 4; ++step) {
    const double angle = (static_cast<double>(step + 1) / 4 + 0.008) / 1.008 * M_PI / 2;
    EXPECT_NEAR(at(schedule.alphas(), step), std::cos(angle), 1e-12);
    EXPECT_NEAR(at(schedule.sigmas(), step), std::sin(angle), 1e-12);
  }
  EXPECT_NEAR(at(schedule.alphas(), 3), 0, 1e-12);
}

TEST(NoiseSchedule, AShiftDividesTheRatioOfSignalToNoise) {
  const NoiseSchedule plain(100);
  const NoiseSchedule shifted(100, 3);
  for (const int64_t step : {0, 50, 98}) {
    EXPECT_NEAR(at(shifted.alphas(), step) / at(shifted.sigmas(), step),
                at(plain.alphas(), step) / at(plain.sigmas(), step) / 3, 1e-9);
    EXPECT_NEAR(std::pow(at(shifted.alphas(), step), 2) + std::pow(at(shifted.sigmas(), step), 2),
                1, 1e-12);
  }
}

TEST(NoiseSchedule, EachSampleGetsTheNoiseOfItsOwnTimeStep) {
  const NoiseSchedule schedule(10);
  const torch::Tensor clean = torch::full({2, 1, 1, 1, 1}, 2.0F);
  const torch::Tensor noise = torch::full({2, 1, 1, 1, 1}, 3.0F);
  const torch::Tensor noisy = schedule.add_noise(clean, noise, times({1, 7}));
  int64_t i = 0;
  for (const int64_t step : {1, 7}) {
    const double alpha = at(schedule.alphas(), step);
    const double sigma = at(schedule.sigmas(), step);
    EXPECT_NEAR(noisy[i].item<double>(), 2 * alpha + 3 * sigma, 1e-6);
    ++i;
  }
}

TEST(NoiseSchedule, ErrorsCountAsThoseOfTheVelocityButAtMostFiveFold) {
  const NoiseSchedule schedule(1000);
  const torch::Tensor weights = schedule.weights(times({0, 500, 999}));
  EXPECT_EQ(weights[0].item<double>(), 5);
  EXPECT_NEAR(weights[1].item<double>(), 1 / std::pow(at(schedule.sigmas(), 500), 2), 1e-5);
  EXPECT_NEAR(weights[2].item<double>(), 1, 1e-6);
}

TEST(NoiseSchedule, EvidenceIsWhatADensityOfNoiseSaysForOneAgainstMinusOneUpToALimit) {
  const NoiseSchedule schedule(1000);
  const torch::Tensor noisy = torch::tensor({0.7F, -1.9F, 0.7F});
  const torch::Tensor evidence = schedule.evidence(noisy, times({800, 600, 10}));
  int64_t i = 0;
  for (const int64_t step : {800, 600}) {
    const auto log_density = [&](double clean) {
      const double noise = (noisy[i].item<double>() - at(schedule.alphas(), step) * clean) /
                           at(schedule.sigmas(), step);
      return -noise * noise / 2;
    };
    EXPECT_NEAR(evidence[i].item<double>(), log_density(1) - log_density(-1), 1e-5);
    ++i;
  }
  EXPECT_NEAR(evidence[2].item<double>(), kMostEvidence * 0.7, 1e-5);
}

TEST(ToClean, IsTheExpectedValueUnderTheOdds) {
  // odds of 1 : 3 and, together with the evidence, of 1 : 1 and 4 : 1
  const torch::Tensor predicted = torch::tensor({1.0F / 3, 1.0F / 3, 2.0F}).log();
  const torch::Tensor evidence = torch::tensor({1.0F, 3.0F, 2.0F}).log();
  const torch::Tensor expected = torch::tensor({1.0F / 4 - 3.0F / 4, 0.0F, 4.0F / 5 - 1.0F / 5});
  EXPECT_LT((to_clean(predicted, evidence) - expected).abs().max().item<double>(), 1e-6);
}

TEST(DenoisingLoss, IsTheMeanOfTheWeightedCrossEntropiesOfShapes) {
  // all voxels are set in the first shape, none in the second; the odds of a set one are 4 : 1
  torch::Tensor clean = torch::ones({2, 1, 2, 2, 2});
  clean[1].fill_(-1);
  const torch::Tensor half = torch::full_like(clean, std::log(2.0));
  const NoisyShapes shapes{clean, times({1, 2}), clean, half, torch::tensor({5.0F, 2.0F})};
  EXPECT_NEAR(denoising_loss(half, shapes).item<double>(),
              (5 * -std::log(4 / 5.0) + 2 * -std::log(1 / 5.0)) / 2, 1e-6);
}

TEST(NoiseSchedule, AStepOfDdimKeepsTheNoise) {
  const NoiseSchedule schedule(1000);
  const torch::Tensor clean = torch::randn({2, 1, 2, 2, 2});
  const torch::Tensor noise = torch::randn({2, 1, 2, 2, 2});
  const torch::Tensor moved = schedule.move(schedule.add_noise(clean, noise, times({900, 800})),
                                            clean, times({900, 800}), times({300, 100}));
  EXPECT_LT(
      (moved - schedule.add_noise(clean, noise, times({300, 100}))).abs().max().item<double>(),
      1e-5);
}

TEST(DrawTimes, TakesOneOutOfEachOfEqualRanges) {
  const torch::Tensor drawn = draw_times(10, NoiseSchedule(1000));
  for (int64_t i = 0; i < 10; ++i) {
    EXPECT_GE(drawn[i].item<int64_t>(), 100 * i);
    EXPECT_LT(drawn[i].item<int64_t>(), 100 * (i + 1));
  }
  EXPECT_FALSE(draw_times(10, NoiseSchedule(1000)).equal(drawn));
}

TEST(SampleDdim, APerfectPredictionLeadsToTheCleanSampleWithTheNoiseOfTheStart) {
  const NoiseSchedule schedule(1000, 2);
  const torch::Tensor clean = torch::rand({2, 1, 4, 4, 4}) * 2 - 1;
  const torch::Tensor start = torch::randn_like(clean);
  const torch::Tensor noise =
      (start - at(schedule.alphas(), 999) * clean) / at(schedule.sigmas(), 999);
  for (const int64_t steps : {1, 2, 25}) {
    std::vector<int64_t> visited;
    const auto perfect = [&](const torch::Tensor& noisy, const torch::Tensor& t) {
      visited.push_back(t[1].item<int64_t>());
      EXPECT_LT((noisy - schedule.add_noise(clean, noise, t)).abs().max().item<double>(), 1e-4);
      return clean;
    };
    EXPECT_TRUE(sample_ddim(schedule, perfect, start, steps).equal(clean));
    ASSERT_EQ(visited.size(), static_cast<size_t>(steps));
    EXPECT_EQ(visited.front(), 999);
    EXPECT_EQ(visited.back(), steps == 1 ? 999 : 0);
  }
}

TEST(SampleDdim, ClipsWhatIsPredictedToBeClean) {
  const NoiseSchedule schedule(100);
  const auto wild = [](const torch::Tensor& noisy, const torch::Tensor&) { return 100 * noisy; };
  int64_t seen = 0;
  const torch::Tensor sample = sample_ddim(schedule, wild, torch::randn({2, 1, 4, 4, 4}), 5,
                                           [&](const torch::Tensor& clean) {
                                             EXPECT_LE(clean.abs().max().item<double>(), 1);
                                             ++seen;
                                           });
  EXPECT_EQ(seen, 5);
  EXPECT_LE(sample.abs().max().item<double>(), 1);
}

TEST(EmbedTimes, HasSinesAndCosinesOfTenThousandFoldWavelengths) {
  const torch::Tensor embedding = embed_times(times({0, 100}), 6);
  const std::vector<double> rates{1, 0.01, 0.0001};
  for (int64_t i = 0; i < 3; ++i) {
    EXPECT_EQ(embedding[0][i].item<double>(), 0);
    EXPECT_EQ(embedding[0][i + 3].item<double>(), 1);
    const double angle = 100 * rates[static_cast<size_t>(i)];
    EXPECT_NEAR(embedding[1][i].item<double>(), std::sin(angle), 1e-5);
    EXPECT_NEAR(embedding[1][i + 3].item<double>(), std::cos(angle), 1e-5);
  }
}

TEST(Fold, MovesBlocksIntoChannelsAndBack) {
  const torch::Tensor x = torch::arange(2 * 3 * 2 * 4 * 6).view({2, 3, 2, 4, 6});
  const torch::Tensor folded = fold(x, {1, 2, 3});
  ASSERT_EQ(folded.sizes(), torch::IntArrayRef({2, 18, 2, 2, 2}));
  // channel 1, row 1 and column 2 of the block at depth 1, row 0, column 1
  EXPECT_TRUE(folded[1][6 + 3 + 2][1][0][1].equal(x[1][1][1][1][5]));
  EXPECT_TRUE(unfold(folded, {1, 2, 3}).equal(x));
}

TEST(ShapeCode, VoxelsComeBack) {
  const torch::Tensor voxels = (torch::rand({3, kSize, kSize, kSize}) < 0.3).to(torch::kUInt8);
  EXPECT_TRUE(code_to_voxels(voxels_to_code(voxels)).equal(voxels));
}

TEST(ShapeCode, PlanesHaveTheFirstAndTheLastVoxelOfEachLine) {
  torch::Tensor voxels = torch::zeros({1, kSize, kSize, kSize}, torch::kUInt8);
  voxels[0][0][4][5] = 1;
  voxels[0][31][4][5] = 1;
  const torch::Tensor planes = voxels_to_planes(voxels);
  ASSERT_EQ(planes.sizes(), torch::IntArrayRef({1, 6, 1, kSize, kSize}));
  const auto value = [&](int64_t plane, int64_t row, int64_t column) {
    return planes[0][plane][0][row][column].item<double>();
  };
  EXPECT_NEAR(value(0, 4, 5), -1, 1e-6);  // along x
  EXPECT_NEAR(value(1, 4, 5), 1, 1e-6);
  EXPECT_NEAR(value(2, 0, 5), -1 + 2 * 4 / 31.0, 1e-6);  // along y
  EXPECT_NEAR(value(3, 0, 5), -1 + 2 * 4 / 31.0, 1e-6);
  EXPECT_NEAR(value(5, 31, 4), -1 + 2 * 5 / 31.0, 1e-6);  // along z
  EXPECT_EQ(value(0, 0, 0), 1);                           // no voxel
  EXPECT_EQ(value(1, 0, 0), -1);
}

TEST(ShapeCode, ATableComesBackFromPlanesAndAHollowBoxIsFilled) {
  torch::Tensor table = torch::zeros({1, kSize, kSize, kSize}, torch::kUInt8);
  table.slice(1, 4, 28).slice(2, 20, 22).slice(3, 4, 28).fill_(1);
  for (const int64_t x : {4, 26}) {
    for (const int64_t z : {4, 26}) {
      table.slice(1, x, x + 2).slice(2, 0, 20).slice(3, z, z + 2).fill_(1);
    }
  }
  EXPECT_TRUE(planes_to_voxels(voxels_to_planes(table)).equal(table));

  torch::Tensor filled = torch::zeros({1, kSize, kSize, kSize}, torch::kUInt8);
  filled.slice(1, 4, 28).slice(2, 4, 28).slice(3, 4, 28).fill_(1);
  torch::Tensor hollow = filled.clone();
  hollow.slice(1, 6, 26).slice(2, 6, 26).slice(3, 6, 26).fill_(0);
  EXPECT_TRUE(planes_to_voxels(voxels_to_planes(hollow)).equal(filled));
}

TEST(Denoiser, ReturnsASampleOfTheSameShape) {
  for (const bool planar : {false, true}) {
    const auto net = make_denoiser(small_network(planar), Regions::kAll);
    const torch::Tensor noisy = planar ? torch::randn({2, 6, 1, kSize, kSize})  //
                                       : torch::randn({2, 1, kSize, kSize, kSize});
    EXPECT_EQ(net->forward(noisy, times({0, 999})).sizes(), noisy.sizes());
  }
}

TEST(Denoiser, IsToldTheTimeStep) {
  const auto net = make_denoiser(small_network(true), Regions::kNone);
  const torch::Tensor noisy = torch::randn({1, 6, 1, kSize, kSize});
  EXPECT_FALSE(net->forward(noisy, times({0})).equal(net->forward(noisy, times({500}))));
}

TEST(Denoiser, FilesOfThePlainNetworkLoadIntoTheCheckpointedOne) {
  const std::shared_ptr<torch::nn::Module> plain =
      make_denoiser(small_network(false), Regions::kNone);
  std::shared_ptr<torch::nn::Module> checkpointed =
      make_denoiser(small_network(false), Regions::kAll);
  EXPECT_EQ(plain->named_parameters().keys(), checkpointed->named_parameters().keys());
  std::stringstream file;
  torch::save(plain, file);
  torch::load(checkpointed, file);
  for (const auto& item : plain->named_parameters()) {
    EXPECT_TRUE(item.value().equal(checkpointed->named_parameters()[item.key()])) << item.key();
  }
}

TEST(Denoiser, DropsTheSameValuesWhenARegionIsRunAgain) {
  NetworkOptions options = small_network(true);
  options.dropout = 0.5;
  const auto plain = make_denoiser(options, Regions::kNone);
  const auto checkpointed = make_denoiser(options, Regions::kAll);
  examples::move_average(*plain, *checkpointed, 0);
  const torch::Tensor noisy = torch::randn({4, 6, 1, kSize, kSize});
  for (const auto& net : {plain, checkpointed}) {
    torch::manual_seed(3);
    net->forward(noisy, times({1, 2, 3, 4})).square().mean().backward();
  }
  for (const auto& item : plain->named_parameters()) {
    ASSERT_TRUE(item.value().grad().defined()) << item.key();
    EXPECT_TRUE(item.value().grad().equal(checkpointed->named_parameters()[item.key()].grad()))
        << item.key();
  }
}

TEST(Denoiser, SmallBatchesOfTheirOwnTimeStepsAddUpToABigOne) {
  const auto net = make_denoiser(small_network(true), Regions::kAll);
  const NoiseSchedule schedule(1000);
  const torch::Tensor at_times = draw_times(8, schedule);
  const torch::Tensor clean = torch::rand({8, 6, 1, kSize, kSize}) * 2 - 1;
  const torch::Tensor noise = torch::randn_like(clean);
  const torch::Tensor noisy = schedule.add_noise(clean, noise, at_times);
  const NoisyShapes big{noisy, at_times, clean, schedule.evidence(noisy, at_times),
                        schedule.weights(at_times)};
  const torch::Tensor loss = denoising_loss(net->forward(big.noisy, big.times), big);
  loss.backward();
  std::vector<torch::Tensor> expected;
  double largest = 0;
  for (const torch::Tensor& parameter : net->parameters()) {
    expected.push_back(parameter.grad().clone());
    largest = std::max(largest, expected.back().abs().max().item<double>());
  }

  tidemark::GradAccumulator accumulator(tidemark::GradAccumulatorOptions(4).module(net));
  for (const NoisyShapes& part : big.split(4)) {
    ASSERT_EQ(part.times.size(0), 2);
    accumulator.backward(denoising_loss(net->forward(part.noisy, part.times), part), 2);
  }
  EXPECT_NEAR(accumulator.window_loss(), loss.item<double>(), 1e-5);
  const auto parameters = net->parameters();
  for (size_t i = 0; i < parameters.size(); ++i) {
    const torch::Tensor difference = parameters[i].grad() - expected[i];
    EXPECT_LT(difference.abs().max().item<double>(), 1e-5 * largest);
  }
}

TEST(VoxelDiffusionCompare, TheSavingFollowsFromTheShapes) {
  // two levels: 8 channels at 8^3 = 512 places, 16 at 64; attention at both, down and up
  const NetworkOptions options = small_network(false);
  const int64_t attention = 2 * (512 * 512 + 6 * 8 * 512) + 2 * (64 * 64 + 6 * 16 * 64);
  EXPECT_EQ(least_held_saving(options, Regions::kNone, 3), 0);
  EXPECT_EQ(least_held_saving(options, Regions::kAttention, 3), 3 * 4 * attention);
  // 2 in + 4 out: down 8 to 8, up 16 to 8; down 8 to 16, middle 16 to 16, up 32 to 16
  const int64_t residual = (48 + 64) * 512 + (80 + 96 + 128) * 64;
  EXPECT_EQ(least_held_saving(options, Regions::kAll, 3), 3 * 4 * (attention + residual));
}

TEST(Ema, KeepsLittleOfTheFirstStepsAndItsShareLater) {
  EXPECT_DOUBLE_EQ(examples::share_to_keep(0.99, 0), 0.1);
  EXPECT_DOUBLE_EQ(examples::share_to_keep(0.99, 1'000'000), 0.99);
  torch::nn::Linear net(2, 2);
  torch::nn::Linear average(2, 2);
  const torch::Tensor before = average->weight.detach().clone();
  examples::move_average(*net, *average, 0.75);
  EXPECT_LT((average->weight - (0.75 * before + 0.25 * net->weight)).abs().max().item<double>(),
            1e-6);
}

}  // namespace
}  // namespace voxel_diffusion
