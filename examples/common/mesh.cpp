#include "common/mesh.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <limits>
#include <map>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <utility>

#include "common/ply.h"

namespace examples {

namespace {

struct Material {
  Vector3 colour{0.8F, 0.8F, 0.8F};
  int texture = -1;
};

// Lines of words, with the place for error messages.
class WordFile {
 public:
  explicit WordFile(std::filesystem::path path) : path_(std::move(path)), in_(path_) {
    if (!std::filesystem::is_regular_file(path_) || !in_) {
      throw std::runtime_error(path_.string() + ": no such file");
    }
  }

  /// Goes to the next line that isn't empty or a comment; false at the end.
  bool next(std::string& keyword) {
    std::string line;
    while (std::getline(in_, line)) {
      ++number_;
      if (!line.empty() && line.back() == '\r') {
        line.pop_back();
      }
      words_.clear();
      words_.str(line);
      if (words_ >> keyword && keyword[0] != '#') {
        return true;
      }
    }
    return false;
  }

  template <size_t N>
  std::array<float, N> floats() {
    std::array<float, N> values{};
    for (float& value : values) {
      if (!(words_ >> value) || !std::isfinite(value)) {
        fail("expected " + std::to_string(N) + " numbers");
      }
    }
    return values;
  }

  bool word(std::string& value) { return static_cast<bool>(words_ >> value); }

  /// A file name, which may have blanks in it, relative to this file.
  std::filesystem::path file() {
    std::string name;
    std::getline(words_ >> std::ws, name);
    if (name.empty()) {
      fail("expected the name of a file");
    }
    return path_.parent_path() / name;
  }

  [[noreturn]] void fail(const std::string& what) const {
    throw std::runtime_error(path_.string() + ":" + std::to_string(number_) + ": " + what);
  }

 private:
  std::filesystem::path path_;
  std::ifstream in_;
  std::istringstream words_;
  int64_t number_ = 0;
};

class ObjReader {
 public:
  explicit ObjReader(const std::string& path) : path_(path), file_(path) {}

  Mesh read() {
    std::string keyword;
    while (file_.next(keyword)) {
      if (keyword == "v") {
        positions_.push_back(file_.floats<3>());
      } else if (keyword == "vt") {
        uv_.push_back(file_.floats<2>());
      } else if (keyword == "f") {
        read_face();
      } else if (keyword == "mtllib") {
        read_materials(WordFile(file_.file()));
      } else if (keyword == "usemtl") {
        std::string name;
        const auto found = file_.word(name) ? materials_.find(name) : materials_.end();
        if (found == materials_.end()) {
          file_.fail("unknown material '" + name + "'");
        }
        material_ = found->second;
      }
    }
    if (mesh_.triangles.empty()) {
      throw std::runtime_error(path_ + ": has no triangles");
    }
    return std::move(mesh_);
  }

 private:
  struct Corner {
    size_t position = 0;
    std::optional<size_t> uv;
  };

  void read_materials(WordFile file) {
    std::string keyword;
    Material* material = nullptr;
    while (file.next(keyword)) {
      if (keyword == "newmtl") {
        std::string name;
        if (!file.word(name)) {
          file.fail("a material without a name");
        }
        material = &materials_[name];
      } else if (material != nullptr && keyword == "Kd") {
        material->colour = file.floats<3>();
      } else if (material != nullptr && keyword == "map_Kd" && !knows_png()) {
        material->colour = {0.5F, 0.5F, 0.5F};
      } else if (material != nullptr && keyword == "map_Kd") {
        mesh_.textures.push_back(read_png(file.file().string()));
        material->texture = static_cast<int>(mesh_.textures.size()) - 1;
      }
    }
  }

  // From 1, or from -1 backwards.
  size_t index(const std::string& text, size_t count, const char* what) const {
    char* end = nullptr;
    const long long number = std::strtoll(text.c_str(), &end, 10);
    const auto size = static_cast<long long>(count);
    if (text.empty() || *end != '\0' || number == 0 || number > size || -number > size) {
      file_.fail("a face names " + std::string(what) + " '" + text + "', of " +
                 std::to_string(count) + " before it");
    }
    return static_cast<size_t>(number > 0 ? number - 1 : size + number);
  }

  // A fan around the first corner; each is position, position/uv, position//normal or all three.
  void read_face() {
    std::vector<Corner> corners;
    std::string word;
    while (file_.word(word)) {
      std::istringstream parts(word);
      std::string position, uv;
      std::getline(parts, position, '/');
      std::getline(parts, uv, '/');
      Corner corner{index(position, positions_.size(), "vertex"), {}};
      if (!uv.empty()) {
        corner.uv = index(uv, uv_.size(), "texture coordinate");
      }
      corners.push_back(corner);
    }
    if (corners.size() < 3) {
      file_.fail("a face with fewer than three corners");
    }
    for (size_t k = 2; k < corners.size(); ++k) {
      Triangle triangle;
      const std::array<Corner, 3> chosen{corners[0], corners[k - 1], corners[k]};
      triangle.texture = material_.texture;
      for (size_t i = 0; i < 3; ++i) {
        triangle.corners[i] = positions_[chosen[i].position];
        triangle.colours[i] = material_.colour;
        if (chosen[i].uv.has_value()) {
          triangle.uv[i] = uv_[*chosen[i].uv];
        } else {
          triangle.texture = -1;
        }
      }
      mesh_.triangles.push_back(triangle);
    }
  }

  std::string path_;
  WordFile file_;
  std::vector<Vector3> positions_;
  std::vector<Vector2> uv_;
  std::map<std::string, Material> materials_;
  Material material_;
  Mesh mesh_;
};

}  // namespace

Mesh read_mesh(const std::string& path) {
  const std::string extension = std::filesystem::path(path).extension().string();
  if (extension == ".ply") {
    return read_ply(path);
  }
  if (extension == ".obj") {
    return ObjReader(path).read();
  }
  throw std::runtime_error(path + ": meshes are read from .obj and .ply files");
}

void fit_into_sphere(Mesh& mesh, float radius) {
  Vector3 middle{};
  for (size_t axis = 0; axis < 3; ++axis) {
    float least = std::numeric_limits<float>::infinity();
    float most = -least;
    for (const Triangle& triangle : mesh.triangles) {
      for (const Vector3& corner : triangle.corners) {
        least = std::min(least, corner[axis]);
        most = std::max(most, corner[axis]);
      }
    }
    middle[axis] = least + (most - least) / 2;
  }
  float farthest = 0;
  for (Triangle& triangle : mesh.triangles) {
    for (Vector3& corner : triangle.corners) {
      for (size_t axis = 0; axis < 3; ++axis) {
        corner[axis] -= middle[axis];
      }
      farthest = std::max(farthest, std::hypot(corner[0], corner[1], corner[2]));
    }
  }
  if (farthest == 0) {
    return;
  }
  for (Triangle& triangle : mesh.triangles) {
    for (Vector3& corner : triangle.corners) {
      for (float& value : corner) {
        value *= radius / farthest;
      }
    }
  }
}

}  // namespace examples
