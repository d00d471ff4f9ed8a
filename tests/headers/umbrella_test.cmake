# Every public header but gtest/ and those for CUDA alone is included by tidemark.h or by diagnostics.h.
file(READ "${INCLUDE_DIR}/tidemark/tidemark.h" training)
file(READ "${INCLUDE_DIR}/tidemark/diagnostics.h" diagnostics)
file(GLOB_RECURSE headers RELATIVE "${INCLUDE_DIR}" "${INCLUDE_DIR}/tidemark/*.h")
list(FILTER headers EXCLUDE REGEX
     "/(detail|gtest)/|/cuda_[a-z_]+\\.h$|/(tidemark|diagnostics)\\.h$")
foreach(header IN LISTS headers)
  if(NOT "${training}${diagnostics}" MATCHES "#include <${header}>")
    message(SEND_ERROR "neither tidemark.h nor diagnostics.h includes <${header}>")
  endif()
endforeach()
