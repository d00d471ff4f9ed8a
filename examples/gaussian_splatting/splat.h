#pragma once

// Pictures of Gaussians, differentiable in all of their attributes.
//
// As in 3D Gaussian splatting (Kerbl et al., 2023), in LibTorch's ops: each Gaussian becomes one on
// the screen by the linear approximation of the projection (EWA, Zwicker et al., 2001); front to
// back, each covers a share of what is behind it.

#include <torch/types.h>

#include <cstdint>
#include <utility>

#include "common/views.h"
#include "gaussian_splatting/gaussians.h"

namespace gaussian_splatting {

/// What is closer to a camera than this isn't shown.
inline constexpr double kNear = 0.05;

/// Gaussians cover at most this share of what is behind them, and nothing where it is less than
/// kLeastAlpha.
inline constexpr double kMostAlpha = 0.99;
inline constexpr double kLeastAlpha = 1.0 / 255;

/// The variance in square pixels that the screen adds to each Gaussian.
inline constexpr double kBlur = 0.3;

struct Camera {
  torch::Tensor position;  ///< [3]
  torch::Tensor rotation;  ///< [3, 3]: its columns point right, down and forward in the world
  double focal = 0;        ///< in pixels
  int64_t width = 0;
  int64_t height = 0;
};

Camera camera_of(const examples::Views& views, int64_t view, torch::Device device);

/// Where points ([N, 3]) are on the screen, [N, 2] in pixels from the upper left corner, and how
/// far in front of the camera, [N].
std::pair<torch::Tensor, torch::Tensor> to_screen(const torch::Tensor& points,
                                                  const Camera& camera);

/// N Gaussians on the screen.
struct Projected {
  torch::Tensor centres;        ///< [N, 2], in pixels
  torch::Tensor conics;         ///< [N, 3]: xx, xy and yy of the inverse covariance
  torch::Tensor log_opacities;  ///< [N]
  torch::Tensor colours;        ///< [N, 3]
  torch::Tensor depths;         ///< [N], without history, as the next two
  torch::Tensor reach;          ///< [N, 2]: from the centre to where alpha is below kLeastAlpha
  torch::Tensor visible;        ///< [N], bool
};

/// In float32 also where autocast is on: a place on the screen needs more than 8 bits.
Projected project(const Gaussians& gaussians, const Camera& camera);

struct SplatOptions {
  int64_t tile = 16;        ///< pixels along the edges of a tile
  bool checkpoint = false;  ///< blend tiles again for backward instead of keeping what they need
};

struct Splat {
  torch::Tensor image;    ///< [height, width, 3], on white
  torch::Tensor centres;  ///< Projected::centres; they keep their gradient after backward
  torch::Tensor visible;  ///< Projected::visible
  int64_t pairs = 0;      ///< of a pixel and a Gaussian that reaches its tile
};

/// Thread-safe for different Gaussians.
Splat splat(const Gaussians& gaussians, const Camera& camera, const SplatOptions& options = {});

}  // namespace gaussian_splatting
