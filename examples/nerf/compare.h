#pragma once

// What each technique saves in a training step, and that none changes what is learnt.

#include <cstdint>

#include "nerf/options.h"
#include "nerf/render.h"
#include "nerf/scene.h"

namespace nerf {

/// The bytes that a step on `rays` rays holds less for backward when stem and trunk are
/// checkpointed, from the shapes alone; compare.cpp derives them.
int64_t held_saving(const NerfOptions& options, int64_t rays);

/// Prints the table of techniques for one training step on the same rays, and what checkpointed
/// units hold and take of plain; with --full-size only these two rows, and their limits. Returns
/// whether all checks hold.
bool compare_techniques(Nerf& net, const Scene& scene, const Options& options);

/// Takes the first step of a training by a loop as plain PyTorch has it, and by the Trainer with
/// all techniques on, and prints how far the parameters are apart. On the CPU they must be the same
/// in each precision. Returns whether they are.
bool compare_first_step(const Scene& scene, const Options& options);

/// Writes where the memory of a Trainer's step goes into --report: plain, and with all techniques.
void report_memory(const Scene& scene, const Options& options);

}  // namespace nerf
