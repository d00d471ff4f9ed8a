# cmake -DSOURCE= -DFOLDER= -DVERSION= -DGENERATOR= -P vcpkg_port_test.cmake
# Runs the port with stand-ins for vcpkg's functions, which do what these do with such arguments.

set(CURRENT_PORT_DIR "${SOURCE}/cmake/vcpkg/tidemark")
set(CURRENT_PACKAGES_DIR "${FOLDER}/packages")
set(CURRENT_BUILDTREES_DIR "${FOLDER}/build")
file(REMOVE_RECURSE "${FOLDER}")

function(vcpkg_cmake_configure)
  cmake_parse_arguments(PARSE_ARGV 0 arg "" "SOURCE_PATH" "OPTIONS")
  execute_process(
    COMMAND "${CMAKE_COMMAND}" -G "${GENERATOR}" -S "${arg_SOURCE_PATH}" -B
            "${CURRENT_BUILDTREES_DIR}" ${arg_OPTIONS}
            "-DCMAKE_INSTALL_PREFIX=${CURRENT_PACKAGES_DIR}" COMMAND_ERROR_IS_FATAL ANY)
endfunction()
function(vcpkg_cmake_install)
  execute_process(COMMAND "${CMAKE_COMMAND}" --install "${CURRENT_BUILDTREES_DIR}"
                  COMMAND_ERROR_IS_FATAL ANY)
endfunction()
function(vcpkg_cmake_config_fixup)
  cmake_parse_arguments(PARSE_ARGV 0 arg "" "CONFIG_PATH;PACKAGE_NAME" "")
  if(NOT EXISTS "${CURRENT_PACKAGES_DIR}/${arg_CONFIG_PATH}/tidemarkConfig.cmake")
    message(FATAL_ERROR "there is no config file in ${arg_CONFIG_PATH}")
  endif()
  file(RENAME "${CURRENT_PACKAGES_DIR}/${arg_CONFIG_PATH}" "${CURRENT_PACKAGES_DIR}/share/tidemark")
endfunction()
function(vcpkg_install_copyright)
  cmake_parse_arguments(PARSE_ARGV 0 arg "" "" "FILE_LIST")
  file(COPY_FILE "${arg_FILE_LIST}" "${CURRENT_PACKAGES_DIR}/share/tidemark/copyright")
endfunction()

include("${CURRENT_PORT_DIR}/portfile.cmake")
foreach(file IN ITEMS include/tidemark/tidemark.h share/tidemark/tidemarkConfig.cmake
                      share/tidemark/copyright)
  if(NOT EXISTS "${CURRENT_PACKAGES_DIR}/${file}")
    message(FATAL_ERROR "the port lacks ${file}")
  endif()
endforeach()
file(GLOB rest RELATIVE "${CURRENT_PACKAGES_DIR}" "${CURRENT_PACKAGES_DIR}/*")
if(NOT rest STREQUAL "include;share")
  message(FATAL_ERROR "the port has ${rest}")
endif()

file(READ "${CURRENT_PORT_DIR}/vcpkg.json" manifest)
string(JSON version GET "${manifest}" version)
if(NOT version STREQUAL VERSION)
  message(FATAL_ERROR "vcpkg.json is of version ${version}, the library of ${VERSION}")
endif()
