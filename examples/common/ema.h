#pragma once

// An average of the weights of all steps of a training, which is better than the last ones.
// Polyak, Juditsky, Acceleration of Stochastic Approximation by Averaging, 1992.

#include <c10/core/GradMode.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace examples {

/// What an average keeps of itself in a step: `most`, and less in the first steps (counted from 0),
/// so that it soon forgets the weights that a training began with.
inline double share_to_keep(double most, int64_t step) {
  const auto t = static_cast<double>(step);
  return std::min(most, (1 + t) / (10 + t));
}

/// Moves the parameters of `average` towards those of `network`, a module of the same parameters;
/// they keep a share of `keep`. Its buffers become those of the network.
inline void move_average(const torch::nn::Module& network, torch::nn::Module& average,
                         double keep) {
  const c10::NoGradGuard no_grad;
  const auto parameters = network.parameters();
  const auto averages = average.parameters();
  for (size_t i = 0; i < parameters.size(); ++i) {
    averages[i].lerp_(parameters[i], 1 - keep);
  }
  const auto buffers = network.buffers();
  const auto copies = average.buffers();
  for (size_t i = 0; i < buffers.size(); ++i) {
    copies[i].copy_(buffers[i]);
  }
}

}  // namespace examples
