#pragma once

// What there is to learn from: rays and their colours.

#include <torch/types.h>

#include <cstdint>

#include "common/views.h"
#include "nerf/options.h"

namespace nerf {

struct Scene {
  examples::Views training;
  examples::Views held_out;
  double near = 0;  ///< distances from the cameras between which everything is
  double far = 0;

  /// Of the file that --data names, or of the mesh that comes with the examples. Writes the views
  /// where --write-views asks for it. Throws std::runtime_error for what can't be read.
  static Scene load(const Options& options);
};

/// The rays through pixels of a view, counted row by row: [pixels, 8], see render.h.
torch::Tensor rays_through(const examples::Views& views, const torch::Tensor& view,
                           const torch::Tensor& pixel, double near, double far);

struct Batch {
  torch::Tensor rays;     ///< [rays, 8]
  torch::Tensor colours;  ///< [rays, 3], on white
};

/// Draws rays from all training views at random with LibTorch's default CPU generator: one half
/// through pixels that aren't transparent, the other half through any. (A field that sees mostly
/// background learns that there is nothing, and stays with that.)
class RaySampler {
 public:
  /// Keeps a reference to the scene.
  RaySampler(const Scene& scene, int64_t rays);

  [[nodiscard]] Batch next() const;

 private:
  const Scene& scene_;
  int64_t rays_;
  torch::Tensor object_;  // [pixels]: which aren't transparent, counted through all views
};

}  // namespace nerf
