#include "nerf/scene.h"

#include <torch/torch.h>

#include <utility>

#include "common/object_views.h"

namespace nerf {

Scene Scene::load(const Options& options) {
  auto views = examples::load_object_views(options.data, options.pictures);
  Scene scene{std::move(views.training), std::move(views.held_out), options.near, options.far};
  if (views.of_mesh) {
    scene.near = examples::kCameraDistance - examples::kObjectRadius;
    scene.far = examples::kCameraDistance + examples::kObjectRadius;
  }
  return scene;
}

torch::Tensor rays_through(const examples::Views& views, const torch::Tensor& view,
                           const torch::Tensor& pixel, double near, double far) {
  const torch::Tensor column = pixel.remainder(views.width());
  const torch::Tensor row = pixel.div(views.width(), "floor");
  const torch::Tensor x = (column + 0.5 - static_cast<double>(views.width()) / 2) / views.focal;
  const torch::Tensor y = (static_cast<double>(views.height()) / 2 - 0.5 - row) / views.focal;
  const torch::Tensor in_camera = torch::stack({x, y, -torch::ones_like(x)}, 1).to(torch::kFloat);

  const torch::Tensor pose = views.poses.index_select(0, view);
  const torch::Tensor rotation = pose.narrow(1, 0, 3).narrow(2, 0, 3);
  const torch::Tensor direction = (rotation * in_camera.unsqueeze(1)).sum(2);
  const torch::Tensor origin = pose.narrow(1, 0, 3).select(2, 3);
  const torch::Tensor ends = torch::tensor({near, far}, torch::kFloat).expand({pixel.size(0), 2});
  return torch::cat({origin, direction / direction.norm(2, 1, true), ends}, 1);
}

RaySampler::RaySampler(const Scene& scene, int64_t rays)
    : scene_(scene),
      rays_(rays),
      object_(scene.training.images.select(3, 3).flatten().nonzero().flatten()) {}

Batch RaySampler::next() const {
  const examples::Views& views = scene_.training;
  const int64_t pixels = views.height() * views.width();
  const int64_t of_object = object_.numel() > 0 ? rays_ / 2 : 0;
  torch::Tensor chosen = torch::randint(views.count() * pixels, {rays_ - of_object}, torch::kInt64);
  if (of_object > 0) {
    const torch::Tensor which = torch::randint(object_.numel(), {of_object}, torch::kInt64);
    chosen = torch::cat({chosen, object_.index_select(0, which)});
  }
  const torch::Tensor rgba = views.images.flatten(0, 2).index_select(0, chosen);
  return {rays_through(views, chosen.div(pixels, "floor"), chosen.remainder(pixels), scene_.near,
                       scene_.far),
          examples::on_white(rgba)};
}

}  // namespace nerf
