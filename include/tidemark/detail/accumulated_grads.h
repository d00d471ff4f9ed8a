#pragma once

// Gradients that add up over a window: what they are multiples of, in which dtype, and whether
// somebody else touched them.

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_div.h>
#include <ATen/ops/_foreach_mul.h>
#include <c10/core/ScalarType.h>
#include <tidemark/detail/pointer_index.h>
#include <tidemark/detail/unscale.h>
#include <tidemark/detail/vector.h>

#include <cstddef>
#include <utility>
#include <vector>

namespace tidemark::detail {

/// The weights of a window's losses. Loss i goes into the gradients by weight_i / reference, which
/// is 1/K for equal weights, as in the common loop, and never above 1, lest float16 overflow. The
/// sum of the gradients is then to be divided by total / reference.
class LossWeights {
 public:
  LossWeights() = default;
  LossWeights(double total, double reference) : total_(total), reference_(reference) {}

  /// Counts a loss. `expected`: the total to expect if this is the first one. Returns what the
  /// gradients so far have to be multiplied by.
  [[nodiscard]] double add(double weight, double expected) {
    if (reference_ == 0) {
      reference_ = expected;
    }
    double factor = 1;  // a power of two, so that no bits are lost
    for (; weight > reference_; reference_ *= 2) {
      factor /= 2;
    }
    total_ += weight;
    return factor;
  }

  /// What a loss of that weight is to be divided by.
  [[nodiscard]] double divisor(double weight) const { return reference_ / weight; }

  /// What the sum of the gradients is to be divided by.
  [[nodiscard]] double divisor() const { return total_ / reference_; }

  [[nodiscard]] double total() const { return total_; }
  [[nodiscard]] double reference() const { return reference_; }

 private:
  double total_ = 0;
  double reference_ = 0;
};

/// The tensors without those that are undefined or were there before.
inline std::vector<at::Tensor> distinct(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> result;
  PointerIndex seen;
  for (const auto& tensor : tensors) {
    if (tensor.defined() && seen.add(tensor.unsafeGetTensorImpl(), 0)) {
      result.push_back(tensor);
    }
  }
  return result;
}

/// The values of the gradients there are.
inline std::vector<at::Tensor> gradient_values(const std::vector<at::Tensor>& parameters) {
  std::vector<at::Tensor> gradients;
  for (const auto& parameter : parameters) {
    gradients.push_back(parameter.grad());
  }
  std::vector<at::Tensor> values;
  for (const auto& gradient : distinct(gradients)) {
    values.push_back(values_of(gradient));
  }
  return values;
}

inline void multiply_gradients(const std::vector<at::Tensor>& parameters, double factor) {
  if (factor == 1) {
    return;
  }
  if (const auto values = gradient_values(parameters); !values.empty()) {
    at::_foreach_mul_(values, factor);
  }
}

inline void divide_gradients(const std::vector<at::Tensor>& parameters, double divisor) {
  if (divisor == 1) {
    return;
  }
  if (const auto values = gradient_values(parameters); !values.empty()) {
    at::_foreach_div_(values, divisor);
  }
}

inline void drop_gradients(const std::vector<at::Tensor>& parameters) {
  for (const auto& parameter : parameters) {
    parameter.mutable_grad() = at::Tensor();
  }
}

/// Gives narrower gradients that dtype. Autograd adds to a gradient in its dtype, so that is the
/// dtype of the sum from then on.
inline void widen_gradients(const std::vector<at::Tensor>& parameters, at::ScalarType dtype) {
  for (const auto& parameter : parameters) {
    const auto& gradient = parameter.grad();
    if (gradient.defined() && gradient.scalar_type() != dtype &&
        c10::promoteTypes(gradient.scalar_type(), dtype) == dtype) {
      parameter.mutable_grad() = gradient.to(dtype);
    }
  }
}

/// Gives all gradients the dtypes of their parameters, which optimizers rely on.
inline void narrow_gradients(const std::vector<at::Tensor>& parameters) {
  for (const auto& parameter : parameters) {
    const auto& gradient = parameter.grad();
    if (gradient.defined() && gradient.scalar_type() != parameter.scalar_type()) {
      parameter.mutable_grad() = gradient.to(parameter.scalar_type());
    }
  }
}

/// Which gradients there were, and at which versions. Keeps none of them alive.
class GradRecord {
 public:
  GradRecord() = default;
  explicit GradRecord(const std::vector<at::Tensor>& parameters) {
    for (const auto& parameter : parameters) {
      parameters_.push_back(parameter.unsafeGetTensorImpl());
      gradients_.push_back(GradientVersion(parameter.grad()));
    }
  }

  /// Whether these are the parameters, with the gradients as they were.
  [[nodiscard]] bool holds(const std::vector<at::Tensor>& parameters) const {
    bool same = parameters.size() == parameters_.size();
    for (size_t i = 0; same && i < parameters.size(); ++i) {
      same = parameters[i].unsafeGetTensorImpl() == parameters_[i] &&
             gradients_[i].is_current(parameters[i].grad());
    }
    return same;
  }

 private:
  Vector<const void*> parameters_;
  Vector<GradientVersion> gradients_;
};

}  // namespace tidemark::detail
