#pragma once

// What the network sees of a shape: its voxels, or three planes.

#include <torch/types.h>

#include <cstdint>

namespace voxel_diffusion {

/// Voxels along each edge of a shape.
inline constexpr int64_t kSize = 32;

/// Voxels of 0 and 1, [shapes, 32, 32, 32] of any dtype in the order x, y, z, as float
/// [shapes, 1, 32, 32, 32] of -1 and 1.
torch::Tensor voxels_to_code(const torch::Tensor& voxels);

/// The way back, of values that may lie between: uint8 [shapes, 32, 32, 32].
torch::Tensor code_to_voxels(const torch::Tensor& code);

/// The same voxels seen along each of the axes: float [shapes, 6, 1, 32, 32]. For each line of
/// voxels along x (then y, z; the other two axes are rows and columns) a plane has the place where
/// the first one is set, from -1 to 1, and another plane that of the last one. A line without any
/// has them the wrong way round: 1 and -1.
///
/// So 3D convolutions become 2D ones, with a sixteenth of the activations at half the resolution.
/// As in Shue et al., 3D Neural Field Generation using Triplane Diffusion, 2023, but with planes
/// that follow from the shape instead of learnt features, and a decoder without weights.
torch::Tensor voxels_to_planes(const torch::Tensor& voxels);

/// The voxels that lie between first and last along all three axes: uint8 [shapes, 32, 32, 32].
/// These are the shape's own, and those of what can't be seen from any side along an axis.
torch::Tensor planes_to_voxels(const torch::Tensor& planes);

}  // namespace voxel_diffusion
