#pragma once

/// \file
/// What may be chosen for a checkpointed region, however it is made.

#include <torch/arg.h>

#include <cstdint>
#include <string>

namespace tidemark {

/// How a checkpointed region is recorded and re-run.
///
///     auto y = tidemark::checkpoint(tidemark::CheckpointOptions().name("enc1"), encoder, x);
struct CheckpointOptions {
  /// What error messages call the region.
  TORCH_ARG(std::string, name);

  /// Draws the region's random numbers (dropout, noise) again when it is re-run: on the default
  /// generators of the CPU and of every device in use. Without it a region that draws some is
  /// refused, since its gradients would be wrong; it then costs nothing to look at the generators.
  TORCH_ARG(bool, preserve_rng) = true;

  /// Ends a re-run as soon as the last tensor that backward needs is there, which saves the ops
  /// behind it. The re-run is left by an exception that is not a std::exception: a region that
  /// catches `...` must rethrow. Ignored where stopping could give other gradients or leak: regions
  /// that draw random numbers, whose last tensor is saved by a custom autograd Function or inside a
  /// backward of their own, or is written to after it was saved.
  TORCH_ARG(bool, early_stop) = false;

  /// Watches the ops of the region, in the forward and in the re-run: refuses a re-run that reads
  /// something that has changed or takes another way, puts buffers that the region writes
  /// (BatchNorm statistics, counters) back so that they are written once, and replays generators
  /// that are passed to ops. Costs some hundred ns per op. Without it all that is the caller's to
  /// see to.
  TORCH_ARG(bool, observe) = true;

  /// The most bytes of tensors from outside that one call of the region may write to; what they
  /// held is kept until backward. Those that it overwrites as a whole don't count.
  TORCH_ARG(int64_t, snapshot_limit) = int64_t{64} << 20;

  /// Of a CPU tensor from outside that has up to this many bytes all are looked at before and
  /// after, of a larger one 64 places: so a write is noticed that moves no version, as a step of
  /// torch::optim::SGD or one through data(). On devices no values are looked at.
  TORCH_ARG(int64_t, fingerprint_limit) = int64_t{64} << 20;

  /// Compares every recomputed tensor bit by bit (by a hash) with the forward's and names the first
  /// that differs. For finding out whether a region repeats itself; costs a pass over the data.
  TORCH_ARG(bool, verify) = false;
};

}  // namespace tidemark
