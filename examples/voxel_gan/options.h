#pragma once

// What the command line sets.

#include <cstdint>
#include <string>
#include <vector>

#include "common/training_options.h"

namespace voxel_gan {

struct Options : examples::TrainingOptions {
  Options();

  int64_t batch = 16;
  std::string classes = "chair,table";
  int64_t variants = 8;
  double lr = 0.002;
  double discriminator_lr = 0.0002;
  double noise = 0.3;
  double gradient_penalty = 0;  ///< its weight; 0: BatchNorm and the loss of a plain GAN instead
  double ema = 0.98;
  int64_t channels = 8;
  int64_t latent = 32;
  int64_t min_coverage = 30;  ///< in percent
  int64_t max_distance = 80;  ///< in percent of the mean shape's

  [[nodiscard]] bool penalised() const { return gradient_penalty > 0; }

  /// Throws examples::UsageError if the command line can't be accepted.
  static Options parse(int argc, char** argv);

  /// What --help prints.
  static std::string help_text();
};

}  // namespace voxel_gan
