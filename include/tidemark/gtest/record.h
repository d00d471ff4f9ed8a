#pragma once

/// \file
/// Figures of steps in the reports of a test run, to be plotted over time:
///
///     auto step = tidemark::gtest::record(tidemark::measure(train_step), "plain");

#include <c10/util/Exception.h>
#include <gtest/gtest.h>
#include <tidemark/memory/measure.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <locale>
#include <sstream>
#include <string>

namespace tidemark {

namespace detail {

/// A figure of a StepMemory and its name in reports.
struct RecordedFigure {
  const char* name;
  int64_t StepMemory::*value;
};

inline constexpr std::array kRecordedFigures{
    RecordedFigure{"peak_bytes", &StepMemory::peak},
    RecordedFigure{"held_bytes", &StepMemory::held},
    RecordedFigure{"leftover_bytes", &StepMemory::leftover},
    RecordedFigure{"allocated_bytes", &StepMemory::allocated},
    RecordedFigure{"allocations", &StepMemory::allocations},
};

/// Appends a line to the file, and a first line with the names of the columns where it is empty.
inline void append_to_csv(const char* path, const std::string& name, const StepMemory& step) {
  std::ofstream file(path, std::ios::app | std::ios::ate);
  std::ostringstream text;
  text.imbue(std::locale::classic());
  if (file.tellp() == 0) {
    text << "suite,test,step";
    for (const RecordedFigure& figure : kRecordedFigures) {
      text << ',' << figure.name;
    }
    text << '\n';
  }
  const ::testing::UnitTest& run = *::testing::UnitTest::GetInstance();
  text << (run.current_test_suite() != nullptr ? run.current_test_suite()->name() : "") << ','
       << (run.current_test_info() != nullptr ? run.current_test_info()->name() : "") << ','
       << name;
  for (const RecordedFigure& figure : kRecordedFigures) {
    text << ',' << step.*figure.value;
  }
  text << '\n';
  file << text.str() << std::flush;  // in one piece: other processes may append, too
  if (!file) {
    ADD_FAILURE() << "TIDEMARK_MEMORY_CSV: can't write to " << path
                  << ". Name a file in a folder that exists, or unset the variable.";
  }
}

}  // namespace detail

namespace gtest {

/// Records the figures of `step` as properties of the running test: peak_bytes, held_bytes,
/// leftover_bytes, allocated_bytes and allocations, or with a name "plain" plain_peak_bytes and so
/// on. GoogleTest writes them to the files of `--gtest_output=xml` and `json`. Returns the step.
///
/// Such a file holds one run of one program. For a series over runs and programs, let the
/// environment variable TIDEMARK_MEMORY_CSV name a file: each call appends the line
/// `suite,test,step,peak_bytes,held_bytes,leftover_bytes,allocated_bytes,allocations` to it, where
/// `step` is the name. The test fails if that can't be written.
///
/// Throws for a name of other than letters, digits and underscores.
inline StepMemory record(const StepMemory& step, const std::string& name = "") {
  TORCH_CHECK(std::all_of(name.begin(), name.end(),
                          [](unsigned char c) { return std::isalnum(c) != 0 || c == '_'; }),
              "tidemark: record() got the name \"", name,
              "\"; give one of letters, digits and underscores.");
  for (const detail::RecordedFigure& figure : detail::kRecordedFigures) {
    ::testing::Test::RecordProperty(name.empty() ? figure.name : name + '_' + figure.name,
                                    std::to_string(step.*figure.value));
  }
  if (const char* path = std::getenv("TIDEMARK_MEMORY_CSV"); path != nullptr && *path != '\0') {
    detail::append_to_csv(path, name, step);
  }
  return step;
}

}  // namespace gtest

}  // namespace tidemark
