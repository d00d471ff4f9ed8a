#pragma once

// Weights whose gradients are chosen.

#include <tidemark/grad_scaler.h>
#include <torch/torch.h>

#include <limits>

namespace tidemark::tests {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

/// A parameter of two elements.
inline torch::Tensor weight(double value, torch::ScalarType dtype = torch::kFloat) {
  return torch::full({2}, value, dtype).requires_grad_();
}

/// Backpropagates a scaled loss whose derivative by each element of `w` is `gradient`.
inline void backward(GradScaler& scaler, const torch::Tensor& w, double gradient) {
  scaler.scale((w * gradient).sum()).backward();
}

/// A whole update of a parameter of its own.
inline void update_with(GradScaler& scaler, double gradient) {
  const auto w = weight(0);
  torch::optim::SGD sgd({w}, 0.5);
  backward(scaler, w, gradient);
  scaler.step(sgd);
  scaler.update();
}

/// The value that all elements have.
inline double value(const torch::Tensor& tensor) {
  const auto values = tensor.detach().to(torch::kDouble);
  TORCH_CHECK(values.eq(values[0]).all().item<bool>(), "differ: ", values);
  return values[0].item<double>();
}

inline double grad_value(const torch::Tensor& w) { return value(w.grad()); }

}  // namespace tidemark::tests
