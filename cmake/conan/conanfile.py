"""Conan 2 recipe. Packages the headers and CMake files, and tests the package:

    conan create cmake/conan --test-folder tests/package/conan

LibTorch is not in the package, and not needed to make it: find_package(tidemark) finds the one of
the machine at hand, by Torch_DIR, CMAKE_PREFIX_PATH or the Python on PATH.
"""

import os
import re

from conan import ConanFile
from conan.tools.cmake import CMake, CMakeToolchain, cmake_layout
from conan.tools.files import copy, load

required_conan_version = ">=2.0"


class TidemarkConan(ConanFile):
    name = "tidemark"
    license = "BSD-3-Clause"
    description = "Lowers the high-water mark of memory in LibTorch training"
    topics = ("libtorch", "pytorch", "memory", "checkpointing", "mixed-precision", "header-only")
    package_type = "header-library"
    settings = "os", "compiler", "build_type", "arch"
    implements = ["auto_header_only"]

    @property
    def _root(self):
        return os.path.join(self.recipe_folder, "..", "..")

    def set_version(self):
        version_h = load(self, os.path.join(self._root, "include", "tidemark", "version.h"))
        self.version = ".".join(
            re.search(rf"TIDEMARK_VERSION_{part} (\d+)", version_h).group(1)
            for part in ("MAJOR", "MINOR", "PATCH"))

    def export_sources(self):
        for pattern in ("CMakeLists.txt", "LICENSE", "cmake/*", "include/*"):
            copy(self, pattern, self._root, self.export_sources_folder)

    def layout(self):
        cmake_layout(self)

    def generate(self):
        toolchain = CMakeToolchain(self)
        toolchain.cache_variables["TIDEMARK_BUILD_TESTS"] = False
        toolchain.cache_variables["TIDEMARK_BUILD_EXAMPLES"] = False
        toolchain.generate()

    def package(self):
        cmake = CMake(self)
        cmake.configure()
        cmake.install()

    def package_info(self):
        # The package has a config file of its own, which finds LibTorch.
        self.cpp_info.set_property("cmake_find_mode", "none")
        self.cpp_info.builddirs = [os.path.join("share", "cmake", "tidemark")]
        self.cpp_info.bindirs = []
        self.cpp_info.libdirs = []
