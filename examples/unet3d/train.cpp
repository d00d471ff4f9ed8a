#include "unet3d/train.h"

#include <tidemark/memory/explain_out_of_memory.h>
#include <tidemark/numerics_watch.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <optional>
#include <sstream>
#include <stdexcept>

#include "common/progress.h"
#include "unet3d/loss.h"

namespace unet3d {

double learning_rate(double highest, int64_t step) {
  const auto t = static_cast<double>(step);
  return highest * std::min(1.0, (t + 1) / 10) / (1 + t / 120);
}

Trainer::Trainer(const Options& options, const examples::Dataset& data)
    : options_(options),
      classes_(data.classes()),
      device_(options.device),
      sampler_(data, options.patch, options.batch),
      net_(make_unet3d(options.channels, options.levels, classes_, options.checkpointed())),
      optimizer_(net_->parameters(), torch::optim::AdamOptions(options.lr)),
      amp_(examples::mixed_precision(examples::amp_dtype(options.amp))),
      scaler_(tidemark::GradScalerOptions().enabled(options.scales_losses())),
      accumulator_(optimizer_, tidemark::GradAccumulatorOptions(options.accumulate)
                                   .scaler(scaler_)
                                   .clip_grad_norm(kClipNorm)) {
  net_->to(device_);
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
      const std::vector<torch::Tensor> scores = net_->forward(batch.scan.to(device_));
      loss = deep_supervision_loss(scores, batch.labels.to(device_));
    }
    stepped = accumulator_.backward(loss, static_cast<double>(batch.scan.size(0)));
  }
  losses_.push_back(accumulator_.window_loss());
  return losses_.back();
}

void Trainer::train() {
  examples::Progress progress("  step", options_.steps);
  bool first = true;
  while (static_cast<int64_t>(losses_.size()) < options_.steps) {
    std::optional<tidemark::NumericsWatch> watch;
    if (options_.watch) {
      watch.emplace(*net_);
    }
    // all steps are alike, so if memory runs out it does in the first, which is recorded
    const double loss =
        first ? tidemark::explain_out_of_memory(*net_, [this] { return step(); }) : step();
    first = false;
    // gradients that overflow are nothing unusual to a GradScaler
    if (watch.has_value() && (!std::isfinite(loss) || !scaler_.is_enabled())) {
      watch->expect_finite();
    }
    if (!std::isfinite(loss)) {
      throw std::runtime_error("the loss is no longer finite at step " +
                               std::to_string(losses_.size()) +
                               "; try a smaller --lr, or --watch to see where it begins");
    }
    char note[32];
    std::snprintf(note, sizeof(note), "loss %.3f", examples::mean_of_ten(losses_, losses_.size()));
    progress.update(static_cast<int64_t>(losses_.size()), note);
  }
}

examples::TrainingState Trainer::state() {
  std::ostringstream settings;
  settings << "channels " << options_.channels << ", levels " << options_.levels << ", classes "
           << classes_ << ", patch " << options_.patch << ", batch " << options_.batch
           << ", accumulate " << options_.accumulate << ", lr " << options_.lr << ", seed "
           << options_.seed << ", amp " << options_.amp;
  return examples::TrainingState(settings.str(), losses_)
      .add("model", *net_)
      .add("optimizer", optimizer_)
      .add("scaler", scaler_);
}

}  // namespace unet3d
