#include "gaussian_splatting/held_out.h"

#include <torch/torch.h>

#include <vector>

namespace gaussian_splatting {

torch::Tensor show_held_out(const Gaussians& gaussians, const Scene& scene, torch::Device device,
                            const SplatOptions& options) {
  const torch::NoGradGuard no_grad;
  std::vector<torch::Tensor> shown;
  for (int64_t i = 0; i < scene.held_out.count(); ++i) {
    const Camera camera = camera_of(scene.held_out, i, device);
    shown.push_back(splat(gaussians, camera, options).image.cpu().clamp(0, 1));
  }
  return torch::stack(shown);
}

}  // namespace gaussian_splatting
