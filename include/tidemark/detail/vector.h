#pragma once

#include <c10/util/SmallVector.h>

namespace tidemark::detail {

/// The sequence for types of the library's own and pointers to things: in every source that
/// includes tidemark, a std::vector of one more type costs the compiler twice what this costs it.
/// Use push_back(): what emplace_back() makes leaks the new memory if its constructor throws.
/// `Inline`: so many elements take no memory of their own.
template <class T, unsigned Inline = 0>
using Vector = c10::SmallVector<T, Inline>;

}  // namespace tidemark::detail
