#!/bin/sh
# conan_test.sh <conan> <source> <folder> <c++>: packages tidemark with conan, and builds and runs a
# program with the package.
set -eu
conan=$1 source=$2 folder=$3 cxx=$4

rm -rf "$folder"
mkdir -p "$folder"
export CONAN_HOME="$folder/home" CXX="$cxx"
"$conan" profile detect
"$conan" create "$source/cmake/conan" --test-folder "$source/tests/package/conan" \
  --settings compiler.cppstd=17 \
  --conf "tools.cmake.cmake_layout:test_folder=$folder/test" \
  --conf "tools.cmake.cmaketoolchain:user_presets=$folder/CMakeUserPresets.json"

# Nothing was left in the sources.
if [ -d "$source/tests/package/conan/build" ]; then
  echo "conan builds in the sources" >&2
  exit 1
fi
