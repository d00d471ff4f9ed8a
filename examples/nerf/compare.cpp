#include "nerf/compare.h"

#include <tidemark/amp_scope.h>
#include <tidemark/checkpoint.h>
#include <tidemark/grad_accumulator.h>
#include <torch/torch.h>

#include <cstdio>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/memory_reports.h"
#include "common/technique_table.h"
#include "nerf/train.h"

namespace nerf {

// What the shapes promise, in floats for each point. A plain field keeps for backward
//
//     stem   the encoded position E, and W features after each of two ReLUs
//     trunk  its input after the ReLU W, the same joined with the position W + E, two more of W
//
// and what the head and the rendering keep, which is the same in both. Of the checkpointed units
// only their inputs are kept: E, and W.
int64_t held_saving(const NerfOptions& options, int64_t rays) {
  const int64_t width = options.field().width();
  const int64_t position = encoded_size(options.field().frequencies());
  const int64_t plain = (position + 2 * width) + (4 * width + position);
  const int64_t checkpointed = position + width;
  const int64_t points = rays * (2 * options.coarse() + options.fine());
  return points * (plain - checkpointed) * static_cast<int64_t>(sizeof(float));
}

namespace {

using Amp = std::optional<torch::ScalarType>;

constexpr int64_t kParts = 4;  // chunks, or micro-batches

// What checkpointed units may hold and take at full size, of plain.
constexpr double kMostHeld = 0.58;
constexpr double kMostSeconds = 1.25;

int64_t part_size(int64_t all, int64_t parts) { return (all + parts - 1) / parts; }

// The weight cache is off, since weights are used for many chunks (amp_scope.h).
tidemark::AmpOptions amp_options(const Amp& amp) {
  return examples::mixed_precision(amp).cache(false);
}

// A way to run forward, loss and backward on a batch.
struct Way {
  bool units = false;         // stem and trunk are checkpointed regions
  int64_t chunks = 1;         // more than one: rendered one after the other, each a region
  int64_t micro_batches = 1;  // each with its own backward
  Amp amp = std::nullopt;
};

// Leaves the gradients of the mean loss in the net's parameters.
void run_step(Nerf& net, const Way& way, const Batch& batch) {
  net->checkpoint_units(way.units);
  tidemark::GradAccumulator accumulator(
      tidemark::GradAccumulatorOptions(way.micro_batches).module(net));
  const auto rays = batch.rays.chunk(way.micro_batches);
  const auto colours = batch.colours.chunk(way.micro_batches);
  for (size_t i = 0; i < rays.size(); ++i) {
    torch::Tensor loss;
    {
      const tidemark::AmpScope amp(batch.rays.device(), amp_options(way.amp));
      const int64_t chunk = part_size(rays[i].size(0), way.chunks);
      loss = colour_loss(
          way.chunks > 1 ? tidemark::checkpoint_chunks(chunk, net, rays[i]) : net(rays[i]),
          colours[i]);
    }
    accumulator.backward(loss, static_cast<double>(rays[i].size(0)));
  }
  accumulator.flush();
}

// Renders `chunk` rays at a time and keeps what all of them save for backward.
std::pair<torch::Tensor, torch::Tensor> render_in_chunks(Nerf& net, const torch::Tensor& rays,
                                                         int64_t chunk) {
  std::vector<torch::Tensor> coarse, fine;
  for (const torch::Tensor& part : rays.split(chunk)) {
    auto [rough, exact] = net(part);
    coarse.push_back(std::move(rough));
    fine.push_back(std::move(exact));
  }
  return {torch::cat(coarse), torch::cat(fine)};
}

// The same without tidemark, but for the AmpScope.
void run_plain_loop(Nerf& net, const Way& way, const Batch& batch) {
  net->checkpoint_units(false);
  const auto rays = batch.rays.chunk(way.micro_batches);
  const auto colours = batch.colours.chunk(way.micro_batches);
  for (size_t i = 0; i < rays.size(); ++i) {
    torch::Tensor loss;
    {
      const tidemark::AmpScope amp(batch.rays.device(), amp_options(way.amp));
      const int64_t chunk = part_size(rays[i].size(0), way.chunks);
      loss = colour_loss(render_in_chunks(net, rays[i], chunk), colours[i]);
    }
    const double share =
        static_cast<double>(rays[i].size(0)) / static_cast<double>(batch.rays.size(0));
    (loss * share).backward();
  }
}

std::vector<examples::Technique> techniques_for(Nerf& net, const Batch& batch, const Amp& amp,
                                                bool full_size) {
  std::vector<std::pair<std::string, Way>> ways{
      {"plain", {}},
      {"checkpoint() of stem and trunk", {true}},
  };
  if (!full_size) {
    ways.insert(ways.end(), {{"checkpoint_chunks(), 4 chunks", {false, kParts}},
                             {"  and of stem and trunk", {true, kParts}},
                             {"GradAccumulator, 4 micro-batches", {false, 1, kParts}},
                             {"  and checkpoint()", {true, 1, kParts}}});
  }
  if (!full_size && amp.has_value()) {
    const std::string precision = amp == torch::kFloat16 ? "AMP fp16" : "AMP bf16";
    ways.insert(ways.end(), {{precision, {false, 1, 1, amp}},
                             {precision + " + checkpoint()", {true, 1, 1, amp}},
                             {"  and 4 micro-batches", {true, 1, kParts, amp}}});
  }
  std::vector<examples::Technique> techniques;
  for (const auto& named : ways) {
    const Way& way = named.second;
    examples::Technique technique;
    technique.name = named.first;
    technique.step = [&net, &batch, way] { run_step(net, way, batch); };
    technique.reference = [&net, &batch, way] { run_plain_loop(net, way, batch); };
    techniques.push_back(std::move(technique));
  }
  return techniques;
}

// The network after the first step of a loop without tidemark, but for the AmpScope.
Nerf after_plain_step(const Scene& scene, const Options& options) {
  const torch::Device device(options.device);
  Options plain = options;
  plain.checkpoint = "off";
  torch::manual_seed(static_cast<uint64_t>(options.seed));
  const RaySampler sampler(scene, options.rays);
  Nerf net(plain.network());
  net->to(device);
  torch::optim::Adam optimizer(
      net->parameters(), torch::optim::AdamOptions(learning_rate(options.lr, 0)).eps(kEpsilon));
  optimizer.zero_grad();
  for (int64_t i = 0; i < options.accumulate; ++i) {
    const Batch batch = sampler.next();
    torch::Tensor loss;
    {
      const tidemark::AmpScope amp(device, amp_options(examples::amp_dtype(options.amp)));
      loss = colour_loss(render_in_chunks(net, batch.rays.to(device), options.chunk),
                         batch.colours.to(device));
    }
    (loss / static_cast<double>(options.accumulate)).backward();
  }
  optimizer.step();
  return net;
}

Nerf after_trainers_step(const Scene& scene, const Options& options) {
  torch::manual_seed(static_cast<uint64_t>(options.seed));
  Trainer trainer(options, scene);
  trainer.step();
  return trainer.net();
}

double mean_difference(const Nerf& a, const Nerf& b) {
  const torch::NoGradGuard no_grad;
  const torch::Tensor all_a = torch::nn::utils::parameters_to_vector(a->parameters());
  const torch::Tensor all_b = torch::nn::utils::parameters_to_vector(b->parameters());
  return (all_a - all_b).abs().mean().item<double>();
}

Options in_chunks(Options options) {
  if (options.chunk == 0) {
    options.chunk = part_size(options.rays, kParts);
  }
  return options;
}

}  // namespace

bool compare_techniques(Nerf& net, const Scene& scene, const Options& options) {
  const torch::Device device(options.device);
  Batch batch = RaySampler(scene, options.rays).next();
  batch = {batch.rays.to(device), batch.colours.to(device)};
  const Amp amp = examples::amp_to_show(examples::amp_dtype(options.amp), device);
  if (!amp.has_value()) {
    std::printf(
        "  mixed precision is left out, since this CPU has no AVX-512; --amp bf16 shows it\n");
  }
  auto techniques = techniques_for(net, batch, amp, options.full_size);
  const auto measured = examples::measure_techniques(*net, techniques, device,
                                                     options.quick || options.full_size ? 3 : 5);
  net->checkpoint_units(options.checkpointed());

  const int64_t saving = held_saving(net->options, options.rays);
  techniques[1].most_held = measured[0].held - saving;
  for (size_t i = 1; i < techniques.size(); ++i) {
    techniques[i].most_peak = measured[0].peak;
  }
  std::printf(
      "  \"at most\": held, the plain figure less %.1f MiB, which follow from the shapes; peak, "
      "the "
      "plain\n"
      "  figure. \"difference\" is the largest of gradients from a plain loop over the same "
      "parts\n\n",
      static_cast<double>(saving) / (1 << 20));
  bool passed = examples::print_techniques(techniques, measured, device);

  const double held = static_cast<double>(measured[1].held) / static_cast<double>(measured[0].held);
  const double seconds = measured[1].seconds / measured[0].seconds;
  std::printf("  checkpointed units hold %.3f of the plain bytes and take %.3f of the time\n", held,
              seconds);
  if (options.full_size) {
    const bool within = held <= kMostHeld && seconds <= kMostSeconds;
    std::printf("  they may hold %.2f and take %.2f%s\n", kMostHeld, kMostSeconds,
                within ? "" : ": FAILED");
    passed = passed && within;
  }
  return passed;
}

bool compare_first_step(const Scene& scene, const Options& options) {
  const torch::Device device(options.device);
  Options full = in_chunks(options);
  full.use_all_techniques();
  full.amp = "off";
  const Nerf plain = after_plain_step(scene, full);
  const auto difference = [](const Nerf& a, const Nerf& b) {
    return examples::largest_difference(a->parameters(), b->parameters());
  };
  const double in_full = difference(after_trainers_step(scene, full), plain);
  std::printf("  checkpointed units and chunks, accumulated, losses scaled: difference %.3g\n",
              in_full);
  bool passed = in_full == 0;
  // In bfloat16, for with float16 the first steps are often skipped, by design.
  if (examples::amp_to_show(examples::amp_dtype(options.amp), device).has_value()) {
    // Adam's first step is the sign of the gradient, so small gradients that mixed precision turns
    // around move a parameter by two rates.
    constexpr double kMostOfRate = 0.2;
    Options mixed = full;
    mixed.amp = "bf16";
    const Nerf all = after_trainers_step(scene, mixed);
    const double in_mixed = difference(all, after_plain_step(scene, mixed));
    const double of_rate = mean_difference(all, plain) / learning_rate(options.lr, 0);
    std::printf(
        "  the same in AMP bf16, from a plain loop in it:             difference %.3g\n"
        "  the same, from the plain loop in float32:                  %.3f learning rates on "
        "average, at most %.1f\n",
        in_mixed, of_rate, kMostOfRate);
    passed = passed && in_mixed == 0 && of_rate <= kMostOfRate;
  }
  if (!passed && device.is_cpu()) {
    std::printf("  FAILED: the techniques change the first step\n");
  }
  return passed || !device.is_cpu();
}

void report_memory(const Scene& scene, const Options& options) {
  auto trainings = examples::options_to_report(in_chunks(options));
  trainings.front().second.chunk = 0;
  for (auto& [name, own] : trainings) {
    Trainer trainer(own, scene);
    examples::write_memory_reports(options.report, trainer.net().get(), {&trainer.optimizer()},
                                   {{name, [&trainer] { trainer.step(); }}}, options.device);
  }
}

}  // namespace nerf
