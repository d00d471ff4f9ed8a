# An overlay port: vcpkg install tidemark --overlay-ports=<tidemark>/cmake/vcpkg
# It packages the sources that it lies in. LibTorch is found where the package is used.

set(VCPKG_BUILD_TYPE release) # headers only

get_filename_component(SOURCE_PATH "${CURRENT_PORT_DIR}/../../.." ABSOLUTE)

vcpkg_cmake_configure(
  SOURCE_PATH "${SOURCE_PATH}"
  OPTIONS -DTIDEMARK_BUILD_TESTS=OFF -DTIDEMARK_BUILD_EXAMPLES=OFF)
vcpkg_cmake_install()
vcpkg_cmake_config_fixup(CONFIG_PATH share/cmake/tidemark)

file(REMOVE_RECURSE "${CURRENT_PACKAGES_DIR}/debug" "${CURRENT_PACKAGES_DIR}/lib"
     "${CURRENT_PACKAGES_DIR}/share/doc")
vcpkg_install_copyright(FILE_LIST "${SOURCE_PATH}/LICENSE")
