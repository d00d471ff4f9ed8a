# GTest::gmock_main: the installed GoogleTest, else one that is fetched. Without either the tests fail
# to build, with a message; everything else goes on, so that the demo runs without GoogleTest.

find_package(GTest 1.11 QUIET CONFIG)
if(TARGET GTest::gmock_main)
  message(STATUS "GoogleTest ${GTest_VERSION}: ${GTest_DIR}")
  set(TIDEMARK_HAS_GTEST ON)
  return()
endif()

set(version 1.17.0)
set(archive "${PROJECT_BINARY_DIR}/googletest-${version}.tar.gz")
set(url https://github.com/google/googletest/releases/download/v${version}/googletest-${version}.tar.gz)
set(hash 65fab701d9829d38cb77c14acdc431d2108bfdbf8979e40eb8ae567edf10b27c)

# FetchContent ends the configuration when a download fails, this does not.
if(NOT EXISTS "${archive}")
  message(STATUS "GoogleTest: none found, fetching ${version}")
  file(DOWNLOAD "${url}" "${archive}.part" STATUS status TIMEOUT 120)
  file(SHA256 "${archive}.part" found)
  if(found STREQUAL hash)
    file(RENAME "${archive}.part" "${archive}")
  else()
    file(REMOVE "${archive}.part")
  endif()
endif()

if(EXISTS "${archive}")
  include(FetchContent)
  set(INSTALL_GTEST OFF CACHE BOOL "")
  FetchContent_Declare(googletest URL "${archive}" URL_HASH SHA256=${hash}
                       DOWNLOAD_EXTRACT_TIMESTAMP OFF)
  FetchContent_MakeAvailable(googletest)
  set(TIDEMARK_HAS_GTEST ON)
else()
  string(CONCAT message "GoogleTest was neither found nor fetched (${status}), so there are no tests. "
                        "Install it (Debian, Ubuntu: apt install libgtest-dev libgmock-dev) or name "
                        "it: -DGTest_DIR=<folder of GTestConfig.cmake>")
  message(WARNING "${message}")
  add_custom_target(googletest_is_missing ALL COMMAND "${CMAKE_COMMAND}" -E echo "${message}"
                                              COMMAND "${CMAKE_COMMAND}" -E false VERBATIM)
  set(TIDEMARK_HAS_GTEST OFF)
endif()
