#include "voxel_gan/train.h"

#include <tidemark/memory/explain_out_of_memory.h>

#include <cmath>
#include <cstdio>
#include <sstream>
#include <stdexcept>

#include "common/progress.h"
#include "voxel_gan/loss.h"

namespace voxel_gan {

GanOptions gan_options(const Options& options) {
  GanOptions result;
  result.channels = options.channels;
  result.latent = options.latent;
  // a penalty on the gradient of each shape needs scores that don't depend on the others
  result.layer_norm = options.penalised();
  result.checkpointed = options.checkpointed();
  return result;
}

torch::optim::AdamOptions adam_options(double lr, const Options& options) {
  const auto betas = options.penalised() ? std::tuple(0.0, 0.9) : std::tuple(0.5, 0.999);
  return torch::optim::AdamOptions(lr).betas(betas);
}

torch::Tensor draw_shapes(const examples::VoxelShapes& shapes, const Options& options) {
  const torch::Tensor chosen = torch::randint(shapes.train.size(0), {options.batch}, torch::kInt64);
  return shapes.train.index_select(0, chosen).unsqueeze(1).to(torch::kFloat).to(options.device);
}

torch::Tensor with_noise(const torch::Tensor& voxels, const Options& options) {
  if (options.penalised()) {
    return voxels;
  }
  return voxels + options.noise * torch::randn(voxels.sizes()).to(voxels.device());
}

torch::Tensor draw_latent(int64_t batch, const Options& options) {
  return torch::randn({batch, options.latent}).to(options.device);
}

void LossHistory::save(torch::serialize::OutputArchive& archive) const {
  archive.write("values", torch::tensor(values, torch::kFloat64));
}

void LossHistory::load(torch::serialize::InputArchive& archive) {
  torch::Tensor tensor;
  archive.read("values", tensor);
  tensor = tensor.cpu();
  values.assign(tensor.data_ptr<double>(), tensor.data_ptr<double>() + tensor.numel());
}

Trainer::Trainer(const Options& options, const examples::VoxelShapes& shapes)
    : options_(options),
      shapes_(shapes),
      device_(options.device),
      gan_(gan_options(options)),
      generator_adam_(gan_->generator->parameters(), adam_options(options.lr, options)),
      discriminator_adam_(gan_->discriminator->parameters(),
                          adam_options(options.discriminator_lr, options)),
      amp_(examples::mixed_precision(examples::amp_dtype(options.amp))),
      scaler_(tidemark::GradScalerOptions().enabled(options.scales_losses())),
      generator_steps_(generator_adam_,
                       tidemark::GradAccumulatorOptions(options.accumulate).scaler(scaler_)),
      discriminator_steps_(discriminator_adam_,
                           tidemark::GradAccumulatorOptions(options.accumulate).scaler(scaler_)) {
  gan_->to(device_);
}

void Trainer::step() {
  step_discriminator();
  step_generator();
  gan_->update_average(options_.ema);
}

void Trainer::step_discriminator() {
  bool stepped = false;
  while (!stepped) {
    const torch::Tensor real = draw_shapes(shapes_, options_);
    torch::Tensor fake, loss;
    {
      const tidemark::AmpScope amp(device_, amp_);
      {
        const torch::NoGradGuard no_grad;
        fake = gan_->generate(draw_latent(options_.batch, options_));
      }
      loss = discriminator_loss(gan_->judge(with_noise(real, options_)),
                                gan_->judge(with_noise(fake, options_)), options_.penalised());
    }
    if (options_.penalised()) {
      loss = loss + options_.gradient_penalty * gradient_penalty(real, fake);
    }
    stepped = discriminator_steps_.backward(loss, static_cast<double>(options_.batch));
  }
  judged_.push_back(discriminator_steps_.window_loss());
}

torch::Tensor Trainer::gradient_penalty(const torch::Tensor& real, const torch::Tensor& fake) {
  const torch::Tensor between = shapes_between(real, fake);
  torch::Tensor scores;
  {
    const tidemark::AmpScope amp(device_, amp_);
    scores = gan_->judge(between);
  }
  // in half precision gradients would vanish unscaled; the penalty's own loss is scaled again
  const torch::Tensor scaled = torch::autograd::grad({scaler_.scale(scores.sum())}, {between}, {},
                                                     true, /*create_graph=*/true)[0];
  return distance_from_unit_norm(scaled / scaler_.get_scale());
}

void Trainer::step_generator() {
  // gradients pass through the discriminator, and none are for it
  set_learning(*gan_->discriminator, false);
  bool stepped = false;
  while (!stepped) {
    torch::Tensor loss;
    {
      const tidemark::AmpScope amp(device_, amp_);
      const torch::Tensor fake = gan_->generate(draw_latent(options_.batch, options_));
      loss = generator_loss(gan_->judge(with_noise(fake, options_)), options_.penalised());
    }
    stepped = generator_steps_.backward(loss, static_cast<double>(options_.batch));
  }
  set_learning(*gan_->discriminator, true);
  generated_.values.push_back(generator_steps_.window_loss());
}

void Trainer::train() {
  examples::Progress progress("  step", options_.steps);
  constexpr int kMostOverflows = 20;
  int overflows = 0;
  bool first = true;
  while (static_cast<int64_t>(judged_.size()) < options_.steps) {
    // all steps are alike, so if memory runs out it does in the first, which is recorded
    if (first) {
      tidemark::explain_out_of_memory(*gan_, [this] { step(); });
    } else {
      step();
    }
    first = false;
    // a penalty is made of scaled gradients: it overflows until the scale, 2^16, is low enough
    const bool finite = std::isfinite(judged_.back()) && std::isfinite(generated_.values.back());
    overflows = finite ? 0 : overflows + 1;
    if (overflows > (scaler_.is_enabled() ? kMostOverflows : 0)) {
      throw std::runtime_error("a loss is no longer finite at step " +
                               std::to_string(judged_.size()) + "; try a smaller --lr");
    }
    char note[64];
    std::snprintf(note, sizeof(note), "loss %.3f, generator's %.3f",
                  examples::mean_of_ten(judged_, judged_.size()),
                  examples::mean_of_ten(generated_.values, judged_.size()));
    progress.update(static_cast<int64_t>(judged_.size()), note);
  }
}

examples::TrainingState Trainer::state() {
  std::ostringstream settings;
  settings << "classes " << options_.classes << ", variants " << options_.variants << ", shapes "
           << shapes_.train.size(0) << ", batch " << options_.batch << ", accumulate "
           << options_.accumulate << ", lr " << options_.lr << ", discriminator lr "
           << options_.discriminator_lr << ", noise " << options_.noise << ", gradient penalty "
           << options_.gradient_penalty << ", ema " << options_.ema << ", channels "
           << options_.channels << ", latent " << options_.latent << ", seed " << options_.seed
           << ", amp " << options_.amp;
  return examples::TrainingState(settings.str(), judged_)
      .add("gan", *gan_)
      .add("generator_adam", generator_adam_)
      .add("discriminator_adam", discriminator_adam_)
      .add("scaler", scaler_)
      .add("generator_losses", generated_);
}

}  // namespace voxel_gan
