#include "gaussian_splatting/gaussians.h"

#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "gaussian_splatting/splat.h"

namespace gaussian_splatting {

namespace {

constexpr double kHarmonic1 = 0.4886025119029199;
constexpr double kFirstOpacity = 0.3;

// What a view shows at the points' places, [points, 4] from 0 to 1; 0 outside of the picture.
torch::Tensor colours_in_view(const examples::Views& views, int64_t view,
                              const torch::Tensor& points) {
  const Camera camera = camera_of(views, view, torch::kCPU);
  const auto [place, depth] = to_screen(points, camera);
  const torch::Tensor pixel = place.floor().to(torch::kInt64);
  const torch::Tensor column = pixel.select(1, 0);
  const torch::Tensor row = pixel.select(1, 1);
  const torch::Tensor inside = (depth > kNear) & (column >= 0) & (column < views.width()) &
                               (row >= 0) & (row < views.height());
  const torch::Tensor which = row * views.width() + column;
  const torch::Tensor rgba = views.images[view].flatten(0, 1).index_select(
      0, which.clamp(0, views.height() * views.width() - 1));
  return rgba.to(torch::kFloat) / 255 * inside.unsqueeze(1);
}

// The root of the mean square of the distances to the three nearest others, [points].
torch::Tensor distances_to_others(const torch::Tensor& points) {
  constexpr int64_t kRowsAtOnce = 1024;
  const int64_t others = std::min<int64_t>(3, points.size(0) - 1);
  std::vector<torch::Tensor> result;
  for (const torch::Tensor& rows : points.split(kRowsAtOnce)) {
    const auto nearest = std::get<0>(torch::cdist(rows, points).topk(others + 1, 1, false));
    result.push_back(nearest.square().sum(1).div(static_cast<double>(others)).sqrt());
  }
  return torch::cat(result);
}

}  // namespace

Gaussians Gaussians::as_leaves(torch::Device device) const {
  std::array<torch::Tensor, 6> leaves = tensors();
  for (torch::Tensor& tensor : leaves) {
    tensor = tensor.detach()
                 .to(device, tensor.scalar_type(), /*non_blocking=*/false, /*copy=*/true)
                 .requires_grad_();
  }
  return of(leaves);
}

Gaussians Gaussians::rows(const torch::Tensor& index) const {
  std::array<torch::Tensor, 6> result = tensors();
  for (torch::Tensor& tensor : result) {
    tensor = tensor.detach().index_select(0, index);
  }
  return of(result);
}

torch::Tensor Gaussians::rotations() const {
  namespace F = torch::nn::functional;
  const auto q = F::normalize(quaternions, F::NormalizeFuncOptions().dim(1)).unbind(1);
  const auto& w = q[0];
  const auto& x = q[1];
  const auto& y = q[2];
  const auto& z = q[3];
  return torch::stack({1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y),
                       2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x),
                       2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)},
                      1)
      .view({-1, 3, 3});
}

torch::Tensor Gaussians::colours(const torch::Tensor& position) const {
  namespace F = torch::nn::functional;
  const torch::Tensor direction =
      F::normalize(means - position, F::NormalizeFuncOptions().dim(1)).unsqueeze(2);  // [N, 3, 1]
  const torch::Tensor x = direction.select(1, 0);
  const torch::Tensor y = direction.select(1, 1);
  const torch::Tensor z = direction.select(1, 2);
  const auto rest = sh_rest.unbind(1);
  const torch::Tensor colour =
      kHarmonic0 * sh_dc.squeeze(1) + kHarmonic1 * (z * rest[1] - y * rest[0] - x * rest[2]);
  return (colour + 0.5).clamp_min(0);
}

Gaussians initial_gaussians(const examples::Views& views, int64_t count, double radius) {
  constexpr int64_t kCandidates = 64;
  const torch::Tensor candidates = radius * (2 * torch::rand({kCandidates * count, 3}) - 1);
  torch::Tensor times = torch::zeros({kCandidates * count});
  for (int64_t view = 0; view < views.count(); ++view) {
    times += (colours_in_view(views, view, candidates).select(1, 3) > 0.5);
  }
  const torch::Tensor best = times.argsort(/*stable=*/true, 0, /*descending=*/true);
  const torch::Tensor points = candidates.index_select(0, best.narrow(0, 0, count));

  torch::Tensor colours = torch::zeros({count, 3});
  torch::Tensor weights = torch::full({count, 1}, 1e-6);
  for (int64_t view = 0; view < views.count(); ++view) {
    const torch::Tensor rgba = colours_in_view(views, view, points);
    const torch::Tensor alpha = rgba.narrow(1, 3, 1);
    colours += rgba.narrow(1, 0, 3) * alpha;
    weights += alpha;
  }
  torch::Tensor quaternions = torch::zeros({count, 4});
  quaternions.select(1, 0).fill_(1);
  return {points,
          distances_to_others(points).clamp_min(1e-4).log().unsqueeze(1).repeat({1, 3}),
          quaternions,
          torch::full({count, 1}, std::log(kFirstOpacity / (1 - kFirstOpacity))),
          ((colours / weights - 0.5) / kHarmonic0).unsqueeze(1),
          torch::zeros({count, 3, 3})};
}

}  // namespace gaussian_splatting
