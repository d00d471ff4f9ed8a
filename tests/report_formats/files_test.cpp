#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <tidemark/memory/report_files.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "../support/thrown_text.h"
#include "hand_made_report.h"

namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;
using testing::Optional;
using tidemark::write_report;
using namespace tidemark::tests;

std::string content_of(const fs::path& path) {
  std::ifstream stream(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), {}};
}

std::vector<std::string> names_in(const fs::path& folder) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) {
    names.push_back(entry.path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

class ReportFiles : public testing::Test {
 protected:
  void SetUp() override { fs::remove_all(folder_); }
  void TearDown() override { fs::remove_all(folder_); }

  const fs::path folder_ = fs::path(testing::TempDir()) / "tidemark_report_files";
};

TEST_F(ReportFiles, AreWrittenInAllFormats) {
  const auto report = small_report();
  const fs::path inside = folder_ / "a" / "b";
  const std::vector<std::string> paths = write_report(report, inside.string());
  std::vector<std::string> expected;
  for (const char* name : {"report.txt", "report.html", "report.json", "timeline.csv",
                           "snapshot.pickle", "trace.json"}) {
    expected.push_back((inside / name).string());
  }
  EXPECT_EQ(paths, expected);
  EXPECT_EQ(content_of(paths.at(0)), to_text(report));
  EXPECT_EQ(content_of(paths.at(1)), to_html(report));
  EXPECT_EQ(content_of(paths.at(2)), to_json(report));
  EXPECT_EQ(content_of(paths.at(3)), to_csv(report));
  EXPECT_EQ(content_of(paths.at(4)), to_snapshot(report).pickle);
  EXPECT_EQ(content_of(paths.at(5)), to_chrome_trace(report));
  EXPECT_EQ(names_in(inside),
            (std::vector<std::string>{"report.html", "report.json", "report.txt", "snapshot.pickle",
                                      "timeline.csv", "trace.json"}));
}

TEST_F(ReportFiles, ReplaceThoseThatAreThere) {
  write_report(large_report(100), folder_.string());
  write_report(small_report(), folder_.string());
  EXPECT_EQ(content_of(folder_ / "timeline.csv"), to_csv(small_report()));
  EXPECT_EQ(names_in(folder_).size(), 6);
}

TEST_F(ReportFiles, NameTheFolderThatCannotBeMade) {
  fs::create_directories(folder_);
  std::ofstream(folder_ / "file") << "x";
  const auto text =
      thrown_text([&] { write_report(small_report(), (folder_ / "file" / "in").string()); });
  EXPECT_THAT(text, Optional(HasSubstr("can't make the folder")));
  EXPECT_THAT(text, Optional(HasSubstr((folder_ / "file" / "in").string())));
  EXPECT_THAT(thrown_text([] { write_report(small_report(), ""); }),
              Optional(HasSubstr("name of a folder")));
}

TEST_F(ReportFiles, NameTheFileThatCannotBeWrittenAndLeaveNoPartOfIt) {
  fs::create_directories(folder_ / "report.json" / "in the way");
  const auto text = thrown_text([&] { write_report(small_report(), folder_.string()); });
  EXPECT_THAT(text, Optional(HasSubstr("can't write " + (folder_ / "report.json").string())));
  EXPECT_EQ(names_in(folder_),
            (std::vector<std::string>{"report.html", "report.json", "report.txt"}));

  fs::remove_all(folder_);
  fs::create_directories(folder_ / "report.txt.partial");
  EXPECT_THAT(
      thrown_text([&] { write_report(small_report(), folder_.string()); }),
      Optional(HasSubstr("can't write " + (folder_ / "report.txt").string() + ": Is a directory")));
}

TEST_F(ReportFiles, SayThatTheDeviceIsFull) {
  std::ofstream full("/dev/full");
  if (!full) {
    GTEST_SKIP() << "there is no /dev/full";
  }
  fs::create_directories(folder_);
  fs::create_symlink("/dev/full", folder_ / "report.txt.partial");
  EXPECT_THAT(thrown_text([&] { write_report(small_report(), folder_.string()); }),
              Optional(HasSubstr("No space left on device")));
  EXPECT_TRUE(names_in(folder_).empty());
}

}  // namespace
