#pragma once

// What a window that fails is rolled back to.

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <tidemark/detail/accumulated_grads.h>
#include <tidemark/detail/meter_link.h>
#include <tidemark/detail/rng_state.h>

#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

namespace tidemark::detail {

/// Tensors with copies of their values.
class TensorValues {
 public:
  TensorValues() = default;
  explicit TensorValues(std::vector<at::Tensor> tensors) : tensors_(std::move(tensors)) {
    const at::NoGradGuard no_grad;
    for (const auto& tensor : tensors_) {
      values_.push_back(tensor.clone());
    }
  }
  TensorValues(std::vector<at::Tensor> tensors, std::vector<at::Tensor> values)
      : tensors_(std::move(tensors)), values_(std::move(values)) {}

  [[nodiscard]] const std::vector<at::Tensor>& values() const { return values_; }

  /// Allocates nothing.
  void put_back() const {
    const at::NoGradGuard no_grad;
    for (size_t i = 0; i < tensors_.size(); ++i) {
      tensors_[i].copy_(values_[i]);
    }
  }

 private:
  std::vector<at::Tensor> tensors_;
  std::vector<at::Tensor> values_;
};

/// The default generators, the gradients of some parameters, some buffers, and the peaks of
/// MemoryScopes, as they were when it was made.
class WindowSnapshot {
 public:
  WindowSnapshot(std::vector<at::Tensor> parameters, const std::vector<at::Tensor>& buffers)
      : parameters_(std::move(parameters)), buffers_(distinct(buffers)) {
    for (const auto& parameter : parameters_) {
      gradients_.push_back(parameter.grad());
    }
  }

  /// Allocates nothing, so it also works when memory has run out.
  void put_back() const {
    cpu_.restore();
    devices_.restore();
    for (size_t i = 0; i < parameters_.size(); ++i) {
      parameters_[i].mutable_grad() = gradients_[i];
    }
    buffers_.put_back();
    if (peaks_ != nullptr) {
      peaks_->put_back();
    }
  }

 private:
  std::vector<at::Tensor> parameters_;
  std::vector<at::Tensor> gradients_;
  std::shared_ptr<const PeakMarks> peaks_ = mark_peaks();
  CpuRngState cpu_ = CpuRngState::now();
  DeviceRngState devices_ = DeviceRngState::now();
  TensorValues buffers_;
};

}  // namespace tidemark::detail
