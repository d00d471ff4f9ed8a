// With link_2_test.cpp: two translation units with every header in each link into one program.

#include <gtest/gtest.h>
#include <tidemark/diagnostics.h>
#include <tidemark/gtest/failing_allocations.h>
#include <tidemark/gtest/growth.h>
#include <tidemark/gtest/leak_listener.h>
#include <tidemark/gtest/matchers.h>
#include <tidemark/gtest/memory_cap.h>
#include <tidemark/gtest/record.h>
#include <tidemark/memory.h>
#include <tidemark/tidemark.h>

int64_t bytes_in_the_other_unit();

TEST(Link, TwoTranslationUnitsWithEveryHeaderMakeOneProgram) {
  using namespace tidemark::literals;
  EXPECT_EQ(bytes_in_the_other_unit(), 2_KiB);
}
