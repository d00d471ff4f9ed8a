#include "nerf/held_out.h"

#include <tidemark/checkpoint.h>
#include <torch/torch.h>

#include <vector>

namespace nerf {

torch::Tensor show_held_out(Nerf& net, const Scene& scene, torch::Device device, int64_t chunk) {
  const torch::NoGradGuard no_grad;
  const examples::Views& views = scene.held_out;
  const torch::Tensor pixels = torch::arange(views.height() * views.width());
  std::vector<torch::Tensor> shown;
  net->eval();
  for (int64_t i = 0; i < views.count(); ++i) {
    const torch::Tensor rays =
        rays_through(views, torch::full_like(pixels, i), pixels, scene.near, scene.far);
    const auto [coarse, fine] = tidemark::checkpoint_chunks(chunk, net, rays.to(device));
    shown.push_back(fine.view({views.height(), views.width(), 3}).cpu());
  }
  net->train();
  return torch::stack(shown);
}

}  // namespace nerf
