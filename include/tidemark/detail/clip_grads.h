#pragma once

// Clipping, without waiting for a device.

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/clamp.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/norm.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <tidemark/detail/unscale.h>
#include <tidemark/detail/vector.h>

#include <vector>

namespace tidemark::detail {

/// The norm of numbers, of which there is at least one, on the device of the first.
inline at::Tensor norm_of(const std::vector<at::Tensor>& numbers, double norm_type) {
  if (numbers.size() == 1) {
    return numbers.front();
  }
  std::vector<at::Tensor> together;
  for (const auto& number : numbers) {
    together.push_back(on_device(number, numbers.front().device()));
  }
  return at::norm(at::stack(together), norm_type);
}

/// Scales gradients down to a norm, all together, as torch::nn::utils::clip_grad_norm_ does, and
/// returns the norm that they had. Each group is the gradients of one optimizer; one with an inf or
/// NaN neither counts for the others nor is scaled to their zero: its step is skipped alone.
inline at::Tensor clip_grad_norm(const Vector<std::vector<at::Tensor>>& groups, double max_norm,
                                 double norm_type) {
  std::vector<at::Tensor> norms;
  std::vector<at::Tensor> finite_norms;
  for (const auto& group : groups) {
    std::vector<at::Tensor> of_group;
    for (const auto& gradient : group) {
      of_group.push_back(at::norm(gradient, norm_type));
    }
    if (of_group.empty()) {
      continue;
    }
    const auto finite = at::isfinite(norm_of(of_group, norm_type));
    for (const auto& norm : of_group) {
      norms.push_back(norm);
      finite_norms.push_back(at::where(on_device(finite, norm.device()), norm, 0));
    }
  }
  if (norms.empty()) {
    return at::zeros({});
  }
  const auto coefficient =
      at::clamp(max_norm / (norm_of(finite_norms, norm_type) + 1e-6), {}, /*max=*/1.0);
  DeviceCopies coefficients(coefficient);
  for (const auto& group : groups) {
    for (const auto& gradient : group) {
      gradient.mul_(coefficients.on(gradient.device()));
    }
  }
  return norm_of(norms, norm_type);
}

}  // namespace tidemark::detail
