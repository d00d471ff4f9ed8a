#pragma once

// How well a network does on slices that it has not seen.

#include <torch/types.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "common/volume_dataset.h"

namespace examples {

/// The most likely class of each voxel in some slices of the data, [slices, rows, columns], from
/// cubes of the size of `weight` that overlap by half, `batch` at a time. `likelihood` turns cubes
/// [batch, 1, edge, edge, edge] into [batch, classes, edge, edge, edge], without gradients;
/// `weight`, [edge, edge, edge], says how much each voxel of a cube counts where cubes overlap.
torch::Tensor predict_slices(const std::function<torch::Tensor(const torch::Tensor&)>& likelihood,
                             const Dataset& data, Slices slices, const torch::Tensor& weight,
                             int64_t batch);

/// A Gaussian bump, 1 in the middle of a cube, with a deviation of an eighth of the edge: what
/// nnU-Net blends cubes with, since a network knows least at their borders.
torch::Tensor gaussian_weight(int64_t edge);

/// The Dice score of each class, twice the overlap over the sum of both sizes: 1 is perfect. Not a
/// number for a class that is in neither. Voxels whose truth is kNoClass don't count.
std::vector<double> dice_per_class(const torch::Tensor& prediction, const torch::Tensor& truth,
                                   int64_t classes);

/// "outside 0.995, CSF 0.841": the scores of the classes that are there.
std::string describe_scores(const Dataset& data, const std::vector<double>& scores);

}  // namespace examples
