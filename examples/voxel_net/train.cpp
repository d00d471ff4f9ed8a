#include "voxel_net/train.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <mutex>
#include <numeric>
#include <sstream>
#include <stdexcept>

#include "common/args.h"
#include "common/progress.h"

namespace voxel_net {

namespace {

// Ten steps of warm-up, then a slow decline. It doesn't depend on --steps, so that a run which is
// resumed with a higher number goes on as one that had it from the start.
double learning_rate(double highest, int64_t step) {
  const auto t = static_cast<double>(step);
  return highest * std::min(1.0, (t + 1) / 10) / (1 + t / 60);
}

torch::Tensor rng_state() {
  at::Generator generator = at::globalContext().defaultGenerator(torch::kCPU);
  const std::lock_guard<std::mutex> lock(generator.mutex());
  return generator.get_state();
}

void set_rng_state(const torch::Tensor& state) {
  at::Generator generator = at::globalContext().defaultGenerator(torch::kCPU);
  const std::lock_guard<std::mutex> lock(generator.mutex());
  generator.set_state(state);
}

}  // namespace

torch::Tensor segmentation_loss(const torch::Tensor& half_scores, const torch::Tensor& labels) {
  namespace F = torch::nn::functional;
  // in half precision the sums over all voxels would be
  const torch::Tensor scores = half_scores.to(torch::kFloat);
  const torch::Tensor counts = labels.ne(kNoClass);
  const torch::Tensor cross_entropy =
      F::cross_entropy(scores, labels,
                       F::CrossEntropyFuncOptions().ignore_index(kNoClass).reduction(torch::kSum)) /
      counts.sum().clamp_min(1);

  const torch::Tensor mask = counts.unsqueeze(1);
  const torch::Tensor truth =
      torch::one_hot(labels.masked_fill(~counts, 0), scores.size(1)).movedim(-1, 1) * mask;
  const torch::Tensor guess = scores.softmax(1) * mask;
  const std::vector<int64_t> voxels{0, 2, 3, 4};
  const torch::Tensor dice =
      (2 * (guess * truth).sum(voxels) + 1) / ((guess + truth).sum(voxels) + 1);
  return cross_entropy + 1 - dice.mean();
}

tidemark::AmpOptions mixed_precision(std::optional<torch::ScalarType> dtype) {
  return dtype.has_value() ? tidemark::AmpOptions(*dtype) : tidemark::AmpOptions().enabled(false);
}

tidemark::CheckpointedSequentialOptions checkpointing(const Options& options) {
  return tidemark::CheckpointedSequentialOptions().segments(options.segments).every(options.every);
}

Trainer::Trainer(const Options& options, const Dataset& data)
    : options_(options),
      classes_(data.classes()),
      device_(options.device),
      sampler_(data, options.patch, options.batch),
      net_(options.channels, options.blocks, data.classes(), checkpointing(options)),
      optimizer_(net_->parameters(), torch::optim::AdamOptions(options.lr)),
      amp_(mixed_precision(options.amp_dtype())),
      scaler_(tidemark::GradScalerOptions().enabled(options.amp == "fp16")),
      accumulator_(optimizer_,
                   tidemark::GradAccumulatorOptions(options.accumulate).scaler(scaler_)) {
  net_->to(device_);
}

void Trainer::train() {
  examples::Progress progress("  step", options_.steps);
  while (static_cast<int64_t>(losses_.size()) < options_.steps) {
    losses_.push_back(step());
    char note[32];
    std::snprintf(note, sizeof(note), "loss %.3f", mean_loss(losses_.size()));
    progress.update(static_cast<int64_t>(losses_.size()), note);
  }
}

double Trainer::mean_loss(size_t end) const {
  const size_t begin = end - std::min<size_t>(end, 10);
  const double sum = std::accumulate(losses_.begin() + static_cast<std::ptrdiff_t>(begin),
                                     losses_.begin() + static_cast<std::ptrdiff_t>(end), 0.0);
  return sum / static_cast<double>(end - begin);
}

double Trainer::step() {
  for (auto& group : optimizer_.param_groups()) {
    group.options().set_lr(learning_rate(options_.lr, static_cast<int64_t>(losses_.size())));
  }
  bool stepped = false;
  while (!stepped) {
    const Batch batch = sampler_.next();
    torch::Tensor loss;
    {
      const tidemark::AmpScope amp(device_, amp_);
      const torch::Tensor scores = net_(batch.scan.to(device_));
      loss = segmentation_loss(scores, batch.labels.to(device_));
    }
    stepped = accumulator_.backward(loss, static_cast<double>(batch.scan.size(0)));
  }

  const double value = accumulator_.window_loss();
  if (!std::isfinite(value)) {
    throw std::runtime_error("the loss is no longer finite at step " +
                             std::to_string(losses_.size() + 1) + "; try a smaller --lr");
  }
  return value;
}

std::string Trainer::settings() const {
  std::ostringstream text;
  text << "channels " << options_.channels << ", blocks " << options_.blocks << ", classes "
       << classes_ << ", patch " << options_.patch << ", batch " << options_.batch
       << ", accumulate " << options_.accumulate << ", lr " << options_.lr << ", seed "
       << options_.seed << ", amp " << options_.amp;
  return text.str();
}

void Trainer::save(const std::string& path) {
  torch::serialize::OutputArchive model, optimizer, scaler, archive;
  net_->save(model);
  optimizer_.save(optimizer);
  scaler_.save(scaler);
  archive.write("settings", torch::IValue(settings()));
  archive.write("model", model);
  archive.write("optimizer", optimizer);
  archive.write("scaler", scaler);
  archive.write("rng", rng_state());
  archive.write("losses", torch::tensor(losses_, torch::kFloat64));
  archive.save_to(path);
}

void Trainer::resume(const std::string& path) {
  if (!std::filesystem::is_regular_file(path)) {
    throw std::runtime_error(path + ": no such file");
  }
  torch::serialize::InputArchive archive, model, optimizer, scaler;
  torch::IValue written_with;
  torch::Tensor rng, losses;
  try {
    archive.load_from(path, device_);
    archive.read("settings", written_with);
    archive.read("model", model);
    archive.read("optimizer", optimizer);
    archive.read("scaler", scaler);
    archive.read("rng", rng);
    archive.read("losses", losses);
  } catch (const std::exception&) {
    throw std::runtime_error(path + ": is no training state that --save wrote");
  }
  if (written_with.toStringRef() != settings()) {
    throw examples::UsageError(path + " comes from a run with " + written_with.toStringRef() +
                               "; this one has " + settings());
  }
  if (losses.numel() >= options_.steps) {
    throw examples::UsageError(path + " is at step " + std::to_string(losses.numel()) +
                               " already; give a higher --steps");
  }
  net_->load(model);
  optimizer_.load(optimizer);
  scaler_.load(scaler);
  set_rng_state(rng.cpu());
  losses = losses.cpu();
  losses_.assign(losses.data_ptr<double>(), losses.data_ptr<double>() + losses.numel());
}

}  // namespace voxel_net
