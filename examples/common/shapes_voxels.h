#pragma once

// Voxels of labelled objects, to train with and to test with.

#include <torch/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include "common/shapes.h"

namespace examples {

/// Voxels are uint8 [shapes, size, size, size] of 0 and 1, in the order x, y, z; labels int64
/// [shapes], indices into class_names.
struct VoxelShapes {
  std::vector<std::string> class_names;
  torch::Tensor train;
  torch::Tensor train_labels;
  torch::Tensor held_out;
  torch::Tensor held_out_labels;
};

/// Voxelises a set. Of each training shape there are `variants`: itself, then copies that are
/// stretched by 0.8 to 1.25 along each axis and made to fit again, every other one mirrored in x.
/// All variants of a shape follow each other. The same seed gives the same variants.
VoxelShapes voxelise_shapes(const ShapeSet& set, int64_t size, int64_t variants, uint64_t seed);

}  // namespace examples
