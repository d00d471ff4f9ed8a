#pragma once

// One training step: plain, with its activations checkpointed in several ways, and in mixed
// precision.

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "common/technique_table.h"
#include "common/volume_dataset.h"
#include "voxel_net/network.h"

namespace voxel_net {

/// A way to run the residual blocks.
struct Way {
  std::string name;
  std::function<torch::Tensor(const torch::Tensor&)> run_blocks;
  std::vector<int64_t> regions;          ///< number of blocks in each checkpointed region, in order
  int64_t kept = 0;                      ///< blocks behind them that run plainly
  std::optional<torch::ScalarType> amp;  ///< the dtype of mixed precision, where it is on
  int64_t micro_batches = 1;             ///< whose gradients make one step
};

/// Bytes that follow from the shapes.
struct Sizes {
  int64_t activation = 0;       ///< one activation of a block
  int64_t block_gradients = 0;  ///< the gradients of one block's parameters
};

/// The fewest bytes that a way saves, from the shapes alone; compare.cpp derives them.
int64_t least_held_saving(const Way& way, const Sizes& sizes);
int64_t least_peak_saving(const Way& way, const Sizes& sizes);

/// The plain way first; with `amp` in mixed precision, too. All share the net's blocks.
std::vector<Way> all_ways(VoxelNet& net, std::optional<torch::ScalarType> amp);

/// Runs the same step, forward, loss and backward on `batch`, in each way; see
/// examples::measure_techniques().
std::vector<examples::Measured> measure_ways(VoxelNet& net, const std::vector<Way>& ways,
                                             const examples::Batch& batch, int64_t rounds);

/// Prints the table, then whether gradients and BatchNorm statistics are the plain ones and savings
/// at least what the shapes promise; see examples::print_techniques(). Peaks aren't checked in
/// mixed precision. Returns whether all checks hold.
bool report_ways(const std::vector<Way>& ways, const std::vector<examples::Measured>& measured,
                 const Sizes& sizes, torch::Device device);

/// A whole training step on `batch` in one way, that of the optimizer included.
std::function<void()> whole_step(VoxelNet& net, torch::optim::Optimizer& optimizer, const Way& way,
                                 const examples::Batch& batch);

}  // namespace voxel_net
