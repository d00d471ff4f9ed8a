#pragma once

// Slices of a labelled volume as a picture.

#include <torch/types.h>

#include <string>

#include "common/volume_dataset.h"

namespace examples {

/// Some held-out slices as PNG, a row each: scan, true classes, predicted classes. `prediction` is
/// what predict_slices() returned for data.held_out. Throws std::runtime_error if the file can't be
/// written.
void draw_slices(const std::string& path, const Dataset& data, const torch::Tensor& prediction);

}  // namespace examples
