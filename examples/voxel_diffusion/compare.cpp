#include "voxel_diffusion/compare.h"

#include <tidemark/amp_scope.h>
#include <tidemark/grad_accumulator.h>
#include <torch/torch.h>

#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/ema.h"
#include "common/memory_reports.h"
#include "common/technique_table.h"
#include "voxel_diffusion/train.h"

namespace voxel_diffusion {

using examples::VoxelShapes;

// Of an attention block on C channels at N places the graph keeps, for each shape and beside its
// input: what the norm returns, C N, for the linear layer; query, key and value, 3 C N, and the
// scaled query, C N, for the products; the softmax, N^2, for its own backward and the second
// product; what that returns, C N, for the last layer.
//
// Of a residual block from I to O channels: what the first norm returns, I N, for SiLU; what that
// returns, I N, for the first convolution; what this returns, O N, for the second norm; what that
// returns, O N, to be scaled; the result, O N, for SiLU; what goes into the second convolution,
// O N; and where values are dropped the mask, O N.
//
// A region keeps its inputs only, which the first norm of a plain block keeps, too.
int64_t least_held_saving(const NetworkOptions& network, Regions regions, int64_t shapes) {
  if (regions == Regions::kNone) {
    return 0;
  }
  int64_t values = 0;
  const auto add_attention = [&](int64_t level) {
    const int64_t places = network.places(level);
    if (network.is_attended(level)) {
      values += places * places + 6 * (network.channels << level) * places;
    }
  };
  const auto add_residual = [&](int64_t level, int64_t in) {
    const int64_t out = network.channels << level;
    if (regions == Regions::kAll) {
      values += (2 * in + (network.dropout > 0 ? 5 : 4) * out) * network.places(level);
    }
  };
  for (int64_t level = 0; level < network.levels(); ++level) {
    const int64_t width = network.channels << level;
    add_residual(level, level == 0 ? width : width / 2);  // down
    add_residual(level, 2 * width);                       // up
    add_attention(level);
    add_attention(level);
  }
  const int64_t bottom = network.levels() - 1;
  add_residual(bottom, network.channels << bottom);
  return values * shapes * static_cast<int64_t>(sizeof(float));
}

namespace {

using Amp = std::optional<torch::ScalarType>;

// Forward, loss and backward of a batch, in equal parts; the gradients are left in the parameters.
void run_step(Denoiser& net, const Amp& amp, int64_t parts, const NoisyShapes& batch) {
  tidemark::GradAccumulator accumulator(tidemark::GradAccumulatorOptions(parts).module(net));
  for (const NoisyShapes& part : batch.split(parts)) {
    torch::Tensor loss;
    {
      const tidemark::AmpScope scope(part.noisy.device(), examples::mixed_precision(amp));
      loss = denoising_loss(net.forward(part.noisy, part.times), part);
    }
    accumulator.backward(loss, static_cast<double>(part.times.size(0)));
  }
}

// The same without tidemark, but for the AmpScope.
void run_plain_loop(Denoiser& net, const Amp& amp, int64_t parts, const NoisyShapes& batch) {
  for (const NoisyShapes& part : batch.split(parts)) {
    torch::Tensor loss;
    {
      const tidemark::AmpScope scope(part.noisy.device(), examples::mixed_precision(amp));
      loss = denoising_loss(net.forward(part.noisy, part.times), part);
    }
    (loss / static_cast<double>(parts)).backward();
  }
}

// Parameters of `from` become those of `to`, too; gradients don't.
void share_parameters(const Denoiser& from, Denoiser& to) {
  const auto source = from.parameters();
  const auto target = to.parameters();
  for (size_t i = 0; i < source.size(); ++i) {
    target[i].set_data(source[i].detach());
  }
}

void hand_over_gradients(Denoiser& from, Denoiser& to) {
  auto source = from.parameters();
  auto target = to.parameters();
  for (size_t i = 0; i < source.size(); ++i) {
    target[i].mutable_grad() = source[i].grad();
    source[i].mutable_grad() = torch::Tensor();
  }
}

// The networks after the first steps of a loop without tidemark, but for the AmpScope.
Networks after_plain_steps(const VoxelShapes& shapes, const Options& options, int64_t steps) {
  const torch::Device device(options.device);
  const auto amp_options = examples::mixed_precision(examples::amp_dtype(options.amp));
  const NoiseSchedule schedule = options.schedule();
  torch::manual_seed(static_cast<uint64_t>(options.seed));
  Networks networks(options, Regions::kNone);
  torch::optim::Adam optimizer(networks.net->parameters(), torch::optim::AdamOptions());
  for (int64_t step = 0; step < steps; ++step) {
    for (auto& group : optimizer.param_groups()) {
      group.options().set_lr(learning_rate(options.lr, step));
    }
    optimizer.zero_grad();
    const torch::Tensor all_times = draw_times(options.batch * options.accumulate, schedule);
    for (const torch::Tensor& times : all_times.split(options.batch)) {
      const NoisyShapes batch = draw_shapes(shapes, times, schedule, options);
      torch::Tensor loss;
      {
        const tidemark::AmpScope amp(device, amp_options);
        loss = denoising_loss(networks.net->forward(batch.noisy, batch.times), batch);
      }
      (loss / static_cast<double>(options.accumulate)).backward();
    }
    torch::nn::utils::clip_grad_norm_(networks.net->parameters(), kClipNorm);
    optimizer.step();
    examples::move_average(*networks.net, *networks.average,
                           examples::share_to_keep(options.ema, step));
  }
  return networks;
}

Networks after_trainers_steps(const VoxelShapes& shapes, const Options& options, int64_t steps) {
  torch::manual_seed(static_cast<uint64_t>(options.seed));
  Trainer trainer(options, shapes);
  for (int64_t step = 0; step < steps; ++step) {
    trainer.step();
  }
  return trainer.networks();
}

}  // namespace

bool compare_techniques(const Denoiser& trained, const VoxelShapes& shapes,
                        const Options& options) {
  const int64_t count = options.quick ? 8 : 16;
  constexpr int64_t kParts = 4;
  const torch::Device device(options.device);
  const NetworkOptions network = options.network();
  const NoiseSchedule schedule = options.schedule();
  const NoisyShapes batch = draw_shapes(shapes, draw_times(count, schedule), schedule, options);
  const auto make = [&](Regions regions) {
    const auto net = make_denoiser(network, regions);
    share_parameters(trained, *net);
    return net;
  };
  const auto plain = make(Regions::kNone);
  const auto attention = make(Regions::kAttention);
  const auto all = make(Regions::kAll);

  std::vector<examples::Technique> techniques;
  const auto add = [&](const std::string& name, Denoiser& net, const Amp& amp, int64_t parts) {
    techniques.emplace_back();
    techniques.back().name = name;
    techniques.back().step = [&, amp, parts] {
      run_step(net, amp, parts, batch);
      if (&net != plain.get()) {
        hand_over_gradients(net, *plain);
      }
    };
    techniques.back().reference = [&, amp, parts] { run_plain_loop(*plain, amp, parts, batch); };
  };
  const std::string parts =
      "GradAccumulator, " + std::to_string(kParts) + " x " + std::to_string(count / kParts);
  add("plain", *plain, {}, 1);
  add("Checkpointed<M>, attention blocks", *attention, {}, 1);
  add("Checkpointed<M>, all blocks", *all, {}, 1);
  add(parts, *plain, {}, kParts);
  add("  + Checkpointed<M>, all blocks", *all, {}, kParts);
  const size_t in_full = techniques.size();
  const Amp amp = examples::amp_to_show(examples::amp_dtype(options.amp), device);
  if (amp.has_value()) {
    add("AMP " + examples::amp_name(amp), *plain, amp, 1);
    add("  + Checkpointed<M>, all blocks", *all, amp, 1);
    add("    + " + parts, *all, amp, kParts);
  } else {
    std::printf(
        "  mixed precision is left out, since this CPU has no AVX-512; --amp bf16 shows it\n");
  }
  const auto measured =
      examples::measure_techniques(*plain, techniques, device, options.quick ? 1 : 5);
  for (size_t row = 1; row < techniques.size(); ++row) {
    if (row != in_full) {
      techniques[row].most_peak = measured[row < in_full ? 0 : in_full].peak;
    }
  }
  techniques[1].most_held =
      measured[0].held - least_held_saving(network, Regions::kAttention, count);
  techniques[2].most_held = measured[0].held - least_held_saving(network, Regions::kAll, count);
  std::printf(
      "  %lld shapes. \"at most\": held, the plain figure less what follows from the shapes, see\n"
      "  compare.cpp; peak, that of the plain step in the same precision. \"difference\" is the\n"
      "  largest of gradients from the same step without tidemark\n\n",
      static_cast<long long>(count));
  return examples::print_techniques(techniques, measured, device);
}

bool compare_first_steps(const VoxelShapes& shapes, const Options& options) {
  constexpr int64_t kSteps = 2;
  const torch::Device device(options.device);
  bool passed = true;
  for (const std::string& precision : examples::precisions_to_compare(options)) {
    Options all = options;
    all.use_all_techniques();
    all.amp = precision;
    const Networks plain = after_plain_steps(shapes, all, kSteps);
    const Networks trained = after_trainers_steps(shapes, all, kSteps);
    const double parameters =
        examples::largest_difference(trained.net->parameters(), plain.net->parameters());
    const double averages =
        examples::largest_difference(trained.average->parameters(), plain.average->parameters());
    std::printf("  %-10s  parameters differ by %.3g, their averages by %.3g\n",
                precision == "off" ? "float32:" : "AMP bf16:", parameters, averages);
    passed = passed && parameters == 0 && averages == 0;
  }
  if (!passed && device.is_cpu()) {
    std::printf("  FAILED: the techniques change the first steps\n");
  }
  return passed || !device.is_cpu();
}

void report_memory(const VoxelShapes& shapes, const Options& options) {
  for (const auto& [name, own] : examples::options_to_report(options)) {
    Trainer trainer(own, shapes);
    examples::write_memory_reports(options.report, trainer.networks().net.get(),
                                   {&trainer.optimizer()}, {{name, [&trainer] { trainer.step(); }}},
                                   options.device);
  }
}

}  // namespace voxel_diffusion
