#pragma once

// What every training example takes from the command line.

#include <tidemark/amp_scope.h>
#include <torch/types.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
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
  std::string device = "cpu";
  int64_t threads = 0;  ///< 0: LibTorch decides

  [[nodiscard]] bool checkpointed() const { return checkpoint == "on"; }
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

/// Mixed precision of a dtype; none for nothing.
tidemark::AmpOptions mixed_precision(std::optional<torch::ScalarType> dtype);

/// The dtype to show mixed precision in: `wanted`, else bfloat16 where it is fast; nothing on CPUs
/// without AVX-512, where convolutions in bfloat16 take many times as long as in float32.
std::optional<torch::ScalarType> amp_to_show(std::optional<torch::ScalarType> wanted,
                                             torch::Device device);

}  // namespace examples
