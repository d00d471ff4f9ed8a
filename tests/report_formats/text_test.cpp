#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <tidemark/detail/decimal.h>
#include <tidemark/detail/text_table.h>
#include <tidemark/detail/utf8.h>
#include <tidemark/memory/report_text.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <iomanip>
#include <limits>
#include <sstream>
#include <string>

#include "hand_made_report.h"

namespace {

using testing::HasSubstr;
using testing::Not;
using tidemark::MemoryBlock;
using tidemark::MemoryCategory;
using tidemark::MemoryReport;
using tidemark::MemoryReportTextOptions;
using tidemark::to_text;
using namespace tidemark::tests;

// 4096 of 20992 bytes are 19.512 %, 2048 are 9.756, 10240 are 48.780 and 512 are 2.439; rounded
// down to tenths they lack 0.2 of 100, which the activations (remainder 0.080) and the inputs
// (0.056) get. What is freed: 6144 at the begin + 15872 allocated - 10240 at the end = 11776
// bytes, 11.5 KiB.
constexpr const char* kSmallReport = R"(Memory of a training step on cpu
  Peak       20.5 KiB in backward: ConvolutionBackward0 of encoder.conv1, after 6.0 ms
  Held       10.0 KiB by graphs for backward
  Allocated  15.5 KiB in 5 blocks
  Time       10.0 ms: forward 3.9, backward 3.9, update 0.9

Category, KiB           At peak       %       Most      Begin        End
parameters                  4.0    19.5        4.0        4.0        4.0
gradients                   4.0    19.5        4.0          -        4.0
inputs                      2.0     9.8        2.0        2.0        2.0
activations                10.0    48.8       10.0          -          -
workspace                   0.5     2.4        1.0          -          -
total                      20.5   100.0                   6.0       10.0

Metric, KiB               Cur Usage  Peak Usage   Tot Alloc   Tot Freed
Requested memory               10.0        20.5        15.5        11.5

                                         Acti-    Model         Workspace                   Time, ms
Module, KiB                   At peak  vations    state  forward backward   Re-run  forward backward
(model)                          20.5     10.0      8.0      1.0      0.5        -      3.9      3.9
  encoder                        16.5      8.0      8.0      1.0      0.5        -      3.0      3.9
    conv1                        16.5      8.0      8.0      1.0      0.5        -      3.0      3.9
  head                            2.0      2.0        -        -        -        -      0.9        -

Largest blocks at the peak
     8.0 KiB  activations      aten::conv2d of encoder.conv1
     4.0 KiB  parameters       conv1.weight
     4.0 KiB  gradients        ConvolutionBackward0 of encoder.conv1
     2.0 KiB  inputs           from before the recording
     2.0 KiB  activations      aten::relu of head
   512 bytes  workspace        ConvolutionBackward0 of encoder.conv1

Wasted
  - out-of-place activation (2.0 KiB): aten::relu of head could be in place.

Advice, each on top of those before
  1. Run encoder as a checkpointed region.
     Expected peak 12.5 KiB, held 2.0 KiB, saves 8.0 KiB, costs 3.0 ms
)";

void expect_columns(const std::string& text, std::size_t most) {
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    EXPECT_LE(tidemark::detail::characters(line), most) << line;
  }
}

TEST(ReportText, ShowsASmallStepAtAGlance) { EXPECT_EQ(to_text(small_report()), kSmallReport); }

TEST(ReportText, DependsOnNoStateOfTheStream) {
  std::ostringstream stream;
  stream << std::hex << std::showbase << std::setfill('*');
  stream << small_report();
  EXPECT_EQ(stream.str(), kSmallReport);
}

TEST(ReportText, OfNothingIsShort) {
  const std::string text = to_text(MemoryReport());
  EXPECT_THAT(text, HasSubstr("Peak       0 bytes"));
  EXPECT_THAT(text, HasSubstr("Time       0.0 ms\n"));
  EXPECT_THAT(text, Not(HasSubstr("Largest blocks")));
  EXPECT_THAT(text, Not(HasSubstr("Module")));
  EXPECT_THAT(text, Not(HasSubstr("nan")));
}

TEST(ReportText, SaysThatThePeakWasAtTheBegin) {
  MemoryReport report;
  report.blocks = {block(64, 100, MemoryCategory::kOther, {}, 0, {}, MemoryBlock::kBefore, 0),
                   block(256, 7, MemoryCategory::kOther, {}, 0, {}, 1, MemoryBlock::kAlive)};
  report.times_ns = {1000, 2000};
  report.peak = 100;
  report.peak_point = MemoryBlock::kBefore;
  report.at_peak[MemoryCategory::kOther] = 100;
  const std::string text = to_text(report);
  EXPECT_THAT(text, HasSubstr("Peak       100 bytes at the begin\n"));
  EXPECT_THAT(text, HasSubstr("   100 bytes  other            from before the recording\n"));
  EXPECT_THAT(text, Not(HasSubstr("7 bytes")));
}

TEST(ReportText, HasColumnsThatAddUpAsShown) {
  // 32.0 KiB of three times 10.667 KiB, each a third
  MemoryReport report;
  for (const auto category :
       {MemoryCategory::kParameters, MemoryCategory::kGradients, MemoryCategory::kActivations}) {
    report.at_peak[category] = report.most[category] = 10923;
  }
  report.peak = 32769;
  const std::string text = to_text(report);
  EXPECT_THAT(text, HasSubstr("parameters                 10.7    33.4"));
  EXPECT_THAT(text, HasSubstr("gradients                  10.7    33.3"));
  EXPECT_THAT(text, HasSubstr("activations                10.6    33.3"));
  EXPECT_THAT(text, HasSubstr("total                      32.0   100.0"));
}

TEST(ReportText, FoldsSmallModulesWithACount) {
  MemoryReport report;
  report.peak = 1'000'000;
  const auto of = [](int64_t bytes) { return category_bytes(0, 0, 0, bytes, 0); };
  report.modules = {module("", 0, of(1'000'000), 0, 0, 0, 0),
                    module("a", 1, of(9'999), 0, 0, 0, 0),  // below a hundredth
                    module("a.x", 2, of(9'999), 0, 0, 0, 0),
                    module("b", 1, of(900'000), 0, 0, 0, 0),
                    module("b.x", 2, of(5'000), 0, 0, 0, 0),
                    module("b.y", 2, of(800'000), 0, 0, 0, 0),
                    module("b.z", 2, of(10'000), 0, 0, 0, 0),
                    module("c", 1, of(9'000), 0, 0, 0, 0)};
  const auto names = [](const std::string& text) {
    std::istringstream lines(text.substr(text.find("(model)")));
    std::string found;
    for (std::string line; std::getline(lines, line) && !line.empty();) {
      const std::size_t first = line.find_first_not_of(' ');
      found += std::string(first, ' ') +
               line.substr(first, line.find_first_of(" \n", first + 1) - first) + '\n';
    }
    return found;
  };
  EXPECT_EQ(names(to_text(report)), "(model)\n  b\n    y\n    z\n    (1\n  (3\n");
  EXPECT_EQ(names(to_text(report, MemoryReportTextOptions().modules(3))),
            "(model)\n  b\n    y\n    (2\n  (3\n");
  EXPECT_EQ(names(to_text(report, MemoryReportTextOptions().module_depth(1))),
            "(model)\n  b\n    (3\n  (3\n");
}

TEST(ReportText, NamesAsManyBlocksAsItIsTold) {
  const std::string text = to_text(small_report(), MemoryReportTextOptions().blocks(2));
  // 2.0 + 2.0 + 4.0 + 0.5 KiB of the six are left
  EXPECT_THAT(text, HasSubstr("     8.0 KiB  activations      aten::conv2d of encoder.conv1\n"
                              "     4.0 KiB  parameters       conv1.weight\n"
                              "     8.5 KiB  in 4 smaller\n"));
}

TEST(ReportText, PrintsWhatTheDeviceTellsOfItsAllocatorSideBySide) {
  MemoryReport report = small_report();
  report.reserved = tidemark::ReservedMemory{12288, 41984, 1024};
  const std::string text = to_text(report);
  EXPECT_THAT(text, HasSubstr("Allocated memory               12.0\n"
                              "Requested memory               10.0        20.5        15.5  "
                              "      11.5\n"
                              "GPU reserved memory            41.0\n"
                              "Non-releasable memory           1.0\n"
                              "  Reserved is 2.0 times the peak;"));
}

TEST(ReportText, SaysWhichAllocationFailed) {
  MemoryReport report = small_report();
  EXPECT_THAT(to_text(report), Not(HasSubstr("Refused")));
  report.refused.emplace();
  report.refused->bytes = 8192;
  report.refused->live[tidemark::MemoryCategory::kActivations] = 4096;
  EXPECT_THAT(to_text(report), HasSubstr("  Refused    8.0 KiB, with 4.0 KiB live\n"));
  report.refused->op = 0;
  EXPECT_THAT(to_text(report),
              HasSubstr("  Refused    8.0 KiB for aten::conv2d of encoder.conv1 in forward, with "
                        "4.0 KiB live\n"));
}

TEST(ReportText, SaysWhatIsLost) {
  MemoryReport report = small_report();
  EXPECT_THAT(to_text(report), Not(HasSubstr("Lost")));
  report.lost_events = 12;
  EXPECT_THAT(to_text(report), HasSubstr("  Lost       12 allocations and frees past max_events"));
}

TEST(ReportText, KeepsToItsColumnsWhateverTheNames) {
  MemoryReport report = small_report();
  for (auto& module : report.modules) {
    module.name += hostile_name() + std::string(120, 'm');
  }
  for (auto& op : report.ops) {
    op.name = hostile_name();
  }
  report.blocks[0].name = hostile_name() + std::string(200, 'x');
  for (int i = 0; i < 60; ++i) {
    report.advice[0].text += " Do it again.";
  }
  const std::string text = to_text(report);
  EXPECT_THAT(text, Not(HasSubstr("\x1b")));
  EXPECT_THAT(text, Not(HasSubstr("\t")));
  EXPECT_THAT(text, HasSubstr("\xC3\xA9\xEF\xBF\xBD"));
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    const bool word_of_its_own = line.find(std::string(120, 'm')) != std::string::npos;
    EXPECT_TRUE(tidemark::detail::characters(line) <= 100 || word_of_its_own) << line;
  }
}

TEST(ReportText, HasAtMostAHundredColumns) {
  expect_columns(to_text(small_report()), 100);
  expect_columns(to_text(large_report(1000)), 100);
}

TEST(Utf8, KnowsWhatIsValid) {
  using tidemark::detail::utf8_length;
  EXPECT_EQ(utf8_length(""), 0);
  EXPECT_EQ(utf8_length("a"), 1);
  EXPECT_EQ(utf8_length("\xC3\xA9"), 2);
  EXPECT_EQ(utf8_length("\xE2\x82\xAC"), 3);
  EXPECT_EQ(utf8_length("\xF0\x9F\x8C\x8A"), 4);
  for (const char* invalid : {"\x80", "\xC0\x80", "\xC3", "\xC3(", "\xE0\x9F\xBF", "\xE2\x82",
                              "\xED\xA0\x80", "\xF0\x8F\xBF\xBF", "\xF4\x90\x80\x80", "\xFF"}) {
    EXPECT_EQ(utf8_length(invalid), 0) << invalid;
  }
}

TEST(Utf8, MakesOneLineOfAnything) {
  using tidemark::detail::one_line;
  EXPECT_EQ(one_line("a\nb\r\x1b[0m\x7F\xC2\x9B."), "a b  [0m  .");
  EXPECT_EQ(one_line(std::string("a\0b", 3)), "a b");
  EXPECT_EQ(one_line("\xFF\xC3\xA9"), "\xEF\xBF\xBD\xC3\xA9");
}

TEST(Decimal, IsExact) {
  using tidemark::detail::decimal;
  EXPECT_EQ(decimal(1234, 2), "12.34");
  EXPECT_EQ(decimal(-5, 1), "-0.5");
  EXPECT_EQ(decimal(0, 3), "0.000");
  EXPECT_EQ(decimal(7, 0), "7");
  EXPECT_EQ(decimal(std::numeric_limits<int64_t>::min(), 6), "-9223372036854.775808");
}

TEST(Decimal, TakesNoSecondsForWhatIsNoTime) {
  using tidemark::detail::nanoseconds;
  EXPECT_EQ(nanoseconds(1.5e-9), 2);
  EXPECT_EQ(nanoseconds(-2.0), -2'000'000'000);
  EXPECT_EQ(nanoseconds(std::numeric_limits<double>::quiet_NaN()), 0);
  EXPECT_EQ(nanoseconds(std::numeric_limits<double>::infinity()), 0);
}

TEST(TextTable, ApportionsWhatRoundingLeavesOver) {
  using Parts = std::array<int64_t, 3>;
  EXPECT_EQ(tidemark::detail::apportioned(Parts{1, 1, 1}, 100), (Parts{34, 33, 33}));
  EXPECT_EQ(tidemark::detail::apportioned(Parts{0, 5, 0}, 7), (Parts{0, 7, 0}));
  EXPECT_EQ(tidemark::detail::apportioned(Parts{0, 0, 0}, 0), (Parts{0, 0, 0}));
  // 0.5, 1.25 and 8.25
  EXPECT_EQ(tidemark::detail::apportioned(Parts{2, 5, 33}, 10), (Parts{1, 1, 8}));
}

TEST(TextTable, TakesTheLargestUnitOfWhichThereAreTen) {
  using tidemark::detail::ByteUnit;
  EXPECT_EQ(ByteUnit(0).name(), "bytes");
  EXPECT_EQ(ByteUnit(10239).name(), "bytes");
  EXPECT_EQ(ByteUnit(10240).name(), "KiB");
  EXPECT_EQ(ByteUnit((10 << 20) - 1).name(), "KiB");
  EXPECT_EQ(ByteUnit(10 << 20)(3 << 19), "1.5");
  EXPECT_EQ(ByteUnit(100)(3), "3");
  EXPECT_EQ(ByteUnit(std::numeric_limits<int64_t>::max()).name(), "TiB");
}

}  // namespace
