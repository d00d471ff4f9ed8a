#pragma once

// What the command line sets.

#include <cstdint>
#include <string>

#include "common/training_options.h"

namespace unet3d {

struct Options : examples::TrainingOptions {
  Options();

  int64_t batch = 4;
  int64_t patch = 24;
  double lr = 0.01;
  bool watch = false;
  int64_t channels = 16;
  int64_t levels = 3;
  int64_t min_dice = 75;  ///< in percent

  /// Throws examples::UsageError if the command line can't be accepted.
  static Options parse(int argc, char** argv);

  /// What --help prints.
  static std::string help_text();
};

}  // namespace unet3d
