#pragma once

// Generator and discriminator of voxel shapes.
// Wu, Zhang, Xue, Freeman, Tenenbaum, Learning a Probabilistic Latent Space of Object Shapes via 3D
// Generative-Adversarial Modeling, 2016.

#include <torch/torch.h>

#include <cstdint>

namespace voxel_gan {

/// Voxels along each edge of a shape.
inline constexpr int64_t kSize = 32;

struct GanOptions {
  int64_t channels = 8;  ///< at 16^3; twice as many at 8^3, four times at 4^3
  int64_t latent = 32;
  bool layer_norm = false;  ///< in the discriminator, instead of BatchNorm
  bool checkpointed = false;
};

/// Both networks, and the average of the generators of all steps.
struct GanImpl : torch::nn::Module {
  explicit GanImpl(const GanOptions& options);

  /// Shapes of random numbers: float [batch, latent] to [batch, 1, 32, 32, 32], from 0 to 1.
  torch::Tensor generate(const torch::Tensor& latent);

  /// How real shapes look: [batch, 1, 32, 32, 32] to float [batch], unbounded.
  torch::Tensor judge(const torch::Tensor& voxels);

  /// Shapes of the averaged generator, without gradient, normalised by its running statistics.
  torch::Tensor sample(const torch::Tensor& latent);

  /// Moves the average towards the generator; it keeps a share of `keep`. BatchNorm's running
  /// statistics belong to it.
  void update_average(double keep);

  torch::nn::Sequential generator;
  torch::nn::Sequential discriminator;
  torch::nn::Sequential average;

  /// Whether generate() and judge() are checkpointed regions; may be changed between calls.
  bool checkpointed;
};
TORCH_MODULE(Gan);

/// Whether gradients reach the parameters of a network, or pass it by.
void set_learning(torch::nn::Module& network, bool learning);

}  // namespace voxel_gan
