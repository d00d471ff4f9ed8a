#pragma once

// The scores of generated shapes beside those of shapes that took no learning.

#include <torch/types.h>

namespace examples {

/// What generated shapes have to reach to count as learnt.
struct ShapeGoal {
  double coverage = 0;  ///< at least
  /// At most this share of the minimum matching distance of the mean shape.
  double distance_of_mean = 1;
};

/// Of training shapes, the voxels that are set most often, as many as shapes have on average.
torch::Tensor mean_shape(const torch::Tensor& shapes);

/// Prints coverage and minimum matching distance on the held-out shapes of `generated`, and of
/// voxels at random, the mean shape and real training shapes. Each is the mean over sets of as many
/// shapes as are held out; what doesn't fill a set is left out. All are [shapes, size, size, size].
/// Returns whether the goal is reached. Leaves LibTorch's generators alone.
bool print_shape_scores(const torch::Tensor& generated, const torch::Tensor& train,
                        const torch::Tensor& held_out, const ShapeGoal& goal);

}  // namespace examples
