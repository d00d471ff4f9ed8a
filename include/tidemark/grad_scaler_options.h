#pragma once

#include <torch/arg.h>

#include <cstdint>
#include <limits>

namespace tidemark {

/// How a GradScaler finds its scale. The defaults are those of torch.amp.GradScaler, which has no
/// `min_scale`, `max_scale`, `max_consecutive_skips` and `allow_fp16_grads`.
///
///     tidemark::GradScaler scaler(tidemark::GradScalerOptions().init_scale(1024).min_scale(1));
struct GradScalerOptions {
  /// What the loss is multiplied by at first. Powers of two lose no bits.
  TORCH_ARG(double, init_scale) = 65536.0;

  /// What the scale is multiplied by after `growth_interval` updates in a row without an inf or
  /// NaN; above 1.
  TORCH_ARG(double, growth_factor) = 2.0;

  /// What the scale is multiplied by in an update that saw an inf or NaN; between 0 and 1.
  TORCH_ARG(double, backoff_factor) = 0.5;

  /// Number of clean updates in a row that make the scale grow.
  TORCH_ARG(int64_t, growth_interval) = 2000;

  /// Without it everything passes through: losses are not scaled and step() just steps.
  TORCH_ARG(bool, enabled) = true;

  /// The least that an update makes the scale. The default is the least whose inverse is finite:
  /// below it gradients would stay NaN for ever.
  TORCH_ARG(double, min_scale) = std::numeric_limits<float>::min();

  /// The most that an update makes the scale. The default is the largest float32.
  TORCH_ARG(double, max_scale) = std::numeric_limits<float>::max();

  /// The number of updates in a row with a skipped step at which step() throws; 0: never.
  TORCH_ARG(int64_t, max_consecutive_skips) = 0;

  /// Unscales gradients in half precision as well, where small ones may become 0. For parameters
  /// that have to be in half precision.
  TORCH_ARG(bool, allow_fp16_grads) = false;
};

}  // namespace tidemark
