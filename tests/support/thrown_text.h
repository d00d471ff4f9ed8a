#pragma once

#include <c10/util/Exception.h>

#include <exception>
#include <optional>
#include <string>

namespace tidemark::tests {

/// What `action` throws, without a backtrace; nothing if it throws nothing. Everything that is no
/// std::exception passes.
template <class Action>
std::optional<std::string> thrown_text(Action&& action) {
  try {
    action();
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  } catch (const std::exception& error) {
    return error.what();
  }
  return std::nullopt;
}

}  // namespace tidemark::tests
