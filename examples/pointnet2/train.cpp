#include "pointnet2/train.h"

#include <tidemark/memory/explain_out_of_memory.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <sstream>
#include <stdexcept>

#include "common/progress.h"

namespace pointnet2 {

torch::Tensor classification_loss(const torch::Tensor& scores, const torch::Tensor& labels) {
  return torch::nn::functional::cross_entropy(
      scores.flatten(0, -2), labels.flatten(),
      torch::nn::functional::CrossEntropyFuncOptions().label_smoothing(0.1));
}

double learning_rate(const Options& options, int64_t step) {
  const auto t = static_cast<double>(step);
  return options.lr * std::min(1.0, (t + 1) / 10) *
         std::exp2(-t / static_cast<double>(options.half_life));
}

torch::optim::AdamOptions adam_options(const Options& options) {
  return torch::optim::AdamOptions(options.lr).weight_decay(1e-4);
}

int64_t classes_to_learn(const Dataset& data, const Options& options) {
  return data.object_classes() + (options.segments() ? 1 : 0);
}

Trainer::Trainer(const Options& options, const Dataset& data)
    : options_(options),
      data_(data),
      device_(options.device),
      net_(
          make_pointnet2(options.network(classes_to_learn(data, options)), options.checkpointed())),
      optimizer_(net_->parameters(), adam_options(options)),
      amp_(examples::mixed_precision(examples::amp_dtype(options.amp))),
      scaler_(tidemark::GradScalerOptions().enabled(options.scales_losses())),
      accumulator_(optimizer_, tidemark::GradAccumulatorOptions(options.accumulate)
                                   .scaler(scaler_)
                                   .clip_grad_norm(kClipNorm)) {
  net_->to(device_);
}

double Trainer::step() {
  for (auto& group : optimizer_.param_groups()) {
    group.options().set_lr(learning_rate(options_, static_cast<int64_t>(losses_.size())));
  }
  bool stepped = false;
  while (!stepped) {
    const Clouds clouds = draw_training_clouds(data_, options_).to(device_);
    torch::Tensor loss;
    {
      const tidemark::AmpScope amp(device_, amp_);
      loss = classification_loss(net_->forward(clouds.xyz), clouds.labels);
    }
    stepped = accumulator_.backward(loss, static_cast<double>(clouds.xyz.size(0)));
  }
  losses_.push_back(accumulator_.window_loss());
  return losses_.back();
}

void Trainer::train() {
  examples::Progress progress("  step", options_.steps);
  bool first = true;
  while (static_cast<int64_t>(losses_.size()) < options_.steps) {
    // all steps are alike, so if memory runs out it does in the first, which is recorded
    const double loss =
        first ? tidemark::explain_out_of_memory(*net_, [this] { return step(); }) : step();
    first = false;
    if (!std::isfinite(loss)) {
      throw std::runtime_error("the loss is no longer finite at step " +
                               std::to_string(losses_.size()) + "; try a smaller --lr");
    }
    char note[32];
    std::snprintf(note, sizeof(note), "loss %.3f", examples::mean_of_ten(losses_, losses_.size()));
    progress.update(static_cast<int64_t>(losses_.size()), note);
  }
}

examples::TrainingState Trainer::state() {
  std::ostringstream settings;
  settings << "task " << options_.task << ", classes " << options_.classes << ", objects "
           << data_.train.count() << ", batch " << options_.batch << ", accumulate "
           << options_.accumulate << ", points " << options_.points << ", turn " << options_.turn
           << ", lr " << options_.lr << ", half-life " << options_.half_life << ", channels "
           << options_.channels << ", neighbours " << options_.neighbours << ", radius "
           << options_.radius << ", seed " << options_.seed << ", amp " << options_.amp;
  return examples::TrainingState(settings.str(), losses_)
      .add("model", *net_)
      .add("optimizer", optimizer_)
      .add("scaler", scaler_);
}

}  // namespace pointnet2
