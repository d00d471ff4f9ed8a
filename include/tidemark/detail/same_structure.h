#pragma once

#include <tidemark/detail/tensor_tree.h>

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <tuple>
#include <type_traits>
#include <utility>
#include <variant>

namespace tidemark::detail {

template <class T>
bool same_structure(T& a, T& b);

template <class A, class B, std::size_t... I>
bool same_structures(A&& a, B&& b, std::index_sequence<I...>) {
  return (same_structure(std::get<I>(a), std::get<I>(b)) && ...);
}
template <class A, class B>
bool same_structures(A&& a, B&& b) {
  return same_structures(a, b, std::make_index_sequence<std::tuple_size_v<std::decay_t<A>>>());
}

template <class Range, class Same>
bool same_elements(Range& a, Range& b, Same&& same) {
  return std::equal(std::begin(a), std::end(a), std::begin(b), std::end(b), same);
}

/// Whether the tensors of two values, which for_each_tensor visits in order, are each other's
/// counterparts: as many elements, the same keys in the same order, the same alternatives.
template <class T>
bool same_structure(T& a, T& b) {
  constexpr Tree tree = tree_of<T>();
  if constexpr (!holds_tensors<T>() || tree == Tree::kTensor) {
    return true;
  } else if constexpr (tree == Tree::kDescribed) {
    return same_structures(tidemark_tensors(a), tidemark_tensors(b));
  } else if constexpr (tree == Tree::kOptional) {
    return a.has_value() == b.has_value() && (!a.has_value() || same_structure(*a, *b));
  } else if constexpr (tree == Tree::kTuple) {
    return same_structures(a, b);
  } else if constexpr (tree == Tree::kVariant) {
    return a.index() == b.index() && std::visit(
                                         [](auto& x, auto& y) {
                                           if constexpr (std::is_same_v<decltype(x), decltype(y)>) {
                                             return same_structure(x, y);
                                           } else {
                                             return false;
                                           }
                                         },
                                         a, b);
  } else if constexpr (tree == Tree::kMap) {
    return same_elements(a, b, [](auto& x, auto& y) {
      return x.first == y.first && same_structure(x.second, y.second);
    });
  } else if constexpr (tree == Tree::kDict) {
    return same_elements(a, b, [](auto& x, auto& y) {
      return x.key() == y.key() && same_structure(x.value(), y.value());
    });
  } else if constexpr (tree == Tree::kRange) {
    return same_elements(a, b, [](auto& x, auto& y) { return same_structure(x, y); });
  } else {
    return same_structures(members(a), members(b));
  }
}

}  // namespace tidemark::detail
