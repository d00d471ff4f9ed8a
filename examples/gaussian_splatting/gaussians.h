#pragma once

// A cloud of Gaussians: six leaf tensors, as in 3D Gaussian splatting (Kerbl et al., 2023).

#include <torch/types.h>

#include <array>
#include <cstdint>

#include "common/views.h"

namespace gaussian_splatting {

/// N Gaussians. `sh_dc` and `sh_rest` are spherical harmonics of degree 0 and 1.
struct Gaussians {
  torch::Tensor means;        ///< [N, 3], in the world
  torch::Tensor scales;       ///< [N, 3], logarithms of the standard deviations along the axes
  torch::Tensor quaternions;  ///< [N, 4], w x y z, of any length
  torch::Tensor opacities;    ///< [N, 1], before the sigmoid
  torch::Tensor sh_dc;        ///< [N, 1, 3]
  torch::Tensor sh_rest;      ///< [N, 3, 3], coefficient, channel

  [[nodiscard]] int64_t count() const { return means.size(0); }

  static constexpr std::array<const char*, 6> kNames{"means",     "scales", "quaternions",
                                                     "opacities", "sh_dc",  "sh_rest"};

  /// The attributes, in the order of kNames.
  [[nodiscard]] std::array<torch::Tensor, 6> tensors() const {
    return {means, scales, quaternions, opacities, sh_dc, sh_rest};
  }
  static Gaussians of(const std::array<torch::Tensor, 6>& tensors) {
    return {tensors[0], tensors[1], tensors[2], tensors[3], tensors[4], tensors[5]};
  }

  /// The same Gaussians in tensors of their own that require grad.
  [[nodiscard]] Gaussians as_leaves(torch::Device device) const;

  /// Those of the rows `index`, without their history.
  [[nodiscard]] Gaussians rows(const torch::Tensor& index) const;

  /// Standard deviations, [N, 3].
  [[nodiscard]] torch::Tensor deviations() const { return scales.exp(); }

  /// Rotation matrices, [N, 3, 3], whose columns are the axes.
  [[nodiscard]] torch::Tensor rotations() const;

  /// Red, green and blue as seen from `position` ([3]): [N, 3], at least 0.
  [[nodiscard]] torch::Tensor colours(const torch::Tensor& position) const;
};

/// The value of the constant spherical harmonic.
inline constexpr double kHarmonic0 = 0.28209479177387814;

/// Gaussians to begin with: of 64 times as many points at random in the cube of half edge `radius`
/// those that show the object (pixels that aren't transparent) in the most views, with the mean of
/// the colours there. Pictures without transparency thus leave points at random.
Gaussians initial_gaussians(const examples::Views& views, int64_t count, double radius);

}  // namespace gaussian_splatting
