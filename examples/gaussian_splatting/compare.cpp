#include "gaussian_splatting/compare.h"

#include <tidemark/amp_scope.h>
#include <tidemark/grad_accumulator.h>
#include <torch/torch.h>

#include <algorithm>
#include <cstdio>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/memory_reports.h"
#include "common/technique_table.h"

namespace gaussian_splatting {

// What blend() keeps for each pair (kBytesPerPair): the exponential, which clamp_max() needs, too;
// where it was masked, a byte; what cumprod() takes and what it returns; and the weights, for the
// colours' gradients. All of it float32 but for the mask: 4 * 4 + 1.

namespace {

using Amp = std::optional<torch::ScalarType>;

constexpr int64_t kViews = 8;

std::vector<torch::Tensor> parameters_of(const Gaussians& gaussians) {
  const auto tensors = gaussians.tensors();
  return {tensors.begin(), tensors.end()};
}

// What a GradAccumulator without optimizers takes its parameters from.
struct Cloud : torch::nn::Module {
  explicit Cloud(const Gaussians& gaussians) {
    for (size_t i = 0; i < Gaussians::kNames.size(); ++i) {
      register_parameter(Gaussians::kNames[i], gaussians.tensors()[i]);
    }
  }
};

// Forward, loss and backward of views, in equal parts; gradients are left in the parameters.
void run_step(const Gaussians& gaussians, const std::vector<View>& views,
              const SplatOptions& options, const Amp& amp, int64_t parts) {
  Cloud cloud(gaussians);
  tidemark::GradAccumulator accumulator(tidemark::GradAccumulatorOptions(parts).module(cloud));
  const auto size = static_cast<std::ptrdiff_t>(views.size()) / parts;
  for (auto first = views.begin(); first != views.end(); first += size) {
    std::vector<Splat> splats;
    torch::Tensor loss;
    {
      const tidemark::AmpScope scope(gaussians.means.device(), examples::mixed_precision(amp));
      loss = picture_loss(gaussians, {first, first + size}, options, splats);
    }
    accumulator.backward(loss, static_cast<double>(size));
  }
}

// The pairs of a pixel and a Gaussian in each view.
std::vector<int64_t> pairs_of(const Gaussians& gaussians, const std::vector<View>& views,
                              const SplatOptions& options) {
  const torch::NoGradGuard no_grad;
  std::vector<int64_t> pairs;
  for (const View& view : views) {
    pairs.push_back(splat(gaussians, view.camera, options).pairs);
  }
  return pairs;
}

// Float32 sums in another order: the rounding of a sum of views, and of one in each of them.
double rounding_of(const Gaussians& gaussians, const std::function<void()>& step) {
  constexpr double kOfLargest = 1e-5;
  step();
  double largest = 0;
  for (torch::Tensor& parameter : parameters_of(gaussians)) {
    largest = std::max(largest, parameter.grad().abs().max().item<double>());
    parameter.mutable_grad() = torch::Tensor();
  }
  return kOfLargest * largest;
}

// The parameters after the first step of a loop without tidemark, but for the AmpScope.
std::vector<torch::Tensor> after_plain_step(const Scene& scene, const Options& options) {
  const torch::Device device(options.device);
  const auto amp_options = examples::mixed_precision(examples::amp_dtype(options.amp));
  torch::manual_seed(static_cast<uint64_t>(options.seed));
  const Gaussians gaussians =
      initial_gaussians(scene.training, options.gaussians, scene.radius).as_leaves(device);
  std::vector<torch::Tensor> parameters = parameters_of(gaussians);
  std::vector<torch::optim::Adam> optimizers;
  for (size_t i = 0; i < parameters.size(); ++i) {
    optimizers.emplace_back(
        std::vector<torch::Tensor>{parameters[i]},
        torch::optim::AdamOptions(kLearningRates[i] * learning_rate_factor(options.lr, 0)));
  }
  const std::vector<View> views =
      draw_views(scene.training, options.batch * options.accumulate, device);
  for (auto first = views.begin(); first != views.end(); first += options.batch) {
    std::vector<Splat> splats;
    torch::Tensor loss;
    {
      const tidemark::AmpScope amp(device, amp_options);
      loss = picture_loss(gaussians, {first, first + options.batch}, {options.tile}, splats);
    }
    (loss / static_cast<double>(options.accumulate)).backward();
  }
  for (torch::optim::Adam& optimizer : optimizers) {
    optimizer.step();
  }
  return parameters;
}

std::vector<torch::Tensor> after_trainers_step(const Scene& scene, const Options& options) {
  torch::manual_seed(static_cast<uint64_t>(options.seed));
  Trainer trainer(options, scene);
  trainer.step();
  return parameters_of(trainer.model().gaussians());
}

Options with_all_techniques(Options options) {
  options.use_all_techniques();
  options.densify_until = 0;
  return options;
}

}  // namespace

bool compare_techniques(const Gaussians& trained, const Scene& scene, const Options& options) {
  const torch::Device device(options.device);
  const Gaussians gaussians = trained.as_leaves(device);
  torch::manual_seed(static_cast<uint64_t>(options.seed));
  const std::vector<View> views = draw_views(scene.training, kViews, device);
  const auto step = [&](bool checkpoint, int64_t parts, const Amp& amp) {
    return [&, checkpoint, parts, amp] {
      run_step(gaussians, views, {options.tile, checkpoint}, amp, parts);
    };
  };
  const double rounding = rounding_of(gaussians, step(false, 1, {}));
  std::vector<examples::Technique> techniques;
  const auto add = [&](const std::string& name, bool checkpoint, int64_t parts, const Amp& amp,
                       size_t plain_row) {
    techniques.emplace_back();
    techniques.back().name = name;
    techniques.back().step = step(checkpoint, parts, amp);
    techniques.back().plain = plain_row;
    techniques.back().bound = parts > 1 ? rounding : 0;
  };
  const std::string eight = std::to_string(kViews) + " views ";
  add(eight + "at once", false, 1, {}, 0);
  add(eight + "accumulated", false, kViews, {}, 0);
  add(eight + "at once, checkpoint", true, 1, {}, 0);
  add(eight + "accumulated, checkpoint", true, kViews, {}, 0);
  const Amp amp = examples::amp_to_show(examples::amp_dtype(options.amp), device);
  if (amp.has_value()) {
    const size_t row = techniques.size();
    add("AMP " + examples::amp_name(amp) + ", at once", false, 1, amp, row);
    add("AMP " + examples::amp_name(amp) + ", accumulated", false, kViews, amp, row);
    add("AMP " + examples::amp_name(amp) + ", accumulated, checkpoint", true, kViews, amp, row);
  } else {
    std::printf(
        "  mixed precision is left out, since this CPU has no AVX-512; --amp bf16 shows it\n");
  }
  const auto measured = examples::measure_techniques(parameters_of(gaussians), {}, techniques,
                                                     device, options.quick ? 3 : 5);

  const std::vector<int64_t> pairs = pairs_of(gaussians, views, {options.tile});
  int64_t all = 0;
  for (const int64_t of_view : pairs) {
    all += of_view;
  }
  const int64_t largest = *std::max_element(pairs.begin(), pairs.end());
  techniques[1].most_held = measured[0].held - kBytesPerPair * (all - largest);
  techniques[1].most_peak = measured[0].peak - kBytesPerPair * (all - largest);
  techniques[2].most_held = measured[0].held - kBytesPerPair * all;
  techniques[2].most_peak = measured[0].peak;
  techniques[3].most_held = measured[2].held;
  techniques[3].most_peak = measured[0].peak;
  std::printf(
      "  %lld Gaussians, %.2f million pairs of a pixel and a Gaussian that reaches its tile, %.2f "
      "in\n"
      "  the view with the most. \"at most\": %lld bytes less for each pair that isn't held. "
      "\"difference\"\n"
      "  is the largest of gradients from all views at once: none by checkpoints, at most %.2g by\n"
      "  accumulation, which adds up the views in another order\n\n",
      static_cast<long long>(gaussians.count()), static_cast<double>(all) * 1e-6,
      static_cast<double>(largest) * 1e-6, static_cast<long long>(kBytesPerPair), rounding);
  return examples::print_techniques(techniques, measured, device);
}

bool compare_first_step(const Scene& scene, const Options& options) {
  const torch::Device device(options.device);
  Options full = with_all_techniques(options);
  full.amp = "off";
  const double in_full =
      examples::largest_difference(after_trainers_step(scene, full), after_plain_step(scene, full));
  std::printf("  checkpointed, accumulated, losses scaled:       largest difference %.3g\n",
              in_full);
  bool passed = in_full == 0;
  // In bfloat16, for with float16 the first steps are often skipped, by design.
  if (examples::amp_to_show(examples::amp_dtype(options.amp), device).has_value()) {
    Options mixed = full;
    mixed.amp = "bf16";
    const double in_mixed = examples::largest_difference(after_trainers_step(scene, mixed),
                                                         after_plain_step(scene, mixed));
    std::printf("  the same in AMP bf16, from a plain loop in it:  largest difference %.3g\n",
                in_mixed);
    passed = passed && in_mixed == 0;
  }
  if (!passed && device.is_cpu()) {
    std::printf("  FAILED: the techniques change the first step\n");
  }
  return passed || !device.is_cpu();
}

void report_memory(const Scene& scene, const Options& options) {
  Options at_once = options;
  at_once.use_no_technique();
  at_once.batch = kViews;
  at_once.densify_until = 0;
  Options all = with_all_techniques(options);
  all.accumulate = kViews;
  all.batch = 1;
  for (const auto& [name, own] : {std::pair("plain", at_once), std::pair("all", all)}) {
    Trainer trainer(own, scene);
    std::vector<torch::optim::Optimizer*> optimizers;
    for (torch::optim::Adam& optimizer : trainer.model().optimizers()) {
      optimizers.push_back(&optimizer);
    }
    examples::write_memory_reports(options.report, nullptr, optimizers,
                                   {{name, [&trainer] { trainer.step(); }}}, options.device);
  }
}

}  // namespace gaussian_splatting
