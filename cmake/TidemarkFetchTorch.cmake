# tidemark_fetch_torch(<dir> <error>): the folder of the TorchConfig.cmake of a LibTorch that pip
# installs into a private folder of the user's, which outlives build trees. About 1.5 GB and a minute
# where there is no NVIDIA driver, 5 GB and some minutes where there is one. <error> as for
# tidemark_find_torch().

include("${CMAKE_CURRENT_LIST_DIR}/TidemarkPip.cmake")

set(TIDEMARK_TORCH_VERSION "" CACHE STRING
    "The only version of LibTorch to use, and to fetch if there is none; empty for any")

# What to fetch where any will do.
set(TIDEMARK_TORCH_DEFAULT 2.11.0)

if(EXISTS /proc/driver/nvidia/version OR EXISTS /dev/dxg)
  option(TIDEMARK_FETCH_CUDA "Fetch all that the CUDA part of LibTorch needs" ON)
else()
  option(TIDEMARK_FETCH_CUDA "Fetch all that the CUDA part of LibTorch needs" OFF)
endif()

# Where pip has put torch below FOLDER.
function(_tidemark_installed_torch out folder)
  file(GLOB root "${folder}/lib/python*/site-packages/torch" "${folder}/site-packages/torch")
  set(${out} "${root}" PARENT_SCOPE)
endfunction()

# Fills FOLDER with the LibTorch of VERSION.
function(_tidemark_install_torch folder version out_error)
  set(requirement "torch==${version}")
  _tidemark_make_pip("${folder}" pip error)
  if(NOT error AND NOT TIDEMARK_FETCH_CUDA)
    # The wheel has CUDA code in it. To load its CPU part takes two of the fifteen CUDA packages.
    _tidemark_run_pip("${folder}" error ${pip} --no-deps ${requirement})
    _tidemark_installed_torch(root "${folder}")
    file(GLOB metadata "${root}-*.dist-info/METADATA")
    if(metadata AND NOT error)
      file(STRINGS "${metadata}" toolkit REGEX "^Requires-Dist: cuda-toolkit")
      if(toolkit MATCHES "==([0-9.]+)")
        _tidemark_run_pip("${folder}" error ${pip} --no-warn-conflicts
                          "cuda-toolkit[cudart,cupti]==${CMAKE_MATCH_1}")
      endif()
    endif()
  elseif(NOT error)
    _tidemark_run_pip("${folder}" error ${pip} ${requirement})
  endif()
  set(${out_error} "${error}" PARENT_SCOPE)
endfunction()

function(tidemark_fetch_torch out_dir out_error)
  set(version "${TIDEMARK_TORCH_VERSION}")
  if(NOT version)
    set(version ${TIDEMARK_TORCH_DEFAULT})
  endif()
  set(flavour cpu)
  if(TIDEMARK_FETCH_CUDA)
    set(flavour cuda)
  endif()
  set(folder "${TIDEMARK_CACHE_DIR}/torch-${version}-${flavour}")
  set(stamp "${folder}/complete") # written last: an interrupted fetch starts again
  set(error "")

  if(NOT EXISTS "${stamp}")
    execute_process(COMMAND "${CMAKE_COMMAND}" -E make_directory "${TIDEMARK_CACHE_DIR}"
                    RESULT_VARIABLE failed ERROR_QUIET)
    if(failed)
      set(error "${TIDEMARK_CACHE_DIR} cannot be made. Name another: -DTIDEMARK_CACHE_DIR=<folder>")
    else()
      message(STATUS "LibTorch: none found, fetching ${version} into ${folder}, "
                     "which takes some minutes (Torch_DIR names one that you have)")
      file(LOCK "${folder}.lock" GUARD FUNCTION TIMEOUT 3600 RESULT_VARIABLE locked)
      if(NOT locked EQUAL 0)
        set(error "${folder}.lock cannot be locked: ${locked}")
      elseif(NOT EXISTS "${stamp}") # else another configure has fetched it meanwhile
        _tidemark_install_torch("${folder}" ${version} error)
        _tidemark_installed_torch(root "${folder}")
        if(NOT error AND NOT EXISTS "${root}/share/cmake/Torch/TorchConfig.cmake")
          set(error "there is no TorchConfig.cmake in what pip has installed")
        endif()
        if(NOT error)
          file(TOUCH "${stamp}")
        endif()
      endif()
    endif()
  endif()

  if(error)
    string(
      CONCAT error
      "LibTorch ${version} was not found and not fetched: ${error}.\n"
      "Another version: -DTIDEMARK_TORCH_VERSION=<version>.\n"
      "Or use one that you have, ${TIDEMARK_TORCH_MINIMUM} or later: put its folder "
      "<libtorch>/share/cmake/Torch into the variable Torch_DIR, with -D or in the environment; for "
      "a pip install <libtorch> is <site-packages>/torch.\n"
      "The workflows keep what cmake --preset release -D<name>=<value> has set.")
  endif()
  _tidemark_installed_torch(root "${folder}")
  set(${out_dir} "${root}/share/cmake/Torch" PARENT_SCOPE)
  set(${out_error} "${error}" PARENT_SCOPE)
endfunction()
