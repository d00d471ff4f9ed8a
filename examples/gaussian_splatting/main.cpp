// Teaches a cloud of Gaussians what an object looks like, with gradients accumulated over views.

#include <torch/torch.h>

#include <algorithm>
#include <filesystem>
#include <iomanip>
#include <iostream>
#include <string>

#include "common/image.h"
#include "common/loss_chart.h"
#include "common/program.h"
#include "common/training_state.h"
#include "common/view_picture.h"
#include "gaussian_splatting/compare.h"
#include "gaussian_splatting/held_out.h"
#include "gaussian_splatting/options.h"
#include "gaussian_splatting/scene.h"
#include "gaussian_splatting/splat_ply.h"
#include "gaussian_splatting/train.h"

namespace gaussian_splatting {

namespace {

void describe(const Scene& scene, const Trainer& trainer, const Options& options) {
  std::cout << "views      " << scene.training.count() << " to learn from, "
            << scene.held_out.count() << " held out, " << scene.training.width() << " x "
            << scene.training.height() << " pixels\n"
            << "gaussians  " << options.gaussians << " to begin with, at most "
            << options.densify.most << "; tiles of " << options.tile << " x " << options.tile
            << " pixels, " << (options.checkpointed() ? "checkpointed" : "plain") << "\n";
  if (!trainer.losses().empty()) {
    std::cout << "resumed    after step " << trainer.losses().size() << "\n";
  }
}

// Prints how well held-out views are met, and writes what there is to see. Returns whether well
// enough.
bool show(Trainer& trainer, const Scene& scene, const Options& options) {
  const Gaussians& gaussians = trainer.model().gaussians();
  const torch::Tensor truth = examples::on_white(scene.held_out.images);
  const torch::Tensor shown =
      show_held_out(gaussians, scene, torch::Device(options.device), options.splat());
  const double reached = examples::psnr(shown, truth);
  std::cout << "  PSNR " << reached << " dB with " << gaussians.count()
            << " Gaussians; plain white would have "
            << examples::psnr(torch::ones_like(truth), truth) << " dB\n";
  const auto path = [&options](const char* name) {
    return (std::filesystem::path(options.out) / name).string();
  };
  write_splat_ply(path("gaussians.ply"), gaussians);
  examples::draw_losses(path("loss.svg"), trainer.losses(), "mean absolute difference");
  std::cout << "  wrote " << path("gaussians.ply") << ", " << path("loss.svg");
  if (examples::Image::can_save()) {
    examples::draw_views(path("views.png"), truth, shown);
    std::cout << " and " << path("views.png");
  }
  std::cout << "\n";
  const auto wanted = static_cast<double>(options.least_psnr);
  if (reached < wanted) {
    std::cout << "  FAILED: at least " << options.least_psnr << " dB wanted\n";
  }
  return reached >= wanted;
}

int run(const Options& options) {
  std::cout << std::fixed << std::setprecision(2);
  examples::check_outputs({options.out, options.report}, options.save);
  examples::prepare_machine(options.device, options.threads, options.seed);
  const Scene scene = Scene::load(options);
  Trainer trainer(options, scene);
  if (!options.resume.empty()) {
    trainer.resume(options.resume);
  }
  describe(scene, trainer, options);

  std::cout << "\ntraining, " << options.batch << (options.batch == 1 ? " view" : " views")
            << " at a time, " << options.batch * options.accumulate << " a step\n"
            << std::flush;
  trainer.train();
  const auto& losses = trainer.losses();
  std::cout << std::setprecision(4) << "  loss "
            << examples::mean_of_ten(losses, std::min<size_t>(losses.size(), 10))
            << " in the first ten steps, " << examples::mean_of_ten(losses, losses.size())
            << " in the last ten\n"
            << std::setprecision(2);
  if (!options.save.empty()) {
    trainer.save(options.save);
    std::cout << "  wrote " << options.save << "\n";
  }

  std::cout << "\nviews that training has not seen\n" << std::flush;
  bool passed = show(trainer, scene, options);
  std::cout << "\none training step in several ways\n" << std::flush;
  passed = compare_techniques(trainer.model().gaussians(), scene, options) && passed;
  std::cout << "parameters after the first step, with all techniques and by a plain loop\n"
            << std::flush;
  passed = compare_first_step(scene, options) && passed;
  if (!options.report.empty()) {
    report_memory(scene, options);
  }
  std::cout << "\ngaussian_splatting: " << (passed ? "all checks passed" : "checks FAILED") << "\n";
  return passed ? 0 : 1;
}

}  // namespace

}  // namespace gaussian_splatting

int main(int argc, char** argv) {
  return examples::run_program("gaussian_splatting", [&] {
    const auto options = gaussian_splatting::Options::parse(argc, argv);
    if (options.help) {
      std::cout << gaussian_splatting::Options::help_text();
      return 0;
    }
    return gaussian_splatting::run(options);
  });
}
