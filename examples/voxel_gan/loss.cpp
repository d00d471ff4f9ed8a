#include "voxel_gan/loss.h"

#include <torch/torch.h>

namespace voxel_gan {

namespace F = torch::nn::functional;

namespace {

torch::Tensor cross_entropy(const torch::Tensor& scores, double truth) {
  return F::binary_cross_entropy_with_logits(scores, torch::full_like(scores, truth));
}

}  // namespace

torch::Tensor discriminator_loss(const torch::Tensor& real_scores, const torch::Tensor& fake_scores,
                                 bool wasserstein) {
  if (wasserstein) {
    return fake_scores.mean() - real_scores.mean();
  }
  return cross_entropy(real_scores, 0.9) + cross_entropy(fake_scores, 0);
}

torch::Tensor generator_loss(const torch::Tensor& fake_scores, bool wasserstein) {
  return wasserstein ? -fake_scores.mean() : cross_entropy(fake_scores, 1);
}

torch::Tensor shapes_between(const torch::Tensor& real, const torch::Tensor& fake) {
  const torch::Tensor place = torch::rand({real.size(0), 1, 1, 1, 1}).to(real.device());
  return fake.detach().lerp(real, place).requires_grad_();
}

torch::Tensor distance_from_unit_norm(const torch::Tensor& gradients) {
  // a root of 0 would have an infinite slope
  const torch::Tensor norms = (gradients.flatten(1).square().sum(1) + 1e-12).sqrt();
  return (norms - 1).square().mean();
}

}  // namespace voxel_gan
