#pragma once

// What each technique saves in a training step, and that none changes what is learnt.

#include <cstdint>

#include "common/shapes_voxels.h"
#include "voxel_diffusion/network.h"
#include "voxel_diffusion/options.h"

namespace voxel_diffusion {

/// At least this many bytes less are held by the graphs of `shapes` shapes in float32 if these
/// blocks are checkpointed, from the shapes of the network alone; compare.cpp derives them.
int64_t least_held_saving(const NetworkOptions& network, Regions regions, int64_t shapes);

/// Prints the table of techniques for one training step on the same shapes, from the weights of
/// `trained`. Returns whether all checks hold.
bool compare_techniques(const Denoiser& trained, const examples::VoxelShapes& shapes,
                        const Options& options);

/// Takes the first steps of a training by a loop as plain PyTorch has it, and by the Trainer with
/// all techniques on, and prints how far parameters and their averages are apart. On the CPU they
/// must be the same in each precision. Returns whether they are.
bool compare_first_steps(const examples::VoxelShapes& shapes, const Options& options);

/// Writes where the memory of a Trainer's step goes into --report: plain, and with all techniques.
void report_memory(const examples::VoxelShapes& shapes, const Options& options);

}  // namespace voxel_diffusion
