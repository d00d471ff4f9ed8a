#pragma once

// Point clouds of labelled objects, and scenes of several.

#include <ATen/core/Generator.h>
#include <torch/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/shapes.h"
#include "pointnet2/options.h"

namespace pointnet2 {

/// Objects as many points of their surfaces, to draw clouds from. y is up, the longest side of an
/// object's box is 1.
struct Objects {
  torch::Tensor surface;  ///< float [objects, 4096, 3]
  torch::Tensor labels;   ///< int64 [objects]

  [[nodiscard]] int64_t count() const { return labels.size(0); }
};

struct Dataset {
  std::vector<std::string> class_names;  ///< of the objects
  Objects train;
  Objects held_out;

  /// Scenes have one more: the floor.
  [[nodiscard]] int64_t object_classes() const { return static_cast<int64_t>(class_names.size()); }
};

/// Draws the points of each shape's surface.
Dataset sample_objects(const examples::ShapeSet& set, uint64_t seed);

/// Clouds of a batch with what is to be learnt of them.
struct Clouds {
  torch::Tensor xyz;     ///< float [clouds, points, 3]
  torch::Tensor labels;  ///< int64 [clouds] or [clouds, points]

  [[nodiscard]] Clouds to(torch::Device device) const {
    return {xyz.to(device), labels.to(device)};
  }
};

/// Where random numbers come from; nothing is LibTorch's default generator.
using Random = std::optional<at::Generator>;

/// How objects are changed, so that training sees more of them.
struct Variation {
  double stretch = 0;   ///< along each axis by up to this share more or less
  double turn = 0;      ///< about the upright axis, degrees to either side
  bool mirror = false;  ///< in x, every other object
  double jitter = 0;    ///< standard deviation of each coordinate
};

/// A cloud of each object whose index is in `chosen`, centred and scaled to fit into the unit ball.
Clouds draw_objects(const Objects& objects, const torch::Tensor& chosen, int64_t points,
                    const Variation& variation, const Random& random = {});

inline constexpr int64_t kObjectsOfScene = 4;

/// Scenes of four objects each, of those whose indices are in `chosen`, in turn: placed on a floor
/// beside each other, turned and sized at random. An eighth of the points is of the floor, whose
/// label is `floor`. The order of points is random.
Clouds draw_scenes(const Objects& objects, const torch::Tensor& chosen, int64_t points,
                   int64_t floor, const Variation& variation, const Random& random = {});

/// A batch to train with, of the task that the options name, by LibTorch's default generator.
Clouds draw_training_clouds(const Dataset& data, const Options& options);

/// Clouds of the held-out objects in their order, or scenes in which each of them is there twice.
/// `number` tells one set from the next: each is the same in every run.
Clouds draw_held_out_clouds(const Dataset& data, const Options& options, int64_t number);

}  // namespace pointnet2
