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
#include "pointnet2/clouds.h"
#include "pointnet2/network.h"
#include "pointnet2/options.h"

namespace pointnet2 {

/// The norm that gradients are clipped to.
inline constexpr double kClipNorm = 5;

/// Cross-entropy with a tenth of the weight on all classes alike, the mean over clouds or points:
/// scores [..., classes], labels [...].
torch::Tensor classification_loss(const torch::Tensor& scores, const torch::Tensor& labels);

/// The learning rate of a step: ten steps of warm-up, then half of it after each half-life. It
/// doesn't depend on --steps, so that a run which is resumed with a higher number goes on as one
/// that had it from the start.
double learning_rate(const Options& options, int64_t step);

/// How Adam is set up.
torch::optim::AdamOptions adam_options(const Options& options);

/// The number of classes that a network has scores for.
int64_t classes_to_learn(const Dataset& data, const Options& options);

/// Trains a PointNet++ on clouds of a dataset with Adam.
class Trainer {
 public:
  /// Keeps a reference to the data.
  Trainer(const Options& options, const Dataset& data);

  /// Runs the steps that are left.
  void train();

  /// One step of the optimizer, on as many batches as --accumulate says. Returns its loss.
  double step();

  void save(const std::string& path) { state().save(path); }
  void resume(const std::string& path) { state().resume(path, options_.steps, device_); }

  [[nodiscard]] const std::shared_ptr<PointNet2>& net() const { return net_; }
  [[nodiscard]] torch::optim::Optimizer& optimizer() { return optimizer_; }

  /// The loss of every step so far.
  [[nodiscard]] const std::vector<double>& losses() const { return losses_; }

 private:
  [[nodiscard]] examples::TrainingState state();

  Options options_;
  const Dataset& data_;
  torch::Device device_;
  std::shared_ptr<PointNet2> net_;
  torch::optim::Adam optimizer_;
  tidemark::AmpOptions amp_;
  tidemark::GradScaler scaler_;
  tidemark::GradAccumulator accumulator_;
  std::vector<double> losses_;
};

}  // namespace pointnet2
