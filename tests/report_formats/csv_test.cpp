#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <tidemark/detail/memory_timeline.h>
#include <tidemark/memory/report_csv.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "hand_made_report.h"

namespace {

using testing::HasSubstr;
using tidemark::kMemoryCategories;
using tidemark::MemoryBlock;
using tidemark::MemoryCategory;
using tidemark::MemoryReport;
using tidemark::MemoryReportCsvOptions;
using tidemark::StepPhase;
using tidemark::to_csv;
using tidemark::detail::memory_timeline;
using tidemark::detail::MemoryTimeline;
using tidemark::detail::TimelineRow;
using namespace tidemark::tests;

constexpr const char* kHeader =
    "time_ms,total,parameters,gradients,optimizer_state,buffers,inputs,activations,workspace,"
    "temporaries,other,phase,op,module\n";

TEST(ReportCsv, HasARowForEachChange) {
  EXPECT_EQ(to_csv(small_report()),
            std::string(kHeader) +
                "0.000000,6144,4096,0,0,0,2048,0,0,0,0,forward,,(model)\n"
                "1.000000,7168,4096,0,0,0,2048,0,1024,0,0,forward,aten::conv2d,encoder.conv1\n"
                "2.000000,15360,4096,0,0,0,2048,8192,1024,0,0,forward,aten::conv2d,encoder.conv1\n"
                "3.000000,14336,4096,0,0,0,2048,8192,0,0,0,forward,aten::conv2d,encoder.conv1\n"
                "4.000000,16384,4096,0,0,0,2048,10240,0,0,0,forward,aten::relu,head\n"
                "5.000000,20480,4096,4096,0,0,2048,10240,0,0,0,backward,ConvolutionBackward0,"
                "encoder.conv1\n"
                "6.000000,20992,4096,4096,0,0,2048,10240,512,0,0,backward,ConvolutionBackward0,"
                "encoder.conv1\n"
                "7.000000,12800,4096,4096,0,0,2048,2048,512,0,0,backward,ConvolutionBackward0,"
                "encoder.conv1\n"
                "8.000000,12288,4096,4096,0,0,2048,2048,0,0,0,backward,ConvolutionBackward0,"
                "encoder.conv1\n"
                "9.000000,10240,4096,4096,0,0,2048,0,0,0,0,update,aten::add_,(model)\n");
}

TEST(ReportCsv, OfNothingHasTheBegin) {
  EXPECT_EQ(to_csv(MemoryReport()),
            std::string(kHeader) + "0.000000,0,0,0,0,0,0,0,0,0,0,forward,,(model)\n");
}

TEST(ReportCsv, QuotesNamesThatNeedIt) {
  MemoryReport report = small_report();
  report.ops[0].name = hostile_name();
  report.modules[2].name = "plain name";
  EXPECT_THAT(to_csv(report),
              HasSubstr(",forward,\"a\"\"b'c</script><b>&amp;,   [31m\xC3\xA9\xEF\xBF\xBD"
                        "\xEF\xBF\xBD\xEF\xBF\xBD \\\",plain name\n"));
}

TEST(MemoryTimeline, NamesNoOpForWhatIsFreedBetweenOps) {
  MemoryReport report = small_report();
  report.ops[3].begin_ns = 9'200'000;  // the free at 9 ms is before it now
  const TimelineRow last = memory_timeline(report, 100).rows.back();
  EXPECT_EQ(last.op, std::nullopt);
  EXPECT_EQ(last.module, 0);
  EXPECT_EQ(last.phase, StepPhase::kBackward);
}

TEST(MemoryTimeline, NamesTheOpThatAllocatesThoughAnotherThreadHasBegunOneSince) {
  MemoryReport report = small_report();
  report.ops[1].begin_ns = 1'500'000;
  const MemoryTimeline timeline = memory_timeline(report, 100);
  EXPECT_EQ(timeline.rows[2].op, 0);  // at 2 ms
  EXPECT_EQ(timeline.rows[2].module, 2);
  EXPECT_EQ(timeline.rows[3].op, 1);  // of a free nothing better is known
}

TEST(MemoryTimeline, LeavesEmptyBlocksOut) {
  MemoryReport report;
  report.blocks = {block(0, 0, MemoryCategory::kOther, {}, 0, {}, 0, 1)};
  report.times_ns = {1, 2};
  EXPECT_EQ(memory_timeline(report, 100).all_rows, 1);
}

/// A thousand blocks that pile up and go again, and behind that a workspace of 5 bytes.
MemoryReport pile() {
  MemoryReport report = large_report(1000);
  report.blocks.push_back(
      block(0x10, 5, MemoryCategory::kWorkspace, StepPhase::kUpdate, 0, {}, 2000, 2001));
  report.times_ns.insert(report.times_ns.end(), {3'000'000, 4'000'000});
  report.most[MemoryCategory::kWorkspace] = 5;
  return report;
}

TEST(MemoryTimeline, KeepsThePeakAndTheMostOfEachCategoryHoweverFewRows) {
  const MemoryReport report = pile();
  for (const std::size_t max_rows : {0, 12, 13, 14, 50, 2002, 2003, 5000}) {
    const MemoryTimeline timeline = memory_timeline(report, max_rows);
    EXPECT_EQ(timeline.all_rows, 2003);
    EXPECT_LE(timeline.rows.size(), std::max<std::size_t>(max_rows, 12));
    int64_t most = 0;
    tidemark::CategoryBytes most_of;
    for (const TimelineRow& row : timeline.rows) {
      EXPECT_EQ(row.total, row.bytes.total());
      most = std::max(most, row.total);
      for (std::size_t i = 0; i < kMemoryCategories; ++i) {
        most_of.bytes[i] = std::max(most_of.bytes[i], row.bytes.bytes[i]);
      }
    }
    EXPECT_EQ(most, 500'500);  // 1 + 2 + ... + 1000
    EXPECT_EQ(most_of[MemoryCategory::kActivations], 250'000);
    EXPECT_EQ(most_of[MemoryCategory::kTemporaries], 250'500);
    EXPECT_EQ(most_of[MemoryCategory::kWorkspace], 5);
    EXPECT_EQ(timeline.rows.front().point, MemoryBlock::kBefore);
    EXPECT_EQ(timeline.rows.back().point, 2001);
    EXPECT_EQ(timeline.rows.back().total, 0);
    for (std::size_t i = 1; i < timeline.rows.size(); ++i) {
      EXPECT_LT(timeline.rows[i - 1].point, timeline.rows[i].point);
    }
  }
  EXPECT_EQ(memory_timeline(report, 2003).rows.size(), 2003);
}

TEST(MemoryTimeline, FollowsTheCourseBetweenWhatIsAlwaysKept) {
  // 212 rows: 12 and two of each of 100 spans of about 20 points, over which the total of a pile of
  // blocks up to 1000 bytes changes by at most 20'000
  const MemoryTimeline timeline = memory_timeline(pile(), 212);
  EXPECT_GT(timeline.rows.size(), 190);
  for (std::size_t i = 1; i < timeline.rows.size(); ++i) {
    EXPECT_LE(std::abs(timeline.rows[i].total - timeline.rows[i - 1].total), 2 * 20'100);
  }
}

TEST(ReportCsv, ObeysItsLimit) {
  const std::string csv = to_csv(pile(), MemoryReportCsvOptions().max_rows(40));
  EXPECT_LE(std::count(csv.begin(), csv.end(), '\n'), 41);
  EXPECT_THAT(csv, HasSubstr(",500500,"));
}

TEST(MemoryTimeline, KnowsThePhasesOneAfterTheOther) {
  const auto spans = tidemark::detail::phase_spans(small_report());
  ASSERT_EQ(spans.size(), 3);
  EXPECT_EQ(spans[0].phase, StepPhase::kForward);
  EXPECT_EQ(spans[0].begin_ns, 500'000);
  EXPECT_EQ(spans[0].end_ns, 4'600'000);  // until backward begins
  EXPECT_EQ(spans[1].end_ns, 8'600'000);
  EXPECT_EQ(spans[2].phase, StepPhase::kUpdate);
  EXPECT_EQ(spans[2].end_ns, 9'500'000);
}

TEST(MemoryTimeline, EndsWithWhateverIsLast) {
  MemoryReport report;
  EXPECT_EQ(tidemark::detail::end_of(report), 0);
  report.times_ns = {1, 30};
  EXPECT_EQ(tidemark::detail::end_of(report), 30);
  report.ops = {{"a", StepPhase::kForward, 0, 2, 40, 1}, {"b", StepPhase::kForward, 0, 3, 4, 1}};
  EXPECT_EQ(tidemark::detail::end_of(report), 40);
  report.seconds = 50e-9;
  EXPECT_EQ(tidemark::detail::end_of(report), 50);
}

}  // namespace
