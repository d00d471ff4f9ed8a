#pragma once

// What the program draws.

#include <torch/types.h>

#include <string>
#include <vector>

#include "voxel_net/data.h"

namespace voxel_net {

/// Some held-out slices as PNG, a row each: scan, true classes, predicted classes. `prediction` is
/// what predict() returned for data.held_out.
void draw_slices(const std::string& path, const Dataset& data, const torch::Tensor& prediction);

/// The loss of each step, and its running mean, as SVG.
void draw_losses(const std::string& path, const std::vector<double>& losses);

}  // namespace voxel_net
