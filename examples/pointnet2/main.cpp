// Teaches a PointNet++ the classes of objects, or of the points of scenes, with checkpointed
// stages.

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
#include "common/shapes.h"
#include "common/training_state.h"
#include "pointnet2/cloud_picture.h"
#include "pointnet2/clouds.h"
#include "pointnet2/compare.h"
#include "pointnet2/options.h"
#include "pointnet2/score.h"
#include "pointnet2/train.h"

namespace pointnet2 {

namespace {

void describe(const Dataset& data, const PointNet2& net, const Options& options) {
  int64_t parameters = 0;
  for (const torch::Tensor& parameter : net.parameters()) {
    parameters += parameter.numel();
  }
  std::cout << "objects   " << data.train.count() << " to learn from, " << data.held_out.count()
            << " held out, of " << data.object_classes() << " classes\n"
            << "network   " << parameters << " parameters, stages "
            << (options.checkpointed() ? "checkpointed" : "plain") << "\n";
}

// The objects of each class in a row, in the colour of what they were taken for.
std::vector<CloudRow> rows_of_objects(const Prediction& prediction, const Dataset& data) {
  constexpr size_t kColumns = 10;
  std::vector<CloudRow> rows;
  for (int64_t label = 0; label < data.object_classes(); ++label) {
    rows.push_back({data.class_names[static_cast<size_t>(label)], label, {}});
    for (int64_t i = 0; i < prediction.clouds.labels.size(0); ++i) {
      if (prediction.clouds.labels[i].item<int64_t>() != label ||
          rows.back().cells.size() == kColumns) {
        continue;
      }
      const auto predicted = prediction.predicted[i].item<int64_t>();
      rows.back().cells.push_back(
          {prediction.clouds.xyz[i],
           prediction.predicted[i].expand({prediction.clouds.xyz.size(1)}),
           predicted == label ? ""
                              : "taken for " + data.class_names[static_cast<size_t>(predicted)]});
    }
  }
  return rows;
}

std::vector<CloudRow> rows_of_scenes(const Prediction& prediction, const Dataset& data) {
  const int64_t scenes = std::min<int64_t>(prediction.clouds.xyz.size(0), 4);
  std::vector<CloudRow> rows{{"truth", data.object_classes(), {}},
                             {"prediction", data.object_classes(), {}}};
  for (int64_t i = 0; i < scenes; ++i) {
    rows[0].cells.push_back({prediction.clouds.xyz[i], prediction.clouds.labels[i], ""});
    rows[1].cells.push_back({prediction.clouds.xyz[i], prediction.predicted[i], ""});
  }
  return rows;
}

void draw_pictures(const Prediction& prediction, const Dataset& data,
                   const std::vector<double>& losses, const Options& options) {
  const std::string loss_svg = (std::filesystem::path(options.out) / "loss.svg").string();
  examples::draw_losses(loss_svg, losses, "cross-entropy with smoothed labels");
  std::cout << "  wrote " << loss_svg;
  if (examples::Image::can_save()) {
    const std::string png = (std::filesystem::path(options.out) / "clouds.png").string();
    std::vector<std::string> legend = data.class_names;
    if (options.segments()) {
      legend.emplace_back("floor");
      draw_clouds(png, rows_of_scenes(prediction, data), 320, legend);
    } else {
      draw_clouds(png, rows_of_objects(prediction, data), 110, legend);
    }
    std::cout << " and " << png;
  }
  std::cout << "\n";
}

// Returns whether the score is what --min-score asks for.
bool evaluate(Trainer& trainer, const Dataset& data, const Options& options) {
  const Prediction prediction = predict_held_out(*trainer.net(), data, options);
  const double score = print_scores(prediction, data, options);
  const bool passed = 100 * score >= static_cast<double>(options.min_score);
  std::cout << "  " << (options.segments() ? "mean IoU " : "accuracy ") << score << ", at least "
            << static_cast<double>(options.min_score) / 100 << " wanted"
            << (passed ? "" : ": FAILED") << "\n";
  draw_pictures(prediction, data, trainer.losses(), options);
  return passed;
}

void print_baseline(const Dataset& data, const Options& options) {
  if (options.segments()) {
    std::cout << "\nfor comparison: the most frequent class at each point's height\n" << std::flush;
    print_scores(predict_by_height(data, options), data, options);
    return;
  }
  const torch::Tensor most = torch::bincount(data.train.labels).argmax();
  std::cout << "  for comparison: all taken for "
            << data.class_names[static_cast<size_t>(most.item<int64_t>())] << ", "
            << data.held_out.labels.eq(most).to(torch::kFloat).mean().item<double>() << "\n";
}

int run(const Options& options) {
  std::cout << std::fixed << std::setprecision(3);
  examples::check_outputs({options.out, options.report}, options.save);
  examples::prepare_machine(options.device, options.threads, options.seed);
  const Dataset data = sample_objects(
      examples::read_shapes(options.data, examples::split_class_names(options.classes)),
      static_cast<uint64_t>(options.seed));
  Trainer trainer(options, data);
  if (!options.resume.empty()) {
    trainer.resume(options.resume);
  }
  describe(data, *trainer.net(), options);

  std::cout << "\ntraining, " << options.batch << (options.segments() ? " scenes" : " objects")
            << " of " << options.points << " points a batch, " << options.accumulate << " a step\n"
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

  std::cout << "\n"
            << (options.segments() ? "scenes of objects" : "objects")
            << " that training has not seen\n"
            << std::flush;
  bool passed = evaluate(trainer, data, options);
  print_baseline(data, options);
  std::cout << "\none training step in several ways\n" << std::flush;
  passed = compare_techniques(*trainer.net(), data, options) && passed;
  std::cout << "network after the first two steps, with all techniques and by a plain loop\n"
            << std::flush;
  passed = compare_first_steps(data, options) && passed;
  if (!options.report.empty()) {
    report_memory(data, options);
  }
  std::cout << "\npointnet2: " << (passed ? "all checks passed" : "checks FAILED") << "\n";
  return passed ? 0 : 1;
}

}  // namespace

}  // namespace pointnet2

int main(int argc, char** argv) {
  return examples::run_program("pointnet2", [&] {
    const auto options = pointnet2::Options::parse(argc, argv);
    if (options.help) {
      std::cout << pointnet2::Options::help_text();
      return 0;
    }
    return pointnet2::run(options);
  });
}
