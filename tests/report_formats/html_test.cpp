#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <tidemark/memory/report_html.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "hand_made_report.h"
#include "json_text.h"

namespace {

using testing::ContainsRegex;
using testing::HasSubstr;
using tidemark::MemoryBlock;
using tidemark::MemoryCategory;
using tidemark::MemoryReport;
using tidemark::MemoryReportHtmlOptions;
using tidemark::to_html;
using namespace tidemark::tests;

std::size_t count(std::string_view text, std::string_view what) {
  std::size_t found = 0;
  for (std::size_t at = text.find(what); at != std::string_view::npos;
       at = text.find(what, at + 1)) {
    ++found;
  }
  return found;
}

/// The first thing wrong with the nesting of the tags of a page, empty if it is right.
std::string tag_fault(const std::string& page) {
  std::vector<std::string> open;
  std::size_t at = 0;
  while ((at = page.find('<', at)) != std::string::npos) {
    const std::size_t end = page.find('>', at);
    if (end == std::string::npos) {
      return "a tag without an end";
    }
    const std::string tag = page.substr(at + 1, end - at - 1);
    at = end + 1;
    const std::string name = tag.substr(0, tag.find_first_of(" /\n", 1));
    if (tag[0] == '!' || tag.back() == '/' || name == "meta" || name == "br") {
      continue;
    }
    if (tag[0] == '/') {
      if (open.empty() || "/" + open.back() != tag) {
        return tag + " closes " + (open.empty() ? "nothing" : open.back());
      }
      open.pop_back();
      continue;
    }
    open.push_back(name);
    if (name == "script" || name == "style") {
      at = page.find("</" + name, at);  // what is inside is no HTML
    }
  }
  return open.empty() ? "" : open.back() + " is not closed";
}

TEST(TagFault, FindsFaults) {
  EXPECT_EQ(tag_fault("<!doctype html><p class=\"a\">x<br></p><path d=\"M0\"/>"), "");
  EXPECT_EQ(tag_fault("<p><b></p></b>"), "/p closes b");
  EXPECT_EQ(tag_fault("<p>"), "p is not closed");
  EXPECT_EQ(tag_fault("</p>"), "/p closes nothing");
  EXPECT_EQ(tag_fault("<p"), "a tag without an end");
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
  report.lints[0].name = hostile_name();
  report.lints[0].text = hostile_name();
  return report;
}

TEST(ReportHtml, IsWellFormedWhateverTheNamesHold) {
  for (const MemoryReport& report :
       {MemoryReport(), small_report(), hostile_report(), large_report(2000)}) {
    const std::string page = to_html(report);
    EXPECT_EQ(tag_fault(page), "");
    EXPECT_EQ(count(page, "<script"), 2);
    EXPECT_EQ(count(page, "</script"), 2);
    EXPECT_EQ(count(page, "\x1b"), 0);
    EXPECT_EQ(count(page, "<b>&"), 0);
    const std::string chart =
        page.substr(page.find("<svg"), page.find("</svg") - page.find("<svg"));
    EXPECT_EQ(count(chart, "nan") + count(chart, "inf"), 0);
  }
  EXPECT_THAT(to_html(hostile_report()),
              HasSubstr("a&quot;b&#39;c&lt;/script&gt;&lt;b&gt;&amp;amp;,   [31m\xC3\xA9"));
}

TEST(ReportHtml, NeedsNothingFromOutside) {
  const std::string page = to_html(small_report());
  for (const char* outside : {"http:", "https:", "src=", "href=", "url(", "@import", "fetch("}) {
    EXPECT_EQ(count(page, outside), 0) << outside;
  }
  EXPECT_THAT(page, HasSubstr("default-src 'none'"));
}

TEST(ReportHtml, DrawsTheCategoriesInSteps) {
  // the chart is 1080 by 400: times from x = 74 to 1050 for 10 ms, bytes from y = 348 up to 26 for
  // 20992; the areas lie on each other in this order: parameters, inputs, gradients, activations
  // and workspace
  const std::string page = to_html(small_report());
  EXPECT_THAT(page, HasSubstr("<path class='c0' d='M74.0 348.0H74.0V285.2H1050.0V348.0Z'/>"));
  // 6144 bytes are 94.2 high
  EXPECT_THAT(page, HasSubstr("<path class='c4' d='M74.0 348.0H74.0V253.8H1050.0V348.0Z'/>"));
  // 10240 bytes are 157.1 high, from 5 ms on
  EXPECT_THAT(page, HasSubstr("<path class='c1' d='M74.0 348.0H74.0V253.8H562.0V190.9H1050.0"
                              "V348.0Z'/>"));
  EXPECT_THAT(page, HasSubstr("<circle class='peak' cx='659.6' cy='26.0' r='4'/>"));
  EXPECT_THAT(page, HasSubstr(">peak 20.5 KiB</text>"));
  // forward from 0.5 to 4.6 ms is 400.2 wide
  EXPECT_THAT(page, HasSubstr("<rect class='p0' x='122.8' y='375' width='400.2'"));
  EXPECT_THAT(page, HasSubstr(">20 KiB</text>"));
  EXPECT_THAT(page, HasSubstr(">4 ms</text>"));
  // what is on top is drawn first
  const std::array<const char*, 5> order{"<path class='c6'", "<path class='c5'", "<path class='c1'",
                                         "<path class='c4'", "<path class='c0'"};
  for (std::size_t i = 1; i < order.size(); ++i) {
    EXPECT_LT(page.find(order[i - 1]), page.find(order[i]));
  }
  EXPECT_EQ(count(page, "<path class='c8'"), 0);
}

TEST(ReportHtml, ShowsTheNumbersWithoutScripts) {
  std::string page = to_html(small_report());
  page.erase(page.find("<script"));
  EXPECT_THAT(page, HasSubstr("<span>Peak</span><b>20.5 KiB</b><span>in backward: "
                              "ConvolutionBackward0 of encoder.conv1, after 6.0 ms</span>"));
  EXPECT_THAT(page, HasSubstr("activations</td><td>10.0</td><td>48.8</td>"));
  EXPECT_THAT(page, HasSubstr("<td>total</td><td>20.5</td><td>100.0</td>"));
  EXPECT_THAT(page, HasSubstr(">encoder.conv1</td>"));
  EXPECT_THAT(page, HasSubstr("<td data-value='8192'>8.0</td>"));
  EXPECT_THAT(page, HasSubstr("<td>8.0 KiB</td><td class='text'>aten::conv2d of encoder.conv1"));
  // alive from 2 to 7 of 10 ms
  EXPECT_THAT(page, HasSubstr("style='left:20.00%;width:50.00%'"));
  EXPECT_THAT(page, HasSubstr("Run encoder as a checkpointed region.<br>"));
  EXPECT_THAT(page, HasSubstr("aten::relu of head could be in place."));
}

TEST(ReportHtml, IsBoundedInSize) {
  EXPECT_LT(to_html(large_report(50'000)).size(), 200'000);
  const std::string page =
      to_html(large_report(2000), MemoryReportHtmlOptions().max_rows(100).blocks(3));
  EXPECT_THAT(page, ContainsRegex("[0-9]+ of 4001 points are drawn"));
  EXPECT_THAT(page, HasSubstr("1997 smaller blocks are not shown"));
}

TEST(ReportHtml, DrawsAStepThatTookNoTime) {
  MemoryReport report = small_report();
  report.seconds = 0;
  for (int64_t& time : report.times_ns) {
    time = 0;
  }
  for (auto& op : report.ops) {
    op.begin_ns = op.end_ns = 0;
  }
  const std::string page = to_html(report);
  EXPECT_EQ(tag_fault(page), "");
  EXPECT_THAT(page, HasSubstr("<circle class='peak' cx='74.0' cy='26.0'"));
}

#if TIDEMARK_HAS_JSON_PARSER

TEST(ReportHtml, HasTheRowsOfTheReadoutAsJson) {
  const std::string page = to_html(hostile_report());
  const std::string head = "id='data'>";
  const std::size_t begin = page.find(head) + head.size();
  const auto data = nlohmann::json::parse(page.substr(begin, page.find("</script", begin) - begin));
  EXPECT_EQ(data["end_ns"], 10'000'000);
  ASSERT_EQ(data["rows"].size(), 10);
  // 6 ms, the total, backward, the first text, and the bytes from the bottom to the top
  EXPECT_EQ(data["rows"][6],
            (nlohmann::json{6'000'000, 20992, 1, 0, 4096, 0, 0, 0, 2048, 4096, 10240, 0, 512}));
  EXPECT_EQ(data["categories"][6], (nlohmann::json{"activations", "c5"}));
  EXPECT_EQ(data["texts"].size(), 1);
}

#endif

}  // namespace
