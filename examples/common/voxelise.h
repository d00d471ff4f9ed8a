#pragma once

// From triangles to voxels.

#include <torch/types.h>

#include <cstdint>

namespace examples {

struct VoxelOptions {
  int64_t size = 32;   ///< voxels along each edge
  int64_t margin = 1;  ///< of these left empty on each side, for objects with a longest side of 1
  bool fill = true;    ///< whether what is inside is set, too
};

/// The voxels of triangles, float [triangles, 3, 3] in the cube from -1/2 to 1/2, as uint8 [size,
/// size, size] of 0 and 1 with indices in the order x, y, z. What is outside of the cube is moved
/// to its border. Works for meshes that are open, too:
///
/// 1. Surface: each triangle is sampled on a lattice finer than half a voxel, and the voxels that
///    are hit are set. So thin parts stay.
/// 2. Inside: what can't be reached from the border through the sides of empty voxels. The floor
///    that the object stands on counts as closed, as many models have no underside. An object with
///    a gap wider than a voxel remains a shell.
torch::Tensor voxelise(const torch::Tensor& triangles, const VoxelOptions& options = {});

}  // namespace examples
