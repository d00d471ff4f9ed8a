#include "unet3d/options.h"

#include <vector>

namespace unet3d {

namespace {

std::vector<examples::Argument> argument_table(Options& o) {
  using namespace examples;
  return training_arguments(
      o, "a scan and its classes, SCAN,LABELS: .pt, .nii or .nii.gz (default: ITK's head scan)",
      "slices.png and loss.svg",
      {
          whole("batch", o.batch, 1, 1024, "patches that pass through the network at a time"),
          whole("patch", o.patch, 4, 512, "voxels along each edge of a patch"),
          real("lr", o.lr, 0, 10, "learning rate of Adam after its warm-up"),
          flag("watch", o.watch, "watch for NaN and say where it comes from; slow"),
          whole("min-dice", o.min_dice, 0, 100,
                "fail if the tissues' mean Dice on unseen slices is below N percent"),
          heading("Network"),
          whole("channels", o.channels, 1, 1024, "width of the first level (32 is full size)"),
          whole("levels", o.levels, 2, 7, "resolutions, each with twice the width (5 or 6 are)"),
      });
}

void make_quick(Options& o) {
  o.steps = 200;
  o.patch = 16;
  o.lr = 0.005;  // fewer steps than by default damp what a higher one leaves to chance
  o.threads = 1;
  o.min_dice = 50;
}

}  // namespace

Options::Options() {
  out = "unet3d_out";
  steps = 400;
}

Options Options::parse(int argc, char** argv) {
  auto options = examples::parse_options<Options>(argc, argv, argument_table, make_quick);
  const int64_t multiple = int64_t{1} << (options.levels - 1);
  if (!options.help && options.patch % multiple != 0) {
    throw examples::UsageError("--patch is " + std::to_string(options.patch) + "; with " +
                               std::to_string(options.levels) +
                               " levels it must be a multiple of " + std::to_string(multiple));
  }
  return options;
}

std::string Options::help_text() {
  Options defaults;
  return "usage: unet3d [OPTION]...\n"
         "Teaches a 3D U-Net the tissues of a head scan, with checkpointed stages, in mixed\n"
         "precision and with accumulated gradients as asked for; then shows what each of them "
         "saves,\n"
         "and checks that none changes what is learnt.\n\n" +
         examples::describe_arguments(argument_table(defaults)) +
         "\n--quick stands for --steps 200 --patch 16 --lr 0.005 --threads 1 --min-dice 50.\n"
         "Exit status: 0, 1 if something failed or a check did, 2 for a wrong command line.\n";
}

}  // namespace unet3d
