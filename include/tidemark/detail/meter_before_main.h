#pragma once

// Installs the memory meter before main(), so that no test depends on which one measures first.

#include <tidemark/memory/memory_scope.h>

namespace tidemark::detail {

inline const bool meter_is_installed = (install_memory_meter(), true);

}  // namespace tidemark::detail
