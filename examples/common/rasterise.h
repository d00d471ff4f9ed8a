#pragma once

// Pictures of meshes.

#include <array>

#include "common/mesh.h"
#include "common/rgba_image.h"

namespace examples {

/// A pinhole camera as OpenGL and NeRF have it: it looks along its negative z axis, y is up, and
/// the ray through the centre of pixel (column, row) has the direction
/// ((column + 0.5 - width / 2) / focal, -(row + 0.5 - height / 2) / focal, -1).
struct Camera {
  std::array<float, 16> pose{};  ///< camera to world, 4 x 4, rows one after the other
  int width = 0;
  int height = 0;
  float focal = 0;  ///< in pixels
};

struct RasteriseOptions {
  int samples = 4;                   ///< along each edge of a pixel, which is their mean
  Vector3 light{0.35F, 0.8F, 0.5F};  ///< where it comes from, of any length
  float ambient = 0.45F;             ///< the light on a surface that runs along the light's rays
};

/// Draws the mesh, seen from both sides, with a depth buffer and diffuse shading that doesn't
/// depend on the viewer; transparent where there is none. Triangles that reach closer to the
/// camera's plane than 0.01 are left out.
RgbaImage rasterise(const Mesh& mesh, const Camera& camera, const RasteriseOptions& options = {});

}  // namespace examples
