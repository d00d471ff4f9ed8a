#include "nerf/train.h"

#include <tidemark/checkpoint.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <sstream>
#include <stdexcept>

#include "common/progress.h"

namespace nerf {

torch::Tensor colour_loss(const std::pair<torch::Tensor, torch::Tensor>& rendered,
                          const torch::Tensor& colours) {
  return torch::mse_loss(rendered.first, colours) + torch::mse_loss(rendered.second, colours);
}

double learning_rate(double highest, int64_t step) {
  const auto t = static_cast<double>(step);
  return highest * std::min(1.0, (t + 1) / 10) / (1 + t / 200);
}

Trainer::Trainer(const Options& options, const Scene& scene)
    : options_(options),
      scene_(scene),
      device_(options.device),
      sampler_(scene, options.rays),
      net_(options.network()),
      optimizer_(net_->parameters(), torch::optim::AdamOptions(options.lr).eps(kEpsilon)),
      amp_(examples::mixed_precision(examples::amp_dtype(options.amp)).cache(false)),
      scaler_(tidemark::GradScalerOptions().enabled(options.scales_losses())),
      accumulator_(optimizer_,
                   tidemark::GradAccumulatorOptions(options.accumulate).scaler(scaler_)) {
  net_->to(device_);
}

void Trainer::train() {
  examples::Progress progress("  step", options_.steps);
  while (static_cast<int64_t>(losses_.size()) < options_.steps) {
    losses_.push_back(step());
    char note[32];
    std::snprintf(note, sizeof(note), "loss %.4f", examples::mean_of_ten(losses_, losses_.size()));
    progress.update(static_cast<int64_t>(losses_.size()), note);
  }
}

double Trainer::step() {
  for (auto& group : optimizer_.param_groups()) {
    group.options().set_lr(learning_rate(options_.lr, static_cast<int64_t>(losses_.size())));
  }
  bool stepped = false;
  while (!stepped) {
    const Batch batch = sampler_.next();
    const torch::Tensor rays = batch.rays.to(device_);
    torch::Tensor loss;
    {
      const tidemark::AmpScope amp(device_, amp_);
      const auto rendered =
          options_.chunk > 0 ? tidemark::checkpoint_chunks(options_.chunk, net_, rays) : net_(rays);
      loss = colour_loss(rendered, batch.colours.to(device_));
    }
    stepped = accumulator_.backward(loss, static_cast<double>(rays.size(0)));
  }

  const double value = accumulator_.window_loss();
  if (!std::isfinite(value)) {
    throw std::runtime_error("the loss is no longer finite at step " +
                             std::to_string(losses_.size() + 1) + "; try a smaller --lr");
  }
  return value;
}

examples::TrainingState Trainer::state() {
  const examples::Views& views = scene_.training;
  std::ostringstream settings;
  settings << "views " << views.count() << " of " << views.width() << " x " << views.height()
           << ", width " << options_.width << ", samples " << options_.coarse << " + "
           << options_.fine << ", frequencies " << options_.frequencies << ", rays "
           << options_.rays << ", chunk " << options_.chunk << ", accumulate "
           << options_.accumulate << ", lr " << options_.lr << ", seed " << options_.seed
           << ", amp " << options_.amp;
  return examples::TrainingState(settings.str(), losses_)
      .add("model", *net_)
      .add("optimizer", optimizer_)
      .add("scaler", scaler_);
}

}  // namespace nerf
