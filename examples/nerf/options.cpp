#include "nerf/options.h"

#include <utility>
#include <vector>

#include "common/args.h"

namespace nerf {

namespace {

// What the example's own views reach, less what seeds and machines differ by.
constexpr int64_t kExpectedPsnr = 22;
constexpr int64_t kExpectedPsnrOfQuick = 15;

// The one table of arguments, bound to `o`.
std::vector<examples::Argument> argument_table(Options& o) {
  using namespace examples;
  std::vector<Argument> own{
      whole("rays", o.rays, 1, 1 << 20, "rays in a batch (4096 is full size)"),
      whole("chunk", o.chunk, 0, 1 << 20,
            "train on N rays at a time, each a checkpointed region (0: all at once)"),
      real("lr", o.lr, 0, 10, "learning rate of Adam after its warm-up"),
      whole("least-psnr", o.least_psnr, 0, 100,
            "fail if held-out views have less dB (default: " + std::to_string(kExpectedPsnr) +
                ", with --quick " + std::to_string(kExpectedPsnrOfQuick) + ", with --data none)"),
      heading("Network"),
      whole("width", o.width, 2, 4096, "features of each layer (256 is full size)"),
      whole("coarse", o.coarse, 2, 1024, "samples on each ray (64)"),
      whole("fine", o.fine, 1, 1024, "more where the coarse ones found something (64)"),
      whole("frequencies", o.frequencies, 0, 16, "of the positional encoding (10)"),
  };
  for (auto& argument : object_view_arguments(o.pictures)) {
    own.push_back(std::move(argument));
  }
  own.push_back(real("near", o.near, 0, 1e6,
                     "where the object begins, from the cameras of a transforms.json"));
  own.push_back(real("far", o.far, 0, 1e6, "and where it ends"));
  own.push_back(heading("Measuring"));
  own.push_back(flag("full-size", o.full_size,
                     "don't train, measure a step at full size: some minutes, and 10 GB"));
  return training_arguments(o, kObjectViewData, "views.png and loss.svg", std::move(own));
}

void make_quick(Options& o) {
  o.steps = 150;
  o.rays = 256;
  o.width = 32;
  o.coarse = 16;
  o.fine = 16;
  o.pictures.views = 24;
  o.pictures.size = 32;
  o.threads = 1;
}

void make_full_size(Options& o) {
  o.rays = 4096;
  o.width = 256;
  o.coarse = 64;
  o.fine = 64;
  o.frequencies = 10;
}

void check_together(const Options& o) {
  using examples::UsageError;
  if (o.near >= o.far) {
    throw UsageError("--near has to be less than --far");
  }
  if (o.chunk > o.rays) {
    throw UsageError("--chunk is " + std::to_string(o.chunk) + ", more than the " +
                     std::to_string(o.rays) + " of --rays");
  }
  if (o.chunk > 0 && !o.checkpointed()) {
    throw UsageError("--chunk makes checkpointed regions; it can't go with --checkpoint off");
  }
}

}  // namespace

Options::Options() {
  steps = 600;
  out = "nerf_out";
}

Options Options::parse(int argc, char** argv) {
  auto options = examples::parse_options<Options>(argc, argv, argument_table, make_quick);
  if (options.full_size) {
    make_full_size(options);
  }
  if (!options.help) {
    check_together(options);
  }
  if (!options.least_psnr.has_value() && options.data.empty()) {
    options.least_psnr = options.quick ? kExpectedPsnrOfQuick : kExpectedPsnr;
  }
  return options;
}

NerfOptions Options::network() const {
  return NerfOptions()
      .field(FieldOptions().width(width).frequencies(frequencies).checkpoint(checkpointed()))
      .coarse(coarse)
      .fine(fine);
}

std::string Options::help_text() {
  Options defaults;
  return "usage: nerf [OPTION]...\n"
         "Teaches a neural radiance field what an object looks like, from pictures of it, with\n"
         "checkpointed layers; then shows it from where it has not been seen, and what\n"
         "checkpointing, chunks, accumulation and mixed precision save, and checks that they "
         "change\n"
         "no gradient.\n\n" +
         examples::describe_arguments(argument_table(defaults)) +
         "\n--quick stands for --steps 150 --rays 256 --width 32 --coarse 16 --fine 16 --views 24 "
         "--size 32\n--threads 1; --full-size for --rays 4096 --width 256 --coarse 64 --fine 64 "
         "--frequencies 10.\n"
         "Exit status: 0, 1 if something failed or a check did, 2 for a wrong command line.\n";
}

}  // namespace nerf
