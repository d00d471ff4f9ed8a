#include "pointnet2/clouds.h"

#include <ATen/CPUGeneratorImpl.h>
#include <torch/torch.h>

#include <cmath>

#include "pointnet2/neighbours.h"

namespace pointnet2 {

namespace {

constexpr int64_t kStored = 4096;

// How far the objects' places are from the middle of the scene, and objects from their places.
constexpr double kPlace = 0.65;
constexpr double kOffPlace = 0.1;
constexpr double kFloorEdge = 1.3;
constexpr double kSceneJitter = 0.005;

Objects sample_part(const std::vector<examples::Shape>& shapes, uint64_t seed) {
  std::vector<torch::Tensor> surfaces;
  std::vector<int64_t> labels;
  for (const examples::Shape& shape : shapes) {
    surfaces.push_back(
        examples::sample_surface(shape.triangles, kStored, seed * 1'000'003 + surfaces.size())
            .points);
    labels.push_back(shape.label);
  }
  return {torch::stack(surfaces), torch::tensor(labels, torch::kInt64)};
}

// From -1 to 1.
torch::Tensor signed_uniform(torch::IntArrayRef sizes, const Random& random) {
  return torch::rand(sizes, random, torch::kFloat) * 2 - 1;
}

torch::Tensor draw_points(const Objects& objects, const torch::Tensor& chosen, int64_t points,
                          const Random& random) {
  const torch::Tensor which =
      torch::randint(0, objects.surface.size(1), {chosen.size(0), points}, random, torch::kInt64);
  return take_rows(objects.surface.index_select(0, chosen), which);
}

// By an angle for each cloud, in radians, about the y axis.
torch::Tensor turned(const torch::Tensor& xyz, const torch::Tensor& angle) {
  const torch::Tensor cosine = angle.cos().unsqueeze(1);
  const torch::Tensor sine = angle.sin().unsqueeze(1);
  const torch::Tensor x = xyz.select(-1, 0);
  const torch::Tensor z = xyz.select(-1, 2);
  return torch::stack({cosine * x + sine * z, xyz.select(-1, 1), cosine * z - sine * x}, -1);
}

torch::Tensor varied(torch::Tensor xyz, const Variation& variation, const Random& random) {
  const int64_t clouds = xyz.size(0);
  xyz = xyz * (1 + variation.stretch * signed_uniform({clouds, 1, 3}, random));
  if (variation.mirror) {
    const torch::Tensor side =
        signed_uniform({clouds, 1, 1}, random).ge(0).to(torch::kFloat) * 2 - 1;
    xyz = xyz * torch::cat({side, torch::ones({clouds, 1, 2})}, -1);
  }
  return turned(xyz, signed_uniform({clouds}, random) * (variation.turn * M_PI / 180));
}

torch::Tensor jittered(const torch::Tensor& xyz, const Variation& variation, const Random& random) {
  return xyz + variation.jitter * torch::randn(xyz.sizes(), random, torch::kFloat);
}

}  // namespace

Dataset sample_objects(const examples::ShapeSet& set, uint64_t seed) {
  return {set.class_names, sample_part(set.part(/*held_out=*/false), 2 * seed),
          sample_part(set.part(/*held_out=*/true), 2 * seed + 1)};
}

Clouds draw_objects(const Objects& objects, const torch::Tensor& chosen, int64_t points,
                    const Variation& variation, const Random& random) {
  torch::Tensor xyz = varied(draw_points(objects, chosen, points, random), variation, random);
  xyz = xyz - xyz.mean(1, /*keepdim=*/true);
  xyz = xyz / xyz.norm(2, {-1}, true).amax({1, 2}, true);
  return {jittered(xyz, variation, random), objects.labels.index_select(0, chosen)};
}

Clouds draw_scenes(const Objects& objects, const torch::Tensor& chosen, int64_t points,
                   int64_t floor, const Variation& variation, const Random& random) {
  TORCH_CHECK(chosen.size(0) % kObjectsOfScene == 0, chosen.size(0), " objects make no scenes of ",
              kObjectsOfScene);
  const int64_t scenes = chosen.size(0) / kObjectsOfScene;
  const int64_t of_object = points * 7 / 8 / kObjectsOfScene;
  const int64_t of_floor = points - of_object * kObjectsOfScene;
  torch::Tensor xyz = varied(draw_points(objects, chosen, of_object, random), variation, random);
  xyz = turned(xyz, signed_uniform({chosen.size(0)}, random) * M_PI);
  xyz = xyz * (0.95 + 0.15 * signed_uniform({chosen.size(0), 1, 1}, random));
  // from the lowest point up, at four places
  const torch::Tensor low = xyz.select(-1, 1).amin({1}, true);
  const torch::Tensor off = kOffPlace * signed_uniform({2, chosen.size(0), 1}, random);
  const auto places = [scenes](std::vector<float> signs) {
    return kPlace * torch::tensor(signs).repeat({scenes}).unsqueeze(1);
  };
  xyz = torch::stack({xyz.select(-1, 0) + places({-1, 1, -1, 1}) + off[0], xyz.select(-1, 1) - low,
                      xyz.select(-1, 2) + places({-1, -1, 1, 1}) + off[1]},
                     -1)
            .view({scenes, kObjectsOfScene * of_object, 3});
  const torch::Tensor flat =
      signed_uniform({scenes, of_floor, 3}, random) * torch::tensor({kFloorEdge, 0.0, kFloorEdge});
  const torch::Tensor labels = torch::cat({objects.labels.index_select(0, chosen)
                                               .view({scenes, kObjectsOfScene, 1})
                                               .expand({-1, -1, of_object})
                                               .flatten(1),
                                           torch::full({scenes, of_floor}, floor, torch::kInt64)},
                                          1);
  const torch::Tensor order = torch::randperm(points, random, torch::kInt64);
  return {jittered(torch::cat({xyz, flat.to(torch::kFloat)}, 1), variation, random)
              .index_select(1, order),
          labels.index_select(1, order)};
}

Clouds draw_training_clouds(const Dataset& data, const Options& options) {
  Variation variation{0.2, static_cast<double>(options.turn), true, 0.01};
  if (options.segments()) {
    variation.jitter = kSceneJitter;
    const torch::Tensor chosen =
        torch::randint(data.train.count(), {options.batch * kObjectsOfScene}, torch::kInt64);
    return draw_scenes(data.train, chosen, options.points, data.object_classes(), variation);
  }
  const torch::Tensor chosen = torch::randint(data.train.count(), {options.batch}, torch::kInt64);
  return draw_objects(data.train, chosen, options.points, variation);
}

Clouds draw_held_out_clouds(const Dataset& data, const Options& options, int64_t number) {
  const Random random = at::make_generator<at::CPUGeneratorImpl>(static_cast<uint64_t>(number));
  const int64_t count = data.held_out.count();
  if (!options.segments()) {
    return draw_objects(data.held_out, torch::arange(count), options.points, {}, random);
  }
  // twice each, and as many more as make the last scene whole
  const int64_t scenes = (2 * count + kObjectsOfScene - 1) / kObjectsOfScene;
  const torch::Tensor chosen =
      torch::cat({torch::randperm(count, random, torch::kInt64),
                  torch::randperm(count, random, torch::kInt64),
                  torch::randint(0, count, {kObjectsOfScene}, random, torch::kInt64)})
          .slice(0, 0, scenes * kObjectsOfScene);
  Variation variation;
  variation.jitter = kSceneJitter;
  return draw_scenes(data.held_out, chosen, options.points, data.object_classes(), variation,
                     random);
}

}  // namespace pointnet2
