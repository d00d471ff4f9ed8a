#include "pointnet2/options.h"

#include <vector>

#include "common/shapes.h"

namespace pointnet2 {

namespace {

std::vector<examples::Argument> argument_table(Options& o) {
  using namespace examples;
  return training_arguments(
      o, "a folder of objects: objects.csv, or CLASS/*.ply, .off and .obj (default: the furniture)",
      "clouds.png and loss.svg",
      {
          choice("task", {"classify", "segment"}, o.task,
                 "learn the classes of objects, or of the points of scenes of four objects"),
          text("classes", "LIST", o.classes, "classes to learn, such as chair,table; or all"),
          whole("batch", o.batch, 2, 1024, "clouds that pass through the network at a time"),
          whole("points", o.points, 64, 1 << 20, "points of a cloud"),
          whole("turn", o.turn, 0, 180,
                "degrees that objects are turned by at most; 180 in scenes"),
          real("lr", o.lr, 0, 10, "learning rate of Adam after its warm-up"),
          whole("half-life", o.half_life, 1, 1'000'000, "steps in which it halves"),
          whole("votes", o.votes, 1, 1000, "clouds of each unseen object that vote on its class"),
          whole(
              "min-score", o.min_score, 0, 100,
              "fail if the accuracy (segment: the mean IoU) on unseen objects is below N percent"),
          heading("Network"),
          whole("channels", o.channels, 8, 1024, "width of the first layer (64 is full size)"),
          whole("neighbours", o.neighbours, 8, 1024, "points to a neighbourhood (32 is full size)"),
          real("radius", o.radius, 0, 100, "of the finest neighbourhoods"),
      });
}

}  // namespace

Options::Options(const std::string& task, bool quick) : task(task) {
  out = "pointnet2_out";
  steps = 600;
  if (segments()) {
    steps = 800;
    batch = 4;
    points = 2048;
    radius = 0.15;
    min_score = 35;
  }
  this->quick = quick;
  if (quick) {
    steps = 60;
    points = segments() ? 512 : 256;
    channels = 16;
    half_life = 30;
    votes = 1;
    threads = 1;
    min_score = segments() ? 5 : 30;
  }
}

NetworkOptions Options::network(int64_t classes) const {
  NetworkOptions result;
  result.segments = segments();
  result.points = points;
  result.channels = channels;
  result.neighbours = neighbours;
  result.radius = radius;
  result.classes = classes;
  return result;
}

Options Options::parse(int argc, char** argv) {
  Options asked;
  examples::parse_arguments(argument_table(asked), argc, argv);
  Options options(asked.task, asked.quick);
  examples::parse_arguments(argument_table(options), argc, argv);
  examples::split_class_names(options.classes);
  const int64_t multiple = options.segments() ? 128 : 16;
  if (!options.help && options.points % multiple != 0) {
    throw examples::UsageError("--points is " + std::to_string(options.points) +
                               "; it must be a multiple of " + std::to_string(multiple));
  }
  return options;
}

std::string Options::help_text() {
  Options defaults;
  return "usage: pointnet2 [OPTION]...\n"
         "Teaches a PointNet++ the classes of furniture, of which it sees points only, with "
         "checkpointed\n"
         "stages, in mixed precision and with accumulated gradients as asked for; then shows what\n"
         "each of them saves, and checks that none changes what is learnt.\n\n" +
         examples::describe_arguments(argument_table(defaults)) +
         "\n--task segment changes defaults: --steps 800 --batch 4 --points 2048 --radius 0.15\n"
         "--min-score 35. --quick stands for --steps 60 --points 256 --channels 16 --half-life 30\n"
         "--votes 1 --threads 1 --min-score 30, with --task segment --points 512 --min-score 5.\n"
         "Exit status: 0, 1 if something failed or a check did, 2 for a wrong command line.\n";
}

}  // namespace pointnet2
