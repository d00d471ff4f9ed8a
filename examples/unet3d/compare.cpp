#include "unet3d/compare.h"

#include <tidemark/amp_scope.h>
#include <tidemark/grad_accumulator.h>
#include <torch/torch.h>

#include <algorithm>
#include <cstdio>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/memory_reports.h"
#include "common/technique_table.h"
#include "unet3d/loss.h"
#include "unet3d/train.h"

namespace unet3d {

using examples::Batch;
using examples::Dataset;

// What the shapes promise. A level's activation, [patches, channels, edge, edge, edge] floats, has
// A bytes.
//
// A plain block of two convolutions keeps four: what both convolutions return, for BatchNorm's
// backward, and what both ReLUs make of it in place, for theirs. (The input of the first
// convolution is somebody else's result. BatchNorm's statistics are a few hundred bytes.) An
// encoder also keeps where its maxima were, an int64 for each eighth value: A/4. A decoder also
// keeps what it concatenates: 2 A. Of checkpointed stages only the results are kept, as the inputs
// of those that follow: an encoder's skip, the bottom's and the lower decoders' features; not the
// features of the last decoder, for only its scores are used. So these save
//
//     encoder  3 A + A/4    bottom  3 A    decoder  5 A    last decoder  6 A
//
// and what is smaller, the halved activations and the scores, is kept in both.
int64_t least_held_saving(const Options& options, int64_t patches) {
  const auto activation = [&](int64_t level) {
    const int64_t edge = options.patch >> level;
    return patches * (options.channels << level) * edge * edge * edge *
           static_cast<int64_t>(sizeof(float));
  };
  const int64_t bottom = options.levels - 1;
  int64_t saving = 3 * activation(bottom) + activation(0);
  for (int64_t level = 0; level < bottom; ++level) {
    saving += (3 + 5) * activation(level) + activation(level) / 4;
  }
  return saving;
}

namespace {

using Amp = std::optional<torch::ScalarType>;

// Forward, loss and backward of a batch, in equal parts; the gradients are left in the parameters.
void run_step(UNet3d& net, const Amp& amp, int64_t parts, const Batch& batch) {
  tidemark::GradAccumulator accumulator(tidemark::GradAccumulatorOptions(parts).module(net));
  const std::vector<torch::Tensor> scans = batch.scan.chunk(parts);
  const std::vector<torch::Tensor> labels = batch.labels.chunk(parts);
  for (size_t i = 0; i < scans.size(); ++i) {
    torch::Tensor loss;
    {
      const tidemark::AmpScope scope(batch.scan.device(), examples::mixed_precision(amp));
      loss = deep_supervision_loss(net.forward(scans[i]), labels[i]);
    }
    accumulator.backward(loss, static_cast<double>(scans[i].size(0)));
  }
}

// Parameters and BatchNorm statistics of `from` become those of `to`, too; gradients don't.
void share_tensors(const UNet3d& from, UNet3d& to) {
  const auto share = [](const std::vector<torch::Tensor>& source,
                        const std::vector<torch::Tensor>& target) {
    for (size_t i = 0; i < source.size(); ++i) {
      target[i].set_data(source[i].detach());
    }
  };
  share(from.parameters(), to.parameters());
  share(from.buffers(), to.buffers());
}

// The same without tidemark, but for the AmpScope.
void run_plain_loop(UNet3d& net, const Amp& amp, int64_t parts, const Batch& batch) {
  const std::vector<torch::Tensor> scans = batch.scan.chunk(parts);
  const std::vector<torch::Tensor> labels = batch.labels.chunk(parts);
  for (size_t i = 0; i < scans.size(); ++i) {
    torch::Tensor loss;
    {
      const tidemark::AmpScope scope(batch.scan.device(), examples::mixed_precision(amp));
      loss = deep_supervision_loss(net.forward(scans[i]), labels[i]);
    }
    (loss / static_cast<double>(parts)).backward();
  }
}

void hand_over_gradients(UNet3d& from, UNet3d& to) {
  auto source = from.parameters();
  auto target = to.parameters();
  for (size_t i = 0; i < source.size(); ++i) {
    target[i].mutable_grad() = source[i].grad();
    source[i].mutable_grad() = torch::Tensor();
  }
}

// The network after the first step of a loop without tidemark, but for the AmpScope.
std::shared_ptr<UNet3d> after_plain_step(const Dataset& data, const Options& options) {
  const torch::Device device(options.device);
  const auto amp_options = examples::mixed_precision(examples::amp_dtype(options.amp));
  torch::manual_seed(static_cast<uint64_t>(options.seed));
  const examples::PatchSampler sampler(data, options.patch, options.batch);
  const auto net = make_unet3d(options.channels, options.levels, data.classes(), false);
  net->to(device);
  torch::optim::Adam optimizer(net->parameters(),
                               torch::optim::AdamOptions(learning_rate(options.lr, 0)));
  optimizer.zero_grad();
  for (int64_t i = 0; i < options.accumulate; ++i) {
    const Batch batch = sampler.next();
    torch::Tensor loss;
    {
      const tidemark::AmpScope amp(device, amp_options);
      loss = deep_supervision_loss(net->forward(batch.scan.to(device)), batch.labels.to(device));
    }
    (loss / static_cast<double>(options.accumulate)).backward();
  }
  torch::nn::utils::clip_grad_norm_(net->parameters(), kClipNorm);
  optimizer.step();
  return net;
}

std::shared_ptr<UNet3d> after_trainers_step(const Dataset& data, const Options& options) {
  torch::manual_seed(static_cast<uint64_t>(options.seed));
  Trainer trainer(options, data);
  trainer.step();
  return trainer.net();
}

// Of parameters and BatchNorm statistics.
double largest_difference(const UNet3d& a, const UNet3d& b) {
  return std::max(examples::largest_difference(a.parameters(), b.parameters()),
                  examples::largest_difference(a.buffers(), b.buffers()));
}

// Of parameters.
double mean_difference(const UNet3d& a, const UNet3d& b) {
  const torch::NoGradGuard no_grad;
  const torch::Tensor all_a = torch::nn::utils::parameters_to_vector(a.parameters());
  const torch::Tensor all_b = torch::nn::utils::parameters_to_vector(b.parameters());
  return (all_a - all_b).abs().mean().item<double>();
}

}  // namespace

bool compare_techniques(UNet3d& trained, const Dataset& data, const Options& options) {
  constexpr int64_t kPatches = 8;
  constexpr int64_t kParts = 4;  // of two patches: of one, LibTorch's float32 convolutions are slow
  const torch::Device device(options.device);
  Batch batch = examples::PatchSampler(data, options.patch, kPatches).next();
  batch = {batch.scan.to(device), batch.labels.to(device)};
  const auto plain = make_unet3d(options.channels, options.levels, data.classes(), false);
  const auto checkpointed = make_unet3d(options.channels, options.levels, data.classes(), true);
  for (UNet3d* net : {plain.get(), checkpointed.get()}) {
    net->to(device);
    share_tensors(trained, *net);
  }

  const auto plain_step = [&](const Amp& amp, int64_t parts) {
    return [&, amp, parts] { run_step(*plain, amp, parts, batch); };
  };
  const auto checkpointed_step = [&](const Amp& amp, int64_t parts) {
    return [&, amp, parts] {
      run_step(*checkpointed, amp, parts, batch);
      hand_over_gradients(*checkpointed, *plain);
    };
  };
  const auto loop_by_hand = [&](const Amp& amp, int64_t parts) {
    return [&, amp, parts] { run_plain_loop(*plain, amp, parts, batch); };
  };
  std::vector<examples::Technique> techniques;
  const auto add = [&techniques](const std::string& name, const std::function<void()>& step,
                                 size_t plain_row) {
    techniques.emplace_back();
    techniques.back().name = name;
    techniques.back().step = step;
    techniques.back().plain = plain_row;
  };
  const std::string parts =
      "GradAccumulator, " + std::to_string(kParts) + " x " + std::to_string(kPatches / kParts);
  add("plain", plain_step({}, 1), 0);
  add("Checkpointed<M> stages", checkpointed_step({}, 1), 0);
  add(parts, plain_step({}, kParts), 0);
  techniques.back().reference = loop_by_hand({}, kParts);
  const Amp amp = examples::amp_to_show(examples::amp_dtype(options.amp), device);
  if (amp.has_value()) {
    const size_t row = techniques.size();
    add("AMP " + examples::amp_name(amp), plain_step(amp, 1), row);
    add("AMP " + examples::amp_name(amp) + " + Checkpointed<M>", checkpointed_step(amp, 1), row);
    add("  + " + parts, checkpointed_step(amp, kParts), row);
    techniques.back().reference = loop_by_hand(amp, kParts);
  } else {
    std::printf(
        "  mixed precision is left out, since this CPU has no AVX-512; --amp bf16 shows it\n");
  }
  const auto measured =
      examples::measure_techniques(*plain, techniques, device, options.quick ? 3 : 5);
  const int64_t saving = least_held_saving(options, kPatches);
  techniques[1].most_held = measured[0].held - saving;
  techniques[1].most_peak = measured[0].peak;
  techniques[2].most_peak = measured[0].peak;
  std::printf(
      "  %lld patches of %lld^3 voxels. \"at most\": held, the plain figure less %.1f MiB, which "
      "follow\n"
      "  from the shapes; peak, the plain figure. \"difference\" is the largest of gradients and "
      "of\n"
      "  BatchNorm statistics from plain stages, run the same without tidemark\n\n",
      static_cast<long long>(kPatches), static_cast<long long>(options.patch),
      static_cast<double>(saving) / (1 << 20));
  return examples::print_techniques(techniques, measured, device,
                                    "gradients or BatchNorm statistics");
}

bool compare_first_step(const Dataset& data, const Options& options) {
  const torch::Device device(options.device);
  Options full = options;
  full.use_all_techniques();
  full.amp = "off";
  const auto plain = after_plain_step(data, full);
  const double in_full = largest_difference(*after_trainers_step(data, full), *plain);
  std::printf("  checkpointed, accumulated, losses scaled:       largest difference %.3g\n",
              in_full);
  bool passed = in_full == 0;
  // In bfloat16, for with float16 the first steps are often skipped, by design.
  if (examples::amp_to_show(examples::amp_dtype(options.amp), device).has_value()) {
    // Adam's first step is the sign of the gradient, so small gradients that mixed precision turns
    // around move a parameter by two rates.
    constexpr double kMostOfRate = 0.2;
    Options mixed = full;
    mixed.amp = "bf16";
    const auto all = after_trainers_step(data, mixed);
    const double in_mixed = largest_difference(*all, *after_plain_step(data, mixed));
    const double of_rate = mean_difference(*all, *plain) / learning_rate(options.lr, 0);
    std::printf(
        "  the same in AMP bf16, from a plain loop in it:  largest difference %.3g\n"
        "  the same, from the plain loop in float32:       %.3f learning rates on average, at most "
        "%.1f\n",
        in_mixed, of_rate, kMostOfRate);
    passed = passed && in_mixed == 0 && of_rate <= kMostOfRate;
  }
  if (!passed && device.is_cpu()) {
    std::printf("  FAILED: the techniques change the first step\n");
  }
  return passed || !device.is_cpu();
}

void report_memory(const Dataset& data, const Options& options) {
  for (const auto& [name, own] : examples::options_to_report(options)) {
    Trainer trainer(own, data);
    examples::write_memory_reports(options.report, trainer.net().get(), {&trainer.optimizer()},
                                   {{name, [&trainer] { trainer.step(); }}}, options.device);
  }
}

}  // namespace unet3d
