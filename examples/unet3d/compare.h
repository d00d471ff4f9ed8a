#pragma once

// What each technique saves in a training step, and that none changes what is learnt.

#include <cstdint>

#include "common/volume_dataset.h"
#include "unet3d/network.h"
#include "unet3d/options.h"

namespace unet3d {

/// The fewest bytes that graphs of `patches` patches hold less when every stage is checkpointed,
/// from the shapes alone; compare.cpp derives them.
int64_t least_held_saving(const Options& options, int64_t patches);

/// Prints the table of techniques for one training step on the same patches, from the weights of
/// `trained`. Returns whether all checks hold.
bool compare_techniques(UNet3d& trained, const examples::Dataset& data, const Options& options);

/// Takes the first step of a training by a loop as plain PyTorch has it, and by the Trainer with
/// all techniques on, and prints how far the parameters are apart. On the CPU they must be the same
/// in each precision. Returns whether they are.
bool compare_first_step(const examples::Dataset& data, const Options& options);

/// Writes where the memory of a Trainer's step goes into --report: plain, and with all techniques.
void report_memory(const examples::Dataset& data, const Options& options);

}  // namespace unet3d
