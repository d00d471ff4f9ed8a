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

int64_t bytes_in_the_other_unit() {
  using namespace tidemark::literals;
  return 2_KiB;
}
