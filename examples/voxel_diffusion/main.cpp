// Teaches a network to make furniture of voxels out of noise.

#include <torch/torch.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <iomanip>
#include <iostream>
#include <string>
#include <vector>

#include "common/image.h"
#include "common/loss_chart.h"
#include "common/program.h"
#include "common/shape_picture.h"
#include "common/shape_score.h"
#include "common/shape_score_table.h"
#include "common/shapes.h"
#include "common/shapes_voxels.h"
#include "common/training_state.h"
#include "voxel_diffusion/compare.h"
#include "voxel_diffusion/options.h"
#include "voxel_diffusion/shape_code.h"
#include "voxel_diffusion/train.h"

namespace voxel_diffusion {

namespace {

using examples::VoxelShapes;

constexpr int64_t kColumns = 8;  // of pictures

void describe(const VoxelShapes& shapes, const Denoiser& net, const Options& options) {
  int64_t parameters = 0;
  for (const torch::Tensor& parameter : net.parameters()) {
    parameters += parameter.numel();
  }
  std::cout << "shapes    ";
  for (int64_t i = 0; i < static_cast<int64_t>(shapes.class_names.size()); ++i) {
    std::cout << shapes.train_labels.eq(i).sum().item<int64_t>() / options.variants << " + "
              << shapes.held_out_labels.eq(i).sum().item<int64_t>() << " "
              << shapes.class_names[static_cast<size_t>(i)] << "s, ";
  }
  std::cout << "to train with + held out\n"
            << "          " << shapes.train.size(0) << " training shapes with variants, " << kSize
            << "^3 voxels each\n";
  if (options.triplane) {
    const torch::Tensor set = shapes.held_out > 0;
    const torch::Tensor decoded = planes_to_voxels(voxels_to_planes(shapes.held_out)) > 0;
    const double overlap =
        (set & decoded).sum().item<double>() / (set | decoded).sum().item<double>();
    std::cout << "planes    3 of first and 3 of last voxels; made voxels again, they overlap with\n"
              << "          the held-out shapes by " << overlap << "\n";
  }
  std::cout << "network   " << parameters << " parameters, "
            << (options.checkpointed() ? "checkpointed" : "plain") << "\n";
}

// What training shape each of some shapes is most like.
torch::Tensor nearest(const torch::Tensor& generated, const VoxelShapes& shapes) {
  return shapes.train.index_select(0, examples::shape_distances(generated, shapes.train).argmin(1));
}

// Returns whether the scores are what the options ask for.
bool evaluate(Trainer& trainer, const VoxelShapes& shapes, const Options& options) {
  constexpr int64_t kSets = 4;
  const int64_t count = std::max(kSets * shapes.held_out.size(0), 3 * kColumns);
  // of the first shape, what it is thought to be in each step
  std::vector<torch::Tensor> thoughts;
  const auto note = [&](const torch::Tensor& clean) {
    if (static_cast<int64_t>(thoughts.size()) < options.ddim_steps) {
      thoughts.push_back(clean.slice(0, 0, 1).cpu());
    }
  };
  const torch::Tensor generated = sample_shapes(*trainer.networks().average, count, options, note);
  const bool reached =
      examples::print_shape_scores(generated, shapes.train, shapes.held_out,
                                   {static_cast<double>(options.min_coverage) / 100,
                                    static_cast<double>(options.max_distance) / 100});
  const bool passed = reached || options.min_coverage == 0;

  const std::string loss_svg = (std::filesystem::path(options.out) / "loss.svg").string();
  examples::draw_losses(loss_svg, trainer.losses(), "weighted cross-entropy of the shape");
  std::cout << "  wrote " << loss_svg;
  if (examples::Image::can_save()) {
    const torch::Tensor chosen = torch::linspace(0, static_cast<double>(thoughts.size() - 1),
                                                 std::min<int64_t>(kColumns, thoughts.size()))
                                     .round()
                                     .to(torch::kInt64);
    const torch::Tensor codes = torch::cat(thoughts).index_select(0, chosen);
    std::vector<examples::ShapeRow> rows{
        {"from noise to a shape, in " + std::to_string(options.ddim_steps) + " steps",
         options.triplane ? planes_to_voxels(codes) : code_to_voxels(codes)}};
    for (int64_t row = 0; row < 3; ++row) {
      rows.push_back(
          {row == 0 ? "generated" : "", generated.slice(0, row * kColumns, (row + 1) * kColumns)});
    }
    rows.push_back(
        {"the training shapes nearest to the last row", nearest(rows.back().voxels, shapes)});
    rows.push_back({"held out", shapes.held_out.slice(0, 0, kColumns)});
    const std::string png = (std::filesystem::path(options.out) / "shapes.png").string();
    examples::draw_shapes(png, rows);
    std::cout << " and " << png;
  }
  std::cout << "\n";
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
  describe(shapes, *trainer.networks().net, options);

  std::cout << "\ntraining, " << options.batch << " shapes a batch, " << options.accumulate
            << " a step\n"
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

  std::cout << "\ngenerated shapes, by the " << shapes.held_out.size(0)
            << " that training has not seen; distances in voxels\n"
            << std::flush;
  bool passed = evaluate(trainer, shapes, options);
  std::cout << "\none training step in several ways\n" << std::flush;
  passed = compare_techniques(*trainer.networks().net, shapes, options) && passed;
  std::cout << "networks after the first two steps, with all techniques and by a plain loop\n"
            << std::flush;
  passed = compare_first_steps(shapes, options) && passed;
  if (!options.report.empty()) {
    report_memory(shapes, options);
  }
  std::cout << "\nvoxel_diffusion: " << (passed ? "all checks passed" : "checks FAILED") << "\n";
  return passed ? 0 : 1;
}

}  // namespace

}  // namespace voxel_diffusion

int main(int argc, char** argv) {
  return examples::run_program("voxel_diffusion", [&] {
    const auto options = voxel_diffusion::Options::parse(argc, argv);
    if (options.help) {
      std::cout << voxel_diffusion::Options::help_text();
      return 0;
    }
    return voxel_diffusion::run(options);
  });
}
