#pragma once

// Pictures of an object from many sides, with the cameras that took them.

#include <torch/types.h>

#include <cstdint>
#include <string>
#include <utility>

#include "common/mesh.h"
#include "common/rgba_image.h"

namespace examples {

struct Views {
  torch::Tensor images;  ///< uint8 [views, height, width, 4]: red, green, blue, alpha
  torch::Tensor poses;   ///< float [views, 4, 4]: camera to world, as Camera::pose (rasterise.h)
  double focal = 0;      ///< in pixels

  [[nodiscard]] int64_t count() const { return images.size(0); }
  [[nodiscard]] int64_t height() const { return images.size(1); }
  [[nodiscard]] int64_t width() const { return images.size(2); }
};

/// The picture as uint8 [height, width, 4].
torch::Tensor to_tensor(const RgbaImage& image);

/// Cameras that look at the origin from a sphere around it, y up, spread evenly (in a spiral by the
/// golden angle) from a little below the horizon to near the top: [count, 4, 4].
torch::Tensor poses_around(int64_t count, double distance);

/// Square pictures of a mesh, `size` pixels wide, with a field of view in radians.
Views render_views(const Mesh& mesh, const torch::Tensor& poses, int64_t size,
                   double field_of_view);

/// Whether the program was built with nlohmann-json. Without it the next two throw.
bool knows_transforms_json();

/// Reads the file that NeRF's data sets come with, transforms.json, and the PNG images that it
/// names. Throws std::runtime_error, which names the file, for what can't be read or doesn't fit
/// together.
Views read_views(const std::string& transforms_json);

/// Writes such a file, and the images beside it. Throws std::runtime_error if it can't be done.
void write_views(const std::string& folder, const Views& views);

/// Every `every`-th view apart, beginning in the middle of the first `every`: the other views, and
/// these. Throws std::runtime_error if there are none of either.
std::pair<Views, Views> hold_out(const Views& views, int64_t every);

/// The views with 1/n of the pixels along each edge, means of what they cover. Throws
/// std::runtime_error if nothing would be left.
Views shrink(const Views& views, int64_t n);

/// Colours on a white background, float [..., 3] from 0 to 1, of uint8 [..., 4].
torch::Tensor on_white(const torch::Tensor& rgba);

}  // namespace examples
