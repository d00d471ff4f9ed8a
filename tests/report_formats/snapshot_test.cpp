#include <c10/core/Device.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <tidemark/detail/pickle_writer.h>
#include <tidemark/memory/report_snapshot.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <limits>
#include <map>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "hand_made_report.h"
#include "pickle_reader.h"

namespace {

using testing::HasSubstr;
using tidemark::MemoryBlock;
using tidemark::MemoryCategory;
using tidemark::MemoryReport;
using tidemark::MemoryReportSnapshotOptions;
using tidemark::MemorySnapshot;
using tidemark::to_snapshot;
using tidemark::detail::PickleWriter;
using namespace tidemark::tests;

Pickled read(const MemoryReport& report) { return PickleReader(to_snapshot(report).pickle).read(); }

/// "alloc 10000 4096 parameters" of each event but the first.
std::vector<std::string> events_of(const Pickled& trace) {
  std::vector<std::string> texts;
  for (std::size_t i = 1; i < trace.list.size(); ++i) {
    const Pickled& event = trace[i];
    texts.push_back(event["action"].text + ' ' + std::to_string(event["addr"].number) + ' ' +
                    std::to_string(event["size"].number) + ' ' + event["category"].text + " at " +
                    std::to_string(event["time_us"].number));
  }
  return texts;
}

/// "name in module" of each frame.
std::vector<std::string> frames_of(const Pickled& of) {
  std::vector<std::string> texts;
  for (const Pickled& frame : of["frames"].list) {
    texts.push_back(frame["name"].text + " in " + frame["filename"].text);
    EXPECT_EQ(frame["line"].number, 0);
  }
  return texts;
}

TEST(ReportSnapshot, HasTheEventsOfTheStepInTheirOrder) {
  const Pickled snapshot = read(small_report());
  ASSERT_EQ(snapshot["device_traces"].list.size(), 1);
  EXPECT_EQ(
      events_of(snapshot["device_traces"][0]),
      (std::vector<std::string>{
          "alloc 65536 4096 parameters at 0", "alloc 73728 2048 inputs at 0",
          "alloc 131072 1024 workspace at 1000", "alloc 139637976727552 8192 activations at 2000",
          "free_requested 131072 1024 workspace at 3000",
          "free_completed 131072 1024 workspace at 3000", "alloc 131072 2048 activations at 4000",
          "alloc 81920 4096 gradients at 5000", "alloc 86016 512 workspace at 6000",
          "free_requested 139637976727552 8192 activations at 7000",
          "free_completed 139637976727552 8192 activations at 7000",
          "free_requested 86016 512 workspace at 8000",
          "free_completed 86016 512 workspace at 8000",
          "free_requested 131072 2048 activations at 9000",
          "free_completed 131072 2048 activations at 9000"}));
}

TEST(ReportSnapshot, PutsTheNameTheOpAndThePhaseInPlaceOfACallStack) {
  const Pickled snapshot = read(small_report());
  const Pickled& trace = snapshot["device_traces"][0];
  EXPECT_EQ(frames_of(trace[1]), (std::vector<std::string>{"conv1.weight in encoder.conv1",
                                                           "before the recording in step"}));
  EXPECT_EQ(frames_of(trace[2]), (std::vector<std::string>{"before the recording in step"}));
  EXPECT_EQ(frames_of(trace[3]),
            (std::vector<std::string>{"aten::conv2d in encoder.conv1", "forward in step"}));
  EXPECT_EQ(frames_of(trace[8]), (std::vector<std::string>{"ConvolutionBackward0 in encoder.conv1",
                                                           "backward in step"}));
}

TEST(ReportSnapshot, MakesSegmentsOfWhatLiesTogether) {
  const Pickled snapshot = read(small_report());
  const std::vector<Pickled>& segments = snapshot["segments"].list;
  ASSERT_EQ(segments.size(), 2);
  // from 0x10000 to the end of the 2048 bytes at 0x20000
  EXPECT_EQ(segments[0]["address"].number, 0x10000);
  EXPECT_EQ(segments[0]["total_size"].number, 0x10000 + 2048);
  EXPECT_EQ(segments[0]["allocated_size"].number, 10240);
  EXPECT_EQ(segments[0]["device"].number, 0);
  std::vector<std::pair<int64_t, std::string>> blocks;
  for (const Pickled& block : segments[0]["blocks"].list) {
    blocks.emplace_back(block["size"].number, block["state"].text);
  }
  EXPECT_EQ(blocks, (std::vector<std::pair<int64_t, std::string>>{{0x1000, "active_allocated"},
                                                                  {0x1000, "inactive"},
                                                                  {0x800, "active_allocated"},
                                                                  {0x1800, "inactive"},
                                                                  {0x1000, "active_allocated"},
                                                                  {0xB800, "inactive"}}));
  // where the 8192 bytes were
  EXPECT_EQ(segments[1]["address"].number, 0x7f0000000000);
  EXPECT_EQ(segments[1]["total_size"].number, 8192);
  EXPECT_EQ(segments[1]["blocks"].list.size(), 1);
  EXPECT_EQ(segments[1]["blocks"][0]["state"].text, "inactive");
}

TEST(ReportSnapshot, HasTheCategoryUnknownWithoutWhichTheViewerFails) {
  MemoryReport other;
  other.blocks = {block(64, 8, MemoryCategory::kOther, {}, 0, {}, 0, 1)};
  other.times_ns = {0, 0};
  EXPECT_EQ(read(other)["device_traces"][0][1]["category"].text, "unknown");
  for (const MemoryReport& report : {MemoryReport(), small_report(), other}) {
    const Pickled snapshot = read(report);
    EXPECT_EQ(snapshot["device_traces"][0][0]["category"].text, "unknown");
    EXPECT_EQ(snapshot["device_traces"][0][0]["action"].text, "snapshot");
  }
}

TEST(ReportSnapshot, OfNothingHasNoSegments) {
  const Pickled snapshot = read(MemoryReport());
  EXPECT_TRUE(snapshot["segments"].list.empty());
  EXPECT_EQ(snapshot["device_traces"][0].list.size(), 1);
  EXPECT_EQ(snapshot["tidemark"]["events"].number, 0);
}

TEST(ReportSnapshot, PutsTheEventsOfADeviceWhereTheViewerLooks) {
  MemoryReport report = small_report();
  report.device = c10::Device(c10::kCUDA, 2);
  const Pickled snapshot = read(report);
  ASSERT_EQ(snapshot["device_traces"].list.size(), 3);
  EXPECT_TRUE(snapshot["device_traces"][0].list.empty());
  EXPECT_TRUE(snapshot["device_traces"][1].list.empty());
  EXPECT_EQ(snapshot["device_traces"][2].list.size(), 16);
  EXPECT_EQ(snapshot["segments"][0]["device"].number, 2);
}

TEST(ReportSnapshot, LeavesSmallBlocksOutPastItsLimitAndSaysSo) {
  // 9 events of the three largest, 4096 alive, 8192 freed, 4096 alive: 1 + 3 + 1, and 2048 alive
  const MemorySnapshot made =
      to_snapshot(small_report(), MemoryReportSnapshotOptions().max_events(6));
  EXPECT_EQ(made.events, 6);
  EXPECT_EQ(made.events_dropped, 9);  // of 1024, 2048 and 512 bytes
  EXPECT_EQ(made.blocks_dropped, 3);
  EXPECT_EQ(made.bytes_dropped, 1024 + 2048 + 512);
  const Pickled snapshot = PickleReader(made.pickle).read();
  EXPECT_EQ(snapshot["device_traces"][0].list.size(), 7);
  EXPECT_EQ(snapshot["tidemark"]["events"].number, 6);
  EXPECT_EQ(snapshot["tidemark"]["events_dropped"].number, 9);
  EXPECT_EQ(snapshot["tidemark"]["blocks_dropped"].number, 3);
  EXPECT_EQ(snapshot["tidemark"]["bytes_dropped"].number, 3584);
  EXPECT_EQ(frames_of(snapshot["device_traces"][0][0]),
            (std::vector<std::string>{"9 events of 3 small blocks left out in tidemark"}));
}

TEST(ReportSnapshot, HasNoBlockSmallerThanOneThatIsLeftOut) {
  MemoryReport report;
  report.blocks = {block(1000, 100, MemoryCategory::kOther, {}, 0, {}, 0, 3),
                   block(2000, 50, MemoryCategory::kOther, {}, 0, {}, 1, 4),
                   block(3000, 10, MemoryCategory::kOther, {}, 0, {}, 2, MemoryBlock::kAlive)};
  report.times_ns = {0, 0, 0, 0, 0};
  const MemorySnapshot made = to_snapshot(report, MemoryReportSnapshotOptions().max_events(4));
  EXPECT_EQ(made.events, 3);
  EXPECT_EQ(made.events_dropped, 4);
  EXPECT_EQ(made.bytes_dropped, 60);
  EXPECT_EQ(PickleReader(made.pickle).read()["device_traces"][0][1]["size"].number, 100);
}

TEST(ReportSnapshot, IsNoLargerForMoreBlocksThanItsLimit) {
  const auto options = MemoryReportSnapshotOptions().max_events(300);
  const MemorySnapshot thousand = to_snapshot(large_report(1000), options);
  const MemorySnapshot many = to_snapshot(large_report(100'000), options);
  EXPECT_EQ(thousand.events, 300);
  EXPECT_EQ(many.events, 300);
  EXPECT_EQ(many.events_dropped, 3 * 100'000 - 300);
  EXPECT_LT(many.pickle.size(), 300 * 100);
  EXPECT_LT(many.pickle.size(), thousand.pickle.size() * 5 / 4);
}

TEST(ReportSnapshot, ReadsBackWhateverTheNamesHold) {
  MemoryReport report = small_report();
  report.blocks[0].name = hostile_name();
  report.modules[2].name = hostile_name();
  report.ops[0].name = std::string(70'000, 'x');
  const Pickled snapshot = read(report);
  const std::string as_read =
      "a\"b'c</script><b>&amp;,\n\t\x1b[31m\xC3\xA9\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD\x01\\";
  EXPECT_EQ(snapshot["device_traces"][0][1]["frames"][0]["name"].text, as_read);
  EXPECT_EQ(snapshot["device_traces"][0][1]["frames"][0]["filename"].text, as_read);
  EXPECT_EQ(snapshot["device_traces"][0][3]["frames"][0]["name"].text.size(), 70'000);
}

TEST(ReportSnapshot, ShowsOneOfTwoBlocksThatAreInOnePlace) {
  MemoryReport report;
  report.blocks = {block(100, 50, MemoryCategory::kOther, {}, 0, {}, 0, MemoryBlock::kAlive),
                   block(120, 50, MemoryCategory::kOther, {}, 0, {}, 1, MemoryBlock::kAlive)};
  report.times_ns = {0, 0};
  const Pickled segment = read(report)["segments"][0];
  EXPECT_EQ(segment["total_size"].number, 70);
  ASSERT_EQ(segment["blocks"].list.size(), 2);
  EXPECT_EQ(segment["blocks"][0]["size"].number, 50);
  EXPECT_EQ(segment["blocks"][1]["size"].number, 20);
  EXPECT_EQ(segment["blocks"][1]["state"].text, "inactive");
}

TEST(ReportSnapshot, HasAddressesThatTheViewerCanHold) {
  MemoryReport report;
  report.blocks = {block(std::numeric_limits<uint64_t>::max() - 7, 8, MemoryCategory::kOther, {}, 0,
                         {}, 0, MemoryBlock::kAlive)};
  report.times_ns = {0};
  EXPECT_EQ(read(report)["segments"][0]["address"].number, (int64_t{1} << 53) - 8);
}

TEST(PickleWriter, WritesNumbersOfEverySize) {
  const std::vector<int64_t> numbers{
      0,  1,    255,       256,          65535,         65536,     INT32_MAX,
      -1, -256, INT32_MIN, 2147483648LL, -2147483649LL, INT64_MAX, INT64_MIN};
  PickleWriter pickle;
  pickle.begin_list();
  for (const int64_t number : numbers) {
    pickle.value(number).append();
  }
  const Pickled read = PickleReader(std::move(pickle).take()).read();
  ASSERT_EQ(read.list.size(), numbers.size());
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    EXPECT_EQ(read[i].number, numbers[i]);
  }
}

TEST(PickleWriter, RemembersMoreTextsThanAByteCounts) {
  PickleWriter pickle;
  pickle.begin_list();
  for (int round = 0; round < 2; ++round) {
    for (int i = 0; i < 300; ++i) {
      pickle.value(std::to_string(i)).append();
    }
  }
  const Pickled read = PickleReader(std::move(pickle).take()).read();
  ASSERT_EQ(read.list.size(), 600);
  for (std::size_t i = 0; i < 600; ++i) {
    EXPECT_EQ(read[i].text, std::to_string(i % 300));
  }
}

TEST(PickleReader, RefusesWhatTheViewerCannotRead) {
  EXPECT_EQ(PickleReader("\x80\x02K\x07.").read().number, 7);
  // a call of os.getcwd, text in the encoding of protocol 0, a number of 9 bytes, too short, too
  // long, another protocol
  const std::string call =
      "\x80\x02"
      "cos\ngetcwd\n)R.";
  for (const std::string& pickle :
       {call, std::string("\x80\x02V7\n."), std::string("\x80\x02\x8A\x09\x01\x02\x03\x04\x05."),
        std::string("\x80\x02X\xFF\x01\x01\x01x."), std::string("\x80\x02K\x07.K"),
        std::string("\x80\x04N.")}) {
    EXPECT_THROW(PickleReader(pickle).read(), std::runtime_error) << pickle;
  }
}

/// Runs the script; its exit status, and what it printed.
std::pair<int, std::string> check_snapshot(const std::string& pickle, const std::string& peak) {
  const auto folder = std::filesystem::path(testing::TempDir());
  const std::string file = (folder / "tidemark_checked.pickle").string();
  const std::string printed = (folder / "tidemark_checked.txt").string();
  std::ofstream(file, std::ios::binary) << pickle;
  const std::string command = std::string("python3 '") + TIDEMARK_REPORT_FORMATS_DIR +
                              "/check_snapshot.py' '" + file + "' " + peak + " > '" + printed +
                              "' 2>&1";
  const int status = std::system(command.c_str());
  std::ifstream stream(printed);
  std::string text{std::istreambuf_iterator<char>(stream), {}};
  std::filesystem::remove(file);
  std::filesystem::remove(printed);
  return {status, std::move(text)};
}

TEST(ReportSnapshot, IsReadByPythonAndItsViewer) {
  if (std::system("python3 -c 'import pickletools' > /dev/null 2>&1") != 0) {
    GTEST_SKIP() << "there is no python3";
  }
  const auto [status, text] = check_snapshot(to_snapshot(small_report()).pickle, "20992");
  EXPECT_EQ(status, 0) << text;
  EXPECT_THAT(text, HasSubstr("16 events, 2 segments, peak 20992: good"));

  const auto [of_large, large_text] =
      check_snapshot(to_snapshot(large_report(1000)).pickle, "500500");
  EXPECT_EQ(of_large, 0) << large_text;
}

TEST(ReportSnapshot, IsCheckedByAScriptThatFindsFaults) {
  if (std::system("python3 -c 'import pickletools' > /dev/null 2>&1") != 0) {
    GTEST_SKIP() << "there is no python3";
  }
  const std::string pickle = to_snapshot(small_report()).pickle;
  EXPECT_THAT(check_snapshot(pickle, "20991").second, HasSubstr("peak 20992 instead of 20991"));
  const auto changed = [&pickle](const std::string& from, const std::string& to) {
    std::string copy = pickle;
    copy.replace(copy.find(from), from.size(), to);
    return check_snapshot(copy, "20992");
  };
  const auto [no_unknown, unknown_text] = changed("unknown", "unknowm");
  EXPECT_NE(no_unknown, 0);
  EXPECT_THAT(unknown_text, HasSubstr("category 'unknown'"));
  const auto [wrong_size, size_text] =
      changed(std::string("M\0\x10", 3), std::string("M\1\x10", 3));
  EXPECT_NE(wrong_size, 0) << size_text;
  const auto [none, none_text] = check_snapshot(".", "0");
  EXPECT_NE(none, 0) << none_text;
}

}  // namespace
