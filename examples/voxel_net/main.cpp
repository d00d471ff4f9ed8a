// Teaches a voxel network the tissues of a head scan, with checkpointed activations.

#include <torch/torch.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <iomanip>
#include <iostream>
#include <string>

#include "common/image.h"
#include "common/loss_chart.h"
#include "common/memory_reports.h"
#include "common/program.h"
#include "common/slice_picture.h"
#include "common/sliding_window.h"
#include "common/training_options.h"
#include "common/training_state.h"
#include "common/volume_dataset.h"
#include "voxel_net/compare.h"
#include "voxel_net/options.h"
#include "voxel_net/train.h"

namespace voxel_net {

namespace {

using examples::Batch;
using examples::Dataset;
using examples::Slices;

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

torch::Tensor predict(VoxelNet& net, const Dataset& data, const Options& options) {
  net->eval();
  const torch::Tensor equal = torch::ones({options.patch, options.patch, options.patch});
  const torch::Tensor prediction = examples::predict_slices(
      [&](const torch::Tensor& scan) { return net(scan.to(options.device)).softmax(1); }, data,
      data.held_out, equal, options.batch);
  net->train();
  return prediction;
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
  const auto amp = examples::amp_to_show(options.amp_dtype(), device);
  if (!amp.has_value()) {
    std::cout
        << "  mixed precision is left out, since this CPU has no AVX-512; --amp bf16 shows it\n";
  }
  const auto ways = all_ways(trainer.net(), amp);
  const auto measured = measure_ways(trainer.net(), ways, batch, options.quick ? 3 : 5);
  const bool passed = report_ways(ways, measured, sizes, device);
  if (!options.report.empty()) {  // of the first two ways: plain, and a CheckpointedSequential
    examples::write_memory_reports(
        options.report, trainer.net().get(), {&trainer.optimizer()},
        {{"plain", whole_step(trainer.net(), trainer.optimizer(), ways[0], batch)},
         {"checkpointed", whole_step(trainer.net(), trainer.optimizer(), ways[1], batch)}},
        device);
  }
  return passed;
}

int run(const Options& options) {
  std::cout << std::fixed << std::setprecision(3);
  examples::check_outputs({options.out, options.report}, options.save);
  examples::prepare_machine(options.device, options.threads, options.seed);
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
  const auto& losses = trainer.losses();
  std::cout << "  loss " << examples::mean_of_ten(losses, std::min<size_t>(losses.size(), 10))
            << " in the first ten steps, " << examples::mean_of_ten(losses, losses.size())
            << " in the last ten\n";
  if (!options.save.empty()) {
    trainer.save(options.save);
    std::cout << "  wrote " << options.save << "\n";
  }

  std::cout << "\nslices that training has not seen\n" << std::flush;
  const torch::Tensor prediction = predict(trainer.net(), data, options);
  const torch::Tensor truth = data.labels.slice(0, data.held_out.begin, data.held_out.end);
  const auto scores = examples::dice_per_class(prediction, truth, data.classes());
  std::cout << "  Dice on the held-out slices: " << examples::describe_scores(data, scores) << "\n";
  const std::string loss_svg = (std::filesystem::path(options.out) / "loss.svg").string();
  examples::draw_losses(loss_svg, losses, "cross-entropy + 1 - Dice");
  std::cout << "  wrote " << loss_svg;
  if (examples::Image::can_save()) {
    const std::string slices_png = (std::filesystem::path(options.out) / "slices.png").string();
    examples::draw_slices(slices_png, data, prediction);
    std::cout << " and " << slices_png;
  }
  std::cout << "\n";

  std::cout << "\none training step, plain, checkpointed and in mixed precision\n" << std::flush;
  const bool passed = compare(trainer, options);
  std::cout << "voxel_net: " << (passed ? "all checks passed" : "checks FAILED") << "\n";
  return passed ? 0 : 1;
}

}  // namespace

}  // namespace voxel_net

int main(int argc, char** argv) {
  return examples::run_program("voxel_net", [&] {
    const auto options = voxel_net::Options::parse(argc, argv);
    if (options.help) {
      std::cout << voxel_net::Options::help_text();
      return 0;
    }
    return voxel_net::run(options);
  });
}
