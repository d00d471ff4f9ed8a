// Teaches a generator to make furniture of voxels, against a discriminator.

#include <torch/torch.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <iomanip>
#include <iostream>
#include <string>
#include <vector>

#include "common/image.h"
#include "common/line_chart.h"
#include "common/program.h"
#include "common/shape_picture.h"
#include "common/shape_score.h"
#include "common/shape_score_table.h"
#include "common/shapes.h"
#include "common/shapes_voxels.h"
#include "common/training_state.h"
#include "voxel_gan/compare.h"
#include "voxel_gan/options.h"
#include "voxel_gan/train.h"

namespace voxel_gan {

namespace {

using examples::VoxelShapes;

void describe(const VoxelShapes& shapes, const Gan& gan, const Options& options) {
  const auto count = [](const torch::nn::Sequential& network) {
    int64_t parameters = 0;
    for (const torch::Tensor& parameter : network->parameters()) {
      parameters += parameter.numel();
    }
    return parameters;
  };
  std::cout << "shapes    ";
  for (int64_t i = 0; i < static_cast<int64_t>(shapes.class_names.size()); ++i) {
    std::cout << shapes.train_labels.eq(i).sum().item<int64_t>() / options.variants << " + "
              << shapes.held_out_labels.eq(i).sum().item<int64_t>() << " "
              << shapes.class_names[static_cast<size_t>(i)] << "s, ";
  }
  std::cout << "to train with + held out\n"
            << "          " << shapes.train.size(0) << " training shapes with variants, " << kSize
            << "^3 voxels each\n"
            << "networks  generator of " << count(gan->generator)
            << " parameters, discriminator of " << count(gan->discriminator) << ", "
            << (options.checkpointed() ? "checkpointed" : "plain") << "\n";
}

void draw_losses(const std::string& path, const Trainer& trainer, const Options& options) {
  const auto line = [](const std::string& name, const std::string& colour,
                       const std::vector<double>& losses) {
    examples::ChartLine result{name, colour, 2, {}, {}};
    for (size_t i = 0; i < losses.size(); ++i) {
      result.x.push_back(static_cast<double>(i + 1));
      result.y.push_back(examples::mean_of_ten(losses, i + 1));
    }
    return result;
  };
  examples::LineChart{"Training losses, means of the last 10",
                      "step",
                      options.penalised() ? "Wasserstein distance" : "cross-entropy",
                      {line("discriminator", "#0072b2", trainer.discriminator_losses()),
                       line("generator", "#d55e00", trainer.generator_losses())}}
      .save_svg(path);
}

// In parts, as there may be many: [count, 32, 32, 32].
torch::Tensor generate(Gan& gan, int64_t count, const Options& options) {
  constexpr int64_t kPart = 64;
  std::vector<torch::Tensor> parts;
  for (int64_t done = 0; done < count; done += kPart) {
    parts.push_back(
        gan->sample(draw_latent(std::min(kPart, count - done), options)).squeeze(1).cpu());
  }
  return torch::cat(parts);
}

void draw_pictures(Trainer& trainer, const torch::Tensor& generated, const VoxelShapes& shapes,
                   const Options& options) {
  const std::string loss_svg = (std::filesystem::path(options.out) / "loss.svg").string();
  draw_losses(loss_svg, trainer, options);
  std::cout << "  wrote " << loss_svg;
  if (examples::Image::can_save()) {
    constexpr int64_t kColumns = 8;
    const std::string png = (std::filesystem::path(options.out) / "shapes.png").string();
    std::vector<examples::ShapeRow> rows;
    for (int64_t row = 0; row < 3; ++row) {
      rows.push_back(
          {row == 0 ? "generated" : "", generated.slice(0, row * kColumns, (row + 1) * kColumns)});
    }
    // what training shape the last row of them is most like
    const torch::Tensor nearest =
        examples::shape_distances(rows.back().voxels, shapes.train).argmin(1);
    rows.push_back(
        {"the training shapes nearest to the last row", shapes.train.index_select(0, nearest)});
    const int64_t held_out = std::min(kColumns, shapes.held_out.size(0));
    rows.push_back({"held out", shapes.held_out.slice(0, 0, held_out)});
    examples::draw_shapes(png, rows);
    std::cout << " and " << png;
  }
  std::cout << "\n";
}

// Returns whether the scores are what the options ask for.
bool evaluate(Trainer& trainer, const VoxelShapes& shapes, const Options& options) {
  constexpr int64_t kSets = 10;
  constexpr int64_t kShown = 24;
  const int64_t count = std::max(kSets * shapes.held_out.size(0), kShown);
  const torch::Tensor generated = generate(trainer.gan(), count, options);
  const bool passed =
      examples::print_shape_scores(generated, shapes.train, shapes.held_out,
                                   {static_cast<double>(options.min_coverage) / 100,
                                    static_cast<double>(options.max_distance) / 100});
  draw_pictures(trainer, generated, shapes, options);
  return passed;
}

int run(const Options& options) {
  std::cout << std::fixed << std::setprecision(3);
  examples::check_outputs({options.out, options.report}, options.save);
  examples::prepare_machine(options.device, options.threads, options.seed);
  const VoxelShapes shapes = examples::voxelise_shapes(
      examples::read_shapes(options.data, examples::split_class_names(options.classes)), kSize,
      options.variants, static_cast<uint64_t>(options.seed));
  Trainer trainer(options, shapes);
  if (!options.resume.empty()) {
    trainer.resume(options.resume);
  }
  describe(shapes, trainer.gan(), options);

  std::cout << "\ntraining, " << options.batch << " shapes a batch, " << options.accumulate
            << " a step" << (options.penalised() ? ", with a gradient penalty" : "") << "\n"
            << std::flush;
  trainer.train();
  if (!options.save.empty()) {
    trainer.save(options.save);
    std::cout << "  wrote " << options.save << "\n";
  }

  std::cout << "\ngenerated shapes, by the " << shapes.held_out.size(0)
            << " that training has not seen; distances in voxels\n"
            << std::flush;
  bool passed = evaluate(trainer, shapes, options);
  std::cout << "\none training step of both networks in several ways\n" << std::flush;
  passed = compare_techniques(trainer.gan(), shapes, options) && passed;
  std::cout << "networks after the first two steps, with all techniques and by a plain loop\n"
            << std::flush;
  passed = compare_first_steps(shapes, options) && passed;
  if (!options.report.empty()) {
    report_memory(shapes, options);
  }
  std::cout << "\nvoxel_gan: " << (passed ? "all checks passed" : "checks FAILED") << "\n";
  return passed ? 0 : 1;
}

}  // namespace

}  // namespace voxel_gan

int main(int argc, char** argv) {
  return examples::run_program("voxel_gan", [&] {
    const auto options = voxel_gan::Options::parse(argc, argv);
    if (options.help) {
      std::cout << voxel_gan::Options::help_text();
      return 0;
    }
    return voxel_gan::run(options);
  });
}
