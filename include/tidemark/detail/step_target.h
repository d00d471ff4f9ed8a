#pragma once

// What one unscale_() or step() is about.

#include <ATen/core/Tensor.h>
#include <c10/core/TensorImpl.h>
#include <c10/util/ArrayRef.h>
#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>
#include <c10/util/Type.h>
#include <tidemark/detail/unscale.h>
#include <tidemark/detail/vector.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/optimizer.h>

#include <cstddef>
#include <ostream>
#include <string>
#include <typeinfo>

namespace tidemark::detail {

/// A parameter with a gradient, and its place.
struct ListedParameter {
  const at::Tensor* parameter;
  at::Tensor* gradient;
  size_t group;
  size_t index;

  friend std::ostream& operator<<(std::ostream& out, const ListedParameter& listed) {
    return out << "parameter " << listed.index << " of group " << listed.group << ", of shape "
               << listed.parameter->sizes();
  }
};

/// The parameters of an optimizer, or a list of them, as they are at this moment. Refers to them,
/// which holds until user code runs: a step may replace them.
struct StepTarget {
  explicit StepTarget(const torch::optim::Optimizer& optimizer)
      : name(c10::demangle(typeid(optimizer).name())) {
    key.push_back(&optimizer);
    const auto& param_groups = optimizer.param_groups();
    groups = param_groups.size();
    for (size_t group = 0; group < groups; ++group) {
      list(param_groups[group].params(), group);
    }
  }

  explicit StepTarget(at::TensorList parameters) : name("list of parameters") {
    for (const auto& parameter : parameters) {
      key.push_back(parameter.unsafeGetTensorImpl());
    }
    list(parameters, 0);
  }

  Vector<const void*> key;  // tells it from the others of an update
  std::string name;
  size_t groups = 1;
  Vector<ListedParameter> parameters;  // those that have a gradient

 private:
  void list(at::TensorList tensors, size_t group) {
    parameters.reserve(parameters.size() + tensors.size());
    for (size_t index = 0; index < tensors.size(); ++index) {
      const auto& parameter = tensors[index];
      if (parameter.defined() && parameter.grad().defined()) {
        parameters.push_back({&parameter, &parameter.mutable_grad(), group, index});
      }
    }
  }
};

/// The target of a step, which an optimizer that needs a closure can't be.
inline StepTarget steppable(const torch::optim::Optimizer& optimizer) {
  TORCH_CHECK(
      dynamic_cast<const torch::optim::LBFGS*>(&optimizer) == nullptr,
      "tidemark: GradScaler can't step torch::optim::LBFGS: it evaluates the model several "
      "times per step, by a closure, and one scale can't be right for all of them. Nothing was "
      "changed. Train without a GradScaler, in float32 or bfloat16, or with another "
      "optimizer.");
  return StepTarget(optimizer);
}

/// The gradients of a target, one as often as it is listed. Sparse ones are coalesced, and the
/// parameters given the result, for a sum of duplicates may be inf where its terms are not.
inline GradientRefs gradients_of(const StepTarget& target) {
  GradientRefs gradients;
  gradients.reserve(target.parameters.size());
  for (const auto& listed : target.parameters) {
    auto& gradient = *listed.gradient;
    if (gradient.is_sparse() && !gradient.is_coalesced()) {
      gradient = gradient.coalesce();
    }
    gradients.push_back(&gradient);
  }
  return gradients;
}

}  // namespace tidemark::detail
