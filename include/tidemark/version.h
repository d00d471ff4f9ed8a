/// \file
/// The version of tidemark. This is its only place: CMake reads the numbers from here.
#pragma once

/// The first number of MAJOR.MINOR.PATCH, which count up as in https://semver.org.
#define TIDEMARK_VERSION_MAJOR 0
/// The second number of MAJOR.MINOR.PATCH.
#define TIDEMARK_VERSION_MINOR 1
/// The third number of MAJOR.MINOR.PATCH.
#define TIDEMARK_VERSION_PATCH 0

/// One number to compare in `#if`: 0.1.0 is 100, 1.2.3 is 10203.
#define TIDEMARK_VERSION \
  (TIDEMARK_VERSION_MAJOR * 10000 + TIDEMARK_VERSION_MINOR * 100 + TIDEMARK_VERSION_PATCH)

#define TIDEMARK_DETAIL_STRING(x) #x
#define TIDEMARK_DETAIL_VERSION_STRING(major, minor, patch) \
  TIDEMARK_DETAIL_STRING(major)                             \
  "." TIDEMARK_DETAIL_STRING(minor) "." TIDEMARK_DETAIL_STRING(patch)

/// The same as text: "0.1.0".
#define TIDEMARK_VERSION_STRING                                                  \
  TIDEMARK_DETAIL_VERSION_STRING(TIDEMARK_VERSION_MAJOR, TIDEMARK_VERSION_MINOR, \
                                 TIDEMARK_VERSION_PATCH)
