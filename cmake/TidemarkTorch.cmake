# tidemark_find_torch(<error>): finds LibTorch and defines the target tidemark::torch. Used by this
# project, by projects that add it as a subdirectory, and by its installed package. Looks at
#
#   1. the targets of a find_package(Torch) that the including project has called before;
#   2. Torch_DIR, Torch_ROOT, CMAKE_PREFIX_PATH (variables or environment) and the system;
#   3. the torch of the Python on PATH (-DTIDEMARK_PYTHON=<python> for another one);
#   4. where TidemarkFetchTorch.cmake is included, the one that it fetches.
#
# Of another version than TIDEMARK_TORCH_VERSION, if that is set, none is taken.
#
# <error> is empty on success, else says what was looked at and what to do. Sets Torch_VERSION,
# TIDEMARK_TORCH_DIR (the folder of TorchConfig.cmake) and TIDEMARK_TORCH_INCLUDE_DIR in the caller,
# and Torch_DIR in the cache as find_package(Torch) does. Changes no other variable and no flag.
#
# A CUDA build of LibTorch, pip's or the zip, is used without its find_package(Torch). That one enables
# the CUDA language and sets its flags, and so stops where there is no CUDA toolkit or where nvcc
# refuses the host compiler; headers need neither. A project with CUDA sources of its own calls
# find_package(Torch) first, and case 1 holds.

set(TIDEMARK_TORCH_MINIMUM 2.11) # the oldest LibTorch that is tested
set(TIDEMARK_TORCH_CXX20 2.14)   # the first one whose headers ask for C++20

# The version of the LibTorch whose TorchConfig.cmake is in TORCH_DIR.
function(_tidemark_torch_version out torch_dir)
  set(text "")
  if(EXISTS "${torch_dir}/TorchConfigVersion.cmake")
    file(READ "${torch_dir}/TorchConfigVersion.cmake" text)
  endif()
  string(REGEX MATCH "PACKAGE_VERSION \"([0-9.]+)" _ "${text}")
  set(${out} "${CMAKE_MATCH_1}" PARENT_SCOPE)
endfunction()

# The folders of the TorchConfig.cmake files that find_package(Torch) would consider, without running
# one: a version that none has makes CMake list them all.
function(_tidemark_torch_packages out)
  find_package(Torch 9999 CONFIG QUIET)
  unset(Torch_DIR CACHE)
  set(dirs "")
  foreach(config IN LISTS Torch_CONSIDERED_CONFIGS)
    cmake_path(GET config PARENT_PATH dir)
    list(APPEND dirs "${dir}")
  endforeach()
  set(${out} "${dirs}" PARENT_SCOPE)
endfunction()

function(_tidemark_find_python out)
  if(NOT TIDEMARK_PYTHON)
    find_program(TIDEMARK_PYTHON NAMES python3 python NO_CACHE)
  endif()
  set(${out} "${TIDEMARK_PYTHON}" PARENT_SCOPE)
endfunction()

# The same of the torch package of Python. Asked without importing it, which takes seconds and fails
# where only the libraries are complete.
function(_tidemark_python_torch out)
  _tidemark_find_python(python)
  execute_process(
    COMMAND
      "${python}" -c
      "import importlib.util as u, os; print(os.path.dirname(u.find_spec('torch').origin))"
    WORKING_DIRECTORY / # elsewhere a folder named torch would count as a package
    OUTPUT_VARIABLE folder OUTPUT_STRIP_TRAILING_WHITESPACE
    ERROR_QUIET
    RESULT_VARIABLE failed)
  if(failed)
    set(${out} "" PARENT_SCOPE)
  else()
    set(${out} "${folder}/share/cmake/Torch" PARENT_SCOPE)
  endif()
endfunction()

# The folder of the TorchConfig.cmake to use, or what to do about there being none.
function(_tidemark_locate_torch out_dir out_error)
  set(given "${Torch_DIR}")
  if(NOT given)
    set(given "$ENV{Torch_DIR}")
  endif()
  if(given AND NOT EXISTS "${given}/TorchConfig.cmake")
    string(
      CONCAT error
      "Torch_DIR is ${given}, where there is no TorchConfig.cmake. Correct it, or remove it to have "
      "LibTorch looked for: cmake -UTorch_DIR, or unset the environment variable.")
    set(${out_error} "${error}" PARENT_SCOPE)
    return()
  endif()

  if(given)
    set(candidates "${given}")
  else()
    _tidemark_torch_packages(candidates)
    _tidemark_python_torch(python_torch)
    list(APPEND candidates ${python_torch})
  endif()
  set(seen "")
  foreach(dir IN LISTS candidates)
    _tidemark_torch_version(version "${dir}")
    if(version VERSION_GREATER_EQUAL TIDEMARK_TORCH_MINIMUM
       AND (NOT TIDEMARK_TORCH_VERSION OR version VERSION_EQUAL TIDEMARK_TORCH_VERSION))
      set(Torch_DIR "${dir}" CACHE PATH "The folder of TorchConfig.cmake")
      set(${out_dir} "${dir}" PARENT_SCOPE)
      set(${out_error} "" PARENT_SCOPE)
      return()
    endif()
    string(APPEND seen " Passed over version ${version} in ${dir}.")
  endforeach()

  if(COMMAND tidemark_fetch_torch AND NOT given)
    if(seen)
      message(STATUS "LibTorch:${seen}")
    endif()
    tidemark_fetch_torch(dir error)
    set(${out_dir} "${dir}" PARENT_SCOPE)
    set(${out_error} "${error}" PARENT_SCOPE)
  else()
    set(wanted "${TIDEMARK_TORCH_MINIMUM} or later")
    if(TIDEMARK_TORCH_VERSION)
      set(wanted "${TIDEMARK_TORCH_VERSION}, since TIDEMARK_TORCH_VERSION says so,")
    endif()
    string(
      CONCAT error
      "tidemark needs LibTorch ${wanted} and found none.${seen}\n"
      "Do one of these:\n"
      "  - name it: -DTorch_DIR=<libtorch>/share/cmake/Torch, or the environment variable of that "
      "name; for a pip install <libtorch> is <site-packages>/torch\n"
      "  - put a Python that has torch first on PATH, or name it: -DTIDEMARK_PYTHON=<python>\n"
      "  - call find_package(Torch) before tidemark is added or found")
    set(${out_error} "${error}" PARENT_SCOPE)
  endif()
endfunction()

# tidemark::torch on top of the targets of find_package(Torch).
function(_tidemark_use_torch_package)
  if(NOT TORCH_LIBRARIES)
    set(TORCH_LIBRARIES torch)
  endif()
  add_library(tidemark::torch INTERFACE IMPORTED GLOBAL)
  target_link_libraries(tidemark::torch INTERFACE ${TORCH_LIBRARIES})
endfunction()

# The shared libraries that FILE needs and the loader does not find.
function(_tidemark_missing_libraries out file)
  execute_process(COMMAND ldd "${file}" OUTPUT_VARIABLE text ERROR_QUIET RESULT_VARIABLE _)
  string(REGEX MATCHALL "[^\n\t ]+ => not found" missing "${text}")
  list(TRANSFORM missing REPLACE " => not found" "")
  list(JOIN missing ", " missing)
  set(${out} "${missing}" PARENT_SCOPE)
endfunction()

# tidemark::torch from the libraries and headers below ROOT, a CUDA build.
function(_tidemark_use_torch_folder root)
  _tidemark_missing_libraries(missing "${root}/lib/libtorch_cpu.so")
  if(missing)
    message(WARNING "LibTorch in ${root} needs ${missing}, which the loader does not find: programs "
                    "will not start. Install what it depends on, as pip install torch does, or use "
                    "another LibTorch: -DTorch_DIR=<libtorch>/share/cmake/Torch")
  endif()
  set(libraries torch_cpu c10)
  _tidemark_missing_libraries(missing "${root}/lib/libtorch_cuda.so")
  if(missing)
    message(STATUS "LibTorch: for the CPU only, its CUDA part needs ${missing}")
  else()
    list(APPEND libraries torch_cuda c10_cuda)
  endif()

  file(READ "${root}/share/cmake/Caffe2/Caffe2Targets.cmake" targets)
  foreach(library IN LISTS libraries)
    add_library(tidemark::${library} SHARED IMPORTED GLOBAL)
    set_target_properties(
      tidemark::${library} PROPERTIES IMPORTED_LOCATION "${root}/lib/lib${library}.so"
                                      IMPORTED_SONAME "lib${library}.so")
    # What the library was built with, USE_DISTRIBUTED among it, decides the layout of some classes.
    if(targets MATCHES "\\(${library} PROPERTIES[ \n]+INTERFACE_COMPILE_DEFINITIONS \"([^\"]+)\"")
      target_compile_definitions(tidemark::${library} INTERFACE ${CMAKE_MATCH_1})
    endif()
  endforeach()

  add_library(tidemark::torch INTERFACE IMPORTED GLOBAL)
  target_include_directories(tidemark::torch SYSTEM INTERFACE
                             "${root}/include" "${root}/include/torch/csrc/api/include")
  target_compile_definitions(tidemark::torch INTERFACE _GLIBCXX_USE_CXX11_ABI=1)
  if(torch_cuda IN_LIST libraries)
    # Nothing refers to a symbol of it, yet it has to be loaded: it registers the CUDA kernels.
    target_link_libraries(
      tidemark::torch
      INTERFACE "-Wl,--push-state,--no-as-needed,\"${root}/lib/libtorch_cuda.so\",--pop-state")
  endif()
  list(TRANSFORM libraries PREPEND tidemark::)
  target_link_libraries(tidemark::torch INTERFACE ${libraries})
endfunction()

function(tidemark_find_torch out_error)
  set(${out_error} "" PARENT_SCOPE)
  if(TARGET tidemark::torch)
    return()
  endif()

  if(TARGET torch)
    message(STATUS "LibTorch: the targets of find_package(Torch)")
    _tidemark_use_torch_package()
  else()
    _tidemark_locate_torch(dir error)
    if(error)
      set(${out_error} "${error}" PARENT_SCOPE)
      return()
    endif()
    set(Torch_DIR "${dir}")
    cmake_path(SET root NORMALIZE "${dir}/../../..")
    string(REGEX REPLACE "/$" "" root "${root}")
    if(EXISTS "${root}/lib/libtorch_cpu.so" AND EXISTS "${root}/lib/libtorch_cuda.so")
      set(TORCH_INCLUDE_DIRS "${root}/include")
      _tidemark_use_torch_folder("${root}")
    else()
      set(CMAKE_FIND_PACKAGE_TARGETS_GLOBAL TRUE)
      find_package(Torch REQUIRED CONFIG)
      _tidemark_use_torch_package()
    endif()
  endif()

  _tidemark_torch_version(version "${Torch_DIR}")
  if(version VERSION_GREATER_EQUAL TIDEMARK_TORCH_CXX20)
    set(standard 20)
  else()
    set(standard 17)
  endif()
  target_compile_features(tidemark::torch INTERFACE cxx_std_${standard})
  get_property(languages GLOBAL PROPERTY ENABLED_LANGUAGES)
  if(CUDA IN_LIST languages)  # CMake refuses the feature where there is no CUDA
    if(cuda_std_${standard} IN_LIST CMAKE_CUDA_COMPILE_FEATURES)
      target_compile_features(tidemark::torch INTERFACE cuda_std_${standard})
    else()  # an older CMake does not know of it, nvcc does
      target_compile_options(
        tidemark::torch INTERFACE "$<$<COMPILE_LANGUAGE:CUDA>:-std=c++${standard}>")
    endif()
  endif()
  if(UNIX AND NOT APPLE)
    # LibTorch finds what it depends on when it is loaded. The linker would look elsewhere, at an
    # older NCCL of the system for one, and miss symbols.
    target_link_options(tidemark::torch INTERFACE LINKER:--allow-shlib-undefined)
  endif()
  message(STATUS "LibTorch ${version}, C++${standard}: ${Torch_DIR}")
  set(Torch_VERSION "${version}" PARENT_SCOPE)
  set(TIDEMARK_TORCH_DIR "${Torch_DIR}" PARENT_SCOPE)
  list(GET TORCH_INCLUDE_DIRS 0 include_dir)
  set(TIDEMARK_TORCH_INCLUDE_DIR "${include_dir}" PARENT_SCOPE)
endfunction()
