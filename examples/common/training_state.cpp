#include "common/training_state.h"

#include <torch/torch.h>

#include <algorithm>
#include <filesystem>
#include <mutex>
#include <numeric>
#include <stdexcept>

#include "common/args.h"

namespace examples {

namespace {

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

void TrainingState::save(const std::string& path) const {
  torch::serialize::OutputArchive archive;
  archive.write("settings", torch::IValue(settings_));
  for (const Part& part : parts_) {
    torch::serialize::OutputArchive inner;
    part.save(inner);
    archive.write(part.name, inner);
  }
  archive.write("rng", rng_state());
  archive.write("losses", torch::tensor(losses_, torch::kFloat64));
  archive.save_to(path);
}

void TrainingState::resume(const std::string& path, int64_t steps, torch::Device device) {
  if (!std::filesystem::is_regular_file(path)) {
    throw std::runtime_error(path + ": no such file");
  }
  torch::serialize::InputArchive archive;
  std::vector<torch::serialize::InputArchive> inner(parts_.size());
  torch::IValue written_with;
  torch::Tensor rng, losses;
  try {
    archive.load_from(path, device);
    archive.read("settings", written_with);
    for (size_t i = 0; i < parts_.size(); ++i) {
      archive.read(parts_[i].name, inner[i]);
    }
    archive.read("rng", rng);
    archive.read("losses", losses);
  } catch (const std::exception&) {
    throw std::runtime_error(path + ": is no training state that --save wrote");
  }
  if (written_with.toStringRef() != settings_) {
    throw UsageError(path + " comes from a run with " + written_with.toStringRef() +
                     "; this one has " + settings_);
  }
  if (losses.numel() >= steps) {
    throw UsageError(path + " is at step " + std::to_string(losses.numel()) +
                     " already; give a higher --steps");
  }
  for (size_t i = 0; i < parts_.size(); ++i) {
    parts_[i].load(inner[i]);
  }
  set_rng_state(rng.cpu());
  losses = losses.cpu();
  losses_.assign(losses.data_ptr<double>(), losses.data_ptr<double>() + losses.numel());
}

double mean_of_ten(const std::vector<double>& losses, size_t end) {
  const size_t begin = end - std::min<size_t>(end, 10);
  const double sum = std::accumulate(losses.begin() + static_cast<std::ptrdiff_t>(begin),
                                     losses.begin() + static_cast<std::ptrdiff_t>(end), 0.0);
  return sum / static_cast<double>(end - begin);
}

}  // namespace examples
