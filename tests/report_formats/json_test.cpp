#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <tidemark/memory/report_json.h>
#include <tidemark/memory/report_trace.h>

#include <algorithm>
#include <cstdint>
#include <locale>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "hand_made_report.h"
#include "json_text.h"

#if TIDEMARK_HAS_JSON_PARSER

namespace {

using nlohmann::json;
using tidemark::MemoryBlock;
using tidemark::MemoryReport;
using tidemark::MemoryReportJsonOptions;
using tidemark::MemoryReportTraceOptions;
using tidemark::to_chrome_trace;
using tidemark::to_json;
using namespace tidemark::tests;

/// What the hostile name has to be read back as: three bytes of it are no UTF-8.
std::string hostile_name_as_read() {
  return "a\"b'c</script><b>&amp;,\n\t\x1b[31m\xC3\xA9\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD\x01\\";
}

MemoryReport hostile_report() {
  MemoryReport report = small_report();
  for (auto& module : report.modules) {
    module.name = hostile_name();
  }
  for (auto& op : report.ops) {
    op.name = hostile_name();
  }
  for (auto& block : report.blocks) {
    block.name = hostile_name();
  }
  report.advice[0].text = hostile_name();
  report.advice[0].modules = {hostile_name()};
  report.lints[0].name = hostile_name();
  report.lints[0].text = hostile_name();
  return report;
}

json by_category(int64_t parameters, int64_t gradients, int64_t inputs, int64_t activations,
                 int64_t workspace) {
  return {{"parameters", parameters},
          {"gradients", gradients},
          {"optimizer_state", 0},
          {"buffers", 0},
          {"inputs", inputs},
          {"activations", activations},
          {"workspace", workspace},
          {"temporaries", 0},
          {"other", 0}};
}

/// Every number in it.
void expect_integers(const json& value) {
  if (value.is_structured()) {
    for (const auto& inside : value) {
      expect_integers(inside);
    }
  }
  EXPECT_FALSE(value.is_number_float()) << value;
}

TEST(ReportJson, HasEveryNumberOfTheStep) {
  const json read = json::parse(to_json(small_report()));
  expect_integers(read);
  EXPECT_EQ(read["format"], "tidemark.memory_report");
  EXPECT_EQ(read["version"], 1);
  EXPECT_EQ(read["device"], "cpu");
  EXPECT_EQ(read["peak"], 20992);
  EXPECT_EQ(read["peak_point"], 5);
  EXPECT_EQ(read["peak_ns"], 6'000'000);
  EXPECT_EQ(read["peak_op"], 2);
  EXPECT_EQ(read["held"], 10240);
  EXPECT_EQ(read["allocated"], 15872);
  EXPECT_EQ(read["allocations"], 5);
  EXPECT_EQ(read["lost_events"], 0);
  EXPECT_EQ(read["duration_ns"], 10'000'000);
  EXPECT_EQ(
      read["phase_ns"],
      (json{{"forward", 3'900'000}, {"backward", 3'900'000}, {"re_run", 0}, {"update", 900'000}}));
  EXPECT_EQ(read["at_peak"], by_category(4096, 4096, 2048, 10240, 512));
  EXPECT_EQ(read["at_begin"], by_category(4096, 0, 2048, 0, 0));
  EXPECT_EQ(read["at_end"], by_category(4096, 4096, 2048, 0, 0));
  EXPECT_EQ(read["most"], by_category(4096, 4096, 2048, 10240, 1024));
  EXPECT_EQ(read["reserved"], nullptr);
  EXPECT_EQ(read["refused"], nullptr);
}

TEST(ReportJson, HasModulesOpsAndBlocks) {
  const json read = json::parse(to_json(small_report()));
  ASSERT_EQ(read["modules"].size(), 4);
  EXPECT_EQ(read["modules"][3], (json{{"name", "head"},
                                      {"depth", 1},
                                      {"at_peak", by_category(0, 0, 0, 2048, 0)},
                                      {"most", by_category(0, 0, 0, 2048, 0)},
                                      {"forward_workspace", 0},
                                      {"backward_workspace", 0},
                                      {"rerun", 0},
                                      {"forward_ns", 900'000},
                                      {"backward_ns", 0},
                                      {"rerun_ns", 0}}));
  ASSERT_EQ(read["ops"].size(), 4);
  EXPECT_EQ(read["ops_dropped"], 0);
  EXPECT_EQ(read["ops"][2], (json{{"name", "ConvolutionBackward0"},
                                  {"phase", "backward"},
                                  {"module", 2},
                                  {"begin_ns", 4'600'000},
                                  {"end_ns", 8'500'000},
                                  {"thread", 140'000'000'000'009}}));
  ASSERT_EQ(read["blocks"].size(), 7);
  EXPECT_EQ(read["blocks_dropped"], 0);
  EXPECT_EQ(read["blocks"][0], (json{{"address", 0x10000},
                                     {"bytes", 4096},
                                     {"category", "parameters"},
                                     {"phase", "forward"},
                                     {"module", 2},
                                     {"op", nullptr},
                                     {"name", "conv1.weight"},
                                     {"born", nullptr},
                                     {"died", nullptr},
                                     {"born_ns", nullptr},
                                     {"died_ns", nullptr}}));
  EXPECT_EQ(read["blocks"][3], (json{{"address", 0x7f0000000000},
                                     {"bytes", 8192},
                                     {"category", "activations"},
                                     {"phase", "forward"},
                                     {"module", 2},
                                     {"op", 0},
                                     {"name", ""},
                                     {"born", 1},
                                     {"died", 6},
                                     {"born_ns", 2'000'000},
                                     {"died_ns", 7'000'000}}));
}

TEST(ReportJson, HasTheAllocationThatFailed) {
  MemoryReport report = small_report();
  report.refused.emplace();
  report.refused->bytes = 8192;
  report.refused->live = report.at_peak;
  report.refused->op = 1;
  const json read = json::parse(to_json(report));
  EXPECT_EQ(read["refused"]["bytes"], 8192);
  EXPECT_EQ(read["refused"]["op"], 1);
  EXPECT_EQ(read["refused"]["live"], by_category(4096, 4096, 2048, 10240, 512));
}

TEST(ReportJson, HasAdviceLintsAndWhatIsReserved) {
  MemoryReport report = small_report();
  report.reserved = tidemark::ReservedMemory{1, 2, 3};
  report.advice.emplace_back();
  report.advice[1].kind = tidemark::MemoryAdvice::Kind::kCheckpointSequential;
  report.advice[1].every = 4;
  const json read = json::parse(to_json(report));
  EXPECT_EQ(read["reserved"], (json{{"allocated", 1}, {"reserved", 2}, {"inactive_split", 3}}));
  EXPECT_EQ(read["lints"], (json{{{"name", "out-of-place activation"},
                                  {"text", "aten::relu of head could be in place."},
                                  {"bytes", 2048}}}));
  EXPECT_EQ(read["advice"][0], (json{{"kind", "checkpoint"},
                                     {"text", "Run encoder as a checkpointed region."},
                                     {"modules", json::array({"encoder"})},
                                     {"every", 0},
                                     {"expected_peak", 12800},
                                     {"expected_held", 2048},
                                     {"saves", 8192},
                                     {"costs_ns", 3'000'000}}));
  EXPECT_EQ(read["advice"][1]["kind"], "checkpoint_sequential");
  EXPECT_EQ(read["advice"][1]["every"], 4);
  EXPECT_EQ(read["advice"][1]["expected_peak"], nullptr);
  EXPECT_EQ(read["advice"][1]["modules"], json::array());
}

TEST(ReportJson, OfNothingIsComplete) {
  const json read = json::parse(to_json(MemoryReport()));
  EXPECT_EQ(read["peak"], 0);
  EXPECT_EQ(read["peak_op"], nullptr);
  EXPECT_EQ(read["blocks"], json::array());
  EXPECT_EQ(read["modules"], json::array());
}

TEST(ReportJson, ReadsBackWhateverTheNamesHold) {
  const std::string text = to_json(hostile_report());
  const json read = json::parse(text);
  EXPECT_EQ(read["modules"][1]["name"], hostile_name_as_read());
  EXPECT_EQ(read["ops"][0]["name"], hostile_name_as_read());
  EXPECT_EQ(read["blocks"][6]["name"], hostile_name_as_read());
  EXPECT_EQ(read["advice"][0]["text"], hostile_name_as_read());
  EXPECT_EQ(read["advice"][0]["modules"][0], hostile_name_as_read());
  EXPECT_EQ(read["lints"][0]["text"], hostile_name_as_read());
  EXPECT_EQ(text.find('<'), std::string::npos);
}

TEST(ReportJson, IsReadByAParserThatRefusesWhatIsNoJson) {
  EXPECT_FALSE(json::accept('"' + hostile_name() + '"'));
  EXPECT_FALSE(json::accept("\"\xFF\""));
  EXPECT_FALSE(json::accept("[1,]"));
}

TEST(ReportJson, KeepsTheLargestBlocksAndTheFirstOps) {
  const json read =
      json::parse(to_json(small_report(), MemoryReportJsonOptions().max_blocks(3).max_ops(1)));
  EXPECT_EQ(read["blocks_dropped"], 4);
  EXPECT_EQ(read["ops_dropped"], 3);
  EXPECT_EQ(read["ops"].size(), 1);
  ASSERT_EQ(read["blocks"].size(), 3);
  EXPECT_EQ(read["blocks"][0]["bytes"], 4096);
  EXPECT_EQ(read["blocks"][1]["bytes"], 8192);
  EXPECT_EQ(read["blocks"][2]["bytes"], 4096);
}

TEST(ReportJson, IsTheSameInEveryLocale) {
  struct Grouped : std::numpunct<char> {
    char do_decimal_point() const override { return ','; }
    char do_thousands_sep() const override { return '.'; }
    std::string do_grouping() const override { return "\3"; }
  };
  const std::string report = to_json(small_report());
  const std::string trace = to_chrome_trace(small_report());
  const std::locale before = std::locale::global(std::locale(std::locale(), new Grouped));
  EXPECT_EQ(to_json(small_report()), report);
  EXPECT_EQ(to_chrome_trace(small_report()), trace);
  std::locale::global(before);
}

std::vector<json> events_of(const json& trace, const std::string& kind) {
  std::vector<json> found;
  for (const json& event : trace["traceEvents"]) {
    if (event["ph"] == kind) {
      found.push_back(event);
    }
  }
  return found;
}

TEST(ReportTrace, CountsTheLiveBytesInTotalAndOfEachCategory) {
  const json trace = json::parse(to_chrome_trace(small_report()));
  std::map<double, int64_t> totals;
  for (const json& event : events_of(trace, "C")) {
    if (event["name"] == "live bytes") {
      totals[event["ts"]] = event["args"]["total"];
      continue;
    }
    int64_t sum = 0;
    for (const json& bytes : event["args"]) {
      sum += bytes.get<int64_t>();
    }
    EXPECT_EQ(event["args"].size(), 5);  // categories that are there at some time
    EXPECT_EQ(sum, totals.at(event["ts"])) << event;
  }
  EXPECT_EQ(totals, (std::map<double, int64_t>{{0, 6144},
                                               {1000, 7168},
                                               {2000, 15360},
                                               {3000, 14336},
                                               {4000, 16384},
                                               {5000, 20480},
                                               {6000, 20992},
                                               {7000, 12800},
                                               {8000, 12288},
                                               {9000, 10240}}));
}

TEST(ReportTrace, HasTheOpsOfEachThreadWithModuleAndPhase) {
  const json trace = json::parse(to_chrome_trace(small_report()));
  const std::vector<json> ops = events_of(trace, "X");
  ASSERT_EQ(ops.size(), 4);
  EXPECT_EQ(ops[2], (json{{"ph", "X"},
                          {"name", "ConvolutionBackward0"},
                          {"pid", 1},
                          {"ts", 4600.0},
                          {"dur", 3900.0},
                          {"tid", 2},
                          {"cat", "backward"},
                          {"args", {{"module", "encoder.conv1"}, {"phase", "backward"}}}}));
  EXPECT_EQ(ops[3]["tid"], 1);
  std::map<int, std::string> names;
  for (const json& event : events_of(trace, "M")) {
    if (event["name"] == "thread_name") {
      names[event["tid"]] = event["args"]["name"];
    }
  }
  EXPECT_EQ(names, (std::map<int, std::string>{{1, "thread 7"}, {2, "thread 140000000000009"}}));
}

TEST(ReportTrace, MarksThePeak) {
  const json trace = json::parse(to_chrome_trace(small_report()));
  const std::vector<json> marks = events_of(trace, "i");
  ASSERT_EQ(marks.size(), 1);
  EXPECT_EQ(marks[0]["name"], "peak of 20.5 KiB");
  EXPECT_EQ(marks[0]["ts"], 6000.0);
  EXPECT_EQ(marks[0]["s"], "g");
  EXPECT_EQ(marks[0]["args"]["bytes"], 20992);
}

TEST(ReportTrace, HasTheFieldsThatTheFormatAsksFor) {
  for (const MemoryReport& report : {MemoryReport(), small_report(), hostile_report()}) {
    const json trace = json::parse(to_chrome_trace(report));
    for (const json& event : trace["traceEvents"]) {
      EXPECT_TRUE(event["name"].is_string()) << event;
      EXPECT_TRUE(event["pid"].is_number_integer()) << event;
      EXPECT_TRUE(event["ph"] == "M" || event["ts"].get<double>() >= 0) << event;
      EXPECT_TRUE(event["ph"] != "X" || event["dur"].get<double>() >= 0) << event;
      EXPECT_TRUE(event["ph"] == "C" || event["tid"].get<int64_t>() < INT32_MAX) << event;
    }
  }
}

TEST(ReportTrace, KeepsTheLongestOpsAndSaysHowManyAreDropped) {
  const json trace = json::parse(
      to_chrome_trace(small_report(), MemoryReportTraceOptions().max_ops(2).max_rows(1)));
  EXPECT_EQ(trace["otherData"]["ops_dropped"], 2);
  EXPECT_EQ(trace["otherData"]["counter_values_dropped"], 0);  // 12 are always kept
  const std::vector<json> ops = events_of(trace, "X");
  ASSERT_EQ(ops.size(), 2);
  EXPECT_EQ(ops[0]["name"], "aten::conv2d");
  EXPECT_EQ(ops[1]["name"], "ConvolutionBackward0");

  const json large =
      json::parse(to_chrome_trace(large_report(1000), MemoryReportTraceOptions().max_rows(100)));
  EXPECT_GE(large["otherData"]["counter_values_dropped"], 1901);
  EXPECT_LE(events_of(large, "C").size(), 200);
}

TEST(ReportTrace, ReadsBackWhateverTheNamesHold) {
  const json trace = json::parse(to_chrome_trace(hostile_report()));
  EXPECT_EQ(events_of(trace, "X")[0]["name"], hostile_name_as_read());
  EXPECT_EQ(events_of(trace, "X")[0]["args"]["module"], hostile_name_as_read());
}

}  // namespace

#else

TEST(ReportJson, ReadsBack) {
  GTEST_SKIP() << "nlohmann/json.hpp is not there: install nlohmann-json3-dev";
}

#endif
