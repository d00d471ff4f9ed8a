// Teaches a voxel network the tissues of a head scan, with checkpointed activations.

#include <ATen/Version.h>
#include <tidemark/memory/memory_scope.h>
#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iomanip>
#include <iostream>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "common/args.h"
#include "voxel_net/compare.h"
#include "voxel_net/data.h"
#include "voxel_net/metrics.h"
#include "voxel_net/options.h"
#include "voxel_net/pictures.h"
#include "voxel_net/train.h"

namespace voxel_net {

namespace {

// What can't be written in the end should fail in the beginning.
void check_outputs(const Options& options) {
  std::filesystem::create_directories(options.out);
  if (!options.save.empty()) {
    const bool existed = std::filesystem::exists(options.save);
    if (!std::ofstream(options.save, std::ios::app)) {
      throw std::runtime_error("can't write " + options.save);
    }
    if (!existed) {
      std::filesystem::remove(options.save);
    }
  }
}

void prepare_machine(const Options& options) {
  tidemark::install_memory_meter();
  if (options.device == "cuda" && !torch::cuda::is_available()) {
    throw std::runtime_error("--device cuda: this LibTorch finds no CUDA device");
  }
  if (options.threads > 0) {
    at::set_num_threads(static_cast<int>(options.threads));
  }
  torch::manual_seed(static_cast<uint64_t>(options.seed));
}

void describe(const Dataset& data, VoxelNet& net) {
  const auto range = [&data](const Slices& slices) {
    return std::to_string(data.first_slice + slices.begin) + "-" +
           std::to_string(data.first_slice + slices.end - 1);
  };
  int64_t parameters = 0;
  for (const torch::Tensor& parameter : net->parameters()) {
    parameters += parameter.numel();
  }
  std::cout << "scan      " << data.scan.size(0) << " x " << data.scan.size(1) << " x "
            << data.scan.size(2) << " voxels without empty borders\n"
            << "slices    " << range(data.training[0]) << " and " << range(data.training[1])
            << " to learn from, " << range(data.held_out) << " held out\n"
            << "network   " << net->blocks->size() << " residual blocks in "
            << net->blocks->segment_ends().size() << " segments, " << parameters << " parameters\n";
}

void print_scores(const Dataset& data, const torch::Tensor& prediction) {
  const torch::Tensor truth = data.labels.slice(0, data.held_out.begin, data.held_out.end);
  const std::vector<double> scores = dice_per_class(prediction, truth, data.classes());
  std::cout << "  Dice on the held-out slices:";
  const char* separator = " ";
  for (size_t i = 0; i < scores.size(); ++i) {
    if (!std::isnan(scores[i])) {  // a class that is there
      std::cout << separator << data.class_names[i] << " " << scores[i];
      separator = ", ";
    }
  }
  std::cout << "\n";
}

// Returns whether all checks hold.
bool compare(Trainer& trainer, const Options& options) {
  Batch batch = trainer.sampler().next();
  const torch::Device device(options.device);
  batch = {batch.scan.to(device), batch.labels.to(device)};
  Sizes sizes;
  sizes.activation = batch.scan.numel() * options.channels * static_cast<int64_t>(sizeof(float));
  for (const torch::Tensor& parameter : trainer.net()->blocks->parameters()) {
    sizes.block_gradients += static_cast<int64_t>(parameter.nbytes()) / options.blocks;
  }
  std::optional<torch::ScalarType> amp = options.amp_dtype();
  if (!amp.has_value()) {
    // Elsewhere convolutions in bfloat16 take many times as long as in float32.
    if (device.is_cuda() || at::get_cpu_capability() == "AVX512") {
      amp = torch::kBFloat16;
    } else {
      std::cout
          << "  mixed precision is left out, since this CPU has no AVX-512; --amp bf16 shows it\n";
    }
  }
  const auto techniques = all_techniques(trainer.net(), amp);
  const auto measured = measure_techniques(trainer.net(), techniques, batch, options.quick ? 3 : 5);
  return report_techniques(techniques, measured, sizes, device.is_cpu());
}

int run(const Options& options) {
  std::cout << std::fixed << std::setprecision(3);
  check_outputs(options);
  prepare_machine(options);
  const Dataset data = Dataset::load(options.volume, options.labels);
  Trainer trainer(options, data);
  if (!options.resume.empty()) {
    trainer.resume(options.resume);
  }
  describe(data, trainer.net());

  std::cout << "\ntraining, " << options.batch << " patches of " << options.patch
            << "^3 voxels a batch, " << options.accumulate << " a step\n"
            << std::flush;
  trainer.train();
  const size_t steps = trainer.losses().size();
  std::cout << "  loss " << trainer.mean_loss(std::min<size_t>(steps, 10))
            << " in the first ten steps, " << trainer.mean_loss(steps) << " in the last ten\n";
  if (!options.save.empty()) {
    trainer.save(options.save);
    std::cout << "  wrote " << options.save << "\n";
  }

  std::cout << "\nslices that training has not seen\n" << std::flush;
  const torch::Tensor prediction =
      predict(trainer.net(), data, data.held_out, options.patch, options.batch);
  print_scores(data, prediction);
  const std::string slices_png = (std::filesystem::path(options.out) / "slices.png").string();
  const std::string loss_svg = (std::filesystem::path(options.out) / "loss.svg").string();
  draw_slices(slices_png, data, prediction);
  draw_losses(loss_svg, trainer.losses());
  std::cout << "  wrote " << slices_png << " and " << loss_svg << "\n";

  std::cout << "\none training step, plain, checkpointed and in mixed precision\n" << std::flush;
  const bool passed = compare(trainer, options);
  std::cout << "voxel_net: " << (passed ? "all checks passed" : "checks FAILED") << "\n";
  return passed ? 0 : 1;
}

}  // namespace

}  // namespace voxel_net

int main(int argc, char** argv) {
  try {
    const auto options = voxel_net::Options::parse(argc, argv);
    if (options.help) {
      std::cout << voxel_net::Options::help_text();
      return 0;
    }
    return voxel_net::run(options);
  } catch (const examples::UsageError& error) {
    std::cerr << "voxel_net: " << error.what() << "\nTry 'voxel_net --help'.\n";
    return 2;
  } catch (const c10::Error& error) {
    std::cerr << "voxel_net: " << error.what_without_backtrace() << "\n";
    return 1;
  } catch (const std::exception& error) {
    std::cerr << "voxel_net: " << error.what() << "\n";
    return 1;
  }
}
