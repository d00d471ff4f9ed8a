# tidemark.h includes every public header but gtest/ and those for CUDA alone.
file(READ "${INCLUDE_DIR}/tidemark/tidemark.h" umbrella)
file(GLOB_RECURSE headers RELATIVE "${INCLUDE_DIR}" "${INCLUDE_DIR}/tidemark/*.h")
list(FILTER headers EXCLUDE REGEX "/(detail|gtest)/|/cuda_[a-z_]+\\.h$|/tidemark\\.h$")
foreach(header IN LISTS headers)
  if(NOT umbrella MATCHES "#include <${header}>")
    message(SEND_ERROR "tidemark.h does not include <${header}>")
  endif()
endforeach()
