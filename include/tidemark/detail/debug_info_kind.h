#pragma once

#include <c10/util/ThreadLocalDebugInfo.h>

#include <cstdint>
#include <string_view>
#include <type_traits>

namespace tidemark::detail {

/// A kind of c10::ThreadLocalDebugInfo that is none of LibTorch's: by number in a LibTorch where it
/// is an enum, by the address of its name in newer ones, where it is a class.
template <class Kind = c10::DebugInfoKind>
constexpr Kind own_debug_info_kind(uint8_t number, const std::string_view* name) {
  if constexpr (std::is_enum_v<Kind>) {
    return static_cast<Kind>(number);
  } else {
    return Kind(name);
  }
}

}  // namespace tidemark::detail
