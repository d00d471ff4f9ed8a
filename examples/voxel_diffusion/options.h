#pragma once

// What the command line sets.

#include <cstdint>
#include <optional>
#include <string>

#include "common/training_options.h"
#include "voxel_diffusion/network.h"
#include "voxel_diffusion/schedule.h"

namespace voxel_diffusion {

struct Options : examples::TrainingOptions {
  Options();

  int64_t batch = 8;
  std::string classes = "chair,table";
  int64_t variants = 8;
  bool triplane = false;
  double lr = 0.003;
  double ema = 0.997;
  int64_t noise_levels = 1000;
  double shift = 6;
  int64_t ddim_steps = 25;
  std::optional<int64_t> fold;  ///< 4; 2 for planes
  int64_t channels = 32;
  int64_t dropout = 5;        ///< in percent
  int64_t min_coverage = 40;  ///< in percent; 0: scores are shown only
  int64_t max_distance = 60;  ///< in percent of the mean shape's

  [[nodiscard]] NetworkOptions network() const;

  [[nodiscard]] NoiseSchedule schedule() const { return NoiseSchedule(noise_levels, shift); }

  /// Throws examples::UsageError if the command line can't be accepted.
  static Options parse(int argc, char** argv);

  /// What --help prints.
  static std::string help_text();
};

}  // namespace voxel_diffusion
