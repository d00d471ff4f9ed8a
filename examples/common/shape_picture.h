#pragma once

// Voxel shapes as a picture.

#include <torch/types.h>

#include <string>
#include <vector>

namespace examples {

/// A row of the picture.
struct ShapeRow {
  std::string title;     ///< written above it; none if empty
  torch::Tensor voxels;  ///< [shapes, size, size, size] in the order x, y, z; set if above 1/2
};

/// Draws shapes as PNG, from their front, right and above, as little cubes with a side each in
/// light, half light and shadow. Throws std::runtime_error if the file can't be written.
void draw_shapes(const std::string& path, const std::vector<ShapeRow>& rows);

}  // namespace examples
