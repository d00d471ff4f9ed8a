#include "voxel_net/options.h"

#include <string>
#include <utility>
#include <vector>

#include "common/args.h"
#include "common/training_options.h"

namespace voxel_net {

namespace {

constexpr int64_t kMost = 1'000'000;

// The one table of arguments, bound to `o`.
std::vector<examples::Argument> argument_table(Options& o) {
  using namespace examples;
  return {
      flag("help", o.help, "print this and stop"),
      flag("quick", o.quick,
           "a small run: --steps 40 --batch 2 --patch 16 --threads 1, unless given"),
      heading("Data"),
      text("volume", "FILE", o.volume,
           "a scan of 3 dimensions, .pt, .nii or .nii.gz (default: ITK's head scan)"),
      text("labels", "FILE", o.labels, "its classes: 0 to 31, 255 where there is none"),
      text("out", "DIR", o.out, "where slices.png and loss.svg go"),
      text("report", "DIR", o.report,
           "write where the memory of a step goes, plain and checkpointed"),
      heading("Training"),
      whole("steps", o.steps, 1, kMost, "optimizer steps"),
      whole("batch", o.batch, 1, 1024, "patches that pass through the network at a time"),
      whole("accumulate", o.accumulate, 1, 1024, "such batches per optimizer step"),
      whole("patch", o.patch, 4, 512, "voxels along each edge of a patch"),
      real("lr", o.lr, 0, 10, "learning rate of Adam after its warm-up"),
      whole("seed", o.seed, 0, 1000 * kMost, "for weights and patches"),
      text("save", "FILE", o.save, "write the state of the training at its end"),
      text("resume", "FILE", o.resume, "go on from such a file up to --steps"),
      heading("Network"),
      whole("channels", o.channels, 1, 4096, "width (64 is full size)"),
      whole("blocks", o.blocks, 1, 1000, "residual blocks"),
      whole("segments", o.segments, 1, 1000,
            "train with the blocks in N segments instead of about sqrt(blocks)"),
      whole("every", o.every, 1, 1000, "train with segments of N blocks"),
      heading("Machine"),
      choice("device", {"cpu", "cuda"}, o.device, "where to train"),
      choice("amp", {"off", "bf16", "fp16"}, o.amp,
             "train in mixed precision; fp16 with scaled losses"),
      whole("threads", o.threads, 0, 1024, "CPU threads (0: LibTorch's choice)"),
  };
}

void check_together(const Options& o) {
  using examples::UsageError;
  if (o.volume.empty() != o.labels.empty()) {
    throw UsageError("--volume and --labels go together");
  }
  if (o.segments.has_value() && o.every.has_value()) {
    throw UsageError("give either --segments or --every");
  }
  for (const auto& [name, cut] : {std::pair("segments", o.segments), std::pair("every", o.every)}) {
    if (cut.value_or(1) > o.blocks) {
      throw UsageError("--" + std::string(name) + " is " + std::to_string(*cut) +
                       ", more than the " + std::to_string(o.blocks) + " blocks of --blocks");
    }
  }
}

}  // namespace

Options Options::parse(int argc, char** argv) {
  const auto options =
      examples::parse_options<Options>(argc, argv, argument_table, [](Options& quick) {
        quick.steps = 40;
        quick.batch = 2;
        quick.patch = 16;
        quick.threads = 1;
      });
  if (!options.help) {
    check_together(options);
  }
  return options;
}

std::optional<torch::ScalarType> Options::amp_dtype() const { return examples::amp_dtype(amp); }

std::string Options::help_text() {
  Options defaults;
  return "usage: voxel_net [OPTION]...\n"
         "Teaches a voxel network the tissues of a head scan with checkpointed activations, then\n"
         "shows what checkpointing and mixed precision save, and checks that checkpointing "
         "changes\n"
         "no gradient.\n\n" +
         examples::describe_arguments(argument_table(defaults)) +
         "\nExit status: 0, 1 if something failed or a check did, 2 for a wrong command line.\n";
}

}  // namespace voxel_net
