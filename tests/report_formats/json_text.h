#pragma once

// Reads JSON back with a parser that is not ours: the package nlohmann-json3-dev. It refuses what
// is no JSON or no UTF-8.

#if __has_include(<nlohmann/json.hpp>)

#include <nlohmann/json.hpp>

#define TIDEMARK_HAS_JSON_PARSER 1

#else

#define TIDEMARK_HAS_JSON_PARSER 0

#endif
