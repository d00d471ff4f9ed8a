# tidemark_fetch_json(<dir> <error>): the folder with nlohmann/json.hpp that pip installs into a
# private folder of the user's; or why there is none.

include("${CMAKE_CURRENT_LIST_DIR}/TidemarkPip.cmake")

function(tidemark_fetch_json out_dir out_error)
  set(version 3.12.0)
  set(folder "${TIDEMARK_CACHE_DIR}/nlohmann-json-${version}")
  set(headers "${folder}/site-packages/nlohmann_json/include")
  set(error "")
  file(MAKE_DIRECTORY "${folder}")
  file(LOCK "${folder}.lock" GUARD FUNCTION TIMEOUT 600)
  if(NOT EXISTS "${headers}/nlohmann/json.hpp")
    _tidemark_make_pip("${folder}/venv" pip error)
    if(NOT error)
      # Into a folder of its own, so that the path says nothing of the Python at hand.
      _tidemark_run_pip("${folder}" error ${pip} --no-deps --upgrade --target
                        "${folder}/site-packages" nlohmann-json==${version})
    endif()
    file(REMOVE_RECURSE "${folder}/venv")
  endif()
  set(${out_dir} "${headers}" PARENT_SCOPE)
  set(${out_error} "${error}" PARENT_SCOPE)
endfunction()
