#pragma once

// The training loop.

#include <tidemark/amp_scope.h>
#include <tidemark/grad_accumulator.h>
#include <tidemark/grad_scaler.h>
#include <torch/torch.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "common/shapes_voxels.h"
#include "common/training_state.h"
#include "voxel_diffusion/network.h"
#include "voxel_diffusion/options.h"
#include "voxel_diffusion/schedule.h"

namespace voxel_diffusion {

/// The norm that gradients are clipped to.
inline constexpr double kClipNorm = 1;

/// The learning rate of a step: a warm-up, then a slow decline. It doesn't depend on --steps, so
/// that a run which is resumed with a higher number goes on as one that had it from the start.
double learning_rate(double highest, int64_t step);

/// Shapes in noise, and what they are without.
struct NoisyShapes {
  torch::Tensor noisy;
  torch::Tensor times;  ///< on the CPU
  torch::Tensor clean;
  torch::Tensor evidence;  ///< NoiseSchedule::evidence()
  torch::Tensor weights;   ///< what the error of each counts, float [shapes]

  /// In equal parts.
  [[nodiscard]] std::vector<NoisyShapes> split(int64_t parts) const;
};

/// Random training shapes, every other one mirrored on average, in as much noise as `times` say.
NoisyShapes draw_shapes(const examples::VoxelShapes& shapes, const torch::Tensor& times,
                        const NoiseSchedule& schedule, const Options& options);

/// Predicts what noisy shapes are without noise, from -1 to 1, by what a network returned for them:
/// that is the log-odds of 1 against -1, less the evidence.
torch::Tensor to_clean(const torch::Tensor& predicted, const torch::Tensor& evidence);

/// The weighted cross-entropy of the predicted clean values, of which each is seen as a chance of 1
/// against -1: a mean over the shapes. Where they lie between, it is least at their mean, too.
///
/// The network of the paper predicts the noise instead, which is the same up to a linear map of the
/// input. But here blocks of voxels are folded into channels, and a narrow network can't pass on
/// the noise of each, while shapes need few numbers: Li, He, Back to Basics: Let Denoising
/// Generative Models Denoise, 2025.
torch::Tensor denoising_loss(const torch::Tensor& predicted, const NoisyShapes& shapes);

/// A network that learns, and the average of those of all steps, from which samples are taken.
struct Networks {
  /// With LibTorch's generator.
  Networks(const Options& options, Regions regions);

  std::shared_ptr<Denoiser> net;
  std::shared_ptr<Denoiser> average;
};

/// Shapes out of noise, uint8 [count, 32, 32, 32] on the CPU. `seen`: see sample_ddim(); it is
/// called for each part of them.
torch::Tensor sample_shapes(Denoiser& net, int64_t count, const Options& options,
                            const std::function<void(const torch::Tensor& clean)>& seen = {});

/// Trains a Denoiser with Adam.
class Trainer {
 public:
  /// Keeps a reference to the shapes.
  Trainer(const Options& options, const examples::VoxelShapes& shapes);

  /// Runs the steps that are left.
  void train();

  /// One step of the optimizer, on as many batches as --accumulate says, each of which has its own
  /// range of time steps. Returns its loss.
  double step();

  void save(const std::string& path) { state().save(path); }
  void resume(const std::string& path) { state().resume(path, options_.steps, device_); }

  [[nodiscard]] const Networks& networks() const { return networks_; }
  [[nodiscard]] torch::optim::Optimizer& optimizer() { return optimizer_; }

  /// The loss of every step so far.
  [[nodiscard]] const std::vector<double>& losses() const { return losses_; }

 private:
  [[nodiscard]] examples::TrainingState state();
  void update_average(tidemark::StepResult result);

  Options options_;
  const examples::VoxelShapes& shapes_;
  torch::Device device_;
  NoiseSchedule schedule_;
  Networks networks_;
  torch::optim::Adam optimizer_;
  tidemark::AmpOptions amp_;
  tidemark::GradScaler scaler_;
  tidemark::GradAccumulator accumulator_;
  std::vector<double> losses_;
};

}  // namespace voxel_diffusion
