#pragma once

// The training loop, and its state on disk.

#include <tidemark/amp_scope.h>
#include <tidemark/grad_accumulator.h>
#include <tidemark/grad_scaler.h>
#include <torch/torch.h>

#include <cstdint>
#include <string>
#include <vector>

#include "common/training_state.h"
#include "common/volume_dataset.h"
#include "voxel_net/network.h"
#include "voxel_net/options.h"

namespace voxel_net {

/// Cross-entropy plus one minus the mean of the soft Dice scores of all classes, which keeps rare
/// classes from being ignored. Voxels of examples::kNoClass don't count.
/// Dice loss: Milletari, Navab, Ahmadi, V-Net, 2016.
torch::Tensor segmentation_loss(const torch::Tensor& scores, const torch::Tensor& labels);

/// The cut of the blocks that --segments and --every ask for.
tidemark::CheckpointedSequentialOptions checkpointing(const Options& options);

/// Trains a VoxelNet on patches of a dataset with Adam.
class Trainer {
 public:
  /// Keeps a reference to the data. Throws examples::UsageError if patches don't fit in it.
  Trainer(const Options& options, const examples::Dataset& data);

  /// Runs the steps that are left.
  void train();

  /// Model, optimizer, loss scale, random numbers and step: a run that resumes from it goes on as
  /// if it had never stopped.
  void save(const std::string& path);
  void resume(const std::string& path);

  [[nodiscard]] VoxelNet& net() { return net_; }
  [[nodiscard]] examples::PatchSampler& sampler() { return sampler_; }
  [[nodiscard]] torch::optim::Optimizer& optimizer() { return optimizer_; }

  /// The loss of every step so far.
  [[nodiscard]] const std::vector<double>& losses() const { return losses_; }

 private:
  double step();
  [[nodiscard]] examples::TrainingState state();

  Options options_;
  int64_t classes_;
  torch::Device device_;
  examples::PatchSampler sampler_;
  VoxelNet net_;
  torch::optim::Adam optimizer_;
  tidemark::AmpOptions amp_;
  tidemark::GradScaler scaler_;
  tidemark::GradAccumulator accumulator_;
  std::vector<double> losses_;
};

}  // namespace voxel_net
