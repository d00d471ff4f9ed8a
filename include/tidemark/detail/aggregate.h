#pragma once

// The members of an aggregate, without a line from whoever wrote it.
//
// T{ {}, {}, ... } compiles for as many braces as T has members; each {} is one member, so that an
// array counts once. A member that {} can't make (no default constructor) is counted by an argument
// that converts to anything. Structured bindings then give access.

#include <cstddef>
#include <tuple>
#include <type_traits>
#include <utility>

namespace tidemark::detail {

/// The number is for packs of them, which nvcc takes in no other way.
template <std::size_t>
struct AnyMember {
  template <class T>
  operator T() const;  // NOLINT(google-explicit-constructor): never called
};

/// Converts to the bases of T alone, to find out whether it has any.
template <class T>
struct AnyBaseOf {
  template <class Base,
            class = std::enable_if_t<std::is_base_of_v<Base, T> && !std::is_same_v<Base, T>>>
  operator Base() const;  // NOLINT(google-explicit-constructor): never called
};

template <class T, class = void>
struct HasBase : std::false_type {};
template <class T>
struct HasBase<T, std::void_t<decltype(T{std::declval<AnyBaseOf<T>>()})>> : std::true_type {};

// BracesThenAny<T, n, index_sequence of m>: whether T{ n times {}, m times AnyMember } compiles.
template <class T, std::size_t braces, class Rest, class = void>
struct BracesThenAny : std::false_type {};

#define TIDEMARK_BRACES_THEN_ANY(count, ...)                                                  \
  template <class T, std::size_t... I>                                                        \
  struct BracesThenAny<T, count, std::index_sequence<I...>,                                   \
                       std::void_t<decltype(T{__VA_ARGS__ std::declval<AnyMember<I>>()...})>> \
      : std::true_type {};
TIDEMARK_BRACES_THEN_ANY(0)
TIDEMARK_BRACES_THEN_ANY(1, {}, )
TIDEMARK_BRACES_THEN_ANY(2, {}, {}, )
TIDEMARK_BRACES_THEN_ANY(3, {}, {}, {}, )
TIDEMARK_BRACES_THEN_ANY(4, {}, {}, {}, {}, )
TIDEMARK_BRACES_THEN_ANY(5, {}, {}, {}, {}, {}, )
TIDEMARK_BRACES_THEN_ANY(6, {}, {}, {}, {}, {}, {}, )
TIDEMARK_BRACES_THEN_ANY(7, {}, {}, {}, {}, {}, {}, {}, )
TIDEMARK_BRACES_THEN_ANY(8, {}, {}, {}, {}, {}, {}, {}, {}, )
TIDEMARK_BRACES_THEN_ANY(9, {}, {}, {}, {}, {}, {}, {}, {}, {}, )
TIDEMARK_BRACES_THEN_ANY(10, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, )
TIDEMARK_BRACES_THEN_ANY(11, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, )
TIDEMARK_BRACES_THEN_ANY(12, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, )
TIDEMARK_BRACES_THEN_ANY(13, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, {}, )
#undef TIDEMARK_BRACES_THEN_ANY

inline constexpr std::size_t kMostMembers = 12;

template <class T, std::size_t braces = kMostMembers + 1>
constexpr std::size_t count_braces() {
  if constexpr (braces == 0) {
    return 0;
  } else if constexpr (BracesThenAny<T, braces, std::index_sequence<>>::value) {
    return braces;
  } else {
    return count_braces<T, braces - 1>();
  }
}

template <class T, std::size_t braces, std::size_t more>
constexpr std::size_t count_more() {
  if constexpr (more == 0) {
    return 0;
  } else if constexpr (BracesThenAny<T, braces, std::make_index_sequence<more>>::value) {
    return more;
  } else {
    return count_more<T, braces, more - 1>();
  }
}

/// The number of members of an aggregate without bases.
template <class T>
constexpr std::size_t count_members() {
  constexpr std::size_t braces = count_braces<T>();
  return braces > kMostMembers ? braces
                               : braces + count_more<T, braces, kMostMembers + 1 - braces>();
}

/// Whether members() works: an aggregate whose members can be counted.
template <class T>
constexpr bool has_listable_members() {
  if constexpr (!std::is_class_v<T> || !std::is_aggregate_v<T> || std::is_empty_v<T>) {
    return false;
  } else if constexpr (HasBase<T>::value) {
    return false;
  } else {
    constexpr std::size_t count = count_members<T>();
    return count >= 1 && count <= kMostMembers;
  }
}

/// References to the members of an aggregate, as a tuple.
template <class T>
auto members(T& value) {
  constexpr std::size_t count = count_members<std::remove_const_t<T>>();
#define TIDEMARK_MEMBERS(number, ...) \
  if constexpr (count == number) {    \
    auto& [__VA_ARGS__] = value;      \
    return std::tie(__VA_ARGS__);     \
  }
  TIDEMARK_MEMBERS(1, a)
  TIDEMARK_MEMBERS(2, a, b)
  TIDEMARK_MEMBERS(3, a, b, c)
  TIDEMARK_MEMBERS(4, a, b, c, d)
  TIDEMARK_MEMBERS(5, a, b, c, d, e)
  TIDEMARK_MEMBERS(6, a, b, c, d, e, f)
  TIDEMARK_MEMBERS(7, a, b, c, d, e, f, g)
  TIDEMARK_MEMBERS(8, a, b, c, d, e, f, g, h)
  TIDEMARK_MEMBERS(9, a, b, c, d, e, f, g, h, i)
  TIDEMARK_MEMBERS(10, a, b, c, d, e, f, g, h, i, j)
  TIDEMARK_MEMBERS(11, a, b, c, d, e, f, g, h, i, j, k)
  TIDEMARK_MEMBERS(12, a, b, c, d, e, f, g, h, i, j, k, l)
#undef TIDEMARK_MEMBERS
}

}  // namespace tidemark::detail
