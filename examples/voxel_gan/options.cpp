#include "voxel_gan/options.h"

#include "common/shapes.h"

namespace voxel_gan {

namespace {

std::vector<examples::Argument> argument_table(Options& o) {
  using namespace examples;
  return training_arguments(
      o, "a folder of objects: objects.csv, or CLASS/*.ply, .off and .obj (default: the furniture)",
      "shapes.png and loss.svg",
      {
          text("classes", "LIST", o.classes, "classes to learn, such as chair,table; or all"),
          whole("variants", o.variants, 1, 1000, "stretched and mirrored copies of each shape"),
          whole("batch", o.batch, 2, 1024, "shapes that pass through the networks at a time"),
          real("lr", o.lr, 0, 10, "learning rate of the generator's Adam"),
          real("discriminator-lr", o.discriminator_lr, 0, 10, "and of the discriminator's"),
          real("noise", o.noise, 0, 10,
               "deviation of the noise on what the discriminator sees without penalty"),
          real("gradient-penalty", o.gradient_penalty, 0, 1000,
               "weight of a gradient penalty (WGAN-GP; 10 is usual), 0: none"),
          real("ema", o.ema, 0, 1, "what the average of generators keeps in a step"),
          whole("min-coverage", o.min_coverage, 0, 100,
                "fail if fewer than N percent of the held-out shapes are covered"),
          whole("max-distance", o.max_distance, 1, 100'000,
                "fail if they are further away than N percent of the mean shape's distance"),
          heading("Networks"),
          whole("channels", o.channels, 1, 1024, "width at the highest resolution (64 is full)"),
          whole("latent", o.latent, 1, 4096, "random numbers that a shape is made of"),
      });
}

void make_quick(Options& o) {
  o.steps = 40;
  o.batch = 8;
  o.classes = "table";
  o.variants = 2;
  o.threads = 1;
  o.min_coverage = 0;
  o.max_distance = 100'000;  // it is over before there are shapes
}

}  // namespace

Options::Options() {
  out = "voxel_gan_out";
  steps = 800;
}

Options Options::parse(int argc, char** argv) {
  auto options = examples::parse_options<Options>(argc, argv, argument_table, make_quick);
  examples::split_class_names(options.classes);
  return options;
}

std::string Options::help_text() {
  Options defaults;
  return "usage: voxel_gan [OPTION]...\n"
         "Teaches a generator to make furniture of voxels, against a discriminator, both of them\n"
         "checkpointed, in mixed precision and with accumulated gradients as asked for; then "
         "shows\n"
         "what each of them saves, and checks that none changes what is learnt.\n\n" +
         examples::describe_arguments(argument_table(defaults)) +
         "\n--quick stands for --steps 40 --batch 8 --classes table --variants 2 --threads 1\n"
         "--min-coverage 0 --max-distance 100000.\n"
         "Exit status: 0, 1 if something failed or a check did, 2 for a wrong command line.\n";
}

}  // namespace voxel_gan
