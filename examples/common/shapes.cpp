#include "common/shapes.h"

#include <ATen/CPUGeneratorImpl.h>
#include <torch/torch.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <stdexcept>
#include <utility>

#include "common/args.h"
#include "common/mesh.h"
#include "common/shapes_off.h"

namespace examples {

namespace fs = std::filesystem;

namespace {

// What there is to read, before any mesh is.
struct Entry {
  fs::path file;
  std::string class_name;
  bool held_out = false;
};

[[noreturn]] void fail(const fs::path& file, const std::string& what) {
  throw std::runtime_error(file.string() + ": " + what);
}

// Comma-separated values; fields may be in double quotes.
class CsvFile {
 public:
  explicit CsvFile(fs::path path) : path_(std::move(path)), in_(path_) {
    std::vector<std::string> names;
    if (!in_ || !next(names)) {
      throw std::runtime_error(path_.string() + ": is empty or can't be read");
    }
    for (size_t i = 0; i < names.size(); ++i) {
      columns_[names[i]] = i;
    }
  }

  /// The next line that isn't empty; false at the end.
  bool next(std::vector<std::string>& fields) {
    std::string line;
    while (std::getline(in_, line)) {
      ++number_;
      if (!line.empty() && line.back() == '\r') {
        line.pop_back();
      }
      if (line.empty()) {
        continue;
      }
      fields = cut(line);
      if (!columns_.empty() && fields.size() != columns_.size()) {
        fail_here(std::to_string(fields.size()) + " fields where the first line names " +
                  std::to_string(columns_.size()));
      }
      return true;
    }
    return false;
  }

  [[nodiscard]] size_t column(const std::string& name) const {
    const auto found = columns_.find(name);
    if (found == columns_.end()) {
      throw std::runtime_error(path_.string() + ":1: has no column '" + name + "'");
    }
    return found->second;
  }

  [[noreturn]] void fail_here(const std::string& what) const {
    throw std::runtime_error(path_.string() + ":" + std::to_string(number_) + ": " + what);
  }

 private:
  [[nodiscard]] std::vector<std::string> cut(const std::string& line) const {
    std::vector<std::string> fields(1);
    bool quoted = false;
    for (size_t i = 0; i < line.size(); ++i) {
      const bool doubled = quoted && line.compare(i, 2, "\"\"") == 0;
      if (doubled) {
        fields.back() += '"';
        ++i;
      } else if (line[i] == '"') {
        quoted = !quoted;
      } else if (line[i] == ',' && !quoted) {
        fields.emplace_back();
      } else {
        fields.back() += line[i];
      }
    }
    if (quoted) {
      fail_here("a quote that doesn't end");
    }
    return fields;
  }

  fs::path path_;
  std::ifstream in_;
  int64_t number_ = 0;
  std::map<std::string, size_t> columns_;
};

std::vector<Entry> entries_of_table(const fs::path& folder) {
  CsvFile table(folder / "objects.csv");
  const size_t file = table.column("file");
  const size_t class_name = table.column("class");
  const size_t split = table.column("split");
  std::vector<Entry> entries;
  std::vector<std::string> fields;
  while (table.next(fields)) {
    if (fields[file].empty() || fields[class_name].empty()) {
      table.fail_here("a file or class without a name");
    }
    if (fields[split] != "train" && fields[split] != "test") {
      table.fail_here("the split is '" + fields[split] + "'; it must be train or test");
    }
    entries.push_back({fields[file], fields[class_name], fields[split] == "test"});
  }
  return entries;
}

std::vector<fs::path> sorted_content(const fs::path& folder) {
  std::vector<fs::path> paths;
  for (const auto& item : fs::directory_iterator(folder)) {
    paths.push_back(item.path());
  }
  std::sort(paths.begin(), paths.end());
  return paths;
}

std::vector<fs::path> meshes_in(const fs::path& folder) {
  std::vector<fs::path> meshes;
  for (const fs::path& path : sorted_content(folder)) {
    const std::string extension = path.extension().string();
    if (extension == ".ply" || extension == ".off" || extension == ".obj") {
      meshes.push_back(path);
    }
  }
  return meshes;
}

std::vector<Entry> entries_of_folders(const fs::path& folder) {
  constexpr size_t kEvery = 4;
  std::vector<Entry> entries;
  for (const fs::path& of_class : sorted_content(folder)) {
    if (!fs::is_directory(of_class)) {
      continue;
    }
    const std::string name = of_class.filename().string();
    const auto add = [&](const fs::path& file, bool held_out) {
      entries.push_back({file.lexically_relative(folder), name, held_out});
    };
    if (fs::is_directory(of_class / "train") && fs::is_directory(of_class / "test")) {
      for (const char* split : {"train", "test"}) {
        for (const fs::path& file : meshes_in(of_class / split)) {
          add(file, split == std::string("test"));
        }
      }
      continue;
    }
    const std::vector<fs::path> files = meshes_in(of_class);
    for (size_t i = 0; i < files.size(); ++i) {
      add(files[i], i % kEvery == kEvery - 1);
    }
  }
  return entries;
}

// Centred, with a longest side of 1.
torch::Tensor read_triangles(const fs::path& file) {
  const Mesh mesh = file.extension() == ".off" ? read_off(file.string()) : read_mesh(file.string());
  const auto count = static_cast<int64_t>(mesh.triangles.size());
  torch::Tensor triangles = torch::empty({count, 3, 3});
  auto values = triangles.accessor<float, 3>();
  for (int64_t i = 0; i < count; ++i) {
    const auto& corners = mesh.triangles[static_cast<size_t>(i)].corners;
    for (int64_t k = 0; k < 3; ++k) {
      for (int64_t axis = 0; axis < 3; ++axis) {
        values[i][k][axis] = corners[static_cast<size_t>(k)][static_cast<size_t>(axis)];
      }
    }
  }
  // float64: coordinates that are as they should be already stay the same
  const torch::Tensor exact = triangles.to(torch::kFloat64);
  const torch::Tensor low = exact.amin({0, 1});
  const torch::Tensor high = exact.amax({0, 1});
  const torch::Tensor normal =
      (exact.select(1, 1) - exact.select(1, 0)).cross(exact.select(1, 2) - exact.select(1, 0), 1);
  if (normal.abs().max().item<double>() == 0) {
    fail(file, "has no surface: all of its triangles are lines or points");
  }
  return ((exact - (low + high) / 2) / (high - low).max()).to(torch::kFloat);
}

// The classes of the entries in the order in which they come.
std::vector<std::string> class_names_of(const std::vector<Entry>& entries) {
  std::vector<std::string> names;
  for (const Entry& entry : entries) {
    if (std::find(names.begin(), names.end(), entry.class_name) == names.end()) {
      names.push_back(entry.class_name);
    }
  }
  return names;
}

std::string joined(const std::vector<std::string>& names) {
  std::string result;
  for (const std::string& name : names) {
    result += (result.empty() ? "" : ", ") + name;
  }
  return result;
}

}  // namespace

std::vector<Shape> ShapeSet::part(bool held_out) const {
  std::vector<Shape> result;
  std::copy_if(shapes.begin(), shapes.end(), std::back_inserter(result),
               [held_out](const Shape& shape) { return shape.held_out == held_out; });
  return result;
}

ShapeSet read_shapes(const std::string& folder, const std::vector<std::string>& classes) {
  const fs::path root =
      folder.empty() ? fs::path(TIDEMARK_EXAMPLES_DATA_DIR) / "furniture" : fs::path(folder);
  if (!fs::is_directory(root)) {
    fail(root, "no such folder");
  }
  const std::vector<Entry> entries =
      fs::exists(root / "objects.csv") ? entries_of_table(root) : entries_of_folders(root);
  const std::vector<std::string> known = class_names_of(entries);
  if (known.empty()) {
    fail(root,
         "has no objects: neither an objects.csv that lists some, nor folders of .ply, .off "
         "or .obj files");
  }
  ShapeSet set;
  set.class_names = classes.empty() ? known : classes;
  for (const std::string& name : set.class_names) {
    if (std::find(known.begin(), known.end(), name) == known.end()) {
      fail(root, "has no class '" + name + "'; it has " + joined(known));
    }
    const int64_t label = static_cast<int64_t>(&name - set.class_names.data());
    std::array<int64_t, 2> counts{};  // to train with, to test with
    for (const Entry& entry : entries) {
      if (entry.class_name == name) {
        ++counts[entry.held_out ? 1 : 0];
        set.shapes.push_back({entry.file.generic_string(), label, entry.held_out,
                              read_triangles(root / entry.file)});
      }
    }
    if (counts[0] == 0 || counts[1] == 0) {
      fail(root, "class '" + name + "' has " + std::to_string(counts[0]) +
                     " objects to train with and " + std::to_string(counts[1]) +
                     " to test with; it needs both");
    }
  }
  return set;
}

std::vector<std::string> split_class_names(const std::string& list) {
  std::vector<std::string> names;
  if (list.empty() || list == "all") {
    return names;
  }
  size_t begin = 0;
  while (begin <= list.size()) {
    const size_t end = std::min(list.find(',', begin), list.size());
    const std::string name = list.substr(begin, end - begin);
    if (name.empty() || std::find(names.begin(), names.end(), name) != names.end()) {
      throw UsageError("the classes '" + list + "' have a name that is empty or there twice");
    }
    names.push_back(name);
    begin = end + 1;
  }
  return names;
}

SurfacePoints sample_surface(const torch::Tensor& triangles, int64_t count, uint64_t seed) {
  at::Generator generator = at::make_generator<at::CPUGeneratorImpl>(seed);
  const torch::Tensor a = triangles.select(1, 0);
  const torch::Tensor ab = triangles.select(1, 1) - a;
  const torch::Tensor ac = triangles.select(1, 2) - a;
  const torch::Tensor normals = ab.cross(ac, 1);
  const torch::Tensor areas = normals.norm(2, 1).to(torch::kFloat64).cumsum(0);
  const auto total = areas[-1].item<double>();
  if (!(total > 0)) {
    throw std::runtime_error("points can't be drawn from triangles without an area");
  }
  const torch::Tensor where = torch::rand({count}, generator, torch::kFloat64) * total;
  const torch::Tensor chosen =
      torch::searchsorted(areas, where, /*out_int32=*/false, /*right=*/true)
          .clamp_max(triangles.size(0) - 1);
  // the square root spreads points evenly between the first corner and the opposite edge
  const torch::Tensor away = torch::rand({count, 1}, generator, torch::kFloat).sqrt();
  const torch::Tensor along = torch::rand({count, 1}, generator, torch::kFloat);
  SurfacePoints result;
  result.points = a.index_select(0, chosen) + away * ((1 - along) * ab.index_select(0, chosen) +
                                                      along * ac.index_select(0, chosen));
  result.normals = torch::nn::functional::normalize(normals.index_select(0, chosen));
  return result;
}

}  // namespace examples
