#pragma once

// How well a field shows the object from where it has not been seen.

#include <torch/types.h>

#include <cstdint>

#include "nerf/render.h"
#include "nerf/scene.h"

namespace nerf {

/// The held-out views as the fine field has them, `chunk` rays at a time: float
/// [views, height, width, 3], 0 to 1, on the CPU. Runs the network in eval mode and without
/// gradients, and leaves it in training mode.
torch::Tensor show_held_out(Nerf& net, const Scene& scene, torch::Device device, int64_t chunk);

}  // namespace nerf
