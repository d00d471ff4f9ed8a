#pragma once

// What each technique saves in a training step, and that none changes what is learnt.

#include <cstdint>

#include "common/shapes_voxels.h"
#include "voxel_gan/options.h"
#include "voxel_gan/train.h"

namespace voxel_gan {

/// The most bytes that the graphs of `batch` shapes hold with both networks checkpointed, from the
/// shapes alone; compare.cpp derives them.
int64_t most_held(int64_t batch);

/// Prints the table of techniques for one training step on the same shapes, from the weights of
/// `trained`. Returns whether all checks hold.
bool compare_techniques(Gan& trained, const examples::VoxelShapes& shapes, const Options& options);

/// Takes the first steps of a training by a loop as plain PyTorch has it, and by the Trainer with
/// all techniques on, and prints how far parameters, BatchNorm statistics and averages are apart:
/// with and without gradient penalty. On the CPU they must be the same in each precision. Returns
/// whether they are.
bool compare_first_steps(const examples::VoxelShapes& shapes, const Options& options);

/// Writes where the memory of a Trainer's step goes into --report: plain, and with all techniques.
void report_memory(const examples::VoxelShapes& shapes, const Options& options);

}  // namespace voxel_gan
