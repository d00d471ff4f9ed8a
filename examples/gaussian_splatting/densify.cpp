#include "gaussian_splatting/densify.h"

#include <torch/torch.h>

#include <algorithm>
#include <array>
#include <cmath>

namespace gaussian_splatting {

namespace {

constexpr int64_t kParts = 2;
constexpr double kShrink = 1.6;  // of the deviations of each part

torch::Tensor rows_of(const torch::Tensor& mask) { return mask.nonzero().squeeze(1); }

// Smaller ones at random where the Gaussians are.
Gaussians parts_of(const Gaussians& whole) {
  Gaussians parts = whole.rows(
      torch::arange(whole.count(), torch::device(whole.means.device())).repeat({kParts}));
  const torch::Tensor offset = parts.deviations() * torch::randn_like(parts.means);
  parts.means += parts.rotations().matmul(offset.unsqueeze(2)).squeeze(2);
  parts.scales -= std::log(kShrink);
  return parts;
}

}  // namespace

Densified densify(Model& model, double half_edge, const DensifyOptions& options) {
  const torch::NoGradGuard no_grad;
  const Gaussians& gaussians = model.gaussians();
  const torch::Tensor steepness = model.noted() * half_edge;
  const int64_t room = std::clamp<int64_t>(options.most - gaussians.count(), 0, gaussians.count());
  const torch::Tensor steepest = std::get<1>(steepness.topk(room));
  const torch::Tensor faint = gaussians.opacities.squeeze(1).sigmoid() < options.least_opacity;
  const torch::Tensor chosen = torch::zeros_like(faint).index_fill_(0, steepest, true) &
                               (steepness > options.gradient) & ~faint;
  const torch::Tensor large = std::get<0>(gaussians.deviations().max(1)) > options.large;

  const Gaussians clones = gaussians.rows(rows_of(chosen & ~large));
  const Gaussians parts = parts_of(gaussians.rows(rows_of(chosen & large)));
  std::array<torch::Tensor, 6> added = clones.tensors();
  for (size_t i = 0; i < added.size(); ++i) {
    added[i] = torch::cat({added[i], parts.tensors()[i]});
  }
  const Densified result{clones.count(), parts.count() / kParts, faint.sum().item<int64_t>()};
  model.replace(rows_of(~(faint | (chosen & large))), Gaussians::of(added));
  return result;
}

}  // namespace gaussian_splatting
