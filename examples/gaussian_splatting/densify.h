#pragma once

// More Gaussians where the picture asks for them, and none where they show nothing.

#include <cstdint>

#include "gaussian_splatting/model.h"

namespace gaussian_splatting {

struct DensifyOptions {
  double gradient = 2e-4;  ///< of a view's loss, for moves of a whole picture's half edge
  int64_t most = 2500;     ///< Gaussians; where there is no room for all, the steepest go first
  double large = 0.02;     ///< deviation in the world above which they split instead of doubling
  double least_opacity = 0.02;
};

struct Densified {
  int64_t cloned = 0;
  int64_t split = 0;
  int64_t pruned = 0;
};

/// Clones small Gaussians whose places on the screen have steep gradients (Model::noted(), times
/// `half_edge` pixels), splits large ones in two, and removes those that are nearly transparent.
/// Draws random numbers of LibTorch's default generator.
Densified densify(Model& model, double half_edge, const DensifyOptions& options);

}  // namespace gaussian_splatting
