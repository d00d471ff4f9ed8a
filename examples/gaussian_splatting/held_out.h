#pragma once

// How well Gaussians show the object from where it has not been seen.

#include <torch/types.h>

#include "gaussian_splatting/gaussians.h"
#include "gaussian_splatting/scene.h"

namespace gaussian_splatting {

/// The held-out views as the Gaussians have them: float [views, height, width, 3], 0 to 1, on the
/// CPU.
torch::Tensor show_held_out(const Gaussians& gaussians, const Scene& scene, torch::Device device,
                            const SplatOptions& options);

}  // namespace gaussian_splatting
