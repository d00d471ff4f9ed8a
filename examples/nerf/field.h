#pragma once

// What is where in space, as a network.
// Mildenhall et al., NeRF: Representing Scenes as Neural Radiance Fields for View Synthesis, 2020.

#include <tidemark/amp_cast.h>
#include <tidemark/checkpoint.h>
#include <torch/torch.h>

#include <cstdint>
#include <utility>

#include "nerf/density.h"

namespace nerf {

/// The coordinates, and sines and cosines of pi, 2 pi, 4 pi ... times them:
/// [..., n] becomes [..., n (1 + 2 frequencies)].
torch::Tensor positional_encoding(const torch::Tensor& x, int64_t frequencies);

/// The number of features that positional_encoding() makes of three coordinates.
inline int64_t encoded_size(int64_t frequencies) { return 3 * (1 + 2 * frequencies); }

/// Three layers with ReLUs between them.
struct UnitImpl : torch::nn::Module {
  UnitImpl(int64_t inputs, int64_t width)
      : first(inputs, width), second(width, width), third(width, width) {
    register_module("first", first);
    register_module("second", second);
    register_module("third", third);
  }

  torch::Tensor forward(const torch::Tensor& x) { return third(second(first(x).relu()).relu()); }

  torch::nn::Linear first, second, third;
};
TORCH_MODULE(Unit);

/// The same with what came in before once more.
struct SkipUnitImpl : torch::nn::Module {
  SkipUnitImpl(int64_t inputs, int64_t width) : unit(inputs + width, width) {
    register_module("unit", unit);
  }

  torch::Tensor forward(const torch::Tensor& x, const torch::Tensor& inputs) {
    return unit(torch::cat({x.relu(), inputs}, -1));
  }

  Unit unit;
};
TORCH_MODULE(SkipUnit);

/// Three layers that look at the direction, too. Density [..., 1] and colour [..., 3], both raw.
struct HeadImpl : torch::nn::Module {
  HeadImpl(int64_t width, int64_t directions)
      : first(width, width),
        second(width + directions, width / 2),
        third(width / 2, 3),
        density(width, 1) {
    register_module("first", first);
    register_module("second", second);
    register_module("third", third);
    register_module("density", density);
    // nearly transparent at first: what begins opaque only learns to go away
    torch::nn::init::constant_(density->bias, -3);
  }

  std::pair<torch::Tensor, torch::Tensor> forward(const torch::Tensor& x,
                                                  const torch::Tensor& directions) {
    const torch::Tensor features = x.relu();
    const torch::Tensor seen = second(torch::cat({first(features), directions}, -1)).relu();
    return {density(features), third(seen)};
  }

  torch::nn::Linear first, second, third, density;
};
TORCH_MODULE(Head);

struct FieldOptions {
  TORCH_ARG(int64_t, width) = 64;
  TORCH_ARG(int64_t, frequencies) = 6;
  TORCH_ARG(int64_t, direction_frequencies) = 2;
  TORCH_ARG(bool, checkpoint) = true;
};

/// Density and colour at points, as seen from directions.
class FieldImpl : public torch::nn::Module {
 private:
  // A unit as a region of its own. Its last layer saves nothing that backward needs, so the re-run
  // can end before it.
  template <class Module, class... Inputs>
  auto run(Module& unit, const Inputs&... inputs) {
    return options.checkpoint()
               ? tidemark::checkpoint(tidemark::CheckpointOptions().early_stop(true), unit,
                                      inputs...)
               : unit->forward(inputs...);
  }

 public:
  explicit FieldImpl(const FieldOptions& options)
      : options(options),
        stem(encoded_size(options.frequencies()), options.width()),
        trunk(encoded_size(options.frequencies()), options.width()),
        head(options.width(), encoded_size(options.direction_frequencies())) {
    register_module("stem", stem);
    register_module("trunk", trunk);
    register_module("head", head);
  }

  /// points [rays, samples, 3] and directions [rays, 3] of length 1: density [rays, samples], 0 and
  /// above, and colour [rays, samples, 3], 0 to 1. Both are float. The head is never checkpointed:
  /// it holds the least, and its backward comes first.
  std::pair<torch::Tensor, torch::Tensor> forward(const torch::Tensor& points,
                                                  const torch::Tensor& directions) {
    // Joined with features in bfloat16, encodings in float32 would widen these, too.
    const torch::Tensor where =
        tidemark::amp_cast(positional_encoding(points, options.frequencies()));
    const torch::Tensor from =
        tidemark::amp_cast(positional_encoding(directions, options.direction_frequencies()))
            .unsqueeze(1)
            .expand({-1, points.size(1), -1});
    torch::Tensor x = run(stem, where);
    x = run(trunk, x, where);
    const auto [density, colour] = head->forward(x, from);
    return {truncated_exp(density.squeeze(-1)),
            tidemark::amp_cast(torch::kFloat, colour).sigmoid()};
  }

  FieldOptions options;
  Unit stem;
  SkipUnit trunk;
  Head head;
};
TORCH_MODULE(Field);

}  // namespace nerf
