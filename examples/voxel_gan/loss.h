#pragma once

// What the two networks learn by.

#include <torch/types.h>

namespace voxel_gan {

/// That of a plain GAN is the cross-entropy of the discriminator's guess, with 0.9 instead of 1 for
/// real shapes (Salimans et al., Improved Techniques for Training GANs, 2016), and that of a
/// Wasserstein GAN the difference of the mean scores (Arjovsky et al., Wasserstein GAN, 2017).
/// All are means over the shapes of a batch.
torch::Tensor discriminator_loss(const torch::Tensor& real_scores, const torch::Tensor& fake_scores,
                                 bool wasserstein);

/// How little the discriminator takes generated shapes for real ones.
torch::Tensor generator_loss(const torch::Tensor& fake_scores, bool wasserstein);

/// Shapes between real and generated ones, each at a random place, that require grad.
torch::Tensor shapes_between(const torch::Tensor& real, const torch::Tensor& fake);

/// How far the norm of each shape's gradient is from 1, squared, on average: Gulrajani et al.,
/// Improved Training of Wasserstein GANs, 2017.
torch::Tensor distance_from_unit_norm(const torch::Tensor& gradients);

}  // namespace voxel_gan
