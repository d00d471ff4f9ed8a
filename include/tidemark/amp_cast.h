#pragma once

/// \file
/// Casting what ops don't cast by themselves: inputs of custom kernels, of cat with mixed dtypes,
/// of code that needs full precision.

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>
#include <c10/util/Exception.h>
#include <tidemark/amp_scope.h>
#include <tidemark/detail/tensor_tree.h>

#include <utility>

namespace tidemark {

namespace detail {

/// Whether autocast would ever cast the tensor.
inline bool is_castable(const at::Tensor& tensor) {
  return tensor.defined() && at::autocast::is_eligible(tensor, tensor.device().type());
}

inline void check_cast_dtype(const char* who, at::ScalarType dtype) {
  TORCH_CHECK(at::isFloatingType(dtype), "tidemark: ", who, ": tensors can't be cast to ", dtype,
              "; it has to be a floating point dtype, since others have no gradients.");
}

/// A copy of `value` whose tensors are what `cast` makes of them.
template <class T, class Cast>
owned_t<T> cast_tensors(T&& value, Cast&& cast) {
  static_assert(holds_tensors<owned_t<T>>() && !holds_views<owned_t<T>>(),
                "tidemark: amp_cast can't find the tensors in this type. It looks into containers "
                "and structs that own their tensors; a class says which of its members hold some: "
                "friend auto tidemark_tensors(T& t) { return std::tie(t.rgb, t.depth); }");
  owned_t<T> copy = to_owned(std::forward<T>(value));
  for_each_tensor(copy, [&](at::Tensor& tensor) {
    if (is_castable(tensor)) {
      tensor = cast(tensor);
    }
  });
  return copy;
}

}  // namespace detail

/// A copy of `value` with its floating point tensors cast to `dtype`, through which gradients flow
/// back in the tensors' own dtypes. `value` is a tensor, or a container, tuple or struct of them in
/// any depth; a TensorList becomes a vector. As in autocast, float64 stays as it is, and so do
/// tensors on devices without autocast. Throws if `dtype` is not a floating point dtype.
template <class T>
[[nodiscard]] detail::owned_t<T> amp_cast(at::ScalarType dtype, T&& value) {
  detail::check_cast_dtype("amp_cast", dtype);
  return detail::cast_tensors(std::forward<T>(value),
                              [&](const at::Tensor& tensor) { return tensor.to(dtype); });
}

/// The same with the dtype of the AmpScope that is open for the tensor's device; without one, or
/// inside of AmpScope::off, a tensor stays as it is.
template <class T>
[[nodiscard]] detail::owned_t<T> amp_cast(T&& value) {
  return detail::cast_tensors(std::forward<T>(value), [](const at::Tensor& tensor) {
    const auto type = tensor.device().type();
    return AmpScope::enabled(type) ? tensor.to(AmpScope::dtype(type)) : tensor;
  });
}

}  // namespace tidemark
