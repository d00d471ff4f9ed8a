#include "gaussian_splatting/scene.h"

#include <torch/torch.h>

#include <utility>

#include "common/object_views.h"

namespace gaussian_splatting {

Scene Scene::load(const Options& options) {
  auto views = examples::load_object_views(options.data, options.pictures);
  return {std::move(views.training), std::move(views.held_out),
          views.of_mesh ? examples::kObjectRadius : options.radius};
}

View view_of(const examples::Views& views, int64_t index, torch::Device device) {
  return {camera_of(views, index, device), examples::on_white(views.images[index]).to(device)};
}

std::vector<View> draw_views(const examples::Views& views, int64_t count, torch::Device device) {
  const torch::Tensor order = torch::randperm(views.count(), torch::kInt64);
  std::vector<View> result;
  for (int64_t i = 0; i < count; ++i) {
    result.push_back(view_of(views, order[i % views.count()].item<int64_t>(), device));
  }
  return result;
}

}  // namespace gaussian_splatting
