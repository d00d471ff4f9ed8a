#pragma once

// What there is to learn from: posed views of an object.

#include <torch/types.h>

#include <cstdint>
#include <vector>

#include "common/views.h"
#include "gaussian_splatting/options.h"
#include "gaussian_splatting/splat.h"

namespace gaussian_splatting {

struct Scene {
  examples::Views training;
  examples::Views held_out;
  double radius = 0;  ///< half the edge of a cube around the origin in which everything is

  /// Of the file that --data names, or of the mesh that comes with the examples. Writes the views
  /// where --write-views asks for it. Throws
  /// std::runtime_error for what can't be read.
  static Scene load(const Options& options);
};

/// A picture and its camera, on the device where they are needed.
struct View {
  Camera camera;
  torch::Tensor image;  ///< [height, width, 3], on white
};

View view_of(const examples::Views& views, int64_t index, torch::Device device);

/// `count` views in random order, by LibTorch's default CPU generator; each once before any again.
std::vector<View> draw_views(const examples::Views& views, int64_t count, torch::Device device);

}  // namespace gaussian_splatting
