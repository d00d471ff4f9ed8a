#pragma once

// Pictures that a model makes of views, and how near they are to the true ones.

#include <torch/types.h>

#include <string>

namespace examples {

/// The peak signal-to-noise ratio of pictures with values from 0 to 1, in dB.
double psnr(const torch::Tensor& shown, const torch::Tensor& truth);

/// Some of the views, float [views, height, width, 3], as PNG, a row each: truth, what was shown,
/// and four times the difference. Throws std::runtime_error if that can't be written.
void draw_views(const std::string& path, const torch::Tensor& truth, const torch::Tensor& shown);

}  // namespace examples
