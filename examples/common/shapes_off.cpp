#include "common/shapes_off.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <stdexcept>
#include <utility>
#include <vector>

namespace examples {

namespace {

class OffReader {
 public:
  explicit OffReader(const std::string& path) : path_(path), in_(path) {
    if (!std::filesystem::is_regular_file(path_) || !in_) {
      throw std::runtime_error(path_ + ": no such file");
    }
  }

  Mesh read() {
    next_line("OFF");
    std::string magic;
    magic.resize(3);
    words_.read(magic.data(), 3);
    if (magic != "OFF") {
      fail("is no OFF file");
    }
    words_ >> std::ws;
    if (words_.eof()) {
      next_line("the numbers of vertices, faces and edges");
    }
    const int64_t vertices = whole("number of vertices");
    const int64_t faces = whole("number of faces");
    for (int64_t i = 0; i < vertices; ++i) {
      next_line("vertex " + std::to_string(i) + " of " + std::to_string(vertices));
      read_vertex();
    }
    for (int64_t i = 0; i < faces; ++i) {
      next_line("face " + std::to_string(i) + " of " + std::to_string(faces));
      read_face();
    }
    if (mesh_.triangles.empty()) {
      throw std::runtime_error(path_ + ": has no triangles");
    }
    return std::move(mesh_);
  }

 private:
  [[noreturn]] void fail(const std::string& what) const {
    throw std::runtime_error(path_ + ":" + std::to_string(number_) + ": " + what);
  }

  // The next one that isn't empty, without its comment.
  void next_line(const std::string& wanted) {
    std::string line;
    while (std::getline(in_, line)) {
      ++number_;
      line.resize(std::min(line.find('#'), line.size()));
      const size_t begin = line.find_first_not_of(" \t\r");
      if (begin != std::string::npos) {
        words_.clear();
        words_.str(line.substr(begin));
        return;
      }
    }
    fail("the file ends before " + wanted);
  }

  int64_t whole(const std::string& what) {
    int64_t value = -1;
    if (!(words_ >> value) || value < 0) {
      fail("expected the " + what);
    }
    return value;
  }

  void read_vertex() {
    Vector3 position{};
    for (float& coordinate : position) {
      if (!(words_ >> coordinate) || !std::isfinite(coordinate)) {
        fail("expected 3 numbers");
      }
    }
    positions_.push_back(position);
  }

  // A fan around the first corner.
  void read_face() {
    const int64_t count = whole("number of corners");
    std::vector<Vector3> corners;
    for (int64_t k = 0; k < count; ++k) {
      const int64_t vertex = whole("number of a vertex");
      if (vertex >= static_cast<int64_t>(positions_.size())) {
        fail("a face names vertex " + std::to_string(vertex) + " of " +
             std::to_string(positions_.size()));
      }
      corners.push_back(positions_[static_cast<size_t>(vertex)]);
    }
    for (size_t k = 2; k < corners.size(); ++k) {
      Triangle triangle;
      triangle.corners = {corners[0], corners[k - 1], corners[k]};
      triangle.colours.fill({0.8F, 0.8F, 0.8F});
      mesh_.triangles.push_back(triangle);
    }
  }

  std::string path_;
  std::ifstream in_;
  std::istringstream words_;
  int64_t number_ = 0;
  std::vector<Vector3> positions_;
  Mesh mesh_;
};

}  // namespace

Mesh read_off(const std::string& path) { return OffReader(path).read(); }

}  // namespace examples
