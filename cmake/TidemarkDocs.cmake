# Target docs: the reference and the guide as HTML. A warning is an error: what is public and has no
# documentation, or a reference to nothing.

find_package(Doxygen 1.9 QUIET)
if(NOT DOXYGEN_FOUND)
  message(STATUS "Doxygen: not found, there is no target docs (Debian, Ubuntu: doxygen)")
  return()
endif()
message(STATUS "Doxygen ${DOXYGEN_VERSION}: found, the target docs is there")

set(DOXYGEN_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/docs")
set(DOXYGEN_STRIP_FROM_PATH "${PROJECT_SOURCE_DIR}/include" "${PROJECT_SOURCE_DIR}")
set(DOXYGEN_STRIP_FROM_INC_PATH "${PROJECT_SOURCE_DIR}/include")
set(DOXYGEN_EXCLUDE_PATTERNS "*/detail/*")
set(DOXYGEN_EXCLUDE_SYMBOLS "tidemark::detail" "*::detail" "TIDEMARK_DETAIL_*")
set(DOXYGEN_FILE_PATTERNS "*.h")
set(DOXYGEN_USE_MDFILE_AS_MAINPAGE "${PROJECT_SOURCE_DIR}/README.md")
set(DOXYGEN_JAVADOC_AUTOBRIEF YES)
set(DOXYGEN_MARKDOWN_SUPPORT YES)
set(DOXYGEN_TOC_INCLUDE_HEADINGS 3)
set(DOXYGEN_HIDE_UNDOC_RELATIONS YES)
# "As above" and "the same" speak of the order of the headers.
set(DOXYGEN_SORT_MEMBER_DOCS NO)
set(DOXYGEN_GENERATE_LATEX NO)
set(DOXYGEN_GENERATE_TREEVIEW YES)
set(DOXYGEN_QUIET YES)
set(DOXYGEN_EXTRACT_ALL NO)
set(DOXYGEN_WARN_IF_UNDOCUMENTED YES)
set(DOXYGEN_WARN_NO_PARAMDOC NO)
set(DOXYGEN_WARN_AS_ERROR FAIL_ON_WARNINGS)
# An option shows as a member with its default.
set(DOXYGEN_ENABLE_PREPROCESSING YES)
set(DOXYGEN_MACRO_EXPANSION YES)
set(DOXYGEN_EXPAND_ONLY_PREDEF YES)
set(DOXYGEN_PREDEFINED "TORCH_ARG(T,name)=T name" "TORCH_MODULE_IMPL(name,impl)=")

# Pages link to headers by their path in the repository.
set(DOXYGEN_FILTER_PATTERNS "*.md=sed -e 's|](include/|](@ref |g'")

# The page of this example links to the files beside it.
set(DOXYGEN_HTML_EXTRA_FILES CMakeLists.txt memory_test.cpp unet.h)
list(TRANSFORM DOXYGEN_HTML_EXTRA_FILES
     PREPEND "${PROJECT_SOURCE_DIR}/examples/ci_memory_test/")

file(GLOB pages CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/examples/guide/*.md"
     "${PROJECT_SOURCE_DIR}/examples/*/README.md" "${PROJECT_SOURCE_DIR}/examples/data/*/README.md")
list(REMOVE_DUPLICATES pages)
# Internal headers that define types of namespace tidemark, which public functions take or return.
set(public_types batch_slices.h grad_scaler_state.h nonfinite_grads.h numerics_log.h update_window.h)
list(TRANSFORM public_types PREPEND "${PROJECT_SOURCE_DIR}/include/tidemark/detail/")

doxygen_add_docs(
  docs "${PROJECT_SOURCE_DIR}/include/tidemark" ${public_types} "${PROJECT_SOURCE_DIR}/README.md" ${pages}
  COMMENT "The reference and the guide go to ${PROJECT_BINARY_DIR}/docs/html")
