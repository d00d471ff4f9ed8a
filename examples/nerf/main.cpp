// Teaches a neural radiance field what an object looks like, with checkpointed layers.

#include <torch/torch.h>

#include <filesystem>
#include <iomanip>
#include <iostream>
#include <string>

#include "common/image.h"
#include "common/loss_chart.h"
#include "common/program.h"
#include "common/view_picture.h"
#include "nerf/compare.h"
#include "nerf/held_out.h"
#include "nerf/options.h"
#include "nerf/scene.h"
#include "nerf/train.h"

namespace nerf {

namespace {

constexpr int64_t kRaysShownAtOnce = 4096;

void describe(const Scene& scene, const Options& options, Nerf& net) {
  int64_t parameters = 0;
  for (const torch::Tensor& parameter : net->parameters()) {
    parameters += parameter.numel();
  }
  std::cout << "views     " << scene.training.count() << " to learn from, "
            << scene.held_out.count() << " held out, " << scene.training.width() << " x "
            << scene.training.height() << " pixels\n"
            << "network   coarse and fine field of 9 layers and " << options.width << " features, "
            << parameters << " parameters\n"
            << "samples   " << options.coarse << " on each ray, and " << options.fine
            << " more where they found something\n";
}

// Prints how well held-out views are met and draws them. Returns whether well enough.
bool show(Trainer& trainer, const Scene& scene, const Options& options) {
  const torch::Tensor truth = examples::on_white(scene.held_out.images);
  const torch::Tensor shown =
      show_held_out(trainer.net(), scene, torch::Device(options.device), kRaysShownAtOnce);
  const double reached = examples::psnr(shown, truth);
  const bool passed = reached >= static_cast<double>(options.least_psnr.value_or(0));
  std::cout << "  PSNR " << reached << " dB; plain white would have "
            << examples::psnr(torch::ones_like(truth), truth) << " dB\n";
  if (!passed) {
    std::cout << "  FAILED: at least " << *options.least_psnr << " dB wanted\n";
  }
  const std::string loss_svg = (std::filesystem::path(options.out) / "loss.svg").string();
  examples::draw_losses(loss_svg, trainer.losses(), "mean squared error, coarse + fine");
  std::cout << "  wrote " << loss_svg;
  if (examples::Image::can_save()) {
    const std::string views_png = (std::filesystem::path(options.out) / "views.png").string();
    examples::draw_views(views_png, truth, shown);
    std::cout << " and " << views_png;
  }
  std::cout << "\n";
  return passed;
}

int finish(bool passed) {
  std::cout << "\nnerf: " << (passed ? "all checks passed" : "checks FAILED") << "\n";
  return passed ? 0 : 1;
}

int run(const Options& options) {
  std::cout << std::fixed << std::setprecision(2);
  examples::check_outputs({options.out, options.report}, options.save);
  examples::prepare_machine(options.device, options.threads, options.seed);
  const Scene scene = Scene::load(options);
  Trainer trainer(options, scene);
  if (!options.resume.empty()) {
    trainer.state().resume(options.resume, options.steps, torch::Device(options.device));
  }
  describe(scene, options, trainer.net());
  if (options.full_size) {
    std::cout << "\none training step at full size, " << options.rays << " rays\n" << std::flush;
    return finish(compare_techniques(trainer.net(), scene, options));
  }

  std::cout << "\ntraining, " << options.rays << " rays a batch, " << options.accumulate
            << " a step\n"
            << std::flush;
  trainer.train();
  if (!options.save.empty()) {
    trainer.state().save(options.save);
    std::cout << "  wrote " << options.save << "\n";
  }

  std::cout << "\nviews that training has not seen\n" << std::flush;
  bool passed = show(trainer, scene, options);

  std::cout << "\none training step in several ways, " << options.rays << " rays\n" << std::flush;
  passed = compare_techniques(trainer.net(), scene, options) && passed;
  std::cout << "parameters after the first step, with all techniques and by a plain loop\n"
            << std::flush;
  passed = compare_first_step(scene, options) && passed;
  if (!options.report.empty()) {
    report_memory(scene, options);
  }
  return finish(passed);
}

}  // namespace

}  // namespace nerf

int main(int argc, char** argv) {
  return examples::run_program("nerf", [argc, argv] {
    const auto options = nerf::Options::parse(argc, argv);
    if (options.help) {
      std::cout << nerf::Options::help_text();
      return 0;
    }
    return nerf::run(options);
  });
}
