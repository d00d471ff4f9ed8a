#pragma once

// Tensors inside arguments and results: visited in one order, whatever they are nested in.

#include <ATen/core/Tensor.h>
#include <c10/util/OptionalArrayRef.h>
#include <tidemark/detail/aggregate.h>

#include <cstddef>
#include <iterator>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

namespace torch {
template <class Key, class Value>
class OrderedDict;
}  // namespace torch

namespace tidemark::detail {

// How tensors are found in a T.
enum class Tree {
  kTensor,
  kDescribed,  // tidemark_tensors(value) returns a tuple of what holds them
  kOptional,
  kTuple,
  kVariant,
  kMap,
  kDict,  // torch::OrderedDict
  kRange,
  kAggregate,
  kOpaque,  // a value of its own, kept whole
};

template <class T, class = void>
struct IsDescribed : std::false_type {};
template <class T>
struct IsDescribed<T, std::void_t<decltype(tidemark_tensors(std::declval<T&>()))>>
    : std::true_type {};

template <class T, class = void>
struct IsMap : std::false_type {};
template <class T>
struct IsMap<T, std::void_t<typename T::key_type, typename T::mapped_type>> : std::true_type {};

template <class T, class = void>
struct IsRange : std::false_type {};
template <class T>
struct IsRange<
    T, std::void_t<typename T::value_type,
                   std::enable_if_t<std::is_same_v<decltype(*std::begin(std::declval<T&>())),
                                                   typename T::value_type&>>>> : std::true_type {};

template <template <class...> class Template, class T>
struct IsInstance : std::false_type {};
template <template <class...> class Template, class... Ts>
struct IsInstance<Template, Template<Ts...>> : std::true_type {};

template <class T>
constexpr Tree tree_of() {
  if constexpr (std::is_base_of_v<at::Tensor, T>) {
    return Tree::kTensor;
  } else if constexpr (IsDescribed<T>::value) {
    return Tree::kDescribed;
  } else if constexpr (std::is_trivially_copyable_v<T> || std::is_same_v<T, std::string>) {
    return Tree::kOpaque;
  } else if constexpr (IsInstance<std::optional, T>::value) {
    return Tree::kOptional;
  } else if constexpr (IsInstance<std::tuple, T>::value || IsInstance<std::pair, T>::value) {
    return Tree::kTuple;
  } else if constexpr (IsInstance<std::variant, T>::value) {
    return Tree::kVariant;
  } else if constexpr (IsInstance<torch::OrderedDict, T>::value) {
    return Tree::kDict;
  } else if constexpr (IsMap<T>::value) {
    return Tree::kMap;
  } else if constexpr (IsRange<T>::value || std::is_array_v<T>) {
    return Tree::kRange;
  } else if constexpr (has_listable_members<T>()) {
    return Tree::kAggregate;
  } else {
    static_assert(!std::is_class_v<T> || !std::is_aggregate_v<T> || std::is_empty_v<T>,
                  "tidemark: the members of this struct can't be listed (bases, references, or too "
                  "many). Say which of them hold tensors, in the struct: friend auto "
                  "tidemark_tensors(T& t) { return std::tie(t.rgb, t.depth); }");
    return Tree::kOpaque;
  }
}

template <class T>
constexpr bool holds_tensors();

// Whether any (or every) element of a tuple, pair, variant or tuple of references passes.
template <class T>
struct AnyHolds;
template <template <class...> class List, class... Ts>
struct AnyHolds<List<Ts...>> {
  static constexpr bool value = (holds_tensors<std::remove_reference_t<Ts>>() || ...);
};

/// Whether a T can hold tensors that for_each_tensor finds.
template <class T>
constexpr bool holds_tensors() {
  constexpr Tree tree = tree_of<T>();
  if constexpr (tree == Tree::kTensor || tree == Tree::kDescribed) {
    return true;
  } else if constexpr (tree == Tree::kOptional) {
    return holds_tensors<typename T::value_type>();
  } else if constexpr (tree == Tree::kTuple || tree == Tree::kVariant) {
    return AnyHolds<T>::value;
  } else if constexpr (tree == Tree::kMap) {
    return holds_tensors<typename T::mapped_type>();
  } else if constexpr (tree == Tree::kDict) {
    return holds_tensors<std::decay_t<decltype(std::declval<T&>().begin()->value())>>();
  } else if constexpr (tree == Tree::kRange) {
    return holds_tensors<std::remove_reference_t<decltype(*std::begin(std::declval<T&>()))>>();
  } else if constexpr (tree == Tree::kAggregate) {
    return AnyHolds<decltype(members(std::declval<T&>()))>::value;
  } else {
    return false;
  }
}

/// Calls `visit(at::Tensor&)` for every tensor of `value`, undefined ones included, in order.
template <class T, class Visit>
void for_each_tensor(T& value, Visit&& visit) {
  constexpr Tree tree = tree_of<T>();
  const auto each = [&](auto&... elements) { (for_each_tensor(elements, visit), ...); };
  if constexpr (!holds_tensors<T>()) {
    (void)value;
  } else if constexpr (tree == Tree::kTensor) {
    visit(value);
  } else if constexpr (tree == Tree::kDescribed) {
    auto described = tidemark_tensors(value);
    std::apply(each, described);
  } else if constexpr (tree == Tree::kOptional) {
    if (value.has_value()) {
      each(*value);
    }
  } else if constexpr (tree == Tree::kTuple) {
    std::apply(each, value);
  } else if constexpr (tree == Tree::kVariant) {
    std::visit(each, value);
  } else if constexpr (tree == Tree::kMap) {
    for (auto& entry : value) {
      each(entry.second);
    }
  } else if constexpr (tree == Tree::kDict) {
    for (auto& item : value) {
      each(item.value());
    }
  } else if constexpr (tree == Tree::kRange) {
    for (auto& element : value) {
      each(element);
    }
  } else {
    std::apply(each, members(value));
  }
}

template <class T>
constexpr bool holds_only_tensors();

template <class T>
struct AllHoldOnly;
template <template <class...> class List, class... Ts>
struct AllHoldOnly<List<Ts...>> {
  static constexpr bool value = (holds_only_tensors<std::remove_reference_t<Ts>>() && ...);
};

/// Whether every leaf of a T is a tensor, so that nothing is lost when its tensors are replaced.
template <class T>
constexpr bool holds_only_tensors() {
  constexpr Tree tree = tree_of<T>();
  if constexpr (tree == Tree::kTensor || tree == Tree::kDescribed) {
    return true;
  } else if constexpr (tree == Tree::kTuple || tree == Tree::kVariant) {
    return AllHoldOnly<T>::value;
  } else if constexpr (tree == Tree::kOptional) {
    return holds_only_tensors<typename T::value_type>();
  } else if constexpr (tree == Tree::kMap) {
    return holds_only_tensors<typename T::mapped_type>();
  } else if constexpr (tree == Tree::kDict) {
    return holds_only_tensors<std::decay_t<decltype(std::declval<T&>().begin()->value())>>();
  } else if constexpr (tree == Tree::kRange) {
    return holds_only_tensors<std::remove_reference_t<decltype(*std::begin(std::declval<T&>()))>>();
  } else if constexpr (tree == Tree::kAggregate) {
    return AllHoldOnly<decltype(members(std::declval<T&>()))>::value;
  } else {
    return false;
  }
}

/// The type by which a region keeps an argument. Views would dangle by the time of the re-run.
template <class T>
struct Owned {
  using type = T;
};
template <class T>
struct Owned<c10::ArrayRef<T>> {
  using type = std::vector<T>;
};
template <>
struct Owned<std::string_view> {
  using type = std::string;
};
template <class T>
struct Owned<std::optional<T>> {
  using type = std::optional<typename Owned<T>::type>;
};
template <class T>
struct Owned<c10::OptionalArrayRef<T>> {
  using type = std::optional<std::vector<T>>;
};
template <class T>
using owned_t = typename Owned<std::decay_t<T>>::type;

/// Whether views are nested in a T where Owned does not look.
template <class T>
constexpr bool holds_views();
template <class T>
struct IsView : std::bool_constant<!std::is_same_v<owned_t<T>, std::decay_t<T>> ||
                                   holds_views<std::decay_t<T>>()> {};
template <class T>
struct AnyIsView;
template <template <class...> class List, class... Ts>
struct AnyIsView<List<Ts...>> : std::bool_constant<(... || IsView<Ts>::value)> {};
template <class T>
constexpr bool holds_views() {
  constexpr Tree tree = tree_of<T>();
  if constexpr (tree == Tree::kTuple || tree == Tree::kVariant) {
    return AnyIsView<T>::value;
  } else if constexpr (tree == Tree::kMap) {
    return IsView<typename T::mapped_type>::value;
  } else if constexpr (tree == Tree::kOptional) {
    return holds_views<typename T::value_type>();
  } else if constexpr (IsRange<T>::value || std::is_array_v<T>) {  // std::array<View, n> is opaque
    return IsView<std::remove_reference_t<decltype(*std::begin(std::declval<T&>()))>>::value;
  } else if constexpr (tree == Tree::kAggregate) {
    return AnyIsView<decltype(members(std::declval<T&>()))>::value;
  } else {
    return false;
  }
}

/// What a callable is given for an argument of type T that is kept as `owner`: the value itself, or
/// a view of it.
template <class T>
T lend(owned_t<T>& owner) {
  if constexpr (std::is_same_v<T, owned_t<T>>) {
    return std::move(owner);
  } else if constexpr (IsInstance<std::optional, owned_t<T>>::value) {
    using View = c10::ArrayRef<typename owned_t<T>::value_type::value_type>;
    return owner.has_value() ? T(View(*owner)) : T();
  } else {
    return T(owner);
  }
}

/// A copy of `value` that owns what it refers to.
template <class T>
owned_t<T> to_owned(T&& value) {
  using Decayed = std::decay_t<T>;
  if constexpr (std::is_same_v<Decayed, owned_t<T>>) {
    return std::forward<T>(value);
  } else if constexpr (IsInstance<std::vector, owned_t<T>>::value ||
                       std::is_same_v<owned_t<T>, std::string>) {
    return owned_t<T>(value.begin(), value.end());
  } else {
    return value.has_value() ? owned_t<T>(to_owned(*value)) : std::nullopt;
  }
}

}  // namespace tidemark::detail
