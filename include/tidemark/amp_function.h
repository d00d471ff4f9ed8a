#pragma once

/// \file
/// Custom autograd Functions under AmpScope, after torch.amp.custom_fwd and custom_bwd.
///
/// backward() is called outside of the scope, maybe on another thread, so a Function whose backward
/// does more than pass on what autograd saved has to run it under the settings of its forward:
///
///     struct MatMul : torch::autograd::Function<MatMul> {
///       static Tensor forward(AutogradContext* context, const Tensor& a, const Tensor& b) {
///         tidemark::AmpForward amp(context);
///         context->save_for_backward({a, b});
///         return a.mm(b);
///       }
///       static variable_list backward(AutogradContext* context, variable_list grads) {
///         tidemark::AmpBackward amp(context);
///         const auto saved = context->get_saved_variables();
///         return {grads[0].mm(saved[1].t()), saved[0].t().mm(grads[0])};
///       }
///     };
///
/// A kernel that knows float32 only: the inputs, taken by value, are cast where autocast is on, and
/// it is off until the end of forward and in backward.
///
///     struct Kernel : torch::autograd::Function<Kernel> {
///       static Tensor forward(AutogradContext* context, Tensor points, Tensor weights) {
///         tidemark::AmpForward amp(context, torch::kFloat, points, weights);
///         return my_kernel(points, weights);
///       }
///       static variable_list backward(AutogradContext* context, variable_list grads) {
///         tidemark::AmpBackward amp(context);
///         return my_kernel_backward(grads);
///       }
///     };

#include <ATen/core/ivalue.h>
#include <c10/util/Exception.h>
#include <c10/util/intrusive_ptr.h>
#include <tidemark/amp_cast.h>
#include <tidemark/detail/autocast_state.h>
#include <tidemark/detail/in_place.h>
#include <tidemark/detail/tensor_tree.h>
#include <torch/csrc/autograd/custom_function.h>

#include <type_traits>

namespace tidemark {

namespace detail {

/// An AutocastState in the saved_data of a Function.
struct SavedAutocastState final : torch::CustomClassHolder {
  explicit SavedAutocastState(const AutocastState& state) : state(state) {}

  static constexpr const char* kKey = "tidemark.amp";
  AutocastState state;
};

}  // namespace detail

/// To be made at the beginning of a Function's forward, for its AmpBackward. Examples:
/// amp_function.h.
class [[nodiscard]] AmpForward {
 public:
  /// Remembers the settings that forward runs under.
  explicit AmpForward(torch::autograd::AutogradContext* context) {
    remember(context, detail::AutocastState::now());
  }

  /// Switches autocast off until the end of forward, and in backward, whether or not it was on; and
  /// casts the inputs, as amp_cast() does, that are on a device where it was on. Throws if `dtype`
  /// is not a floating point dtype.
  template <class... Inputs>
  AmpForward(torch::autograd::AutogradContext* context, at::ScalarType dtype, Inputs&... inputs) {
    static_assert(!(std::is_const_v<Inputs> || ...),
                  "tidemark: AmpForward casts the inputs in place: take them by value.");
    static_assert((detail::holds_tensors<Inputs>() && ...),
                  "tidemark: AmpForward can't find tensors in one of these inputs.");
    detail::check_cast_dtype("AmpForward", dtype);
    const auto cast = [&](at::Tensor& tensor) {
      if (detail::is_castable(tensor) && AmpScope::enabled(tensor.device().type())) {
        tensor = tensor.to(dtype);
      }
    };
    (detail::for_each_tensor(inputs, cast), ...);
    const auto off = detail::AutocastState::now().off();
    remember(context, off);
    scope_.emplace(off);
  }
  AmpForward(const AmpForward&) = delete;
  AmpForward& operator=(const AmpForward&) = delete;

 private:
  static void remember(torch::autograd::AutogradContext* context,
                       const detail::AutocastState& state) {
    context->saved_data[detail::SavedAutocastState::kKey] =
        c10::IValue::make_capsule(c10::make_intrusive<detail::SavedAutocastState>(state));
  }

  detail::InPlace<detail::AutocastScope> scope_;
};

/// While alive, autocast is set as it was in forward, for every type of device: on or off, dtype
/// and weight cache. To be made at the beginning of a Function's backward. Throws if its forward
/// made no AmpForward.
class [[nodiscard]] AmpBackward {
 public:
  /// `context` is the one that backward gets, in which its AmpForward has left the settings.
  explicit AmpBackward(torch::autograd::AutogradContext* context) : scope_(recall(context)) {}
  AmpBackward(const AmpBackward&) = delete;
  AmpBackward& operator=(const AmpBackward&) = delete;

 private:
  static detail::AutocastState recall(torch::autograd::AutogradContext* context) {
    const auto found = context->saved_data.find(detail::SavedAutocastState::kKey);
    TORCH_CHECK(found != context->saved_data.end(),
                "tidemark: AmpBackward: the forward of this Function has not said what it ran "
                "under. Begin it "
                "with `tidemark::AmpForward amp(context);`.");
    return c10::static_intrusive_pointer_cast<detail::SavedAutocastState>(found->second.toCapsule())
        ->state;
  }

  detail::AutocastScope scope_;
};

}  // namespace tidemark
