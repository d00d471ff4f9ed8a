#pragma once

// What the command line sets.

#include <cstdint>
#include <string>

#include "common/object_views.h"
#include "common/training_options.h"
#include "gaussian_splatting/densify.h"
#include "gaussian_splatting/splat.h"

namespace gaussian_splatting {

struct Options : examples::TrainingOptions {
  Options();

  int64_t batch = 1;
  double lr = 1;

  int64_t gaussians = 1500;
  int64_t tile = 16;
  DensifyOptions densify;
  int64_t densify_every = 40;
  int64_t densify_until = 240;

  examples::ObjectViewOptions pictures;
  double radius = 1.3;

  int64_t least_psnr = 0;  ///< in dB

  /// Throws examples::UsageError if the command line can't be accepted.
  static Options parse(int argc, char** argv);

  /// --tile and --checkpoint.
  [[nodiscard]] SplatOptions splat() const { return {tile, checkpointed()}; }

  /// What --help prints.
  static std::string help_text();
};

}  // namespace gaussian_splatting
