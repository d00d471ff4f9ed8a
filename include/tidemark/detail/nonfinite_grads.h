#pragma once

// Which gradients hold an inf or NaN.

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/isfinite.h>
#include <tidemark/detail/step_target.h>
#include <tidemark/detail/unscale.h>
#include <torch/ordered_dict.h>

#include <cstddef>
#include <cstdint>
#include <ostream>
#include <string>
#include <vector>

namespace tidemark {

/// A parameter whose gradient is not finite everywhere.
struct NonfiniteGrad {
  std::string name;            ///< Empty where no names were given, or not this one's.
  size_t group;                ///< Of the optimizer; 0 for a list of parameters.
  size_t index;                ///< In the group or list.
  std::vector<int64_t> shape;  ///< Of the parameter.
  int64_t nonfinite;           ///< Number of elements that are inf or NaN.

  /// In one line: "conv.weight (group 0, index 2, shape [8, 1]): 3 inf or NaN".
  friend std::ostream& operator<<(std::ostream& out, const NonfiniteGrad& grad) {
    out << (grad.name.empty() ? "parameter" : grad.name) << " (group " << grad.group << ", index "
        << grad.index << ", shape " << at::IntArrayRef(grad.shape) << "): " << grad.nonfinite
        << " inf or NaN";
    return out;
  }
};

}  // namespace tidemark

namespace tidemark::detail {

using NamedTensors = torch::OrderedDict<std::string, at::Tensor>;

/// Empty where it has none.
inline std::string name_of(const at::Tensor& parameter, const NamedTensors& names) {
  for (const auto& item : names) {
    if (item.value().is_same(parameter)) {
      return item.key();
    }
  }
  return {};
}

/// Waits for the device once per gradient.
inline std::vector<NonfiniteGrad> nonfinite_grads(const StepTarget& target,
                                                  const NamedTensors& names) {
  const at::NoGradGuard no_grad;
  std::vector<NonfiniteGrad> found;
  for (const auto& listed : target.parameters) {
    auto gradient = *listed.gradient;
    if (gradient.is_sparse()) {
      gradient = gradient.coalesce();
    }
    const auto values = gradient.is_sparse() ? gradient._values() : gradient;
    const auto nonfinite = at::isfinite(values).logical_not().sum().item<int64_t>();
    if (nonfinite != 0) {
      found.push_back({name_of(*listed.parameter, names), listed.group, listed.index,
                       listed.parameter->sizes().vec(), nonfinite});
    }
  }
  return found;
}

}  // namespace tidemark::detail
