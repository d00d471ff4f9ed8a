#include "unet3d/loss.h"

#include <torch/torch.h>

#include "common/volume_dataset.h"

namespace unet3d {

using examples::kNoClass;

torch::Tensor segmentation_loss(const torch::Tensor& half_scores, const torch::Tensor& labels) {
  namespace F = torch::nn::functional;
  // in half precision the sums over all voxels would overflow or be rounded
  const torch::Tensor scores = half_scores.to(torch::kFloat);
  const torch::Tensor counts = labels.ne(kNoClass);
  const torch::Tensor cross_entropy =
      F::cross_entropy(scores, labels,
                       F::CrossEntropyFuncOptions().ignore_index(kNoClass).reduction(torch::kNone))
          .sum({1, 2, 3}) /
      counts.sum({1, 2, 3}).clamp_min(1);

  const torch::Tensor mask = counts.unsqueeze(1);
  const torch::Tensor truth =
      torch::one_hot(labels.masked_fill(~counts, 0), scores.size(1)).movedim(-1, 1) * mask;
  const torch::Tensor guess = scores.softmax(1) * mask;
  const torch::Tensor dice =
      (2 * (guess * truth).sum({2, 3, 4}) + 1) / ((guess + truth).sum({2, 3, 4}) + 1);
  return (cross_entropy + 1 - dice.mean(1)).mean();
}

torch::Tensor deep_supervision_loss(const std::vector<torch::Tensor>& scores,
                                    const torch::Tensor& labels) {
  torch::Tensor sum;
  torch::Tensor coarse = labels;
  double weight = 1;
  double weights = 0;
  for (const torch::Tensor& level : scores) {
    const torch::Tensor loss = weight * segmentation_loss(level, coarse);
    sum = sum.defined() ? sum + loss : loss;
    weights += weight;
    weight /= 2;
    coarse = coarse.slice(1, 0, {}, 2).slice(2, 0, {}, 2).slice(3, 0, {}, 2);
  }
  return sum / weights;
}

}  // namespace unet3d
