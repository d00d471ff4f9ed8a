#pragma once

// The training loop.

#include <tidemark/amp_scope.h>
#include <tidemark/grad_accumulator.h>
#include <tidemark/grad_scaler.h>
#include <torch/torch.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "common/training_state.h"
#include "common/volume_dataset.h"
#include "unet3d/network.h"
#include "unet3d/options.h"

namespace unet3d {

/// The norm that gradients are clipped to.
inline constexpr double kClipNorm = 12;

/// The learning rate of a step: ten steps of warm-up, then a slow decline. It doesn't depend on
/// --steps, so that a run which is resumed with a higher number goes on as one that had it from the
/// start.
double learning_rate(double highest, int64_t step);

/// Trains a UNet3d on patches of a dataset with Adam.
class Trainer {
 public:
  /// Keeps a reference to the data. Throws examples::UsageError if patches don't fit in it.
  Trainer(const Options& options, const examples::Dataset& data);

  /// Runs the steps that are left.
  void train();

  /// One step of the optimizer, on as many batches as --accumulate says. Returns its loss.
  double step();

  void save(const std::string& path) { state().save(path); }
  void resume(const std::string& path) { state().resume(path, options_.steps, device_); }

  [[nodiscard]] const std::shared_ptr<UNet3d>& net() const { return net_; }
  [[nodiscard]] torch::optim::Optimizer& optimizer() { return optimizer_; }

  /// The loss of every step so far.
  [[nodiscard]] const std::vector<double>& losses() const { return losses_; }

 private:
  [[nodiscard]] examples::TrainingState state();

  Options options_;
  int64_t classes_;
  torch::Device device_;
  examples::PatchSampler sampler_;
  std::shared_ptr<UNet3d> net_;
  torch::optim::Adam optimizer_;
  tidemark::AmpOptions amp_;
  tidemark::GradScaler scaler_;
  tidemark::GradAccumulator accumulator_;
  std::vector<double> losses_;
};

}  // namespace unet3d
