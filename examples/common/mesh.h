#pragma once

// Coloured and textured triangles, from OBJ and PLY files.

#include <array>
#include <string>
#include <vector>

#include "common/rgba_image.h"

namespace examples {

using Vector2 = std::array<float, 2>;
using Vector3 = std::array<float, 3>;

struct Triangle {
  std::array<Vector3, 3> corners{};
  std::array<Vector3, 3> colours{};  ///< 0 to 1, multiplied by the texture
  std::array<Vector2, 3> uv{};       ///< (0, 0) is the lower left corner; textures repeat
  int texture = -1;                  ///< index into Mesh::textures; -1 for none
};

struct Mesh {
  std::vector<Triangle> triangles;
  std::vector<RgbaImage> textures;
};

/// Reads an .obj file, with the .mtl file and PNG textures that it names (Kd and map_Kd count), or
/// a .ply file (ply.h). Polygons become triangles, normals are ignored. Throws std::runtime_error,
/// which names the file and line, for what can't be read or has no triangles.
Mesh read_mesh(const std::string& path);

/// Moves the middle of the mesh's bounding box to the origin and makes it so large that its corners
/// reach just as far as `radius`.
void fit_into_sphere(Mesh& mesh, float radius);

}  // namespace examples
