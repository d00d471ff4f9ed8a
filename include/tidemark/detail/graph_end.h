#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>
#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/autograd/edge.h>
#include <torch/csrc/autograd/function.h>

#include <memory>
#include <string>
#include <type_traits>
#include <utility>

namespace tidemark::detail {

/// Where the graph of a re-run ends: behind the arguments of its region, whose own graph is the
/// forward's. A region may differentiate with respect to its arguments, but no pass may go past
/// them, as one would that begins at a tensor which the re-run has left in a member.
class GraphEnd final : public torch::autograd::Node {
 public:
  explicit GraphEnd(std::string region) : region_(std::move(region)) {}

  /// An argument of the re-run: `input`, with its graph ending in `end`, which is made when the
  /// first argument that requires grad needs it.
  template <class Pointer = decltype(torch::autograd::Edge::function)>
  static at::Tensor argument(const at::Tensor& input, Pointer& end, const std::string& region) {
    at::Tensor result = input.detach();
    if (input.requires_grad()) {
      if (end == nullptr) {
        // Nodes are held by shared_ptr up to LibTorch 2.12, by intrusive_ptr from 2.13 on.
        if constexpr (std::is_same_v<Pointer, std::shared_ptr<torch::autograd::Node>>) {
          end = Pointer(new GraphEnd(region));
        } else {
          end = c10::make_intrusive<GraphEnd>(region);
        }
      }
      torch::autograd::create_gradient_edge(result, end);
    }
    return result;
  }

  torch::autograd::variable_list apply(torch::autograd::variable_list&& /*gradients*/) override {
    TORCH_CHECK(
        false, "tidemark: a backward pass begins at a tensor that was made when ", region_,
        " was re-run, and would lose the gradients of the region's arguments. A member or "
        "a captured variable was assigned to in the region, and again in the re-run. Return "
        "the tensor from the region instead, or assign it only if "
        "tidemark::recomputing() is false.");
  }

  [[nodiscard]] std::string name() const override { return "tidemark::GraphEnd"; }

 private:
  std::string region_;
};

}  // namespace tidemark::detail
