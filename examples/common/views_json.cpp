// transforms.json, what NeRF's data sets say of their cameras.

#include <torch/torch.h>

#include <stdexcept>

#include "common/views.h"

#ifdef TIDEMARK_EXAMPLES_JSON

#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <vector>

namespace examples {

namespace {

using Json = nlohmann::json;
namespace fs = std::filesystem;

Json parse(const std::string& path) {
  if (!fs::is_regular_file(path)) {
    throw std::runtime_error(path + ": no such file");
  }
  std::ifstream in(path);
  try {
    return Json::parse(in);
  } catch (const Json::exception& error) {
    throw std::runtime_error(path + ": is no JSON: " + error.what());
  }
}

// With the extension that data sets leave out.
fs::path image_path(const fs::path& folder, const std::string& name) {
  fs::path path = folder / name;
  if (path.extension() != ".png") {
    path += ".png";
  }
  return path;
}

torch::Tensor pose_tensor(const Json& matrix) {
  const torch::Tensor pose = torch::empty({4, 4});
  auto values = pose.accessor<float, 2>();
  for (int64_t row = 0; row < 4; ++row) {
    for (int64_t column = 0; column < 4; ++column) {
      values[row][column] =
          matrix.at(static_cast<size_t>(row)).at(static_cast<size_t>(column)).get<float>();
    }
  }
  return pose;
}

Json pose_json(const torch::Tensor& pose) {
  const auto values = pose.accessor<float, 2>();
  Json matrix = Json::array();
  for (int64_t row = 0; row < 4; ++row) {
    matrix.push_back({values[row][0], values[row][1], values[row][2], values[row][3]});
  }
  return matrix;
}

Views views_of(const Json& json, const std::string& path) {
  std::vector<torch::Tensor> images, poses;
  for (const Json& frame : json.at("frames")) {
    const fs::path image =
        image_path(fs::path(path).parent_path(), frame.at("file_path").get<std::string>());
    images.push_back(to_tensor(read_png(image.string())));
    if (images.back().sizes() != images.front().sizes()) {
      throw std::runtime_error(image.string() + ": has another size than the images before it");
    }
    poses.push_back(pose_tensor(frame.at("transform_matrix")));
  }
  if (images.empty()) {
    throw std::runtime_error(path + ": has no frames");
  }
  Views views{torch::stack(images), torch::stack(poses), 0};
  const torch::Tensor rotations = views.poses.narrow(1, 0, 3).narrow(2, 0, 3);
  const torch::Tensor error = rotations.matmul(rotations.transpose(1, 2)) - torch::eye(3);
  // also of what isn't finite
  if (!(error.abs().max().item<double>() < 0.01 && views.poses.isfinite().all().item<bool>())) {
    throw std::runtime_error(path +
                             ": has a transform_matrix that no camera has: its upper left "
                             "3 x 3 numbers have to be a rotation");
  }
  const auto width = static_cast<double>(views.width());
  views.focal = json.contains("fl_x")
                    ? json.at("fl_x").get<double>() * width / json.value("w", width)
                    : width / 2 / std::tan(json.at("camera_angle_x").get<double>() / 2);
  if (!std::isfinite(views.focal) || views.focal <= 0) {
    throw std::runtime_error(path + ": camera_angle_x has to be between 0 and pi");
  }
  return views;
}

}  // namespace

bool knows_transforms_json() { return true; }

Views read_views(const std::string& transforms_json) {
  const Json json = parse(transforms_json);
  try {
    return views_of(json, transforms_json);
  } catch (const Json::exception& error) {
    throw std::runtime_error(transforms_json + ": is no transforms.json: " + error.what());
  }
}

void write_views(const std::string& folder, const Views& views) {
  fs::create_directories(folder);
  Json json;
  const auto width = static_cast<double>(views.width());
  json["camera_angle_x"] = 2 * std::atan(width / 2 / views.focal);
  json["frames"] = Json::array();
  for (int64_t i = 0; i < views.count(); ++i) {
    const std::string name = "view_" + std::to_string(i);
    RgbaImage image{static_cast<int>(views.width()), static_cast<int>(views.height()), {}};
    const torch::Tensor pixels = views.images[i].contiguous();
    image.pixels.assign(pixels.data_ptr<uint8_t>(), pixels.data_ptr<uint8_t>() + pixels.numel());
    write_png((fs::path(folder) / (name + ".png")).string(), image);
    json["frames"].push_back(
        {{"file_path", "./" + name}, {"transform_matrix", pose_json(views.poses[i])}});
  }
  const std::string path = (fs::path(folder) / "transforms.json").string();
  std::ofstream out(path);
  out << json.dump(2) << "\n";
  if (!out.flush()) {
    throw std::runtime_error("can't write " + path);
  }
}

}  // namespace examples

#else

namespace examples {

namespace {

[[noreturn]] void refuse(const std::string& path) {
  throw std::runtime_error(path +
                           ": this program was built without nlohmann-json (Debian, Ubuntu: "
                           "nlohmann-json3-dev), so it knows no transforms.json");
}

}  // namespace

bool knows_transforms_json() { return false; }

Views read_views(const std::string& transforms_json) { refuse(transforms_json); }

void write_views(const std::string& folder, const Views&) { refuse(folder); }

}  // namespace examples

#endif
