#pragma once

// The training loop, and its state on disk.

#include <tidemark/amp_scope.h>
#include <tidemark/grad_accumulator.h>
#include <tidemark/grad_scaler.h>
#include <torch/torch.h>

#include <string>
#include <vector>

#include "common/training_state.h"
#include "nerf/options.h"
#include "nerf/render.h"
#include "nerf/scene.h"

namespace nerf {

/// The mean squared error of both fields' colours.
torch::Tensor colour_loss(const std::pair<torch::Tensor, torch::Tensor>& rendered,
                          const torch::Tensor& colours);

/// Ten steps of warm-up, then a slow decline. It doesn't depend on --steps, so that a run which is
/// resumed with a higher number goes on as one that had it from the start.
double learning_rate(double highest, int64_t step);

/// Adam's; gradients of what is nearly transparent are smaller than its default.
inline constexpr double kEpsilon = 1e-12;

/// Trains a Nerf on rays of a scene with Adam.
class Trainer {
 public:
  /// Keeps a reference to the scene.
  Trainer(const Options& options, const Scene& scene);

  /// Runs the steps that are left.
  void train();

  /// One optimizer step; returns its loss. Throws std::runtime_error if that isn't finite.
  double step();

  /// Model, optimizer, loss scale, random numbers and losses.
  [[nodiscard]] examples::TrainingState state();

  [[nodiscard]] Nerf& net() { return net_; }
  [[nodiscard]] torch::optim::Optimizer& optimizer() { return optimizer_; }

  /// The loss of every step so far.
  [[nodiscard]] const std::vector<double>& losses() const { return losses_; }

 private:
  Options options_;
  const Scene& scene_;
  torch::Device device_;
  RaySampler sampler_;
  Nerf net_;
  torch::optim::Adam optimizer_;
  tidemark::AmpOptions amp_;
  tidemark::GradScaler scaler_;
  tidemark::GradAccumulator accumulator_;
  std::vector<double> losses_;
};

}  // namespace nerf
