#include "nerf/render.h"

#include <tidemark/remember.h>

#include <tuple>

namespace nerf {

namespace {

// Densities are per this part of the ray's length, so that those of solid things aren't in the
// hundreds, which a network takes long to learn.
constexpr double kDensityUnit = 0.05;

// What a sample stands for: from halfway to the one before it to halfway to the one behind it, the
// first and last up to the ends of the ray. [rays, samples + 1]
torch::Tensor edges_between(const torch::Tensor& rays, const torch::Tensor& distances) {
  const int64_t last = distances.size(1) - 1;
  const torch::Tensor middles = (distances.narrow(1, 0, last) + distances.narrow(1, 1, last)) / 2;
  return torch::cat({rays.narrow(1, 6, 1), middles, rays.narrow(1, 7, 1)}, 1);
}

struct Traced {
  torch::Tensor colour;   // [rays, 3]
  torch::Tensor weights;  // [rays, samples]
};

Traced trace(Field& field, const torch::Tensor& rays, const torch::Tensor& distances) {
  const torch::Tensor origins = rays.narrow(1, 0, 3);
  const torch::Tensor directions = rays.narrow(1, 3, 3);
  const torch::Tensor points =
      origins.unsqueeze(1) + directions.unsqueeze(1) * distances.unsqueeze(2);
  const auto [density, colour] = field(points, directions);
  const torch::Tensor unit = (rays.narrow(1, 7, 1) - rays.narrow(1, 6, 1)) * kDensityUnit;
  const torch::Tensor weights =
      volume_weights(density, edges_between(rays, distances).diff(1, 1) / unit);
  const torch::Tensor white = 1 - weights.sum(1, true);
  return {(weights.unsqueeze(2) * colour).sum(1) + white, weights};
}

}  // namespace

torch::Tensor positional_encoding(const torch::Tensor& x, int64_t frequencies) {
  std::vector<torch::Tensor> parts{x};
  for (int64_t k = 0; k < frequencies; ++k) {
    const torch::Tensor angle = x * (M_PI * static_cast<double>(int64_t{1} << k));
    parts.push_back(angle.sin());
    parts.push_back(angle.cos());
  }
  return torch::cat(parts, -1);
}

torch::Tensor stratified_samples(const torch::Tensor& rays, int64_t samples, bool jitter) {
  const torch::Tensor parts = torch::arange(samples, rays.options());
  const torch::Tensor place = jitter ? torch::rand({rays.size(0), samples}, rays.options())
                                     : torch::full({rays.size(0), samples}, 0.5, rays.options());
  const torch::Tensor entry = rays.narrow(1, 6, 1);
  const torch::Tensor exit = rays.narrow(1, 7, 1);
  return entry + (exit - entry) * (parts + place) / static_cast<double>(samples);
}

torch::Tensor importance_samples(const torch::Tensor& edges, const torch::Tensor& weights,
                                 int64_t samples, bool jitter) {
  const torch::NoGradGuard no_grad;
  const torch::Tensor share = weights.detach() + 1e-5;  // rays that meet nothing are cut evenly
  const torch::Tensor density = share / share.sum(1, true);
  const torch::Tensor ends = density.cumsum(1);
  const torch::Tensor begins = ends - density;

  // one in each of as many parts of equal weight
  const torch::Tensor parts = torch::arange(samples, edges.options());
  const torch::Tensor place = jitter ? torch::rand({edges.size(0), samples}, edges.options())
                                     : torch::full({edges.size(0), samples}, 0.5, edges.options());
  const torch::Tensor u = (parts + place) / static_cast<double>(samples);

  const torch::Tensor bin = torch::searchsorted(ends, u).clamp_max(weights.size(1) - 1);
  const torch::Tensor within = ((u - begins.gather(1, bin)) / density.gather(1, bin)).clamp(0, 1);
  const torch::Tensor lower = edges.gather(1, bin);
  return lower + within * (edges.gather(1, bin + 1) - lower);
}

torch::Tensor volume_weights(const torch::Tensor& density, const torch::Tensor& lengths) {
  const torch::Tensor depth = density * lengths;
  const torch::Tensor before = depth.cumsum(1) - depth;
  return (-before).exp() * (-(-depth).expm1());
}

NerfImpl::NerfImpl(const NerfOptions& options)
    : options(options), coarse(options.field()), fine(options.field()) {
  register_module("coarse", coarse);
  register_module("fine", fine);
}

std::pair<torch::Tensor, torch::Tensor> NerfImpl::forward(const torch::Tensor& rays) {
  // In a region the places are those of the forward when it is run again.
  const torch::Tensor first =
      tidemark::remember([&] { return stratified_samples(rays, options.coarse(), is_training()); });
  const Traced rough = trace(coarse, rays, first);
  const torch::Tensor second = tidemark::remember([&] {
    const torch::Tensor more = importance_samples(edges_between(rays, first), rough.weights,
                                                  options.fine(), is_training());
    return std::get<0>(torch::cat({first, more}, 1).sort(1));
  });
  return {rough.colour, trace(fine, rays, second).colour};
}

}  // namespace nerf
