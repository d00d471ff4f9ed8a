// Teaches a 3D U-Net the tissues of a head scan, with checkpointed stages.

#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <iomanip>
#include <iostream>
#include <string>
#include <vector>

#include "common/image.h"
#include "common/loss_chart.h"
#include "common/program.h"
#include "common/slice_picture.h"
#include "common/sliding_window.h"
#include "common/training_state.h"
#include "common/volume_dataset.h"
#include "unet3d/compare.h"
#include "unet3d/options.h"
#include "unet3d/train.h"

namespace unet3d {

namespace {

using examples::Dataset;

void describe(const Dataset& data, const UNet3d& net, const Options& options) {
  int64_t parameters = 0;
  for (const torch::Tensor& parameter : net.parameters()) {
    parameters += parameter.numel();
  }
  const int64_t first = data.first_slice + data.held_out.begin;
  std::cout << "scan      " << data.scan.size(0) << " x " << data.scan.size(1) << " x "
            << data.scan.size(2) << " voxels without empty borders, " << data.classes()
            << " classes\n"
            << "slices    " << first << "-" << first + data.held_out.count() - 1
            << " held out with a margin, the others to learn from\n"
            << "network   " << options.levels << " levels, " << parameters << " parameters, stages "
            << (options.checkpointed() ? "checkpointed" : "plain") << "\n";
}

torch::Tensor predict(UNet3d& net, const Dataset& data, const Options& options) {
  net.eval();
  const torch::Device device(options.device);
  const auto amp_options = examples::mixed_precision(examples::amp_dtype(options.amp));
  const torch::Tensor prediction = examples::predict_slices(
      [&](const torch::Tensor& scan) {
        const tidemark::AmpScope amp(device, amp_options);
        return net.forward(scan.to(device)).front().to(torch::kFloat).softmax(1);
      },
      data, data.held_out, examples::gaussian_weight(options.patch), options.batch);
  net.train();
  return prediction;
}

// Of the classes that are there, but for the background.
double mean_of_tissues(const std::vector<double>& scores) {
  double sum = 0;
  int64_t count = 0;
  for (size_t i = 1; i < scores.size(); ++i) {
    if (!std::isnan(scores[i])) {
      sum += scores[i];
      ++count;
    }
  }
  return count > 0 ? sum / static_cast<double>(count) : 0;
}

// Returns whether the score is what --min-dice asks for.
bool evaluate(Trainer& trainer, const Dataset& data, const Options& options) {
  const torch::Tensor prediction = predict(*trainer.net(), data, options);
  const torch::Tensor truth = data.labels.slice(0, data.held_out.begin, data.held_out.end);
  const auto scores = examples::dice_per_class(prediction, truth, data.classes());
  const double mean = mean_of_tissues(scores);
  const bool passed = 100 * mean >= static_cast<double>(options.min_dice);
  std::cout << "  Dice " << examples::describe_scores(data, scores) << "\n  mean of the tissues "
            << mean << ", at least " << static_cast<double>(options.min_dice) / 100 << " wanted"
            << (passed ? "" : ": FAILED") << "\n";
  const std::string loss_svg = (std::filesystem::path(options.out) / "loss.svg").string();
  examples::draw_losses(loss_svg, trainer.losses(), "cross-entropy + 1 - Dice, all resolutions");
  std::cout << "  wrote " << loss_svg;
  if (examples::Image::can_save()) {
    const std::string slices_png = (std::filesystem::path(options.out) / "slices.png").string();
    examples::draw_slices(slices_png, data, prediction);
    std::cout << " and " << slices_png;
  }
  std::cout << "\n";
  return passed;
}

int run(const Options& options) {
  std::cout << std::fixed << std::setprecision(3);
  examples::check_outputs({options.out, options.report}, options.save);
  examples::prepare_machine(options.device, options.threads, options.seed);
  const Dataset data = Dataset::load(options.data);
  Trainer trainer(options, data);
  if (!options.resume.empty()) {
    trainer.resume(options.resume);
  }
  describe(data, *trainer.net(), options);

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
  bool passed = evaluate(trainer, data, options);
  std::cout << "\none training step in several ways\n" << std::flush;
  passed = compare_techniques(*trainer.net(), data, options) && passed;
  std::cout << "parameters after the first step, with all techniques and by a plain loop\n"
            << std::flush;
  passed = compare_first_step(data, options) && passed;
  if (!options.report.empty()) {
    report_memory(data, options);
  }
  std::cout << "\nunet3d: " << (passed ? "all checks passed" : "checks FAILED") << "\n";
  return passed ? 0 : 1;
}

}  // namespace

}  // namespace unet3d

int main(int argc, char** argv) {
  return examples::run_program("unet3d", [&] {
    const auto options = unet3d::Options::parse(argc, argv);
    if (options.help) {
      std::cout << unet3d::Options::help_text();
      return 0;
    }
    return unet3d::run(options);
  });
}
