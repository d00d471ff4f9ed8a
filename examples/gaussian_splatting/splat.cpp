#include "gaussian_splatting/splat.h"

#include <tidemark/amp_scope.h>
#include <tidemark/checkpoint.h>
#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <tuple>
#include <vector>

namespace gaussian_splatting {

namespace {

// Blends the Gaussians of the rows `which` of `packed`, nearest first, into the pixels whose
// centres are at x and y: [y, x, 3]. `packed`: centre, conic, log opacity, colour.
torch::Tensor blend(const torch::Tensor& packed, const torch::Tensor& which, const torch::Tensor& x,
                    const torch::Tensor& y) {
  const auto column = packed.index_select(0, which).split_with_sizes({2, 3, 1, 3}, 1);
  const auto conic = column[1].unbind(1);
  const torch::Tensor dx = x.unsqueeze(1) - column[0].select(1, 0);  // [x, G]
  const torch::Tensor dy = y.unsqueeze(1) - column[0].select(1, 1);  // [y, G]
  const torch::Tensor along_x = column[2].squeeze(1) - 0.5 * conic[0] * dx * dx;
  const torch::Tensor along_y = -0.5 * conic[2] * dy * dy;
  const torch::Tensor power = along_x + along_y.unsqueeze(1) - conic[1] * dx * dy.unsqueeze(1);
  torch::Tensor alpha = power.exp().clamp_max(kMostAlpha);
  alpha = alpha.masked_fill(alpha < kLeastAlpha, 0);

  // how much light is left in front of each Gaussian, and behind the last one: [y, x, G + 1]
  const torch::Tensor left =
      torch::cat({torch::ones({y.size(0), x.size(0), 1}, alpha.options()), 1 - alpha}, 2)
          .cumprod(2);
  const int64_t count = which.size(0);
  const torch::Tensor weights = left.narrow(2, 0, count) - left.narrow(2, 1, count);
  return weights.matmul(column[3]) + left.narrow(2, count, 1);
}

}  // namespace

Camera camera_of(const examples::Views& views, int64_t view, torch::Device device) {
  const torch::Tensor pose = views.poses[view].to(device);
  const torch::Tensor flip = torch::tensor({1.0F, -1.0F, -1.0F}, pose.options());
  return {pose.narrow(0, 0, 3).select(1, 3), pose.narrow(0, 0, 3).narrow(1, 0, 3) * flip,
          views.focal, views.width(), views.height()};
}

std::pair<torch::Tensor, torch::Tensor> to_screen(const torch::Tensor& points,
                                                  const Camera& camera) {
  const torch::Tensor in_camera = (points - camera.position).matmul(camera.rotation);
  const torch::Tensor depth = in_camera.select(1, 2);
  const torch::Tensor middle =
      torch::tensor({static_cast<float>(camera.width) / 2, static_cast<float>(camera.height) / 2},
                    points.options());
  return {camera.focal * in_camera.narrow(1, 0, 2) / depth.clamp_min(kNear).unsqueeze(1) + middle,
          depth};
}

Projected project(const Gaussians& gaussians, const Camera& camera) {
  const auto full = tidemark::AmpScope::off(gaussians.means.device());
  Projected result;
  torch::Tensor depths;
  std::tie(result.centres, depths) = to_screen(gaussians.means, camera);
  const torch::Tensor& centres = result.centres;
  const torch::Tensor depth = depths.clamp_min(kNear);

  // The Jacobian of the projection, [N, 2, 3]. Far outside of the picture it would blow up.
  const auto slope = [&](int64_t axis, int64_t pixels) {
    const double most = 1.3 * static_cast<double>(pixels) / 2 / camera.focal;
    return ((centres.select(1, axis) - static_cast<double>(pixels) / 2) / camera.focal)
        .clamp(-most, most);
  };
  const torch::Tensor along = camera.focal / depth;
  const torch::Tensor none = torch::zeros_like(along);
  const torch::Tensor jacobian = torch::stack({along, none, -along * slope(0, camera.width), none,
                                               along, -along * slope(1, camera.height)},
                                              1)
                                     .view({-1, 2, 3});
  const torch::Tensor axes = gaussians.rotations() * gaussians.deviations().unsqueeze(1);
  const torch::Tensor root = jacobian.matmul(camera.rotation.t()).matmul(axes);  // [N, 2, 3]
  const torch::Tensor across = root.select(1, 0);
  const torch::Tensor down = root.select(1, 1);
  const torch::Tensor xx = across.square().sum(1) + kBlur;
  const torch::Tensor xy = (across * down).sum(1);
  const torch::Tensor yy = down.square().sum(1) + kBlur;
  const torch::Tensor determinant = xx * yy - xy * xy;
  result.conics = torch::stack({yy, -xy, xx}, 1) / determinant.unsqueeze(1);
  result.log_opacities = torch::log_sigmoid(gaussians.opacities.squeeze(1));
  result.colours = gaussians.colours(camera.position);

  const torch::NoGradGuard no_grad;
  // alpha falls below kLeastAlpha where half the square of the distance is above this
  const torch::Tensor most = (result.log_opacities - std::log(kLeastAlpha)).clamp_min(0);
  result.reach = (2 * most.unsqueeze(1) * torch::stack({xx, yy}, 1)).sqrt();
  result.depths = depths.detach();
  const torch::Tensor low = centres + result.reach;
  const torch::Tensor high = centres - result.reach;
  result.visible = (depths > kNear) & (most > 0) & (low.select(1, 0) > 0) & (low.select(1, 1) > 0) &
                   (high.select(1, 0) < camera.width) & (high.select(1, 1) < camera.height);
  return result;
}

Splat splat(const Gaussians& gaussians, const Camera& camera, const SplatOptions& options) {
  const Projected projected = project(gaussians, camera);
  Splat result{{}, projected.centres, projected.visible, 0};
  if (result.centres.requires_grad()) {
    result.centres.retain_grad();
  }
  const torch::Tensor packed = torch::cat({projected.centres, projected.conics,
                                           projected.log_opacities.unsqueeze(1), projected.colours},
                                          1);
  // of those that are seen, the nearest first
  const torch::Tensor by_depth = projected.depths.argsort(/*stable=*/true, 0, /*descending=*/false);
  const torch::Tensor order = by_depth.masked_select(projected.visible.index_select(0, by_depth));
  const torch::Tensor low = (projected.centres.detach() - projected.reach).index_select(0, order);
  const torch::Tensor high = (projected.centres.detach() + projected.reach).index_select(0, order);

  const auto pixels = [&](int64_t begin, int64_t end) {
    return torch::arange(begin, end, packed.options().requires_grad(false)) + 0.5;
  };
  const auto reaches = [&](int64_t axis, int64_t begin, int64_t end) {
    return (high.select(1, axis) > begin) & (low.select(1, axis) < end);
  };
  std::vector<torch::Tensor> rows;
  for (int64_t top = 0; top < camera.height; top += options.tile) {
    const int64_t bottom = std::min(top + options.tile, camera.height);
    std::vector<torch::Tensor> tiles;
    for (int64_t left = 0; left < camera.width; left += options.tile) {
      const int64_t right = std::min(left + options.tile, camera.width);
      const torch::Tensor which =
          order.masked_select(reaches(0, left, right) & reaches(1, top, bottom));
      const torch::Tensor x = pixels(left, right);
      const torch::Tensor y = pixels(top, bottom);
      tiles.push_back(options.checkpoint ? tidemark::checkpoint(blend, packed, which, x, y)
                                         : blend(packed, which, x, y));
      result.pairs += which.size(0) * x.size(0) * y.size(0);
    }
    rows.push_back(torch::cat(tiles, 1));
  }
  result.image = torch::cat(rows, 0);
  return result;
}

}  // namespace gaussian_splatting
