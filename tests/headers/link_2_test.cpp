#include <gtest/gtest.h>
#include <tidemark/gtest/matchers.h>
#include <tidemark/tidemark.h>

int64_t bytes_in_the_other_unit() {
  using namespace tidemark::literals;
  return 2_KiB;
}
