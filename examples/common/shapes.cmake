# Objects with a class each, for the examples that learn from them: meshes, voxels, scores, pictures.

include_guard(GLOBAL)
include("${CMAKE_CURRENT_LIST_DIR}/views.cmake")

add_library(
  examples_shapes STATIC
  "${CMAKE_CURRENT_LIST_DIR}/shape_picture.cpp" "${CMAKE_CURRENT_LIST_DIR}/shape_score.cpp"
  "${CMAKE_CURRENT_LIST_DIR}/shape_score_table.cpp"
  "${CMAKE_CURRENT_LIST_DIR}/shapes.cpp" "${CMAKE_CURRENT_LIST_DIR}/shapes_off.cpp"
  "${CMAKE_CURRENT_LIST_DIR}/shapes_voxels.cpp" "${CMAKE_CURRENT_LIST_DIR}/voxelise.cpp")
tidemark_develop_target(examples_shapes)
target_link_libraries(examples_shapes PUBLIC examples_views)
