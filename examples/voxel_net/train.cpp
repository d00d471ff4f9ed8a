#include "voxel_net/train.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <sstream>
#include <stdexcept>

#include "common/progress.h"
#include "common/training_options.h"

namespace voxel_net {

using examples::kNoClass;

namespace {

// Ten steps of warm-up, then a slow decline. It doesn't depend on --steps, so that a run which is
// resumed with a higher number goes on as one that had it from the start.
double learning_rate(double highest, int64_t step) {
  const auto t = static_cast<double>(step);
  return highest * std::min(1.0, (t + 1) / 10) / (1 + t / 60);
}

}  // namespace

torch::Tensor segmentation_loss(const torch::Tensor& half_scores, const torch::Tensor& labels) {
  namespace F = torch::nn::functional;
  // in half precision the sums over all voxels would be
  const torch::Tensor scores = half_scores.to(torch::kFloat);
  const torch::Tensor counts = labels.ne(kNoClass);
  const torch::Tensor cross_entropy =
      F::cross_entropy(scores, labels,
                       F::CrossEntropyFuncOptions().ignore_index(kNoClass).reduction(torch::kSum)) /
      counts.sum().clamp_min(1);

  const torch::Tensor mask = counts.unsqueeze(1);
  const torch::Tensor truth =
      torch::one_hot(labels.masked_fill(~counts, 0), scores.size(1)).movedim(-1, 1) * mask;
  const torch::Tensor guess = scores.softmax(1) * mask;
  const std::vector<int64_t> voxels{0, 2, 3, 4};
  const torch::Tensor dice =
      (2 * (guess * truth).sum(voxels) + 1) / ((guess + truth).sum(voxels) + 1);
  return cross_entropy + 1 - dice.mean();
}

tidemark::CheckpointedSequentialOptions checkpointing(const Options& options) {
  return tidemark::CheckpointedSequentialOptions().segments(options.segments).every(options.every);
}

Trainer::Trainer(const Options& options, const examples::Dataset& data)
    : options_(options),
      classes_(data.classes()),
      device_(options.device),
      sampler_(data, options.patch, options.batch),
      net_(options.channels, options.blocks, data.classes(), checkpointing(options)),
      optimizer_(net_->parameters(), torch::optim::AdamOptions(options.lr)),
      amp_(examples::mixed_precision(options.amp_dtype())),
      scaler_(tidemark::GradScalerOptions().enabled(options.amp == "fp16")),
      accumulator_(optimizer_,
                   tidemark::GradAccumulatorOptions(options.accumulate).scaler(scaler_)) {
  net_->to(device_);
}

void Trainer::train() {
  examples::Progress progress("  step", options_.steps);
  while (static_cast<int64_t>(losses_.size()) < options_.steps) {
    losses_.push_back(step());
    char note[32];
    std::snprintf(note, sizeof(note), "loss %.3f", examples::mean_of_ten(losses_, losses_.size()));
    progress.update(static_cast<int64_t>(losses_.size()), note);
  }
}

double Trainer::step() {
  for (auto& group : optimizer_.param_groups()) {
    group.options().set_lr(learning_rate(options_.lr, static_cast<int64_t>(losses_.size())));
  }
  bool stepped = false;
  while (!stepped) {
    const examples::Batch batch = sampler_.next();
    torch::Tensor loss;
    {
      const tidemark::AmpScope amp(device_, amp_);
      const torch::Tensor scores = net_(batch.scan.to(device_));
      loss = segmentation_loss(scores, batch.labels.to(device_));
    }
    stepped = accumulator_.backward(loss, static_cast<double>(batch.scan.size(0)));
  }

  const double value = accumulator_.window_loss();
  if (!std::isfinite(value)) {
    throw std::runtime_error("the loss is no longer finite at step " +
                             std::to_string(losses_.size() + 1) + "; try a smaller --lr");
  }
  return value;
}

examples::TrainingState Trainer::state() {
  std::ostringstream settings;
  settings << "channels " << options_.channels << ", blocks " << options_.blocks << ", classes "
           << classes_ << ", patch " << options_.patch << ", batch " << options_.batch
           << ", accumulate " << options_.accumulate << ", lr " << options_.lr << ", seed "
           << options_.seed << ", amp " << options_.amp;
  return examples::TrainingState(settings.str(), losses_)
      .add("model", *net_)
      .add("optimizer", optimizer_)
      .add("scaler", scaler_);
}

void Trainer::save(const std::string& path) { state().save(path); }

void Trainer::resume(const std::string& path) { state().resume(path, options_.steps, device_); }

}  // namespace voxel_net
