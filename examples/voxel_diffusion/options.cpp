#include "voxel_diffusion/options.h"

#include <vector>

#include "common/shapes.h"

namespace voxel_diffusion {

namespace {

std::vector<examples::Argument> argument_table(Options& o) {
  using namespace examples;
  return training_arguments(
      o, "a folder of objects: objects.csv, or CLASS/*.ply, .off and .obj (default: the furniture)",
      "shapes.png and loss.svg",
      {
          text("classes", "LIST", o.classes, "classes to learn, such as chair,table; or all"),
          whole("variants", o.variants, 1, 1000, "stretched and mirrored copies of each shape"),
          flag("triplane", o.triplane, "shapes are three planes of first and last voxels"),
          whole("batch", o.batch, 1, 1024, "shapes that pass through the network at a time"),
          real("lr", o.lr, 0, 10, "learning rate of Adam after its warm-up"),
          real("ema", o.ema, 0, 1, "what the average of networks keeps in a step"),
          whole("min-coverage", o.min_coverage, 0, 100,
                "fail if fewer than N percent of the held-out shapes are covered (0: only show "
                "scores)"),
          whole("max-distance", o.max_distance, 1, 1000,
                "fail if they are further away than N percent of the mean shape's distance"),
          heading("Diffusion"),
          whole("noise-levels", o.noise_levels, 2, 100'000, "time steps from a shape to noise"),
          real("shift", o.shift, 0, 1000, "what the noise of the cosine schedule is multiplied by"),
          whole("ddim-steps", o.ddim_steps, 1, 1000, "steps from noise to a shape"),
          heading("Network"),
          whole("fold", o.fold, 1, 4,
                "edge of the blocks that become channels: 1, 2 or 4 (default 4; 2 for planes)"),
          whole("channels", o.channels, 8, 1024,
                "width at the highest resolution, a multiple of 8"),
          whole("dropout", o.dropout, 0, 90, "percent of the values that residual blocks drop"),
      });
}

void make_quick(Options& o) {
  o.steps = 60;
  o.classes = "table";
  o.variants = 2;
  o.channels = 16;
  o.batch = 8;
  o.ddim_steps = 10;
  o.threads = 1;
  o.min_coverage = 10;
  o.max_distance = 200;
}

}  // namespace

Options::Options() {
  out = "voxel_diffusion_out";
  steps = 1500;
}

NetworkOptions Options::network() const {
  NetworkOptions result;
  result.in_channels = triplane ? 6 : 1;
  result.planar = triplane;
  result.fold = fold.value_or(triplane ? 2 : 4);
  result.channels = channels;
  result.dropout = static_cast<double>(dropout) / 100;
  return result;
}

Options Options::parse(int argc, char** argv) {
  auto options = examples::parse_options<Options>(argc, argv, argument_table, make_quick);
  examples::split_class_names(options.classes);
  if (options.channels % 8 != 0) {
    throw examples::UsageError("--channels is " + std::to_string(options.channels) +
                               "; it must be a multiple of 8");
  }
  if (kSize % options.network().fold != 0) {
    throw examples::UsageError("--fold is " + std::to_string(options.network().fold) +
                               "; it must be 1, 2 or 4");
  }
  return options;
}

std::string Options::help_text() {
  Options defaults;
  return "usage: voxel_diffusion [OPTION]...\n"
         "Teaches a network to make furniture of voxels out of noise, with checkpointed residual\n"
         "and attention blocks, in mixed precision and with gradients accumulated over time steps\n"
         "as asked for; then shows what each of them saves, and checks that none changes what is\n"
         "learnt.\n\n" +
         examples::describe_arguments(argument_table(defaults)) +
         "\n--quick stands for --steps 60 --classes table --variants 2 --channels 16\n"
         "--batch 8 --ddim-steps 10 --threads 1 --min-coverage 10 --max-distance 200.\n"
         "Exit status: 0, 1 if something failed or a check did, 2 for a wrong command line.\n";
}

}  // namespace voxel_diffusion
