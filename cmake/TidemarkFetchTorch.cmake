# tidemark_fetch_torch(<dir> <error>): the folder of the TorchConfig.cmake of a LibTorch that pip
# installs into a private folder of the user's, which outlives build trees. About 1.5 GB and a minute
# where there is no NVIDIA driver, 5 GB and some minutes where there is one. <error> as for
# tidemark_find_torch().

set(TIDEMARK_TORCH_VERSION 2.11.0 CACHE STRING "The LibTorch to fetch where none is found")

if(EXISTS /proc/driver/nvidia/version OR EXISTS /dev/dxg)
  option(TIDEMARK_FETCH_CUDA "Fetch all that the CUDA part of LibTorch needs" ON)
else()
  option(TIDEMARK_FETCH_CUDA "Fetch all that the CUDA part of LibTorch needs" OFF)
endif()

# Not kept in the CMake cache, so that another environment counts after one that did not do.
if(NOT TIDEMARK_CACHE_DIR)
  if(DEFINED ENV{XDG_CACHE_HOME})
    set(TIDEMARK_CACHE_DIR "$ENV{XDG_CACHE_HOME}/tidemark")
  elseif(DEFINED ENV{HOME})
    set(TIDEMARK_CACHE_DIR "$ENV{HOME}/.cache/tidemark")
  else()
    set(TIDEMARK_CACHE_DIR "${PROJECT_SOURCE_DIR}/.cache")
  endif()
endif()

# A pip that installs into FOLDER, as a command, or an error.
function(_tidemark_make_pip folder out_pip out_error)
  set(${out_error} "" PARENT_SCOPE)
  _tidemark_find_python(python)
  if(NOT python)
    set(${out_error} "there is no python3 on PATH. Install one or name it: -DTIDEMARK_PYTHON=<python>"
        PARENT_SCOPE)
    return()
  endif()
  execute_process(COMMAND "${python}" -m venv --clear "${folder}" RESULT_VARIABLE failed
                  OUTPUT_QUIET ERROR_QUIET)
  if(NOT failed)
    set(${out_pip} "${folder}/bin/python" -m pip install PARENT_SCOPE)
    return()
  endif()
  # Debian's python3 has no venv until python3-venv is installed. Its pip will do.
  file(REMOVE_RECURSE "${folder}")
  execute_process(COMMAND "${python}" -m pip --version RESULT_VARIABLE failed
                  OUTPUT_QUIET ERROR_QUIET)
  if(failed)
    string(CONCAT error "${python} has neither venv nor pip. Install one (Debian, Ubuntu: "
                        "apt install python3-venv) or name another Python: "
                        "-DTIDEMARK_PYTHON=<python>")
    set(${out_error} "${error}" PARENT_SCOPE)
    return()
  endif()
  set(${out_pip} "${python}" -m pip install --target "${folder}/site-packages" PARENT_SCOPE)
endfunction()

# Runs the command ARGN, a pip that installs into FOLDER, with its output on the terminal.
function(_tidemark_run_pip folder out_error)
  # Wheels of half a gigabyte pass through TMPDIR, and /tmp is often smaller.
  file(MAKE_DIRECTORY "${folder}/tmp")
  execute_process(
    COMMAND "${CMAKE_COMMAND}" -E env "TMPDIR=${folder}/tmp" PIP_USER=0
            PIP_ROOT_USER_ACTION=ignore ${ARGN} --no-cache-dir --no-input
            --disable-pip-version-check
    RESULT_VARIABLE failed
    OUTPUT_VARIABLE output
    ERROR_VARIABLE output
    ECHO_OUTPUT_VARIABLE ECHO_ERROR_VARIABLE)
  file(REMOVE_RECURSE "${folder}/tmp")
  set(error "")
  if(NOT failed)
    # Nothing to say.
  elseif(output MATCHES "No space left|Disk quota exceeded")
    string(CONCAT error "the disk of ${folder} is full. Name a folder on another one: "
                        "-DTIDEMARK_CACHE_DIR=<folder>")
  elseif(output MATCHES "No matching distribution|Max retries|Timeout|Connection|SSLError")
    string(CONCAT error "pip did not reach the package index, or this has none for this Python and "
                        "system. Check the network or name a mirror (environment variable "
                        "PIP_INDEX_URL); name another Python, -DTIDEMARK_PYTHON=<python>, or another "
                        "version, -DTIDEMARK_TORCH_VERSION=<version>")
  else()
    set(error "pip failed, see its output above")
  endif()
  set(${out_error} "${error}" PARENT_SCOPE)
endfunction()

# Where pip has put torch below FOLDER.
function(_tidemark_installed_torch out folder)
  file(GLOB root "${folder}/lib/python*/site-packages/torch" "${folder}/site-packages/torch")
  set(${out} "${root}" PARENT_SCOPE)
endfunction()

# Fills FOLDER.
function(_tidemark_install_torch folder out_error)
  set(requirement "torch==${TIDEMARK_TORCH_VERSION}")
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
  set(flavour cpu)
  if(TIDEMARK_FETCH_CUDA)
    set(flavour cuda)
  endif()
  set(folder "${TIDEMARK_CACHE_DIR}/torch-${TIDEMARK_TORCH_VERSION}-${flavour}")
  set(stamp "${folder}/complete") # written last: an interrupted fetch starts again
  set(error "")

  if(NOT EXISTS "${stamp}")
    execute_process(COMMAND "${CMAKE_COMMAND}" -E make_directory "${TIDEMARK_CACHE_DIR}"
                    RESULT_VARIABLE failed ERROR_QUIET)
    if(failed)
      set(error "${TIDEMARK_CACHE_DIR} cannot be made. Name another: -DTIDEMARK_CACHE_DIR=<folder>")
    else()
      message(STATUS "LibTorch: none found, fetching ${TIDEMARK_TORCH_VERSION} into ${folder}, "
                     "which takes some minutes (Torch_DIR names one that you have)")
      file(LOCK "${folder}.lock" GUARD FUNCTION TIMEOUT 3600 RESULT_VARIABLE locked)
      if(NOT locked EQUAL 0)
        set(error "${folder}.lock cannot be locked: ${locked}")
      elseif(NOT EXISTS "${stamp}") # else another configure has fetched it meanwhile
        _tidemark_install_torch("${folder}" error)
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
      "LibTorch ${TIDEMARK_TORCH_VERSION} was not found and not fetched: ${error}.\n"
      "Or use one that you have, ${TIDEMARK_TORCH_MINIMUM} or later: put its folder "
      "<libtorch>/share/cmake/Torch into the variable Torch_DIR, with -D or in the environment; for "
      "a pip install <libtorch> is <site-packages>/torch.\n"
      "The workflows keep what cmake --preset release -D<name>=<value> has set.")
  endif()
  _tidemark_installed_torch(root "${folder}")
  set(${out_dir} "${root}/share/cmake/Torch" PARENT_SCOPE)
  set(${out_error} "${error}" PARENT_SCOPE)
endfunction()
