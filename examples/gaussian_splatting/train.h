#pragma once

// The training loop.

#include <tidemark/amp_scope.h>
#include <tidemark/grad_accumulator.h>
#include <tidemark/grad_scaler.h>
#include <torch/torch.h>

#include <cstdint>
#include <string>
#include <vector>

#include "common/training_state.h"
#include "gaussian_splatting/model.h"
#include "gaussian_splatting/options.h"
#include "gaussian_splatting/scene.h"

namespace gaussian_splatting {

/// The mean absolute difference from the truth, over the pixels of all views. The splats are added
/// to `splats`, for the gradients of their centres.
torch::Tensor picture_loss(const Gaussians& gaussians, const std::vector<View>& views,
                           const SplatOptions& options, std::vector<Splat>& splats);

/// The factor on the learning rates: a slow decline. It doesn't depend on --steps, so that a run
/// which is resumed with a higher number goes on as one that had it from the start.
double learning_rate_factor(double highest, int64_t step);

/// Trains Gaussians on views of a scene with an Adam for each attribute.
class Trainer {
 public:
  /// Keeps a reference to the scene.
  Trainer(const Options& options, const Scene& scene);

  /// Runs the steps that are left.
  void train();

  /// One step of the optimizers, on as many batches of views as --accumulate says; and when it is
  /// time a densification. Returns its loss. Throws std::runtime_error if that isn't finite, or if
  /// no Gaussian is left.
  double step();

  void save(const std::string& path) { state().save(path); }
  void resume(const std::string& path) { state().resume(path, options_.steps, device_); }

  [[nodiscard]] Model& model() { return model_; }

  /// The loss of every step so far.
  [[nodiscard]] const std::vector<double>& losses() const { return losses_; }

 private:
  [[nodiscard]] examples::TrainingState state();

  Options options_;
  const Scene& scene_;
  torch::Device device_;
  Model model_;
  tidemark::AmpOptions amp_;
  tidemark::GradScaler scaler_;
  tidemark::GradAccumulator accumulator_;
  std::vector<double> losses_;
};

}  // namespace gaussian_splatting
