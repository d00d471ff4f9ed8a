#include "voxel_diffusion/train.h"

#include <tidemark/memory/explain_out_of_memory.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <sstream>
#include <stdexcept>

#include "common/ema.h"
#include "common/progress.h"
#include "voxel_diffusion/shape_code.h"

namespace voxel_diffusion {

double learning_rate(double highest, int64_t step) {
  const auto t = static_cast<double>(step);
  return highest * std::min(1.0, (t + 1) / 20) / (1 + t / 500);
}

std::vector<NoisyShapes> NoisyShapes::split(int64_t parts) const {
  const auto noisies = noisy.chunk(parts);
  const auto all_times = times.chunk(parts);
  const auto cleans = clean.chunk(parts);
  const auto evidences = evidence.chunk(parts);
  const auto all_weights = weights.chunk(parts);
  std::vector<NoisyShapes> result;
  for (size_t i = 0; i < noisies.size(); ++i) {
    result.push_back({noisies[i], all_times[i], cleans[i], evidences[i], all_weights[i]});
  }
  return result;
}

NoisyShapes draw_shapes(const examples::VoxelShapes& shapes, const torch::Tensor& times,
                        const NoiseSchedule& schedule, const Options& options) {
  const int64_t count = times.size(0);
  const torch::Tensor chosen = torch::randint(shapes.train.size(0), {count}, torch::kInt64);
  const torch::Tensor mirrored = torch::rand({count, 1, 1, 1}) < 0.5;
  torch::Tensor voxels = shapes.train.index_select(0, chosen);
  voxels = torch::where(mirrored, voxels.flip(1), voxels);
  const torch::Tensor clean = options.triplane ? voxels_to_planes(voxels) : voxels_to_code(voxels);
  const torch::Tensor noise = torch::randn(clean.sizes());
  const torch::Tensor noisy = schedule.add_noise(clean, noise, times);
  return {noisy.to(options.device), times, clean.to(options.device),
          schedule.evidence(noisy, times).to(options.device),
          schedule.weights(times).to(options.device)};
}

torch::Tensor to_clean(const torch::Tensor& predicted, const torch::Tensor& evidence) {
  return torch::tanh((predicted + evidence) / 2);
}

torch::Tensor denoising_loss(const torch::Tensor& predicted, const NoisyShapes& shapes) {
  const torch::Tensor errors = torch::binary_cross_entropy_with_logits(
      predicted + shapes.evidence, (shapes.clean + 1) / 2, {}, {}, at::Reduction::None);
  return (errors.flatten(1).mean(1) * shapes.weights).mean();
}

Networks::Networks(const Options& options, Regions regions)
    : net(make_denoiser(options.network(), regions)),
      average(make_denoiser(options.network(), Regions::kNone)) {
  net->to(torch::Device(options.device));
  average->to(torch::Device(options.device));
  average->eval();
  for (torch::Tensor& parameter : average->parameters()) {
    parameter.set_requires_grad(false);
  }
  examples::move_average(*net, *average, 0);
}

torch::Tensor sample_shapes(Denoiser& net, int64_t count, const Options& options,
                            const std::function<void(const torch::Tensor& clean)>& seen) {
  constexpr int64_t kPart = 32;
  const NoiseSchedule schedule = options.schedule();
  const NetworkOptions network = options.network();
  const torch::Device device(options.device);
  std::vector<torch::Tensor> parts;
  for (int64_t done = 0; done < count; done += kPart) {
    const torch::Tensor noise = torch::randn({std::min(kPart, count - done), network.in_channels,
                                              network.planar ? 1 : kSize, kSize, kSize});
    const torch::Tensor code = sample_ddim(
        schedule,
        [&](const torch::Tensor& x, const torch::Tensor& t) {
          return to_clean(net.forward(x, t), schedule.evidence(x, t));
        },
        noise.to(device), options.ddim_steps, seen);
    parts.push_back((options.triplane ? planes_to_voxels(code) : code_to_voxels(code)).cpu());
  }
  return torch::cat(parts);
}

Trainer::Trainer(const Options& options, const examples::VoxelShapes& shapes)
    : options_(options),
      shapes_(shapes),
      device_(options.device),
      schedule_(options.schedule()),
      networks_(options, options.checkpointed() ? Regions::kAll : Regions::kNone),
      optimizer_(networks_.net->parameters(), torch::optim::AdamOptions(options.lr)),
      amp_(examples::mixed_precision(examples::amp_dtype(options.amp))),
      scaler_(tidemark::GradScalerOptions().enabled(options.scales_losses())),
      accumulator_(optimizer_, tidemark::GradAccumulatorOptions(options.accumulate)
                                   .scaler(scaler_)
                                   .clip_grad_norm(kClipNorm)
                                   .after_step([this](tidemark::StepResult result) {
                                     update_average(result);
                                   })) {}

void Trainer::update_average(tidemark::StepResult result) {
  if (result == tidemark::StepResult::kStepped) {
    examples::move_average(
        *networks_.net, *networks_.average,
        examples::share_to_keep(options_.ema, static_cast<int64_t>(losses_.size())));
  }
}

double Trainer::step() {
  for (auto& group : optimizer_.param_groups()) {
    group.options().set_lr(learning_rate(options_.lr, static_cast<int64_t>(losses_.size())));
  }
  const torch::Tensor all_times = draw_times(options_.batch * options_.accumulate, schedule_);
  for (const torch::Tensor& times : all_times.split(options_.batch)) {
    // noise is drawn outside of the regions; dropout inside of them, and again when they are re-run
    const NoisyShapes batch = draw_shapes(shapes_, times, schedule_, options_);
    torch::Tensor loss;
    {
      const tidemark::AmpScope amp(device_, amp_);
      loss = denoising_loss(networks_.net->forward(batch.noisy, batch.times), batch);
    }
    accumulator_.backward(loss, static_cast<double>(times.size(0)));
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
        first ? tidemark::explain_out_of_memory(*networks_.net, [this] { return step(); }) : step();
    first = false;
    if (!std::isfinite(loss)) {
      throw std::runtime_error("the loss is no longer finite at step " +
                               std::to_string(losses_.size()) + "; try a smaller --lr");
    }
    char note[32];
    std::snprintf(note, sizeof(note), "loss %.4f", examples::mean_of_ten(losses_, losses_.size()));
    progress.update(static_cast<int64_t>(losses_.size()), note);
  }
}

examples::TrainingState Trainer::state() {
  const NetworkOptions network = options_.network();
  std::ostringstream settings;
  settings << "classes " << options_.classes << ", variants " << options_.variants << ", shapes "
           << shapes_.train.size(0) << ", " << (options_.triplane ? "planes" : "voxels")
           << ", batch " << options_.batch << ", accumulate " << options_.accumulate << ", lr "
           << options_.lr << ", ema " << options_.ema << ", noise levels " << options_.noise_levels
           << ", shift " << options_.shift << ", fold " << network.fold << ", channels "
           << network.channels << ", dropout " << network.dropout << ", seed " << options_.seed
           << ", amp " << options_.amp;
  return examples::TrainingState(settings.str(), losses_)
      .add("model", *networks_.net)
      .add("average", *networks_.average)
      .add("optimizer", optimizer_)
      .add("scaler", scaler_);
}

}  // namespace voxel_diffusion
