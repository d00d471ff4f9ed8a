#pragma once

// One training step: plain, with its activations checkpointed in several ways, and in mixed
// precision.

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "voxel_net/data.h"
#include "voxel_net/network.h"

namespace voxel_net {

/// A way to run the residual blocks.
struct Technique {
  std::string name;
  std::function<torch::Tensor(const torch::Tensor&)> run_blocks;
  std::vector<int64_t> regions;          ///< number of blocks in each checkpointed region, in order
  int64_t kept = 0;                      ///< blocks behind them that run plainly
  std::optional<torch::ScalarType> amp;  ///< the dtype of mixed precision, where it is on
  int64_t micro_batches = 1;             ///< whose gradients make one step
};

/// What a technique did in one step, measured.
struct Measured {
  int64_t peak = 0;       ///< bytes above what is live between steps
  int64_t held = 0;       ///< bytes that the graph holds for backward
  double seconds = 0;     ///< for each micro-batch
  double difference = 0;  ///< largest from plain blocks otherwise run the same, of gradients and
                          ///< BatchNorm statistics
};

/// Bytes that follow from the shapes.
struct Sizes {
  int64_t activation = 0;       ///< one activation of a block
  int64_t block_gradients = 0;  ///< the gradients of one block's parameters
};

/// The fewest bytes that a technique saves, from the shapes alone; compare.cpp derives them.
int64_t least_held_saving(const Technique& technique, const Sizes& sizes);
int64_t least_peak_saving(const Technique& technique, const Sizes& sizes);

/// The plain way first; with `amp` in mixed precision, too. The techniques share the net's blocks.
std::vector<Technique> all_techniques(VoxelNet& net, std::optional<torch::ScalarType> amp);

/// Runs the same step, forward, loss and backward on `batch`, with each technique: the same
/// weights, BatchNorm statistics and seed each time, the net left as it was. Times are medians of
/// `rounds` steps.
std::vector<Measured> measure_techniques(VoxelNet& net, const std::vector<Technique>& techniques,
                                         const Batch& batch, int64_t rounds);

/// Prints the table, then whether gradients and BatchNorm statistics are the plain ones and savings
/// at least what the shapes promise. Gradients and peaks are checked on the CPU only, and peaks not
/// in mixed precision: elsewhere kernels may add up in any order and use workspaces of any size.
/// Returns whether all checks hold.
bool report_techniques(const std::vector<Technique>& techniques,
                       const std::vector<Measured>& measured, const Sizes& sizes, bool on_cpu);

}  // namespace voxel_net
