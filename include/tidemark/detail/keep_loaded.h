#pragma once

// For code that LibTorch may call until the process ends: a plugin must not take it away.

#if __has_include(<dlfcn.h>)
#include <dlfcn.h>
#endif

namespace tidemark::detail {

/// Makes dlclose a no-op for the shared object that holds `code`.
inline void keep_loaded([[maybe_unused]] void (*code)()) {
#if defined(RTLD_NODELETE) && defined(RTLD_NOLOAD)
  Dl_info object;
  if (dladdr(reinterpret_cast<void*>(code), &object) != 0 && object.dli_fname != nullptr) {
    dlopen(object.dli_fname, RTLD_LAZY | RTLD_NOLOAD | RTLD_NODELETE);
  }
#endif
}

}  // namespace tidemark::detail
