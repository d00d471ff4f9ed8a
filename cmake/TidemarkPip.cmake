# Packages of the Python package index in private folders of the user's, which outlive build trees.

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
                        "system. Check the network, name a mirror (environment variable "
                        "PIP_INDEX_URL), or name another Python: -DTIDEMARK_PYTHON=<python>")
  else()
    set(error "pip failed, see its output above")
  endif()
  set(${out_error} "${error}" PARENT_SCOPE)
endfunction()
