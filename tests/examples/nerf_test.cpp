// Rays of the NeRF example: where they go, where they are sampled and what colours add up to.

#include <gtest/gtest.h>
#include <tidemark/amp_scope.h>
#include <torch/torch.h>

#include <cmath>
#include <vector>

#include "common/view_picture.h"
#include "common/views.h"
#include "nerf/compare.h"
#include "nerf/density.h"
#include "nerf/field.h"
#include "nerf/render.h"
#include "nerf/scene.h"

namespace nerf {
namespace {

// From 2 to 4 units in front of the origin.
torch::Tensor rays_of(int64_t count) {
  return torch::tensor({0.0F, 0.0F, 0.0F, 0.0F, 0.0F, -1.0F, 2.0F, 4.0F}).repeat({count, 1});
}

TEST(NerfField, PositionsAreEncodedAsSinesAndCosinesOfDoublingFrequencies) {
  const torch::Tensor encoded = positional_encoding(torch::tensor({0.5F}), 2);
  // 0.5, sin and cos of pi / 2, sin and cos of pi
  EXPECT_TRUE(torch::allclose(encoded, torch::tensor({0.5F, 1.0F, 0.0F, 0.0F, -1.0F}), 0, 1e-6));
  EXPECT_EQ(positional_encoding(torch::zeros({4, 2, 3}), 10).size(2), encoded_size(10));
}

TEST(NerfDensity, IsExpWithTheGradientOfExp) {
  const torch::Tensor raw = torch::tensor({-3.0F, 0.0F, 2.0F}).requires_grad_();
  const torch::Tensor density = truncated_exp(raw);
  density.sum().backward();
  EXPECT_TRUE(torch::equal(density, raw.detach().exp()));
  EXPECT_TRUE(torch::equal(raw.grad(), raw.detach().exp()));
}

TEST(NerfDensity, ThatIsFarTooHighIsNotThrownAway) {
  const torch::Tensor raw = torch::tensor({60.0F}).requires_grad_();
  truncated_exp(raw).sum().backward();
  EXPECT_FLOAT_EQ(raw.grad().item<float>(), std::exp(15.0F));
}

TEST(NerfDensity, IsFloatInMixedPrecisionInBothDirections) {
  const torch::Tensor raw =
      torch::tensor({-3.0F, 1.25F, 4.0F}).to(torch::kBFloat16).requires_grad_();
  torch::Tensor density;
  {
    const tidemark::AmpScope amp(torch::kCPU, torch::kBFloat16);
    density = truncated_exp(raw);
  }
  EXPECT_TRUE(torch::equal(density, raw.detach().to(torch::kFloat).exp()));
  density.sum().backward();
  EXPECT_TRUE(torch::equal(raw.grad(), density.detach().to(torch::kBFloat16)));
}

TEST(NerfSamples, AreTheMiddlesOfEqualPartsOrOneInEach) {
  const torch::Tensor middles = stratified_samples(rays_of(1), 4, false);
  EXPECT_TRUE(torch::allclose(middles, torch::tensor({{2.25F, 2.75F, 3.25F, 3.75F}})));
  torch::manual_seed(1);
  const torch::Tensor jittered = stratified_samples(rays_of(50), 4, true);
  EXPECT_LT((jittered - middles).abs().max().item<float>(), 0.25 + 1e-5);
  EXPECT_GT((jittered - middles).abs().max().item<float>(), 0.2);
}

TEST(NerfSamples, GoWhereTheWeightsAre) {
  // Two samples in each of the parts that have all the weight: at 1/4 and 3/4 of them.
  const torch::Tensor edges = torch::tensor({{0.0F, 1.0F, 2.0F, 4.0F}});
  const torch::Tensor weights = torch::tensor({{0.0F, 3.0F, 3.0F}}).requires_grad_();
  const torch::Tensor even = importance_samples(edges, weights, 4, false);
  EXPECT_TRUE(torch::allclose(even, torch::tensor({{1.25F, 1.75F, 2.5F, 3.5F}}), 0, 1e-3)) << even;
  EXPECT_FALSE(even.requires_grad());
  torch::manual_seed(1);
  const torch::Tensor random =
      importance_samples(edges.expand({100, -1}), weights.expand({100, -1}), 4, true);
  EXPECT_GT(random.min().item<float>(), 0.99);
  EXPECT_LT(random.max().item<float>(), 4.001);
}

TEST(NerfSamples, OfARayThatMeetsNothingAreSpreadEvenly) {
  const torch::Tensor edges = torch::tensor({{2.0F, 3.0F, 4.0F}});
  EXPECT_TRUE(torch::allclose(importance_samples(edges, torch::zeros({1, 2}), 4, false),
                              torch::tensor({{2.25F, 2.75F, 3.25F, 3.75F}})));
}

TEST(NerfRender, EachPartTakesItsShareOfTheLightThatIsLeft) {
  // Each part lets a half through: 1/2, 1/4, 1/8 are seen of them.
  const auto half = static_cast<float>(std::log(2.0));
  const torch::Tensor weights = volume_weights(torch::tensor({{half, half / 2, 2 * half}}),
                                               torch::tensor({{1.0F, 2.0F, 0.5F}}));
  EXPECT_TRUE(torch::allclose(weights, torch::tensor({{0.5F, 0.25F, 0.125F}})));
}

TEST(NerfRender, EmptySpaceIsWhite) {
  Nerf net(NerfOptions().field(FieldOptions().width(4)).coarse(3).fine(3));
  const torch::NoGradGuard no_grad;
  for (const Field& field : {net->coarse, net->fine}) {
    field->head->density->weight.zero_();
    field->head->density->bias.fill_(-100);
  }
  EXPECT_TRUE(torch::allclose(net(rays_of(2)).second, torch::ones({2, 3})));
}

TEST(NerfRays, GoThroughThePointThatTheirPixelShows) {
  // a rectangle of a pixel's size, anywhere
  const torch::Tensor pose = examples::poses_around(5, 3).narrow(0, 3, 1);
  examples::Mesh mesh;
  const float x = 0.31F, y = -0.17F, z = 0.2F, size = 0.04F;
  examples::Triangle triangle;
  triangle.corners = {
      examples::Vector3{x - size, y - size, z}, {x + size, y - size, z}, {x, y + size, z}};
  mesh.triangles.push_back(triangle);
  const examples::Views views = examples::render_views(mesh, pose, 40, 0.8);
  const torch::Tensor pixel = views.images.select(3, 3).flatten().argmax().view(1);
  ASSERT_GT(views.images.select(3, 3).flatten().max().item<int>(), 0);

  const torch::Tensor ray = rays_through(views, torch::zeros(1, torch::kInt64), pixel, 1, 5)[0];
  const torch::Tensor origin = ray.narrow(0, 0, 3), direction = ray.narrow(0, 3, 3);
  EXPECT_NEAR(direction.norm().item<float>(), 1, 1e-6);
  const torch::Tensor offset = torch::tensor({x, y, z}) - origin;
  const torch::Tensor beside = offset - offset.dot(direction) * direction;
  EXPECT_LT(beside.norm().item<float>(), 0.08);  // a pixel is 3 * 2 tan(0.4) / 40 = 0.063 wide
  EXPECT_GT(offset.dot(direction).item<float>(), 2);
  EXPECT_EQ(ray[6].item<float>(), 1);
  EXPECT_EQ(ray[7].item<float>(), 5);
}

TEST(NerfQuality, AnErrorOfATenthIs20Decibels) {
  EXPECT_NEAR(examples::psnr(torch::full({4, 3}, 0.6), torch::full({4, 3}, 0.5)), 20, 1e-4);
}

TEST(NerfCompare, TheSavingFollowsFromTheShapes) {
  const auto options =
      NerfOptions().field(FieldOptions().width(8).frequencies(1)).coarse(2).fine(3);
  // A position is 9 numbers. Plain 9 + 16 and 32 + 9 are 66 for each of 2 + 5 points on a ray,
  // checkpointed 9 + 8 are 17.
  EXPECT_EQ(held_saving(options, 10), 4 * 10 * 7 * (66 - 17));
}

}  // namespace
}  // namespace nerf
