#include "voxel_diffusion/shape_code.h"

#include <torch/torch.h>

namespace voxel_diffusion {

torch::Tensor voxels_to_code(const torch::Tensor& voxels) {
  return voxels.unsqueeze(1).to(torch::kFloat) * 2 - 1;
}

torch::Tensor code_to_voxels(const torch::Tensor& code) {
  return (code.squeeze(1) > 0).to(torch::kUInt8);
}

torch::Tensor voxels_to_planes(const torch::Tensor& voxels) {
  const torch::Tensor places = torch::linspace(-1, 1, voxels.size(-1), voxels.device());
  std::vector<torch::Tensor> planes;
  for (const int64_t axis : {1, 2, 3}) {
    const torch::Tensor set = voxels.movedim(axis, -1) > 0;
    planes.push_back(torch::where(set, places, 1.0F).amin(-1));
    planes.push_back(torch::where(set, places, -1.0F).amax(-1));
  }
  return torch::stack(planes, 1).unsqueeze(2);
}

torch::Tensor planes_to_voxels(const torch::Tensor& planes) {
  const int64_t size = planes.size(-1);
  const torch::Tensor places = torch::linspace(-1, 1, size, planes.device());
  const double half_voxel = 1 / static_cast<double>(size - 1);
  torch::Tensor inside =
      torch::ones({planes.size(0), size, size, size}, planes.options().dtype(torch::kBool));
  for (const int64_t axis : {1, 2, 3}) {
    const torch::Tensor first = planes.select(1, 2 * (axis - 1)).squeeze(1).unsqueeze(-1);
    const torch::Tensor last = planes.select(1, 2 * (axis - 1) + 1).squeeze(1).unsqueeze(-1);
    const torch::Tensor between = (places >= first - half_voxel) & (places <= last + half_voxel);
    inside = inside & between.movedim(-1, axis);
  }
  return inside.to(torch::kUInt8);
}

}  // namespace voxel_diffusion
