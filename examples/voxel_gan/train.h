#pragma once

// The training loop.

#include <tidemark/amp_scope.h>
#include <tidemark/grad_accumulator.h>
#include <tidemark/grad_scaler.h>
#include <torch/torch.h>

#include <cstdint>
#include <string>
#include <vector>

#include "common/shapes_voxels.h"
#include "common/training_state.h"
#include "voxel_gan/network.h"
#include "voxel_gan/options.h"

namespace voxel_gan {

/// The networks that the options ask for.
GanOptions gan_options(const Options& options);

/// The Adams' options: those of DCGAN, or of WGAN-GP where there is a penalty.
torch::optim::AdamOptions adam_options(double lr, const Options& options);

/// Random training shapes, float [batch, 1, 32, 32, 32].
torch::Tensor draw_shapes(const examples::VoxelShapes& shapes, const Options& options);

/// Shapes with noise on their voxels, as the discriminator of a plain GAN gets to see them: it
/// would tell real ones by their sharp values alone otherwise. With a gradient penalty, as they
/// are. Sonderby et al., Amortised MAP Inference for Image Super-resolution, 2017.
torch::Tensor with_noise(const torch::Tensor& voxels, const Options& options);

/// Random numbers for a batch of shapes to be made of, [batch, latent].
torch::Tensor draw_latent(int64_t batch, const Options& options);

/// The losses of every step so far, as a part of a TrainingState.
struct LossHistory {
  std::vector<double> values;

  void save(torch::serialize::OutputArchive& archive) const;
  void load(torch::serialize::InputArchive& archive);
};

/// Trains a Gan with two Adams.
class Trainer {
 public:
  /// Keeps a reference to the shapes.
  Trainer(const Options& options, const examples::VoxelShapes& shapes);

  /// Runs the steps that are left.
  void train();

  /// A step of the discriminator's optimizer and one of the generator's, each on as many batches as
  /// --accumulate says.
  void step();

  void save(const std::string& path) { state().save(path); }
  void resume(const std::string& path) { state().resume(path, options_.steps, device_); }

  [[nodiscard]] Gan& gan() { return gan_; }
  [[nodiscard]] std::vector<torch::optim::Optimizer*> optimizers() {
    return {&generator_adam_, &discriminator_adam_};
  }

  /// The losses of every step so far.
  [[nodiscard]] const std::vector<double>& discriminator_losses() const { return judged_; }
  [[nodiscard]] const std::vector<double>& generator_losses() const { return generated_.values; }

 private:
  void step_discriminator();
  void step_generator();
  torch::Tensor gradient_penalty(const torch::Tensor& real, const torch::Tensor& fake);
  [[nodiscard]] examples::TrainingState state();

  Options options_;
  const examples::VoxelShapes& shapes_;
  torch::Device device_;
  Gan gan_;
  torch::optim::Adam generator_adam_;
  torch::optim::Adam discriminator_adam_;
  tidemark::AmpOptions amp_;
  tidemark::GradScaler scaler_;
  tidemark::GradAccumulator generator_steps_;
  tidemark::GradAccumulator discriminator_steps_;
  std::vector<double> judged_;
  LossHistory generated_;
};

}  // namespace voxel_gan
