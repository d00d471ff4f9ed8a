#pragma once

// Meshes in OFF files.

#include <string>

#include "common/mesh.h"

namespace examples {

/// Reads an ASCII file, also one whose numbers follow "OFF" on the first line, as in ModelNet.
/// Polygons become triangles, colours are ignored. Throws std::runtime_error, which names the file
/// and line, for what can't be read or has no triangles.
Mesh read_off(const std::string& path);

}  // namespace examples
