#pragma once

// What every training example takes from the command line.

#include <tidemark/amp_scope.h>
#include <torch/types.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/args.h"

namespace examples {

/// Derive an example's own options from it; its constructor sets the defaults.
struct TrainingOptions {
  bool help = false;
  bool quick = false;

  std::string data;  ///< empty: what comes with the examples
  std::string out;
  std::string report;
  std::string save;
  std::string resume;

  int64_t steps = 0;
  int64_t accumulate = 1;
  int64_t seed = 1;

  std::string checkpoint = "on";
  std::string amp = "off";
  bool scale_losses = false;  ///< also where that isn't needed
  std::string device = "cpu";
  int64_t threads = 0;  ///< 0: LibTorch decides

  [[nodiscard]] bool checkpointed() const { return checkpoint == "on"; }

  /// Whether a GradScaler has something to do.
  [[nodiscard]] bool scales_losses() const { return amp == "fp16" || scale_losses; }

  /// Switches on what every example has, but for mixed precision; gradients of two batches at least
  /// are accumulated.
  void use_all_techniques();

  /// Switches all of it off, mixed precision, too.
  void use_no_technique();
};

/// The rows of these options. `data` and `pictures` say what --data takes and what --out gets;
/// `own` are the example's rows, with a heading, which come in before those about the machine.
std::vector<Argument> training_arguments(TrainingOptions& options, const std::string& data,
                                         const std::string& pictures, std::vector<Argument> own);

/// The options of a command line, by an example's table. What --quick changes, `quick` does; what
/// is given beside it wins. Throws UsageError.
template <class Options>
Options parse_options(int argc, char** argv,
                      const std::function<std::vector<Argument>(Options&)>& table,
                      const std::function<void(Options&)>& quick) {
  Options options;
  parse_arguments(table(options), argc, argv);
  if (options.quick) {
    options = Options();
    quick(options);
    parse_arguments(table(options), argc, argv);
  }
  return options;
}

/// The dtype of "bf16" or "fp16"; nothing for "off".
std::optional<torch::ScalarType> amp_dtype(const std::string& name);

/// "bf16", "fp16", or "off" for nothing.
std::string amp_name(std::optional<torch::ScalarType> dtype);

/// Mixed precision of a dtype; none for nothing.
tidemark::AmpOptions mixed_precision(std::optional<torch::ScalarType> dtype);

/// The dtype to show mixed precision in: `wanted`, else bfloat16 where it is fast; nothing on CPUs
/// without AVX-512, where convolutions in bfloat16 take many times as long as in float32.
std::optional<torch::ScalarType> amp_to_show(std::optional<torch::ScalarType> wanted,
                                             torch::Device device);

/// What to compare the first steps of a training in: "off", and "bf16" where amp_to_show() shows
/// some. Not "fp16", with which first steps are often skipped, by design.
std::vector<std::string> precisions_to_compare(const TrainingOptions& options);

/// The options of the trainings whose memory --report shows: "plain", and "all" with all techniques
/// and with mixed precision where amp_to_show() shows some; as many batches a step as asked for.
template <class Options>
std::vector<std::pair<std::string, Options>> options_to_report(const Options& options) {
  Options plain = options;
  plain.use_no_technique();
  Options all = options;
  all.use_all_techniques();
  all.accumulate = options.accumulate;
  all.amp = amp_name(amp_to_show(amp_dtype(options.amp), options.device));
  return {{"plain", plain}, {"all", all}};
}

}  // namespace examples
