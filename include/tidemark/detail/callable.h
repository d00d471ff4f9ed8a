#pragma once

// What a region can run: any callable, and everything that leads to a module's forward(). Nothing
// here needs the headers of torch::nn, which cost a user more compile time than all of ours.

#include <ATen/core/Tensor.h>

#include <memory>
#include <type_traits>
#include <utility>

namespace torch::nn {
class AnyModule;
class Module;
}  // namespace torch::nn

namespace tidemark::detail {

/// Calls forward() of a module that it shares.
template <class M>
struct ForwardOf {
  std::shared_ptr<M> module;

  template <class... Args>
  auto operator()(Args&&... args) const -> decltype(module->forward(std::forward<Args>(args)...)) {
    return module->forward(std::forward<Args>(args)...);
  }
};

/// Calls forward() of an AnyModule, which returns an R.
template <class R, class Any>
struct ForwardOfAny {
  Any module;

  template <class... Args>
  R operator()(Args&&... args) {
    return module.template forward<R>(std::forward<Args>(args)...);
  }
};

/// Calls a member function of an object that it shares.
template <class Member, class Object>
struct MemberOf {
  Member member;
  std::shared_ptr<Object> object;

  template <class... Args>
  auto operator()(Args&&... args) const
      -> decltype(((*object).*member)(std::forward<Args>(args)...)) {
    return ((*object).*member)(std::forward<Args>(args)...);
  }
};

template <class T, class = void>
struct IsHolder : std::false_type {};
template <class T>
struct IsHolder<T, std::void_t<typename T::ContainedType, decltype(std::declval<const T&>().ptr())>>
    : std::true_type {};

template <class T>
struct IsSharedPtr : std::false_type {};
template <class T>
struct IsSharedPtr<std::shared_ptr<T>> : std::true_type {};

template <class T>
inline constexpr bool is_module = std::is_base_of_v<torch::nn::Module, T>;

/// Shared ownership of an object where somebody shares it; else only its address, and it is the
/// caller's to keep it alive until backward is over.
template <class T>
std::shared_ptr<T> share(T& object) {
  if constexpr (is_module<T>) {
    return std::shared_ptr<T>(object.weak_from_this().lock(), &object);
  } else {
    return std::shared_ptr<T>(std::shared_ptr<void>(), &object);
  }
}
template <class T>
std::shared_ptr<T> share(T* object) {
  return share(*object);
}
template <class T>
std::shared_ptr<T> share(const std::shared_ptr<T>& object) {
  return object;
}

/// As share(), for whatever stands for the object of a member function.
template <class Object>
auto share_object(Object&& object) {
  if constexpr (IsHolder<std::decay_t<Object>>::value) {
    return object.ptr();
  } else {
    return share(object);
  }
}

/// The callable that a region keeps for `what`: a holder, a shared_ptr to a module, a module, an
/// AnyModule, or a callable as it is.
template <class What>
auto as_callable(What&& what) {
  using T = std::decay_t<What>;
  if constexpr (std::is_same_v<T, torch::nn::AnyModule>) {
    return ForwardOfAny<at::Tensor, T>{std::forward<What>(what)};
  } else if constexpr (IsHolder<T>::value) {
    return ForwardOf<typename T::ContainedType>{what.ptr()};
  } else if constexpr (IsSharedPtr<T>::value) {
    return ForwardOf<typename T::element_type>{std::forward<What>(what)};
  } else if constexpr (is_module<T>) {
    static_assert(std::is_lvalue_reference_v<What>,
                  "tidemark: a module that is passed as a temporary would be gone by backward. "
                  "Pass a holder, a shared_ptr, or a module that lives longer.");
    return ForwardOf<std::remove_reference_t<What>>{share(what)};
  } else {
    return T(std::forward<What>(what));
  }
}

}  // namespace tidemark::detail
