#include "common/object_views.h"

#include <cmath>
#include <filesystem>
#include <tuple>

#include "common/mesh.h"

namespace examples {

namespace {

constexpr double kFieldOfView = 35 * M_PI / 180;

}  // namespace

std::vector<Argument> object_view_arguments(ObjectViewOptions& options) {
  return {
      heading("Views"),
      whole("views", options.views, 2, 10000, "pictures to make of a mesh"),
      whole("size", options.size, 4, 4096, "their width and height in pixels"),
      whole("hold-out", options.hold_out, 2, 10000, "keep every N-th view for the test"),
      whole("shrink", options.shrink, 1, 64, "use images at 1/N of their size"),
      text("write-views", "DIR", options.write_views,
           "write transforms.json and images of all views"),
  };
}

ObjectViews load_object_views(const std::string& data, const ObjectViewOptions& options) {
  const std::string file =
      data.empty() ? TIDEMARK_EXAMPLES_DATA_DIR "/scenes/deckchair/model.obj" : data;
  ObjectViews result;
  Views views;
  if (std::filesystem::path(file).extension() == ".json") {
    views = read_views(file);
  } else {
    Mesh mesh = read_mesh(file);
    fit_into_sphere(mesh, kObjectRadius);
    views = render_views(mesh, poses_around(options.views, kCameraDistance), options.size,
                         kFieldOfView);
    result.of_mesh = true;
  }
  views = shrink(views, options.shrink);
  if (!options.write_views.empty()) {
    write_views(options.write_views, views);
  }
  std::tie(result.training, result.held_out) = hold_out(views, options.hold_out);
  return result;
}

}  // namespace examples
