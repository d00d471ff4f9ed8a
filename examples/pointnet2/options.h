#pragma once

// What the command line sets.

#include <cstdint>
#include <string>

#include "common/training_options.h"
#include "pointnet2/network.h"

namespace pointnet2 {

struct Options : examples::TrainingOptions {
  /// The defaults of a task.
  explicit Options(const std::string& task = "classify", bool quick = false);

  std::string task;
  std::string classes = "all";
  int64_t batch = 16;
  int64_t points = 512;
  int64_t turn = 20;  ///< in degrees
  double lr = 0.002;
  int64_t half_life = 200;
  int64_t votes = 4;
  int64_t min_score = 70;  ///< in percent
  int64_t channels = 32;
  int64_t neighbours = 16;
  double radius = 0.2;

  [[nodiscard]] bool segments() const { return task == "segment"; }

  /// The network that they ask for.
  [[nodiscard]] NetworkOptions network(int64_t classes) const;

  /// Throws examples::UsageError if the command line can't be accepted.
  static Options parse(int argc, char** argv);

  /// What --help prints.
  static std::string help_text();
};

}  // namespace pointnet2
