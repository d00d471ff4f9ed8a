#pragma once

// Colours of rays through a field. Rays are rows of 8 numbers: origin, direction of length 1, and
// the distances at which they enter and leave what is looked at.

#include <torch/torch.h>

#include <cstdint>
#include <utility>

#include "nerf/field.h"

namespace nerf {

/// Increasing distances along each ray: the middles of `samples` equal parts, or with `jitter` a
/// random place in each. [rays, samples]
torch::Tensor stratified_samples(const torch::Tensor& rays, int64_t samples, bool jitter);

/// `samples` distances for each ray, drawn in proportion to the weights [rays, n] that n parts of
/// it have in its colour, at random or evenly; edges is [rays, n + 1]. Without gradient.
torch::Tensor importance_samples(const torch::Tensor& edges, const torch::Tensor& weights,
                                 int64_t samples, bool jitter);

/// How much each sample counts in the colour of its ray: its opacity times how much light passes
/// those before it. All [rays, samples]; lengths are those of the parts that samples stand for.
torch::Tensor volume_weights(const torch::Tensor& density, const torch::Tensor& lengths);

struct NerfOptions {
  TORCH_ARG(FieldOptions, field);
  TORCH_ARG(int64_t, coarse) = 32;  ///< samples per ray
  TORCH_ARG(int64_t, fine) = 32;    ///< more of them where the coarse ones found something
};

/// A coarse field that finds where something is, and a fine one that looks there.
struct NerfImpl : torch::nn::Module {
  explicit NerfImpl(const NerfOptions& options);

  /// The colours [rays, 3] of rays [rays, 8] on a white background: of the coarse and of the fine
  /// field. Samples are at random places in training mode.
  std::pair<torch::Tensor, torch::Tensor> forward(const torch::Tensor& rays);

  /// Whether stem and trunk of both fields are checkpointed regions from now on.
  void checkpoint_units(bool on) {
    coarse->options.checkpoint(on);
    fine->options.checkpoint(on);
  }

  NerfOptions options;
  Field coarse, fine;
};
TORCH_MODULE(Nerf);

}  // namespace nerf
