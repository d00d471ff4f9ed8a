# Views of objects, for the examples that look at them: meshes, a rasteriser, transforms.json.

include_guard(GLOBAL)

add_library(
  examples_views STATIC
  "${CMAKE_CURRENT_LIST_DIR}/mesh.cpp" "${CMAKE_CURRENT_LIST_DIR}/object_views.cpp"
  "${CMAKE_CURRENT_LIST_DIR}/ply.cpp"
  "${CMAKE_CURRENT_LIST_DIR}/rasterise.cpp" "${CMAKE_CURRENT_LIST_DIR}/rgba_image.cpp"
  "${CMAKE_CURRENT_LIST_DIR}/view_picture.cpp"
  "${CMAKE_CURRENT_LIST_DIR}/views.cpp" "${CMAKE_CURRENT_LIST_DIR}/views_json.cpp")
tidemark_develop_target(examples_views)
target_link_libraries(examples_views PUBLIC examples_common)
if(NLOHMANN_JSON_INCLUDE_DIR)
  target_compile_definitions(examples_views PRIVATE TIDEMARK_EXAMPLES_JSON)
  target_include_directories(examples_views SYSTEM PRIVATE "${NLOHMANN_JSON_INCLUDE_DIR}")
endif()
