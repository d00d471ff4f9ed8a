#pragma once

// What a window that fails is rolled back to.

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <tidemark/detail/accumulated_grads.h>
#include <tidemark/detail/peak_snapshot.h>
#include <tidemark/detail/rng_state.h>

#include <cstddef>
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

  /// Allocates nothing, so it also works when memory has run out.
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

/// The default generators, some buffers, and the peaks of MemoryScopes, as they were when it was
/// made.
class WindowSnapshot {
 public:
  explicit WindowSnapshot(const std::vector<at::Tensor>& buffers) : buffers_(distinct(buffers)) {}

  void put_back() const {
    cpu_.restore();
    devices_.restore();
    buffers_.put_back();
    peaks_.put_back();
  }

 private:
  PeakSnapshot peaks_;
  CpuRngState cpu_ = CpuRngState::now();
  DeviceRngState devices_ = DeviceRngState::now();
  TensorValues buffers_;
};

}  // namespace tidemark::detail
