#pragma once

// How shapes turn into noise in many small steps, and noise into shapes in a few large ones.
// Ho, Jain, Abbeel, Denoising Diffusion Probabilistic Models, 2020.

#include <torch/types.h>

#include <cstdint>
#include <functional>

namespace voxel_diffusion {

/// The most that NoiseSchedule::evidence() multiplies noisy values by. Without a limit single
/// voxels hold out against all that is around them.
inline constexpr double kMostEvidence = 3;

/// A sample x, with values from -1 to 1, at time step t of `steps` is
///
///     x_t = alpha_t x + sigma_t noise,   alpha_t^2 + sigma_t^2 = 1,
///
/// nearly x at t = 0 and nearly noise at the last one. The ratio alpha_t / sigma_t is that of the
/// cosine schedule (Nichol, Dhariwal, Improved Denoising Diffusion Probabilistic Models, 2021),
/// divided by `shift`: a shape of many voxels is still seen in noise that hides a smaller one, and
/// has to be learnt there, too (Hoogeboom, Heek, Salimans, Simple Diffusion, 2023).
///
/// Samples are float [batch, ...], time steps int64 [batch] on the CPU.
class NoiseSchedule {
 public:
  explicit NoiseSchedule(int64_t steps, double shift = 1);

  [[nodiscard]] int64_t steps() const { return alphas_.size(0); }

  /// float64 [steps].
  [[nodiscard]] const torch::Tensor& alphas() const { return alphas_; }
  [[nodiscard]] const torch::Tensor& sigmas() const { return sigmas_; }

  [[nodiscard]] torch::Tensor add_noise(const torch::Tensor& clean, const torch::Tensor& noise,
                                        const torch::Tensor& times) const;

  /// What an error of a prediction of x counts at these time steps, float of the shape [batch]:
  /// 1 / sigma_t^2, as if velocities were predicted (Salimans, Ho, Progressive Distillation for
  /// Fast Sampling of Diffusion Models, 2022), but at most 5: what hardly has any noise is easy
  /// (Hang et al., Efficient Diffusion Training via Min-SNR Weighting Strategy, 2023).
  [[nodiscard]] torch::Tensor weights(const torch::Tensor& times) const;

  /// What noisy values say about clean ones of -1 and 1 by themselves, as log-odds of 1:
  ///
  ///     log p(x_t | x = 1) - log p(x_t | x = -1) = 2 alpha_t x_t / sigma_t^2,
  ///
  /// but at most kMostEvidence x_t. Added to what a network returns: it has only to say what
  /// follows from everything else, and no value has to find its way through it.
  [[nodiscard]] torch::Tensor evidence(const torch::Tensor& noisy,
                                       const torch::Tensor& times) const;

  /// x_s of the same noise as the x_t in which x was seen: a step of DDIM without randomness (Song,
  /// Meng, Ermon, Denoising Diffusion Implicit Models, 2021).
  [[nodiscard]] torch::Tensor move(const torch::Tensor& noisy, const torch::Tensor& clean,
                                   const torch::Tensor& from, const torch::Tensor& to) const;

 private:
  torch::Tensor alphas_;
  torch::Tensor sigmas_;
};

/// Time steps for the samples of an optimizer step, int64 [count]: one at random out of each of
/// `count` equal ranges, in their order, so that all noise levels have their share in every
/// step. Kingma et al., Variational Diffusion Models, 2021. LibTorch's generator draws them.
torch::Tensor draw_times(int64_t count, const NoiseSchedule& schedule);

/// Predicts clean samples from noisy ones and their time steps.
using Denoise =
    std::function<torch::Tensor(const torch::Tensor& noisy, const torch::Tensor& times)>;

/// Samples from noise in `steps` steps, without gradient. What is predicted to be clean is clipped
/// to -1 to 1. `seen` is given that of each step, if there is one. A single step predicts once.
torch::Tensor sample_ddim(const NoiseSchedule& schedule, const Denoise& denoise,
                          torch::Tensor noise, int64_t steps,
                          const std::function<void(const torch::Tensor& clean)>& seen = {});

}  // namespace voxel_diffusion
