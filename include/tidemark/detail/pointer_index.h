#pragma once

#include <cstddef>
#include <unordered_map>

namespace tidemark::detail {

/// Where in a sequence that is which belongs to an address. One type for all of them, since each
/// type of map takes the compiler some 50 ms in every source; try_emplace() alone fills it, for
/// then all kinds of pointers share that, too.
using PointerIndex = std::unordered_map<const void*, std::size_t>;

}  // namespace tidemark::detail
