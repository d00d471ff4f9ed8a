#include "common/training_options.h"

#include <ATen/Version.h>

#include <algorithm>
#include <iterator>

namespace examples {

void TrainingOptions::use_all_techniques() {
  checkpoint = "on";
  accumulate = std::max<int64_t>(accumulate, 2);
  scale_losses = true;
}

void TrainingOptions::use_no_technique() {
  checkpoint = "off";
  accumulate = 1;
  amp = "off";
  scale_losses = false;
}

std::vector<Argument> training_arguments(TrainingOptions& o, const std::string& data,
                                         const std::string& pictures, std::vector<Argument> own) {
  constexpr int64_t kMost = 1'000'000;
  std::vector<Argument> table{
      flag("help", o.help, "print this and stop"),
      flag("quick", o.quick, "a small run of seconds"),
      heading("Data"),
      text("data", "FILE", o.data, data),
      text("out", "DIR", o.out, "where " + pictures + " go"),
      text("report", "DIR", o.report,
           "write where the memory of a step goes, plain and with all techniques"),
      heading("Training"),
      whole("steps", o.steps, 1, kMost, "optimizer steps"),
      whole("accumulate", o.accumulate, 1, 1024, "batches per optimizer step"),
      choice("checkpoint", {"on", "off"}, o.checkpoint, "whether activations are checkpointed"),
      choice("amp", {"off", "bf16", "fp16"}, o.amp,
             "train in mixed precision; fp16 with scaled losses"),
      flag("scale-losses", o.scale_losses, "scale losses without --amp fp16, too"),
      whole("seed", o.seed, 0, 1000 * kMost, "for all random numbers"),
      text("save", "FILE", o.save, "write the state of the training at its end"),
      text("resume", "FILE", o.resume, "go on from such a file up to --steps"),
  };
  std::move(own.begin(), own.end(), std::back_inserter(table));
  table.push_back(heading("Machine"));
  table.push_back(choice("device", {"cpu", "cuda"}, o.device, "where to train"));
  table.push_back(whole("threads", o.threads, 0, 1024, "CPU threads (0: LibTorch's choice)"));
  return table;
}

std::optional<torch::ScalarType> amp_dtype(const std::string& name) {
  if (name == "off") {
    return std::nullopt;
  }
  return name == "fp16" ? torch::kFloat16 : torch::kBFloat16;
}

std::string amp_name(std::optional<torch::ScalarType> dtype) {
  return !dtype.has_value() ? "off" : dtype == torch::kFloat16 ? "fp16" : "bf16";
}

tidemark::AmpOptions mixed_precision(std::optional<torch::ScalarType> dtype) {
  return dtype.has_value() ? tidemark::AmpOptions(*dtype) : tidemark::AmpOptions().enabled(false);
}

std::optional<torch::ScalarType> amp_to_show(std::optional<torch::ScalarType> wanted,
                                             torch::Device device) {
  const bool fast = device.is_cuda() || at::get_cpu_capability() == "AVX512";
  return wanted.has_value() || !fast ? wanted : torch::kBFloat16;
}

std::vector<std::string> precisions_to_compare(const TrainingOptions& options) {
  std::vector<std::string> precisions{"off"};
  if (amp_to_show(amp_dtype(options.amp), options.device).has_value()) {
    precisions.emplace_back("bf16");
  }
  return precisions;
}

}  // namespace examples
