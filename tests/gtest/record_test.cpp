#include <gmock/gmock.h>
#include <gtest/gtest-spi.h>
#include <gtest/gtest.h>
#include <tidemark/gtest/record.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <utility>

#include "../support/thrown_text.h"

namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Optional;
using ::testing::Pair;
using tidemark::StepMemory;
using tidemark::gtest::record;
using tidemark::tests::thrown_text;

constexpr int64_t kBeyondInt = 5'000'000'000;

/// The properties of the running test.
std::map<std::string, std::string> properties() {
  const auto& result = *::testing::UnitTest::GetInstance()->current_test_info()->result();
  std::map<std::string, std::string> found;
  for (int i = 0; i < result.test_property_count(); ++i) {
    found[result.GetTestProperty(i).key()] = result.GetTestProperty(i).value();
  }
  return found;
}

std::string text_of(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

/// TIDEMARK_MEMORY_CSV for as long as it lives, and an end of the file.
class Csv {
 public:
  explicit Csv(std::string path) : path_(std::move(path)) {
    setenv("TIDEMARK_MEMORY_CSV", path_.c_str(), 1);
  }
  Csv(const Csv&) = delete;
  Csv& operator=(const Csv&) = delete;
  ~Csv() {
    unsetenv("TIDEMARK_MEMORY_CSV");
    std::remove(path_.c_str());
  }

 private:
  std::string path_;
};

TEST(Record, MakesPropertiesOfAllFiguresAlsoBeyondInt) {
  record({kBeyondInt, 2, -3, 4, 5});
  EXPECT_THAT(properties(), ElementsAre(Pair("allocated_bytes", "4"), Pair("allocations", "5"),
                                        Pair("held_bytes", "2"), Pair("leftover_bytes", "-3"),
                                        Pair("peak_bytes", "5000000000")));
}

TEST(Record, PutsTheNameBeforeEachFigureSoThatATestCanRecordSeveralSteps) {
  record({1, 2, 3, 4, 5}, "plain");
  record({6, 7, 8, 9, 10}, "depth_16");
  const auto recorded = properties();
  EXPECT_EQ(recorded.size(), 10);
  EXPECT_EQ(recorded.at("plain_peak_bytes"), "1");
  EXPECT_EQ(recorded.at("depth_16_held_bytes"), "7");
}

TEST(Record, ReturnsTheStep) {
  const StepMemory step = record({1, 2, 3, 4, 5});
  EXPECT_EQ(step.peak, 1);
  EXPECT_EQ(step.allocations, 5);
}

TEST(Record, RefusesNamesThatReportsCannotHold) {
  for (const char* name : {"a b", "a,b", "a\"b", "a-b"}) {
    EXPECT_THAT(thrown_text([&] { record({}, name); }),
                Optional(AllOf(HasSubstr(name), HasSubstr("letters, digits and underscores"))));
  }
  EXPECT_TRUE(properties().empty());
}

TEST(Record, AppendsLinesToTheFileThatTheEnvironmentNames) {
  const std::string path = ::testing::TempDir() + "tidemark_record_test.csv";
  const Csv csv(path);
  record({kBeyondInt, 2, -3, 4, 5});
  record({6, 7, 8, 9, 10}, "plain");
  EXPECT_EQ(text_of(path),
            "suite,test,step,peak_bytes,held_bytes,leftover_bytes,allocated_bytes,allocations\n"
            "Record,AppendsLinesToTheFileThatTheEnvironmentNames,,5000000000,2,-3,4,5\n"
            "Record,AppendsLinesToTheFileThatTheEnvironmentNames,plain,6,7,8,9,10\n");
}

TEST(Record, FailsTheTestWhereTheFileCannotBeWritten) {
  const Csv csv("/nonexistent/memory.csv");
  EXPECT_NONFATAL_FAILURE(record({}),
                          "TIDEMARK_MEMORY_CSV: can't write to /nonexistent/memory.csv");
}

class RecordInSuite : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { record({1, 2, 3, 4, 5}, "shared"); }
};

TEST_F(RecordInSuite, RecordsAPropertyOfTheSuite) {
  const auto& result =
      ::testing::UnitTest::GetInstance()->current_test_suite()->ad_hoc_test_result();
  EXPECT_EQ(result.test_property_count(), 5);
  EXPECT_TRUE(properties().empty());
}

}  // namespace
