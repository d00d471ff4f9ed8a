#pragma once

// What the command line sets.

#include <torch/types.h>

#include <cstdint>
#include <optional>
#include <string>

namespace voxel_net {

struct Options {
  bool help = false;
  bool quick = false;

  int64_t steps = 150;
  int64_t batch = 4;
  int64_t accumulate = 1;
  int64_t patch = 24;
  double lr = 0.005;
  int64_t seed = 1;

  int64_t channels = 16;
  int64_t blocks = 10;
  std::optional<int64_t> segments;
  std::optional<int64_t> every;

  std::string volume;  ///< with labels empty: the head scan that comes with the examples
  std::string labels;
  std::string out = "voxel_net_out";
  std::string report;
  std::string save;
  std::string resume;

  std::string device = "cpu";
  int64_t threads = 0;  ///< 0: LibTorch decides
  std::string amp = "off";

  /// Throws examples::UsageError if the command line can't be accepted.
  static Options parse(int argc, char** argv);

  /// The dtype of mixed precision; nothing if it is off.
  [[nodiscard]] std::optional<torch::ScalarType> amp_dtype() const;

  /// What --help prints.
  static std::string help_text();
};

}  // namespace voxel_net
