#include "common/rasterise.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

namespace examples {

namespace {

constexpr float kNearest = 0.01F;

Vector3 minus(const Vector3& a, const Vector3& b) {
  return {a[0] - b[0], a[1] - b[1], a[2] - b[2]};
}

float dot(const Vector3& a, const Vector3& b) { return a[0] * b[0] + a[1] * b[1] + a[2] * b[2]; }

Vector3 cross(const Vector3& a, const Vector3& b) {
  return {a[1] * b[2] - a[2] * b[1], a[2] * b[0] - a[0] * b[2], a[0] * b[1] - a[1] * b[0]};
}

// The colour of a repeating texture, bilinear, 0 to 1.
Vector3 texture_at(const RgbaImage& texture, float u, float v) {
  const auto wrap = [](int value, int size) { return (value % size + size) % size; };
  const float x = (u - std::floor(u)) * static_cast<float>(texture.width) - 0.5F;
  const float y = (1 - (v - std::floor(v))) * static_cast<float>(texture.height) - 0.5F;
  const auto left = static_cast<int>(std::floor(x));
  const auto top = static_cast<int>(std::floor(y));
  const float fx = x - static_cast<float>(left);
  const float fy = y - static_cast<float>(top);
  Vector3 colour{};
  for (int i = 0; i < 4; ++i) {
    const int dx = i % 2;
    const int dy = i / 2;
    const float weight = (dx == 1 ? fx : 1 - fx) * (dy == 1 ? fy : 1 - fy) / 255;
    const uint8_t* pixel =
        texture.at(wrap(left + dx, texture.width), wrap(top + dy, texture.height));
    for (size_t c = 0; c < 3; ++c) {
      colour[c] += weight * static_cast<float>(pixel[c]);
    }
  }
  return colour;
}

// A corner on the screen of samples.
struct Projected {
  float x = 0;
  float y = 0;
  float inverse_depth = 0;
};

class Rasteriser {
 public:
  Rasteriser(const Mesh& mesh, const Camera& camera, const RasteriseOptions& options)
      : mesh_(mesh),
        camera_(camera),
        options_(options),
        width_(camera.width * options.samples),
        height_(camera.height * options.samples),
        inverse_depth_(static_cast<size_t>(width_) * static_cast<size_t>(height_), 0),
        colour_(inverse_depth_.size()) {
    const float length = std::sqrt(dot(options.light, options.light));
    for (float& value : options_.light) {
      value /= length;
    }
  }

  RgbaImage draw() {
    for (const Triangle& triangle : mesh_.triangles) {
      draw(triangle);
    }
    return means();
  }

 private:
  // Returns whether the point is far enough in front of the camera.
  bool project(const Vector3& point, Projected& projected) const {
    const std::array<float, 16>& pose = camera_.pose;
    const Vector3 offset = minus(point, {pose[3], pose[7], pose[11]});
    // the pose's rotation is inverted by its transpose
    const float x = pose[0] * offset[0] + pose[4] * offset[1] + pose[8] * offset[2];
    const float y = pose[1] * offset[0] + pose[5] * offset[1] + pose[9] * offset[2];
    const float depth = -(pose[2] * offset[0] + pose[6] * offset[1] + pose[10] * offset[2]);
    if (!(depth >= kNearest)) {
      return false;
    }
    const auto samples = static_cast<float>(options_.samples);
    projected.x = samples * (camera_.focal * x / depth + static_cast<float>(camera_.width) / 2);
    projected.y = samples * (static_cast<float>(camera_.height) / 2 - camera_.focal * y / depth);
    projected.inverse_depth = 1 / depth;
    return true;
  }

  [[nodiscard]] float light_on(const Triangle& triangle) const {
    const Vector3 normal = cross(minus(triangle.corners[1], triangle.corners[0]),
                                 minus(triangle.corners[2], triangle.corners[0]));
    const float length = std::sqrt(dot(normal, normal));
    const float facing = length > 0 ? std::abs(dot(normal, options_.light)) / length : 0;
    return options_.ambient + (1 - options_.ambient) * facing;
  }

  void draw(const Triangle& triangle) {
    std::array<Projected, 3> p;
    for (size_t i = 0; i < 3; ++i) {
      if (!project(triangle.corners[i], p[i])) {
        return;
      }
    }
    const float area =
        (p[1].x - p[0].x) * (p[2].y - p[0].y) - (p[2].x - p[0].x) * (p[1].y - p[0].y);
    if (area == 0) {
      return;
    }
    const float light = light_on(triangle);
    // samples outside of the screen are left out before they become whole numbers
    const auto begin = [](float least, int size) {
      return static_cast<int>(std::clamp(least, 0.0F, static_cast<float>(size)));
    };
    const auto end = [](float most, int size) {
      return static_cast<int>(std::ceil(std::clamp(most, 0.0F, static_cast<float>(size))));
    };
    const auto [left, right] = std::minmax({p[0].x, p[1].x, p[2].x});
    const auto [top, bottom] = std::minmax({p[0].y, p[1].y, p[2].y});
    for (int y = begin(top, height_); y < end(bottom, height_); ++y) {
      for (int x = begin(left, width_); x < end(right, width_); ++x) {
        const float sx = static_cast<float>(x) + 0.5F;
        const float sy = static_cast<float>(y) + 0.5F;
        std::array<float, 3> share{};  // of each corner, on the screen
        for (size_t i = 0; i < 3; ++i) {
          const Projected& a = p[(i + 1) % 3];
          const Projected& b = p[(i + 2) % 3];
          share[i] = ((b.x - a.x) * (sy - a.y) - (sx - a.x) * (b.y - a.y)) / area;
        }
        if (share[0] >= 0 && share[1] >= 0 && share[2] >= 0) {
          draw_sample(triangle, p, share, light, x, y);
        }
      }
    }
  }

  void draw_sample(const Triangle& triangle, const std::array<Projected, 3>& p,
                   std::array<float, 3> share, float light, int x, int y) {
    const size_t index =
        static_cast<size_t>(y) * static_cast<size_t>(width_) + static_cast<size_t>(x);
    float inverse_depth = 0;
    for (size_t i = 0; i < 3; ++i) {
      share[i] *= p[i].inverse_depth;
      inverse_depth += share[i];
    }
    if (inverse_depth <= inverse_depth_[index]) {
      return;
    }
    inverse_depth_[index] = inverse_depth;
    Vector3 colour{};
    Vector2 uv{};
    for (size_t i = 0; i < 3; ++i) {
      const float here = share[i] / inverse_depth;  // on the triangle
      for (size_t c = 0; c < 3; ++c) {
        colour[c] += here * triangle.colours[i][c];
      }
      uv[0] += here * triangle.uv[i][0];
      uv[1] += here * triangle.uv[i][1];
    }
    if (triangle.texture >= 0) {
      const Vector3 texel =
          texture_at(mesh_.textures[static_cast<size_t>(triangle.texture)], uv[0], uv[1]);
      for (size_t c = 0; c < 3; ++c) {
        colour[c] *= texel[c];
      }
    }
    for (size_t c = 0; c < 3; ++c) {
      colour_[index][c] = std::min(colour[c] * light, 1.0F);
    }
  }

  [[nodiscard]] RgbaImage means() const {
    RgbaImage image{camera_.width, camera_.height, {}};
    image.pixels.reserve(colour_.size() * 4);
    const auto all = static_cast<float>(options_.samples * options_.samples);
    for (int y = 0; y < camera_.height; ++y) {
      for (int x = 0; x < camera_.width; ++x) {
        Vector3 sum{};
        float covered = 0;
        for (int i = 0; i < options_.samples * options_.samples; ++i) {
          const int sy = y * options_.samples + i / options_.samples;
          const int sx = x * options_.samples + i % options_.samples;
          const size_t index =
              static_cast<size_t>(sy) * static_cast<size_t>(width_) + static_cast<size_t>(sx);
          if (inverse_depth_[index] > 0) {
            covered += 1;
            for (size_t c = 0; c < 3; ++c) {
              sum[c] += colour_[index][c];
            }
          }
        }
        for (const float value : sum) {
          image.pixels.push_back(to_byte(covered > 0 ? value / covered : 0));
        }
        image.pixels.push_back(to_byte(covered / all));
      }
    }
    return image;
  }

  static uint8_t to_byte(float value) {
    return static_cast<uint8_t>(std::lround(std::clamp(value, 0.0F, 1.0F) * 255));
  }

  const Mesh& mesh_;
  const Camera& camera_;
  RasteriseOptions options_;
  int width_;                         // in samples
  int height_;                        // in samples
  std::vector<float> inverse_depth_;  // 0 where there is nothing
  std::vector<Vector3> colour_;
};

}  // namespace

RgbaImage rasterise(const Mesh& mesh, const Camera& camera, const RasteriseOptions& options) {
  return Rasteriser(mesh, camera, options).draw();
}

}  // namespace examples
