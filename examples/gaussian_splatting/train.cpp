#include "gaussian_splatting/train.h"

#include <tidemark/memory/empty_cache.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <sstream>
#include <stdexcept>

#include "common/progress.h"
#include "gaussian_splatting/densify.h"

namespace gaussian_splatting {

torch::Tensor picture_loss(const Gaussians& gaussians, const std::vector<View>& views,
                           const SplatOptions& options, std::vector<Splat>& splats) {
  std::vector<torch::Tensor> losses;
  for (const View& view : views) {
    splats.push_back(splat(gaussians, view.camera, options));
    losses.push_back(torch::l1_loss(splats.back().image.to(torch::kFloat), view.image));
  }
  return torch::stack(losses).mean();
}

double learning_rate_factor(double highest, int64_t step) {
  return highest / (1 + static_cast<double>(step) / 200);
}

Trainer::Trainer(const Options& options, const Scene& scene)
    : options_(options),
      scene_(scene),
      device_(options.device),
      model_(initial_gaussians(scene.training, options.gaussians, scene.radius), device_),
      amp_(examples::mixed_precision(examples::amp_dtype(options.amp))),
      scaler_(tidemark::GradScalerOptions().enabled(options.scales_losses())),
      accumulator_(model_.optimizers(),
                   tidemark::GradAccumulatorOptions(options.accumulate).scaler(scaler_)) {}

double Trainer::step() {
  const auto done = static_cast<int64_t>(losses_.size());
  model_.set_learning_rates(learning_rate_factor(options_.lr, done));
  const int64_t views_per_step = options_.batch * options_.accumulate;
  const std::vector<View> views = draw_views(scene_.training, views_per_step, device_);
  for (int64_t first = 0; first < views_per_step; first += options_.batch) {
    const std::vector<View> batch(views.begin() + first, views.begin() + first + options_.batch);
    std::vector<Splat> splats;
    torch::Tensor loss;
    {
      const tidemark::AmpScope amp(device_, amp_);
      loss = picture_loss(model_.gaussians(), batch, options_.splat(), splats);
    }
    // before backward(), which updates the scale at the end of a step
    const double of_one_view = static_cast<double>(views_per_step) / scaler_.get_scale();
    accumulator_.backward(loss, static_cast<double>(options_.batch));
    for (const Splat& splat : splats) {
      model_.note(splat.centres.grad() * of_one_view, splat.visible);
    }
  }

  losses_.push_back(accumulator_.window_loss());
  if (!std::isfinite(losses_.back())) {
    throw std::runtime_error("the loss is no longer finite at step " +
                             std::to_string(losses_.size()) + "; try a smaller --lr");
  }
  if ((done + 1) % options_.densify_every == 0 && done < options_.densify_until) {
    const double half_edge =
        static_cast<double>(std::max(scene_.training.width(), scene_.training.height())) / 2;
    densify(model_, half_edge, options_.densify);
    if (model_.gaussians().count() == 0) {
      throw std::runtime_error("all Gaussians were removed at step " +
                               std::to_string(losses_.size()) + "; try a smaller --lr");
    }
    // no tensor will have the sizes of those before again
    tidemark::empty_cache(device_);
  }
  return losses_.back();
}

void Trainer::train() {
  examples::Progress progress("  step", options_.steps);
  while (static_cast<int64_t>(losses_.size()) < options_.steps) {
    step();
    char note[64];
    std::snprintf(note, sizeof(note), "loss %.4f, %lld Gaussians",
                  examples::mean_of_ten(losses_, losses_.size()),
                  static_cast<long long>(model_.gaussians().count()));
    progress.update(static_cast<int64_t>(losses_.size()), note);
  }
}

examples::TrainingState Trainer::state() {
  std::ostringstream settings;
  settings << "gaussians " << options_.gaussians << " to " << options_.densify.most << ", tile "
           << options_.tile << ", densify every " << options_.densify_every << " until "
           << options_.densify_until << " above " << options_.densify.gradient << ", batch "
           << options_.batch << ", accumulate " << options_.accumulate << ", lr " << options_.lr
           << ", views " << scene_.training.count() << " of " << scene_.training.width() << " x "
           << scene_.training.height() << ", seed " << options_.seed << ", amp " << options_.amp;
  return examples::TrainingState(settings.str(), losses_)
      .add("model", model_)
      .add("scaler", scaler_);
}

}  // namespace gaussian_splatting
