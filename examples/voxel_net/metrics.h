#pragma once

// How well the network does on slices that it has not seen.

#include <torch/types.h>

#include <cstdint>
#include <vector>

#include "voxel_net/data.h"
#include "voxel_net/network.h"

namespace voxel_net {

/// The most likely class of each voxel in some slices of the data, [slices, rows, columns], from
/// overlapping cubes of the size that the network was trained on, `batch` at a time. Runs the
/// network in eval mode and without gradients, and leaves it in training mode.
torch::Tensor predict(VoxelNet& net, const Dataset& data, Slices slices, int64_t patch,
                      int64_t batch);

/// The Dice score of each class, twice the overlap over the sum of both sizes: 1 is perfect. Not a
/// number for a class that is in neither. Voxels whose truth is kNoClass don't count.
std::vector<double> dice_per_class(const torch::Tensor& prediction, const torch::Tensor& truth,
                                   int64_t classes);

}  // namespace voxel_net
