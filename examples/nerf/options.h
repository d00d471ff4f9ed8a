#pragma once

// What the command line sets.

#include <cstdint>
#include <optional>
#include <string>

#include "common/object_views.h"
#include "common/training_options.h"
#include "nerf/render.h"

namespace nerf {

struct Options : examples::TrainingOptions {
  Options();

  int64_t rays = 512;
  int64_t chunk = 0;  ///< 0: all at a time
  double lr = 0.005;
  std::optional<int64_t> least_psnr;  ///< in dB

  int64_t width = 64;
  int64_t coarse = 24;
  int64_t fine = 24;
  int64_t frequencies = 6;

  examples::ObjectViewOptions pictures;
  double near = 2;
  double far = 6;

  bool full_size = false;

  /// Throws examples::UsageError if the command line can't be accepted.
  static Options parse(int argc, char** argv);

  /// The network of --width, --coarse, --fine, --frequencies and --checkpoint.
  [[nodiscard]] NerfOptions network() const;

  /// What --help prints.
  static std::string help_text();
};

}  // namespace nerf
