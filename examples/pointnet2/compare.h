#pragma once

// What each technique saves in a training step, and that none changes what is learnt.

#include <cstdint>

#include "pointnet2/clouds.h"
#include "pointnet2/network.h"
#include "pointnet2/options.h"

namespace pointnet2 {

/// The fewest bytes that graphs of that many clouds hold less when every stage is checkpointed,
/// from the shapes alone; compare.cpp derives them.
int64_t least_held_saving(const NetworkOptions& options, int64_t clouds);

/// Prints the table of techniques for one training step on the same clouds, from the weights of
/// `trained`. Returns whether all checks hold.
bool compare_techniques(PointNet2& trained, const Dataset& data, const Options& options);

/// Takes the first two steps of a training by a loop as plain PyTorch has it, and by the Trainer
/// with all techniques on, and prints how far parameters and BatchNorm statistics are apart. On the
/// CPU they must be the same in each precision. Returns whether they are.
bool compare_first_steps(const Dataset& data, const Options& options);

/// Writes where the memory of a Trainer's step goes into --report: plain, and with all techniques.
void report_memory(const Dataset& data, const Options& options);

}  // namespace pointnet2
