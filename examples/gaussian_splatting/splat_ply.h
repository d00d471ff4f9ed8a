#pragma once

// Gaussians as a file for viewers of 3D Gaussian splatting.

#include <string>

#include "gaussian_splatting/gaussians.h"

namespace gaussian_splatting {

/// Writes a binary little-endian PLY file with the properties that the original implementation
/// writes, all float: x y z nx ny nz f_dc_0..2 f_rest_0..8 opacity scale_0..2 rot_0..3. f_rest has
/// the three coefficients of red, then those of green and of blue; opacity is before the sigmoid,
/// scales are logarithms, rot_0 is w; normals are 0. Throws std::runtime_error if it can't be
/// written.
void write_splat_ply(const std::string& path, const Gaussians& gaussians);

}  // namespace gaussian_splatting
