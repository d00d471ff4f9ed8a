#pragma once

// Objects with a class each, as triangles: the furniture that comes with the examples, or one's
// own.

#include <torch/types.h>

#include <cstdint>
#include <string>
#include <vector>

namespace examples {

/// One object. y is up, the middle of its bounding box is the origin and the longest side 1.
struct Shape {
  std::string name;         ///< its file within the folder, such as "chair/oakchair.ply"
  int64_t label = 0;        ///< index into ShapeSet::class_names
  bool held_out = false;    ///< for testing, not for training
  torch::Tensor triangles;  ///< float [triangles, 3, 3]: corners
};

struct ShapeSet {
  std::vector<std::string> class_names;
  std::vector<Shape> shapes;

  [[nodiscard]] int64_t classes() const { return static_cast<int64_t>(class_names.size()); }

  /// The shapes to test with, or to train with.
  [[nodiscard]] std::vector<Shape> part(bool held_out) const;
};

/// Reads a folder of objects, or the furniture in examples/data for an empty name. With an
/// objects.csv (columns file, class and split, which is train or test) these are what it lists.
/// Otherwise they are <folder>/<class>/*.ply, .off and .obj, in the order of their names, of which
/// every fourth of a class is held out; or <folder>/<class>/train and test, as in ModelNet.
///
/// `classes` chooses some, in that order; none means all. Objects are moved and scaled to fit.
///
/// Throws std::runtime_error, which names the file and, where it has lines, the line, for what
/// can't be read; for an object without a surface; and for a class that is not there, or has
/// nothing to train or test with.
ShapeSet read_shapes(const std::string& folder, const std::vector<std::string>& classes = {});

/// The names in "chair,table"; none in "all" or an empty text. Throws UsageError for one that is
/// empty or there twice.
std::vector<std::string> split_class_names(const std::string& list);

/// Points on a surface and the unit normals of the triangles they lie on, float [count, 3] each.
struct SurfacePoints {
  torch::Tensor points;
  torch::Tensor normals;  ///< outwards only where the mesh is wound so
};

/// Draws points evenly over the area of triangles, float [triangles, 3, 3]. The same seed gives the
/// same points. Throws std::runtime_error if there is no area.
SurfacePoints sample_surface(const torch::Tensor& triangles, int64_t count, uint64_t seed);

}  // namespace examples
