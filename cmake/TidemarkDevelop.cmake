# What tests and examples share: warnings, sanitizers and one precompiled torch/torch.h.

set(TIDEMARK_SANITIZE "" CACHE STRING "Sanitizers for tests and examples, as in -fsanitize=")

add_library(tidemark_flags INTERFACE)
target_compile_options(tidemark_flags INTERFACE -Wall -Wextra)
if(TIDEMARK_SANITIZE)
  target_compile_options(tidemark_flags INTERFACE -fsanitize=${TIDEMARK_SANITIZE}
                                                  -fno-sanitize-recover=all -fno-omit-frame-pointer)
  target_link_options(tidemark_flags INTERFACE -fsanitize=${TIDEMARK_SANITIZE})
endif()

add_library(tidemark_develop INTERFACE)
target_link_libraries(tidemark_develop INTERFACE tidemark::tidemark tidemark_flags)

# The headers of CUDA, where there are any and LibTorch is built for CUDA.
find_package(CUDAToolkit QUIET)
if(CUDAToolkit_FOUND AND (TARGET tidemark::torch_cuda OR TARGET torch_cuda))
  add_library(tidemark_cuda_headers INTERFACE)
  target_include_directories(tidemark_cuda_headers SYSTEM INTERFACE ${CUDAToolkit_INCLUDE_DIRS})
endif()

# torch/torch.h takes 25 s to parse: once for all tests and examples.
file(CONFIGURE OUTPUT "${PROJECT_BINARY_DIR}/precompiled.cpp" CONTENT "")
add_library(tidemark_precompiled OBJECT "${PROJECT_BINARY_DIR}/precompiled.cpp")
target_link_libraries(tidemark_precompiled PRIVATE tidemark_develop)
target_precompile_headers(tidemark_precompiled PRIVATE <torch/torch.h>)

# A library or executable of ours that uses tidemark, with the shared precompiled header.
function(tidemark_develop_target name)
  target_link_libraries(${name} PUBLIC tidemark_develop)
  target_precompile_headers(${name} REUSE_FROM tidemark_precompiled)
endfunction()
