#pragma once

// Meshes in PLY files.

#include <string>

#include "common/mesh.h"

namespace examples {

/// Reads a mesh with a colour per vertex (uchar red, green, blue) or without, from a binary
/// little-endian or ASCII file. Throws std::runtime_error, which names the file, for what can't be
/// read or has no triangles.
Mesh read_ply(const std::string& path);

}  // namespace examples
