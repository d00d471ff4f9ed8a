#include "common/views.h"

#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <stdexcept>
#include <vector>

#include "common/rasterise.h"

namespace examples {

namespace {

// At `position`, looking at the origin; the position isn't above or below it.
torch::Tensor look_at_origin(const torch::Tensor& position) {
  namespace F = torch::nn::functional;
  const auto unit = [](const torch::Tensor& v) {
    return F::normalize(v, F::NormalizeFuncOptions().dim(0));
  };
  const torch::Tensor backward = unit(position);
  const torch::Tensor right = unit(torch::cross(torch::tensor({0.0, 1.0, 0.0}), backward, 0));
  torch::Tensor pose = torch::eye(4);
  pose.narrow(0, 0, 3) =
      torch::stack({right, torch::cross(backward, right, 0), backward, position}, 1);
  return pose;
}

Views select(const Views& views, const std::vector<int64_t>& chosen) {
  const torch::Tensor index = torch::tensor(chosen, torch::kInt64);
  return {views.images.index_select(0, index), views.poses.index_select(0, index), views.focal};
}

}  // namespace

torch::Tensor to_tensor(const RgbaImage& image) {
  const torch::Tensor tensor = torch::empty({image.height, image.width, 4}, torch::kUInt8);
  std::memcpy(tensor.data_ptr<uint8_t>(), image.pixels.data(), image.pixels.size());
  return tensor;
}

torch::Tensor poses_around(int64_t count, double distance) {
  constexpr double kLowest = -0.15;  // sine of the elevation
  constexpr double kHighest = 0.9;
  const double golden_angle = M_PI * (3 - std::sqrt(5.0));
  std::vector<torch::Tensor> poses;
  for (int64_t i = 0; i < count; ++i) {
    const double share = (static_cast<double>(i) + 0.5) / static_cast<double>(count);
    const double y = kLowest + (kHighest - kLowest) * share;
    const double radius = std::sqrt(1 - y * y);
    const double angle = golden_angle * static_cast<double>(i);
    poses.push_back(look_at_origin(
        distance * torch::tensor({radius * std::sin(angle), y, radius * std::cos(angle)})));
  }
  return torch::stack(poses).to(torch::kFloat);
}

Views render_views(const Mesh& mesh, const torch::Tensor& poses, int64_t size,
                   double field_of_view) {
  Camera camera;
  camera.width = static_cast<int>(size);
  camera.height = static_cast<int>(size);
  const double focal = static_cast<double>(size) / 2 / std::tan(field_of_view / 2);
  camera.focal = static_cast<float>(focal);
  std::vector<torch::Tensor> images;
  for (int64_t i = 0; i < poses.size(0); ++i) {
    const torch::Tensor pose = poses[i].contiguous();
    std::copy_n(pose.data_ptr<float>(), camera.pose.size(), camera.pose.begin());
    images.push_back(to_tensor(rasterise(mesh, camera)));
  }
  return {torch::stack(images), poses, focal};
}

std::pair<Views, Views> hold_out(const Views& views, int64_t every) {
  std::vector<int64_t> others, held_out;
  for (int64_t i = 0; i < views.count(); ++i) {
    (i % every == every / 2 ? held_out : others).push_back(i);
  }
  if (others.empty() || held_out.empty()) {
    throw std::runtime_error("of " + std::to_string(views.count()) +
                             " views none can be held out; there must be more");
  }
  return {select(views, others), select(views, held_out)};
}

Views shrink(const Views& views, int64_t n) {
  if (n == 1) {
    return views;
  }
  if (std::min(views.height(), views.width()) < n) {
    throw std::runtime_error("images of " + std::to_string(views.width()) + " x " +
                             std::to_string(views.height()) + " pixels can't be shrunk by " +
                             std::to_string(n));
  }
  Views result{{}, views.poses, views.focal / static_cast<double>(n)};
  std::vector<torch::Tensor> images;
  for (int64_t i = 0; i < views.count(); ++i) {
    // colours count as much as they are seen
    torch::Tensor image = views.images[i].to(torch::kFloat).movedim(2, 0);
    const torch::Tensor alpha = image.narrow(0, 3, 1);
    image = torch::cat({image.narrow(0, 0, 3) * alpha, alpha});
    image = torch::avg_pool2d(image, n);
    const torch::Tensor mean_alpha = image.narrow(0, 3, 1);
    image = torch::cat({image.narrow(0, 0, 3) / mean_alpha.clamp_min(1e-6), mean_alpha});
    images.push_back(image.round().clamp(0, 255).to(torch::kUInt8).movedim(0, 2).contiguous());
  }
  result.images = torch::stack(images);
  return result;
}

torch::Tensor on_white(const torch::Tensor& rgba) {
  const torch::Tensor values = rgba.to(torch::kFloat) / 255;
  const torch::Tensor alpha = values.narrow(-1, 3, 1);
  return values.narrow(-1, 0, 3) * alpha + (1 - alpha);
}

}  // namespace examples
