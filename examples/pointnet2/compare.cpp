#include "pointnet2/compare.h"

#include <tidemark/amp_scope.h>
#include <tidemark/grad_accumulator.h>
#include <torch/torch.h>

#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/memory_reports.h"
#include "common/technique_table.h"
#include "pointnet2/train.h"

namespace pointnet2 {

// What the shapes promise. A plain layer keeps two floats for each row and channel: what its Linear
// returns, for BatchNorm's backward, and what ReLU makes of it in place, for its own backward and
// as the input of the next Linear. An abstraction has a row for each neighbour of each centre, a
// propagation one for each point.
//
// Of a checkpointed stage its arguments are kept. Those are coordinates, 12 bytes a point, and
// features that another stage has returned. An abstraction's are a maximum over neighbours, whose
// indices (int64) the plain one keeps, so they cost nothing more; a propagation's are the result of
// its last ReLU, which therefore doesn't count as saved. What a stage remembers is kept, too: 8
// bytes a row, for an abstraction's neighbour; 36 for three nearest points and their weights. The
// plain stage keeps the input of its first Linear instead: at least 16 bytes a row, or 4 for twice
// the channels, which is more with eight channels or more.
int64_t least_held_saving(const NetworkOptions& options, int64_t clouds) {
  const auto sum = [](const std::vector<int64_t>& widths) {
    int64_t result = 0;
    for (const int64_t width : widths) {
      result += width;
    }
    return result;
  };
  const std::vector<Level> levels = levels_of(options);
  const auto back = widths_behind(options);
  int64_t floats = 0;
  int64_t points = options.points;
  for (size_t i = 0; i < levels.size(); ++i) {
    floats += levels[i].centres * levels[i].neighbours * 2 * sum(levels[i].widths);
    if (options.segments) {
      floats += points * (2 * sum(back[i]) - back[i].back());
    }
    points = levels[i].centres;
  }
  if (!options.segments) {
    floats += points * 2 * sum(back[0]);
  }
  return clouds * floats * static_cast<int64_t>(sizeof(float));
}

namespace {

using Amp = std::optional<torch::ScalarType>;

// The loss of a part of a batch, by what the step needs of tidemark only.
torch::Tensor loss_of(PointNet2& net, const Amp& amp, const Clouds& clouds) {
  const tidemark::AmpScope scope(clouds.xyz.device(), examples::mixed_precision(amp));
  return classification_loss(net.forward(clouds.xyz), clouds.labels);
}

std::vector<Clouds> split(const Clouds& clouds, int64_t parts) {
  const auto xyz = clouds.xyz.chunk(parts);
  const auto labels = clouds.labels.chunk(parts);
  std::vector<Clouds> result;
  for (size_t i = 0; i < xyz.size(); ++i) {
    result.push_back({xyz[i], labels[i]});
  }
  return result;
}

// Forward, loss and backward of a batch, in equal parts; the gradients are left in the parameters.
void run_step(PointNet2& net, const Amp& amp, int64_t parts, const Clouds& clouds) {
  tidemark::GradAccumulator accumulator(tidemark::GradAccumulatorOptions(parts).module(net));
  for (const Clouds& part : split(clouds, parts)) {
    accumulator.backward(loss_of(net, amp, part), static_cast<double>(part.xyz.size(0)));
  }
}

// The same without tidemark, but for the AmpScope.
void run_plain_loop(PointNet2& net, const Amp& amp, int64_t parts, const Clouds& clouds) {
  for (const Clouds& part : split(clouds, parts)) {
    (loss_of(net, amp, part) / static_cast<double>(parts)).backward();
  }
}

// Parameters and BatchNorm statistics of `from` become those of `to`, too; gradients don't.
void share_tensors(const PointNet2& from, PointNet2& to) {
  const auto share = [](const std::vector<torch::Tensor>& source,
                        const std::vector<torch::Tensor>& target) {
    for (size_t i = 0; i < source.size(); ++i) {
      target[i].set_data(source[i].detach());
    }
  };
  share(from.parameters(), to.parameters());
  share(from.buffers(), to.buffers());
}

void hand_over_gradients(PointNet2& from, PointNet2& to) {
  auto source = from.parameters();
  auto target = to.parameters();
  for (size_t i = 0; i < source.size(); ++i) {
    target[i].mutable_grad() = source[i].grad();
    source[i].mutable_grad() = torch::Tensor();
  }
}

// The network after the first steps of a loop without tidemark, but for the AmpScope.
std::shared_ptr<PointNet2> after_plain_steps(const Dataset& data, const Options& options,
                                             int64_t steps) {
  const torch::Device device(options.device);
  const auto amp_options = examples::mixed_precision(examples::amp_dtype(options.amp));
  torch::manual_seed(static_cast<uint64_t>(options.seed));
  const auto net =
      make_pointnet2(options.network(classes_to_learn(data, options)), /*checkpointed=*/false);
  net->to(device);
  torch::optim::Adam optimizer(net->parameters(), adam_options(options));
  for (int64_t step = 0; step < steps; ++step) {
    for (auto& group : optimizer.param_groups()) {
      group.options().set_lr(learning_rate(options, step));
    }
    optimizer.zero_grad();
    for (int64_t i = 0; i < options.accumulate; ++i) {
      const Clouds clouds = draw_training_clouds(data, options).to(device);
      torch::Tensor loss;
      {
        const tidemark::AmpScope amp(device, amp_options);
        loss = classification_loss(net->forward(clouds.xyz), clouds.labels);
      }
      (loss / static_cast<double>(options.accumulate)).backward();
    }
    torch::nn::utils::clip_grad_norm_(net->parameters(), kClipNorm);
    optimizer.step();
  }
  return net;
}

std::shared_ptr<PointNet2> after_trainers_steps(const Dataset& data, const Options& options,
                                                int64_t steps) {
  torch::manual_seed(static_cast<uint64_t>(options.seed));
  Trainer trainer(options, data);
  for (int64_t step = 0; step < steps; ++step) {
    trainer.step();
  }
  return trainer.net();
}

}  // namespace

bool compare_techniques(PointNet2& trained, const Dataset& data, const Options& options) {
  const int64_t clouds_of_step = options.segments() ? 8 : 16;
  constexpr int64_t kParts = 4;
  const torch::Device device(options.device);
  Options batch_options = options;
  batch_options.batch = clouds_of_step;
  const Clouds clouds = draw_training_clouds(data, batch_options).to(device);
  const NetworkOptions network = options.network(classes_to_learn(data, options));
  const auto plain = make_pointnet2(network, false);
  const auto checkpointed = make_pointnet2(network, true);
  for (PointNet2* net : {plain.get(), checkpointed.get()}) {
    net->to(device);
    share_tensors(trained, *net);
  }

  std::vector<examples::Technique> techniques;
  const auto add = [&](const std::string& name, bool in_regions, const Amp& amp, int64_t parts) {
    techniques.emplace_back();
    techniques.back().name = name;
    techniques.back().step = [&, in_regions, amp, parts] {
      PointNet2& net = in_regions ? *checkpointed : *plain;
      run_step(net, amp, parts, clouds);
      if (in_regions) {
        hand_over_gradients(net, *plain);
      }
    };
    techniques.back().reference = [&, amp, parts] { run_plain_loop(*plain, amp, parts, clouds); };
  };
  const std::string parts = "  + GradAccumulator, " + std::to_string(kParts) + " x " +
                            std::to_string(clouds_of_step / kParts);
  add("plain", false, {}, 1);
  add("  + Checkpointed<M> stages", true, {}, 1);
  add(parts, false, {}, kParts);
  add("  + both", true, {}, kParts);
  const Amp amp = examples::amp_to_show(examples::amp_dtype(options.amp), device);
  if (amp.has_value()) {
    add("AMP " + examples::amp_name(amp), false, amp, 1);
    add("  + Checkpointed<M> stages", true, amp, 1);
    add("  + both", true, amp, kParts);
  } else {
    std::printf(
        "  mixed precision is left out, since this CPU has no AVX-512; --amp bf16 shows it\n");
  }
  const auto measured =
      examples::measure_techniques(*plain, techniques, device, options.quick ? 3 : 5);
  const int64_t saving = least_held_saving(network, clouds_of_step);
  techniques[1].most_held = measured[0].held - saving;
  techniques[3].most_held = techniques[1].most_held;
  for (size_t i = 1; i < techniques.size(); ++i) {
    techniques[i].most_peak = measured[i > 4 ? 4 : 0].peak;
  }
  std::printf(
      "  %lld clouds of %lld points. \"at most\": held, the plain figure less %.1f MiB, which "
      "follow\n"
      "  from the shapes; peak, the plain figure in that precision. \"difference\" is the largest "
      "of\n"
      "  gradients and of BatchNorm statistics from the same step without tidemark\n\n",
      static_cast<long long>(clouds_of_step), static_cast<long long>(options.points),
      static_cast<double>(saving) / (1 << 20));
  return examples::print_techniques(techniques, measured, device,
                                    "gradients or BatchNorm statistics");
}

bool compare_first_steps(const Dataset& data, const Options& options) {
  constexpr int64_t kSteps = 2;
  const torch::Device device(options.device);
  bool passed = true;
  for (const std::string& precision : examples::precisions_to_compare(options)) {
    Options all = options;
    all.use_all_techniques();
    all.amp = precision;
    const auto plain = after_plain_steps(data, all, kSteps);
    const auto trained = after_trainers_steps(data, all, kSteps);
    const double parameters =
        examples::largest_difference(trained->parameters(), plain->parameters());
    const double buffers = examples::largest_difference(trained->buffers(), plain->buffers());
    std::printf("  %-10s parameters differ by %.3g, BatchNorm statistics by %.3g\n",
                precision == "off" ? "float32:" : "AMP bf16:", parameters, buffers);
    passed = passed && parameters == 0 && buffers == 0;
  }
  if (!passed && device.is_cpu()) {
    std::printf("  FAILED: the techniques change the first steps\n");
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

}  // namespace pointnet2
