#pragma once

// Views of one object to learn from and to test with: drawn from a mesh, or from a file.

#include <cstdint>
#include <string>
#include <vector>

#include "common/args.h"
#include "common/views.h"

namespace examples {

/// What the command line says of views.
struct ObjectViewOptions {
  int64_t views = 48;       ///< to draw of a mesh
  int64_t size = 64;        ///< their pixels along each edge
  int64_t hold_out = 8;     ///< every so many are for the test
  int64_t shrink = 1;       ///< pictures are used at 1 / shrink of their size
  std::string write_views;  ///< a folder to write all of them to, if any
};

/// What --data takes, for training_arguments().
inline constexpr const char* kObjectViewData =
    "transforms.json with PNG images, or a mesh, .obj or .ply (default: a deck chair)";

/// The rows of these options, with a heading.
std::vector<Argument> object_view_arguments(ObjectViewOptions& options);

/// Cameras look at a mesh from this far, and it is moved and scaled into a sphere of this radius.
inline constexpr double kCameraDistance = 2.3;
inline constexpr double kObjectRadius = 0.67;

struct ObjectViews {
  Views training;
  Views held_out;
  bool of_mesh = false;  ///< drawn from a mesh: the two figures above hold
};

/// Of the file that --data names, or of the mesh that comes with the examples. Throws
/// std::runtime_error for what can't be read or written.
ObjectViews load_object_views(const std::string& data, const ObjectViewOptions& options);

}  // namespace examples
