#pragma once

// What each technique saves in a training step, and that none changes what is learnt.

#include <cstdint>

#include "gaussian_splatting/options.h"
#include "gaussian_splatting/scene.h"
#include "gaussian_splatting/train.h"

namespace gaussian_splatting {

/// The bytes that a graph holds at least for each pair of a pixel and a Gaussian, where tiles are
/// not checkpointed; compare.cpp derives them.
inline constexpr int64_t kBytesPerPair = 17;

/// Prints the table of techniques for one training step on eight views, from the Gaussians of
/// `trained`. Returns whether all checks hold.
bool compare_techniques(const Gaussians& trained, const Scene& scene, const Options& options);

/// Takes the first step of a training by a loop as plain PyTorch has it, and by the Trainer with
/// all techniques on, and prints how far the parameters are apart. On the CPU they must be the same
/// in each precision. Returns whether they are.
bool compare_first_step(const Scene& scene, const Options& options);

/// Writes where the memory of a Trainer's step goes into --report: eight views at once, plain, and
/// with all techniques.
void report_memory(const Scene& scene, const Options& options);

}  // namespace gaussian_splatting
