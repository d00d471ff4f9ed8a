#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <functional>
#include <iostream>

namespace tidemark::tests {

/// Runs `scenario` in a process of its own, in which nothing happened before main(), and expects
/// that no expectation fails there and that the process ends well. It is a death test that starts
/// the program again; what failed is printed.
inline void expect_in_own_process(const std::function<void()>& scenario) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        scenario();
        const auto& result = *::testing::UnitTest::GetInstance()->current_test_info()->result();
        for (int i = 0; i < result.total_part_count(); ++i) {
          const auto& part = result.GetTestPartResult(i);
          std::cerr << part.file_name() << ':' << part.line_number() << ": " << part.message()
                    << '\n';
        }
        std::exit(result.Failed() ? 1 : 0);
      },
      ::testing::ExitedWithCode(0), "");
}

}  // namespace tidemark::tests
