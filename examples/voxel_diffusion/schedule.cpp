#include "voxel_diffusion/schedule.h"

#include <torch/torch.h>

#include <cmath>

namespace voxel_diffusion {

namespace {

// The factors of each sample of a batch, to multiply it by.
torch::Tensor factors(const torch::Tensor& table, const torch::Tensor& times,
                      const torch::Tensor& batch) {
  std::vector<int64_t> sizes(static_cast<size_t>(batch.dim()), 1);
  sizes[0] = times.size(0);
  return table.index_select(0, times).to(batch.scalar_type()).view(sizes).to(batch.device());
}

}  // namespace

NoiseSchedule::NoiseSchedule(int64_t steps, double shift) {
  TORCH_CHECK(steps > 0 && shift > 0, "a schedule of ", steps, " steps, shifted by ", shift);
  constexpr double kOffset = 0.008;  // keeps the first steps from being too small
  const torch::Tensor time =
      torch::arange(1, steps + 1, torch::kFloat64) / static_cast<double>(steps);
  const torch::Tensor angle = (time + kOffset) / (1 + kOffset) * (M_PI / 2);
  const torch::Tensor ratio = angle.sin() / angle.cos() * shift;  // sigma / alpha
  alphas_ = (1 + ratio.square()).rsqrt();
  sigmas_ = alphas_ * ratio;
}

torch::Tensor NoiseSchedule::add_noise(const torch::Tensor& clean, const torch::Tensor& noise,
                                       const torch::Tensor& times) const {
  return factors(alphas_, times, clean) * clean + factors(sigmas_, times, clean) * noise;
}

torch::Tensor NoiseSchedule::weights(const torch::Tensor& times) const {
  constexpr double kMost = 5;
  return sigmas_.index_select(0, times).square().reciprocal().clamp_max(kMost).to(torch::kFloat);
}

torch::Tensor NoiseSchedule::evidence(const torch::Tensor& noisy,
                                      const torch::Tensor& times) const {
  const torch::Tensor most = (2 * alphas_ / sigmas_.square()).clamp_max(kMostEvidence);
  return factors(most, times, noisy) * noisy;
}

torch::Tensor NoiseSchedule::move(const torch::Tensor& noisy, const torch::Tensor& clean,
                                  const torch::Tensor& from, const torch::Tensor& to) const {
  const torch::Tensor noise =
      (noisy - factors(alphas_, from, noisy) * clean) / factors(sigmas_, from, noisy);
  return add_noise(clean, noise, to);
}

torch::Tensor draw_times(int64_t count, const NoiseSchedule& schedule) {
  const torch::Tensor places =
      (torch::arange(count, torch::kFloat64) + torch::rand({count}, torch::kFloat64)) /
      static_cast<double>(count);
  return (places * static_cast<double>(schedule.steps()))
      .to(torch::kInt64)
      .clamp_max(schedule.steps() - 1);
}

torch::Tensor sample_ddim(const NoiseSchedule& schedule, const Denoise& denoise,
                          torch::Tensor noise, int64_t steps,
                          const std::function<void(const torch::Tensor& clean)>& seen) {
  const torch::NoGradGuard no_grad;
  const auto last = static_cast<double>(schedule.steps() - 1);
  const auto times_of = [&](int64_t step) {
    const double place =
        steps == 1 ? 1 : 1 - static_cast<double>(step) / static_cast<double>(steps - 1);
    return torch::full({noise.size(0)}, std::llround(last * place), torch::kInt64);
  };
  torch::Tensor noisy = noise;
  torch::Tensor clean;
  for (int64_t step = 0; step < steps; ++step) {
    if (step > 0) {
      noisy = schedule.move(noisy, clean, times_of(step - 1), times_of(step));
    }
    const torch::Tensor times = times_of(step);
    clean = denoise(noisy, times).clamp(-1, 1);
    if (seen) {
      seen(clean);
    }
  }
  return clean;
}

}  // namespace voxel_diffusion
