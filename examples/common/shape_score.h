#pragma once

// How good generated shapes are, by shapes that were held out.
// Achlioptas, Diamanti, Mitliagkas, Guibas, Learning Representations and Generative Models for 3D
// Point Clouds, 2018.

#include <torch/types.h>

namespace examples {

/// The Chamfer distance of each pair of voxel shapes, [a, size, size, size] and [b, size, size,
/// size], as float [a, b] in voxels: how far the voxels of one are from the nearest of the other on
/// average, taken in both directions, and the mean of these. A voxel is set if it is above 1/2. An
/// empty shape is a diagonal of the grid away from others.
///
/// Why not the overlap (IoU): a table leg that is moved by a voxel overlaps as little as one that
/// is not there.
torch::Tensor shape_distances(const torch::Tensor& a, const torch::Tensor& b);

struct ShapeScore {
  /// The share of the held-out shapes that are the nearest one to some generated shape: how much of
  /// what there is, is generated. Copies of one shape cover one.
  double coverage = 0;
  /// The mean distance of the held-out shapes to the nearest generated one, in voxels: how well.
  double minimum_matching_distance = 0;
};

/// From the distances of generated shapes, a row each, to held-out ones. Coverage grows with the
/// number of generated shapes: compare scores of equal numbers only.
ShapeScore score_distances(const torch::Tensor& distances);

/// The same from shapes as in shape_distances().
ShapeScore score_shapes(const torch::Tensor& generated, const torch::Tensor& held_out);

}  // namespace examples
