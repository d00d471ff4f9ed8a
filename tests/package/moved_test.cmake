# cmake -DBUILD= -DSOURCE= -DFOLDER= -DCTEST= -DCONSUMER= -DGENERATOR= -DOPTIONS= -P moved_test.cmake
# An installed tidemark works from another folder than it was installed to, and names none.

file(REMOVE_RECURSE "${FOLDER}")
execute_process(COMMAND "${CMAKE_COMMAND}" --install "${BUILD}" --prefix "${FOLDER}/first"
                OUTPUT_QUIET COMMAND_ERROR_IS_FATAL ANY)
file(RENAME "${FOLDER}/first" "${FOLDER}/second")

file(GLOB_RECURSE files "${FOLDER}/second/*")
foreach(file IN LISTS files)
  file(READ "${file}" text)
  foreach(path IN ITEMS "${FOLDER}" "${BUILD}" "${SOURCE}")
    string(FIND "${text}" "${path}" place)
    if(NOT place EQUAL -1)
      message(FATAL_ERROR "${file} names ${path}")
    endif()
  endforeach()
endforeach()

execute_process(
  COMMAND "${CTEST}" --build-and-test "${CONSUMER}" "${FOLDER}/consumer" --build-generator "${GENERATOR}"
          --build-options ${OPTIONS} "-DCMAKE_PREFIX_PATH=${FOLDER}/second" --test-command consumer
          COMMAND_ERROR_IS_FATAL ANY)
