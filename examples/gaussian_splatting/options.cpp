#include "gaussian_splatting/options.h"

#include <utility>
#include <vector>

#include "common/args.h"

namespace gaussian_splatting {

namespace {

// What the defaults reach on held-out views, less what seeds and machines differ by.
constexpr int64_t kExpectedPsnr = 22;
constexpr int64_t kExpectedPsnrOfQuick = 18;

std::vector<examples::Argument> argument_table(Options& o) {
  using namespace examples;
  std::vector<Argument> own{
      whole("batch", o.batch, 1, 1024, "views at a time"),
      real("lr", o.lr, 0, 1000, "factor on the learning rates of all attributes"),
      whole("least-psnr", o.least_psnr, 0, 100,
            "fail if held-out views have less than N dB; with --data the default is 0"),
      heading("Gaussians"),
      whole("gaussians", o.gaussians, 8, 1 << 24, "to begin with"),
      whole("most-gaussians", o.densify.most, 8, 1 << 24, "after densification"),
      whole("densify-every", o.densify_every, 1, 1'000'000, "steps"),
      whole("densify-until", o.densify_until, 0, 1'000'000, "step (0: never)"),
      real("densify-gradient", o.densify.gradient, 0, 1,
           "clone or split those with a steeper loss on the screen"),
      whole("tile", o.tile, 1, 4096, "pixels along the edges of the tiles they are drawn in"),
  };
  for (auto& argument : object_view_arguments(o.pictures)) {
    own.push_back(std::move(argument));
  }
  own.push_back(
      real("radius", o.radius, 0, 1e6, "half the edge of the cube that a transforms.json shows"));
  return training_arguments(o, kObjectViewData, "gaussians.ply, views.png and loss.svg",
                            std::move(own));
}

void make_quick(Options& o) {
  o.steps = 60;
  o.gaussians = 500;
  o.densify.most = 1000;
  o.densify_every = 15;
  o.densify_until = 45;
  o.pictures.views = 24;
  o.pictures.size = 32;
  o.least_psnr = kExpectedPsnrOfQuick;
}

}  // namespace

Options::Options() {
  out = "gaussian_splatting_out";
  steps = 400;
  accumulate = 4;
  threads = 1;  // more wait for each other: tiles of small pictures are small
  least_psnr = kExpectedPsnr;
}

Options Options::parse(int argc, char** argv) {
  auto options = examples::parse_options<Options>(argc, argv, argument_table, make_quick);
  if (!options.data.empty()) {
    // once more, with another default
    options = examples::parse_options<Options>(
        argc, argv,
        [](Options& o) {
          o.least_psnr = 0;
          return argument_table(o);
        },
        make_quick);
  }
  if (options.densify.most < options.gaussians) {
    throw examples::UsageError("--most-gaussians is " + std::to_string(options.densify.most) +
                               ", less than the " + std::to_string(options.gaussians) +
                               " of --gaussians");
  }
  return options;
}

std::string Options::help_text() {
  Options defaults;
  return "usage: gaussian_splatting [OPTION]...\n"
         "Teaches a cloud of Gaussians what an object looks like, from pictures of it; then shows "
         "it\n"
         "from where it has not been seen, and what accumulation over views, checkpointed tiles "
         "and\n"
         "mixed precision save, and checks that none of them changes what is learnt.\n\n" +
         examples::describe_arguments(argument_table(defaults)) +
         "\n--quick stands for --steps 60 --size 32 --views 24 --gaussians 500 --most-gaussians "
         "1000\n"
         "--densify-every 15 --densify-until 45 --least-psnr " +
         std::to_string(kExpectedPsnrOfQuick) +
         ".\n"
         "Exit status: 0, 1 if something failed or a check did, 2 for a wrong command line.\n";
}

}  // namespace gaussian_splatting
