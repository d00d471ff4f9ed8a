#include "common/voxelise.h"

#include <torch/torch.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

namespace examples {

namespace {

using Point = std::array<double, 3>;

class Grid {
 public:
  explicit Grid(int64_t size)
      : size_(size), voxels_(torch::zeros({size, size, size}, torch::kUInt8)) {}

  uint8_t& at(int64_t x, int64_t y, int64_t z) {
    return voxels_.data_ptr<uint8_t>()[(x * size_ + y) * size_ + z];
  }

  void add_surface(const std::array<Point, 3>& corners) {
    constexpr double kFinest = 0.4;  // of a voxel
    double longest = 0;
    for (size_t k = 0; k < 3; ++k) {
      const Point& a = corners[k];
      const Point& b = corners[(k + 1) % 3];
      longest = std::max(longest, std::hypot(a[0] - b[0], a[1] - b[1], a[2] - b[2]));
    }
    const auto steps = static_cast<int64_t>(std::max(1.0, std::ceil(longest / kFinest)));
    for (int64_t i = 0; i <= steps; ++i) {
      for (int64_t j = 0; i + j <= steps; ++j) {
        const std::array<double, 3> weights{
            static_cast<double>(i) / static_cast<double>(steps),
            static_cast<double>(j) / static_cast<double>(steps),
            static_cast<double>(steps - i - j) / static_cast<double>(steps)};
        Point p{};
        for (size_t axis = 0; axis < 3; ++axis) {
          p[axis] = weights[0] * corners[0][axis] + weights[1] * corners[1][axis] +
                    weights[2] * corners[2][axis];
        }
        at(static_cast<int64_t>(p[0]), static_cast<int64_t>(p[1]), static_cast<int64_t>(p[2])) = 1;
      }
    }
  }

  /// Floods the space around the object, above its floor, and sets what stays dry.
  void fill_inside() {
    const int64_t floor = lowest_layer();
    // one more voxel at each side and above, so that the flood gets everywhere from one of them
    const int64_t wide = size_ + 2;
    const int64_t high = size_ - floor + 1;
    std::vector<bool> wet(static_cast<size_t>(wide * wide * high));
    std::vector<std::array<int64_t, 3>> shore{{-1, size_, -1}};
    const auto flood = [&](int64_t x, int64_t y, int64_t z) {
      if (std::min(x, z) < -1 || std::max({x, y, z}) > size_ || y < floor || is_set(x, y, z)) {
        return;
      }
      const auto index = static_cast<size_t>(((x + 1) * high + y - floor) * wide + z + 1);
      if (!wet[index]) {
        wet[index] = true;
        shore.push_back({x, y, z});
      }
    };
    while (!shore.empty()) {
      const auto [x, y, z] = shore.back();
      shore.pop_back();
      for (const int64_t step : {-1, 1}) {
        flood(x + step, y, z);
        flood(x, y + step, z);
        flood(x, y, z + step);
      }
    }
    for (int64_t x = 0; x < size_; ++x) {
      for (int64_t y = floor; y < size_; ++y) {
        for (int64_t z = 0; z < size_; ++z) {
          if (!wet[static_cast<size_t>(((x + 1) * high + y - floor) * wide + z + 1)]) {
            at(x, y, z) = 1;
          }
        }
      }
    }
  }

  [[nodiscard]] torch::Tensor voxels() const { return voxels_; }

 private:
  bool is_set(int64_t x, int64_t y, int64_t z) {
    return std::min({x, y, z}) >= 0 && std::max({x, y, z}) < size_ && at(x, y, z) != 0;
  }

  [[nodiscard]] int64_t lowest_layer() const {
    return voxels_.amax({0, 2}).argmax().item<int64_t>();
  }

  int64_t size_;
  torch::Tensor voxels_;
};

}  // namespace

torch::Tensor voxelise(const torch::Tensor& triangles, const VoxelOptions& options) {
  constexpr double kInside = 1e-6;  // of a voxel, off the border
  TORCH_CHECK(options.margin >= 0 && options.size > 2 * options.margin, "a grid of ", options.size,
              " voxels along an edge has no room for a margin of ", options.margin);
  const auto margin = static_cast<double>(options.margin);
  const auto inner = static_cast<double>(options.size - 2 * options.margin);
  const torch::Tensor scaled = ((triangles.to(torch::kFloat64) + 0.5) * inner + margin)
                                   .clamp(margin + kInside, margin + inner - kInside)
                                   .contiguous();
  const auto values = scaled.accessor<double, 3>();
  Grid grid(options.size);
  for (int64_t i = 0; i < scaled.size(0); ++i) {
    std::array<Point, 3> corners{};
    for (int64_t k = 0; k < 3; ++k) {
      corners[static_cast<size_t>(k)] = {values[i][k][0], values[i][k][1], values[i][k][2]};
    }
    grid.add_surface(corners);
  }
  if (options.fill && scaled.size(0) > 0) {
    grid.fill_inside();
  }
  return grid.voxels();
}

}  // namespace examples
