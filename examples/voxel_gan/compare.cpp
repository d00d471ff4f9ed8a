#include "voxel_gan/compare.h"

#include <tidemark/amp_scope.h>
#include <tidemark/grad_accumulator.h>
#include <torch/torch.h>

#include <cstdio>
#include <optional>
#include <string>
#include <vector>

#include "common/memory_reports.h"
#include "common/technique_table.h"
#include "voxel_gan/loss.h"

namespace voxel_gan {

using examples::VoxelShapes;

// What a region keeps is its input. While the discriminator learns these are a batch of real shapes
// and one of generated ones, float; while the generator does, one of generated shapes and the
// random numbers that they are made of. The losses keep some numbers for each shape.
int64_t most_held(int64_t batch) {
  constexpr int64_t kVoxels = kSize * kSize * kSize;
  constexpr int64_t kScores = 16;
  return batch * (2 * kVoxels + kScores) * static_cast<int64_t>(sizeof(float));
}

namespace {

using Amp = std::optional<torch::ScalarType>;

// What a training step is made of.
struct Batch {
  torch::Tensor real;
  torch::Tensor latent_to_judge;
  torch::Tensor latent;

  [[nodiscard]] std::vector<Batch> split(int64_t parts) const {
    const auto reals = real.chunk(parts);
    const auto to_judge = latent_to_judge.chunk(parts);
    const auto latents = latent.chunk(parts);
    std::vector<Batch> result;
    for (size_t i = 0; i < reals.size(); ++i) {
      // copies, as a graph that keeps a view keeps the whole batch
      result.push_back({reals[i].clone(), to_judge[i].clone(), latents[i].clone()});
    }
    return result;
  }
};

// How a step is taken: a row of the table.
struct Way {
  bool penalised = false;
  bool checkpointed = false;
  Amp amp;
  Options options;
};

constexpr double kPenalty = 10;

torch::Tensor generate_apart(Gan& gan, const torch::Tensor& latent) {
  const torch::NoGradGuard no_grad;
  return gan->generate(latent);
}

// The loss of the discriminator for a part of a batch, by what the step needs of tidemark only.
torch::Tensor loss_of_discriminator(Gan& gan, const Way& way, const Batch& batch) {
  torch::Tensor fake, between, loss, scores;
  {
    const tidemark::AmpScope scope(batch.real.device(), examples::mixed_precision(way.amp));
    fake = generate_apart(gan, batch.latent_to_judge);
    loss = discriminator_loss(gan->judge(with_noise(batch.real, way.options)),
                              gan->judge(with_noise(fake, way.options)), way.penalised);
    if (way.penalised) {
      between = shapes_between(batch.real, fake);
      scores = gan->judge(between);
    }
  }
  if (way.penalised) {
    const torch::Tensor gradients =
        torch::autograd::grad({scores.sum()}, {between}, {}, true, /*create_graph=*/true)[0];
    loss = loss + kPenalty * distance_from_unit_norm(gradients);
  }
  return loss;
}

torch::Tensor loss_of_generator(Gan& gan, const Way& way, const Batch& batch) {
  const tidemark::AmpScope scope(batch.real.device(), examples::mixed_precision(way.amp));
  const torch::Tensor fake = gan->generate(batch.latent);
  return generator_loss(gan->judge(with_noise(fake, way.options)), way.penalised);
}

// Losses and backward passes of both networks; the gradients are left in the parameters.
void run_step(Gan& gan, const Way& way, const std::vector<Batch>& parts) {
  const auto count = static_cast<int64_t>(parts.size());
  gan->checkpointed = way.checkpointed;
  tidemark::GradAccumulator of_discriminator(
      tidemark::GradAccumulatorOptions(count).module(gan->discriminator));
  for (const Batch& part : parts) {
    of_discriminator.backward(loss_of_discriminator(gan, way, part),
                              static_cast<double>(part.real.size(0)));
  }
  set_learning(*gan->discriminator, false);
  tidemark::GradAccumulator of_generator(
      tidemark::GradAccumulatorOptions(count).module(gan->generator));
  for (const Batch& part : parts) {
    of_generator.backward(loss_of_generator(gan, way, part),
                          static_cast<double>(part.real.size(0)));
  }
  set_learning(*gan->discriminator, true);
}

// The same without tidemark, but for the AmpScope.
void run_plain_loop(Gan& gan, const Way& way, const std::vector<Batch>& parts) {
  const auto count = static_cast<double>(parts.size());
  gan->checkpointed = false;
  for (const Batch& part : parts) {
    (loss_of_discriminator(gan, way, part) / count).backward();
  }
  set_learning(*gan->discriminator, false);
  for (const Batch& part : parts) {
    (loss_of_generator(gan, way, part) / count).backward();
  }
  set_learning(*gan->discriminator, true);
}

// The networks after the first steps of a loop without tidemark, but for the AmpScope.
Gan after_plain_steps(const VoxelShapes& shapes, const Options& options, int64_t steps) {
  const torch::Device device(options.device);
  const auto amp_options = examples::mixed_precision(examples::amp_dtype(options.amp));
  const auto parts = static_cast<double>(options.accumulate);
  torch::manual_seed(static_cast<uint64_t>(options.seed));
  GanOptions plain = gan_options(options);
  plain.checkpointed = false;
  Gan gan(plain);
  gan->to(device);
  torch::optim::Adam generator_adam(gan->generator->parameters(),
                                    adam_options(options.lr, options));
  torch::optim::Adam discriminator_adam(gan->discriminator->parameters(),
                                        adam_options(options.discriminator_lr, options));
  for (int64_t step = 0; step < steps; ++step) {
    discriminator_adam.zero_grad();
    for (int64_t i = 0; i < options.accumulate; ++i) {
      const torch::Tensor real = draw_shapes(shapes, options);
      torch::Tensor fake, loss, scores, between;
      {
        const tidemark::AmpScope amp(device, amp_options);
        fake = gan->generate(draw_latent(options.batch, options)).detach();
        loss = discriminator_loss(gan->judge(with_noise(real, options)),
                                  gan->judge(with_noise(fake, options)), options.penalised());
      }
      if (options.penalised()) {
        between = shapes_between(real, fake);
        {
          const tidemark::AmpScope amp(device, amp_options);
          scores = gan->judge(between);
        }
        const torch::Tensor gradients =
            torch::autograd::grad({scores.sum()}, {between}, {}, true, /*create_graph=*/true)[0];
        loss = loss + options.gradient_penalty * distance_from_unit_norm(gradients);
      }
      (loss / parts).backward();
    }
    discriminator_adam.step();

    generator_adam.zero_grad();
    for (int64_t i = 0; i < options.accumulate; ++i) {
      torch::Tensor loss;
      {
        const tidemark::AmpScope amp(device, amp_options);
        const torch::Tensor fake = gan->generate(draw_latent(options.batch, options));
        loss = generator_loss(gan->judge(with_noise(fake, options)), options.penalised());
      }
      (loss / parts).backward();
    }
    generator_adam.step();
    gan->update_average(options.ema);
  }
  return gan;
}

Gan after_trainers_steps(const VoxelShapes& shapes, const Options& options, int64_t steps) {
  torch::manual_seed(static_cast<uint64_t>(options.seed));
  Trainer trainer(options, shapes);
  for (int64_t step = 0; step < steps; ++step) {
    trainer.step();
  }
  return trainer.gan();
}

}  // namespace

bool compare_techniques(Gan& trained, const VoxelShapes& shapes, const Options& options) {
  constexpr int64_t kParts = 4;
  const torch::Device device(options.device);
  Options of_batch = options;
  of_batch.batch = (options.batch + kParts - 1) / kParts * kParts;
  const int64_t count = of_batch.batch;
  const std::vector<Batch> whole{
      {draw_shapes(shapes, of_batch), draw_latent(count, options), draw_latent(count, options)}};
  const std::vector<Batch> split = whole.front().split(kParts);

  // one of the networks as trained, the other new
  GanOptions other_options = gan_options(options);
  other_options.layer_norm = !options.penalised();
  Gan other(other_options);
  other->to(device);
  Gan& with_penalty = options.penalised() ? trained : other;
  Gan& without_penalty = options.penalised() ? other : trained;
  std::vector<torch::Tensor> parameters = trained->parameters();
  std::vector<torch::Tensor> buffers = trained->buffers();
  for (const torch::Tensor& parameter : other->parameters()) {
    parameters.push_back(parameter);
  }
  for (const torch::Tensor& buffer : other->buffers()) {
    buffers.push_back(buffer);
  }

  std::vector<examples::Technique> techniques;
  const auto add = [&](const std::string& name, const Way& way, const std::vector<Batch>& batch) {
    Gan& gan = way.penalised ? with_penalty : without_penalty;
    techniques.emplace_back();
    techniques.back().name = name;
    techniques.back().step = [&gan, way, &batch] { run_step(gan, way, batch); };
    techniques.back().reference = [&gan, way, &batch] { run_plain_loop(gan, way, batch); };
  };
  const std::string parts =
      "GradAccumulator, " + std::to_string(kParts) + " x " + std::to_string(count / kParts);
  const auto add_all = [&](const std::string& plain, bool penalised, const Amp& amp) {
    const std::string prefix = techniques.empty() ? "" : "  + ";
    add(plain, {penalised, false, amp, options}, whole);
    add(prefix + "checkpoint()", {penalised, true, amp, options}, whole);
    add(prefix + parts, {penalised, false, amp, options}, split);
    add("  + both", {penalised, true, amp, options}, split);
  };
  add_all("plain", false, {});
  const Amp amp = examples::amp_to_show(examples::amp_dtype(options.amp), device);
  if (amp.has_value()) {
    add_all("AMP " + examples::amp_name(amp), false, amp);
  } else {
    std::printf(
        "  mixed precision is left out, since this CPU has no AVX-512; --amp bf16 shows it\n");
  }
  const size_t penalised = techniques.size();
  add_all("gradient penalty", true, {});
  const auto measured =
      examples::measure_techniques(parameters, buffers, techniques, device, options.quick ? 1 : 5);
  trained->checkpointed = options.checkpointed();
  for (size_t i = 0; i < techniques.size(); i += 4) {
    for (size_t row = i + 1; row < i + 4; ++row) {
      // in narrower networks the voxels that a region keeps are more than what its layers do
      if (row != i + 1 || options.channels >= 8) {
        techniques[row].most_peak = measured[i].peak;
      }
    }
    if (i != penalised) {
      techniques[i + 1].most_held = most_held(count);
      techniques[i + 3].most_held = most_held(count / kParts);
    }
  }
  std::printf(
      "  %lld shapes. \"at most\": held, two shapes' voxels for each shape, see compare.cpp; peak, "
      "that\n"
      "  of the plain step. \"difference\" is the largest of gradients and of BatchNorm statistics "
      "from\n"
      "  the same step without tidemark\n\n",
      static_cast<long long>(count));
  return examples::print_techniques(techniques, measured, device,
                                    "gradients or BatchNorm statistics");
}

bool compare_first_steps(const VoxelShapes& shapes, const Options& options) {
  constexpr int64_t kSteps = 2;
  const torch::Device device(options.device);
  bool passed = true;
  for (const double penalty : {0.0, kPenalty}) {
    for (const std::string& precision : examples::precisions_to_compare(options)) {
      Options all = options;
      all.use_all_techniques();
      all.amp = precision;
      all.gradient_penalty = penalty;
      const Gan plain = after_plain_steps(shapes, all, kSteps);
      const Gan trained = after_trainers_steps(shapes, all, kSteps);
      const double parameters =
          examples::largest_difference(trained->parameters(), plain->parameters());
      const double buffers = examples::largest_difference(trained->buffers(), plain->buffers());
      std::printf("  %-19s %-10s  parameters differ by %.3g, BatchNorm statistics by %.3g\n",
                  penalty > 0 ? "gradient penalty," : "cross-entropy,",
                  precision == "off" ? "float32:" : "AMP bf16:", parameters, buffers);
      passed = passed && parameters == 0 && buffers == 0;
    }
  }
  if (!passed && device.is_cpu()) {
    std::printf("  FAILED: the techniques change the first steps\n");
  }
  return passed || !device.is_cpu();
}

void report_memory(const VoxelShapes& shapes, const Options& options) {
  for (const auto& [name, own] : examples::options_to_report(options)) {
    Trainer trainer(own, shapes);
    examples::write_memory_reports(options.report, trainer.gan().get(), trainer.optimizers(),
                                   {{name, [&trainer] { trainer.step(); }}}, options.device);
  }
}

}  // namespace voxel_gan
