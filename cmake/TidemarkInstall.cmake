# The installed package: headers, the target, and the helper that finds LibTorch where it is used.

include(CMakePackageConfigHelpers)
include(GNUInstallDirs)

set(package_dir "${CMAKE_INSTALL_DATADIR}/cmake/tidemark")

install(DIRECTORY "${PROJECT_SOURCE_DIR}/include/tidemark" DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}"
        FILES_MATCHING PATTERN "*.h")
install(TARGETS tidemark EXPORT tidemarkTargets
        INCLUDES DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}")
install(EXPORT tidemarkTargets NAMESPACE tidemark:: DESTINATION "${package_dir}")

configure_package_config_file(
  "${CMAKE_CURRENT_LIST_DIR}/tidemarkConfig.cmake.in" "${PROJECT_BINARY_DIR}/tidemarkConfig.cmake"
  INSTALL_DESTINATION "${package_dir}" NO_SET_AND_CHECK_MACRO)
write_basic_package_version_file("${PROJECT_BINARY_DIR}/tidemarkConfigVersion.cmake"
                                 COMPATIBILITY SameMinorVersion ARCH_INDEPENDENT)
install(FILES "${PROJECT_BINARY_DIR}/tidemarkConfig.cmake"
              "${PROJECT_BINARY_DIR}/tidemarkConfigVersion.cmake"
              "${CMAKE_CURRENT_LIST_DIR}/TidemarkTorch.cmake"
        DESTINATION "${package_dir}")
install(FILES "${PROJECT_SOURCE_DIR}/LICENSE" DESTINATION "${CMAKE_INSTALL_DOCDIR}")
