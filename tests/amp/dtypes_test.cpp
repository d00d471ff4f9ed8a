// Which dtype an op returns under AmpScope: what 3D models are made of, as recorded from Python.

#include <gtest/gtest-spi.h>
#include <gtest/gtest.h>
#include <tidemark/amp_scope.h>
#include <torch/torch.h>

#include <fstream>
#include <set>
#include <string>

#include "../support/cpu_kernels.h"
#include "op_dtypes.h"

namespace {

using tidemark::AmpScope;
using tidemark::tests::cpu_autocast_has_lstm;
using tidemark::tests::expect_dtypes_as_recorded;

const std::string kTable = std::string(TIDEMARK_AMP_DATA_DIR) + "/cpu_dtypes.csv";

TEST(AmpDtypes, AreThoseOfPythonOnTheCpu) { expect_dtypes_as_recorded(torch::kCPU, kTable); }

TEST(AmpDtypes, EveryOpIsInTheTable) {
  std::ifstream file(kTable);
  std::set<std::string> recorded;
  for (std::string line; std::getline(file, line);) {
    recorded.insert(line.substr(0, line.find(',')));
  }
  for (const auto& [name, op] : tidemark::tests::recorded_ops()) {
    EXPECT_EQ(recorded.count(name), 1U) << name << " is not in " << kTable;
  }
}

/// The table as if it had been recorded with another release, in which exp was in another list.
void expect_dtypes_of_a_table_with_a_moved_op(const std::string& release) {
  const std::string path = ::testing::TempDir() + "/tidemark_moved_op.csv";
  {
    std::ifstream original(kTable);
    std::ofstream moved(path);
    std::string line;
    std::getline(original, line);
    moved << (release.empty() ? line : "# recorded with torch " + release) << '\n';
    while (std::getline(original, line)) {
      moved << (line == "exp,float16,float16,float16" ? "exp,float16,float16,float32" : line)
            << '\n';
    }
  }
  expect_dtypes_as_recorded(torch::kCPU, path);
}

TEST(AmpDtypes, AnOpThatMovedIsNamed) {
  EXPECT_NONFATAL_FAILURE(expect_dtypes_of_a_table_with_a_moved_op(""),
                          "exp of float16 under AmpScope(cpu, float16)");
}

TEST(AmpDtypes, AnOpThatMovedBetweenReleasesIsSaidToHave) {
  EXPECT_NONFATAL_FAILURE(expect_dtypes_of_a_table_with_a_moved_op("1.0.0"),
                          "recorded with torch 1.0.0, this is " TORCH_VERSION
                          ": the release may have moved the op");
}

// Not in the table: whether there is a kernel depends on the CPU's instructions.
TEST(AmpDtypes, AnLstmRunsInTheDtypeOfTheScope) {
  torch::nn::LSTM lstm(3, 3);
  for (const auto dtype : {torch::kBFloat16, torch::kHalf}) {
    if (!cpu_autocast_has_lstm(dtype)) {
      GTEST_LOG_(INFO) << "no LSTM in " << dtype << " on this CPU";
      continue;
    }
    const AmpScope amp(torch::kCPU, dtype);
    EXPECT_EQ(std::get<0>(lstm(torch::ones({2, 1, 3}))).scalar_type(), dtype);
  }
}

}  // namespace
