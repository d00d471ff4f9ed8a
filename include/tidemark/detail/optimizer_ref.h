#pragma once

#include <torch/optim/optimizer.h>

#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

namespace tidemark::detail {

/// Refers to an optimizer that is given by reference or by any kind of pointer.
class OptimizerRef {
 public:
  template <class Given,
            class = std::enable_if_t<!std::is_same_v<std::decay_t<Given>, OptimizerRef>>>
  OptimizerRef(Given&& given)  // NOLINT(google-explicit-constructor): for lists in braces
      : pointer_(pointer_to(std::forward<Given>(given))) {}

  [[nodiscard]] torch::optim::Optimizer* pointer() const { return pointer_; }

 private:
  template <class Given>
  static torch::optim::Optimizer* pointer_to(Given&& given) {
    using Optimizer = torch::optim::Optimizer;
    if constexpr (std::is_base_of_v<Optimizer, std::decay_t<Given>>) {
      static_assert(std::is_lvalue_reference_v<Given>,
                    "tidemark: an optimizer that is passed as a temporary would be gone at once.");
      return std::addressof(given);
    } else if constexpr (std::is_convertible_v<Given, Optimizer&>) {  // std::reference_wrapper
      return std::addressof(static_cast<Optimizer&>(given));
    } else if constexpr (std::is_convertible_v<Given, Optimizer*>) {
      return given;
    } else {
      return given.get();
    }
  }

  torch::optim::Optimizer* pointer_;
};

template <class Optimizers>
std::vector<torch::optim::Optimizer*> pointers_to(Optimizers& optimizers) {
  std::vector<torch::optim::Optimizer*> pointers;
  for (auto& optimizer : optimizers) {
    pointers.push_back(OptimizerRef(optimizer).pointer());
  }
  return pointers;
}

}  // namespace tidemark::detail
