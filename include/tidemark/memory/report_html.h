#pragma once

/// \file
/// A MemoryReport as a page for a browser.

#include <tidemark/detail/decimal.h>
#include <tidemark/detail/html_page.h>
#include <tidemark/detail/html_text.h>
#include <tidemark/detail/json_writer.h>
#include <tidemark/detail/memory_timeline.h>
#include <tidemark/detail/report_parts.h>
#include <tidemark/detail/report_words.h>
#include <tidemark/detail/text_table.h>
#include <tidemark/detail/timeline_svg.h>
#include <tidemark/memory/bytes.h>
#include <tidemark/memory/memory_report.h>
#include <torch/arg.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace tidemark {

/// How much of a report goes into its page: `to_html(report,
/// MemoryReportHtmlOptions().blocks(200))`.
struct MemoryReportHtmlOptions {
  /// The most points of the timeline; at least 12. Thinned as to_csv() does it.
  TORCH_ARG(std::size_t, max_rows) = 800;

  /// The most rows of the table of modules: those with the most bytes are shown.
  TORCH_ARG(std::size_t, modules) = 300;

  /// The most blocks that are named of those live at the peak.
  TORCH_ARG(std::size_t, blocks) = 60;
};

}  // namespace tidemark

namespace tidemark::detail {

class ReportHtml {
 public:
  ReportHtml(const MemoryReport& report, const MemoryReportHtmlOptions& options)
      : report_(report),
        options_(options),
        timeline_(memory_timeline(report, options.max_rows())),
        unit_(report.peak),
        end_ns_(std::max<int64_t>(end_of(report), 1)) {}

  [[nodiscard]] std::string make() && {
    out_ += R"(<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy"
 content="default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'">
<meta name="viewport" content="width=device-width,initial-scale=1">
<title>Memory: )";
    out_ += format_bytes(report_.peak) + " at the peak</title>\n<style>";
    out_ += kPageStyle;
    out_ += "</style>\n</head>\n<body>\n<main>\n";
    headline();
    chart();
    categories();
    advice();
    modules();
    blocks();
    out_ += "</main>\n<script type='application/json' id='data'>" + data() + "</script>\n<script>";
    out_ += kPageScript;
    out_ += "</script>\n</body>\n</html>\n";
    return std::move(out_);
  }

 private:
  void headline() {
    out_ += "<h1>Memory of a training step</h1>\n<p class='soft'>on " +
            html_text(report_.device.str()) + ", bytes as requested of the allocator</p>\n";
    if (report_.lost_events > 0) {
      out_ += "<p>" + std::to_string(report_.lost_events) +
              " allocations and frees past max_events are not in here.</p>\n";
    }
    out_ += "<div class='cards'>\n";
    card("Peak", format_bytes(report_.peak), peak_place(report_));
    card("Held", format_bytes(report_.held), "by graphs for backward");
    card("Allocated", format_bytes(report_.allocated),
         "in " + std::to_string(report_.allocations) + " blocks");
    card("Time", tenths_of_ms(nanoseconds(report_.seconds)) + " ms", phase_times(report_));
    if (report_.reserved) {
      card("Reserved", format_bytes(report_.reserved->reserved),
           format_bytes(report_.reserved->allocated) + " allocated, " +
               format_bytes(report_.reserved->inactive_split) + " not releasable at the end");
    }
    out_ += "</div>\n";
  }

  void card(std::string_view what, std::string_view number, std::string_view detail) {
    out_ += "<div class='card'><span>" + html_text(what) + "</span><b>" + html_text(number) +
            "</b><span>" + html_text(detail) + "</span></div>\n";
  }

  void advice() {
    if (!report_.advice.empty()) {
      out_ += "<h2>Advice <span class='soft'>each on top of those before</span></h2>\n<ol>\n";
      for (const MemoryAdvice& advice : report_.advice) {
        out_ += "<li>" + html_text(advice.text) + "<br><span class='soft'>" +
                html_text(expectation(advice)) + "</span></li>\n";
      }
      out_ += "</ol>\n";
    }
    if (!report_.lints.empty()) {
      out_ += "<h2>Wasted</h2>\n<ul>\n";
      for (const MemoryLint& lint : report_.lints) {
        out_ += "<li><b>" + html_text(lint.name) + "</b> (" + format_bytes(lint.bytes) +
                "): " + html_text(lint.text) + "</li>\n";
      }
      out_ += "</ul>\n";
    }
  }

  void chart() {
    out_ += "<h2>Live memory over time</h2>\n<figure>\n" + TimelineSvg(report_, timeline_).make();
    out_ += "<div id='readout'></div>\n</figure>\n";
    if (timeline_.rows.size() < timeline_.all_rows) {
      out_ += "<p class='soft'>" + std::to_string(timeline_.rows.size()) + " of " +
              std::to_string(timeline_.all_rows) +
              " points are drawn; the peak and the most of each category are among them.</p>\n";
    }
  }

  /// Also the legend of the chart, in its order.
  void categories() {
    out_ += "<div class='scroll'><table>\n<thead><tr><th>" + unit_.name() +
            "</th><th>At peak</th><th>%</th><th class='text'></th><th>Most</th><th>Begin</th>"
            "<th>End</th></tr></thead>\n<tbody>\n";
    const auto at_peak = apportioned(report_.at_peak.bytes, unit_.count(report_.at_peak.total()));
    const auto per_mille = apportioned(report_.at_peak.bytes, 1000);
    for (std::size_t i = kStackOrder.size(); i-- > 0;) {
      const MemoryCategory category = kStackOrder[i];
      const auto index = static_cast<std::size_t>(category);
      if (report_.most[category] == 0) {
        continue;
      }
      const int64_t bytes = report_.at_peak[category];
      out_ += "<tr><td><i class='swatch " + colour_class(index) + "'></i>" + to_string(category) +
              "</td>" + cell(unit_.cell(bytes, at_peak[index])) +
              cell(bytes == 0 ? "-" : decimal(per_mille[index], 1)) +
              "<td class='text wide'><div class='bar'><i class='" + colour_class(index) +
              "' style='width:" + percent(bytes, report_.peak) + "'></i></div></td>" +
              cell(unit_(report_.most[category])) + cell(unit_(report_.at_begin[category])) +
              cell(unit_(report_.at_end[category])) + "</tr>\n";
    }
    out_ += "<tr class='total'><td>total</td>" + cell(unit_(report_.at_peak.total())) +
            cell(report_.peak == 0 ? "-" : "100.0") + "<td></td><td></td>" +
            cell(unit_(report_.at_begin.total())) + cell(unit_(report_.at_end.total())) +
            "</tr>\n</tbody></table></div>\n";
  }

  void modules() {
    const std::vector<std::size_t> shown =
        modules_to_show(report_, options_.modules(), report_.modules.size());
    if (shown.empty()) {
      return;
    }
    out_ += "<h2>Modules <span class='soft'>" + unit_.name() +
            " and ms; click a column to sort, the first for the order of the model</span></h2>\n"
            "<div class='scroll'><table class='sortable'>\n<thead><tr><th>Module</th>"
            "<th class='text'>At peak</th><th></th><th>Activations</th><th>Model state</th>"
            "<th>Workspace<br>forward</th><th>Workspace<br>backward</th><th>Re-run</th>"
            "<th>Forward,<br>ms</th><th>Backward,<br>ms</th></tr></thead>\n<tbody>\n";
    for (const std::size_t i : shown) {
      const ModuleMemory& module = report_.modules[i];
      const int64_t total = module.at_peak.total();
      out_ += "<tr><td style='padding-left:" + std::to_string(8 + 16 * module.depth) + "px'>" +
              html_text(module_name(report_, i)) + "</td><td class='text wide' data-value='" +
              std::to_string(total) + "'>" + bar(module.at_peak) + "</td>";
      bytes_cell(total);
      bytes_cell(module.at_peak[MemoryCategory::kActivations]);
      bytes_cell(training_state(module.at_peak));
      bytes_cell(module.forward_workspace);
      bytes_cell(module.backward_workspace);
      bytes_cell(module.rerun);
      time_cell(module.forward_seconds);
      time_cell(module.backward_seconds);
      out_ += "</tr>\n";
    }
    out_ += "</tbody></table></div>\n";
    if (shown.size() < report_.modules.size()) {
      out_ += "<p class='soft'>" + std::to_string(report_.modules.size() - shown.size()) +
              " smaller modules are not shown.</p>\n";
    }
  }

  [[nodiscard]] std::string bar(const CategoryBytes& bytes) const {
    std::string bar = "<div class='bar'>";
    for (const MemoryCategory category : kStackOrder) {
      if (bytes[category] > 0) {
        bar += "<i class='" + colour_class(static_cast<std::size_t>(category)) +
               "' style='width:" + percent(bytes[category], report_.peak) + "' title='" +
               to_string(category) + ' ' + format_bytes(bytes[category]) + "'></i>";
      }
    }
    return bar + "</div>";
  }

  [[nodiscard]] static std::string cell(std::string_view text) {
    return "<td>" + std::string(text) + "</td>";
  }
  void value_cell(int64_t value, std::string_view shown) {
    out_ += "<td data-value='" + std::to_string(value) + "'>" + std::string(shown) + "</td>";
  }
  void bytes_cell(int64_t bytes) { value_cell(bytes, unit_(bytes)); }
  void time_cell(double seconds) {
    const int64_t time = nanoseconds(seconds);
    value_cell(time, time == 0 ? "-" : tenths_of_ms(time));
  }

  void blocks() {
    const std::vector<std::size_t> live = blocks_at_peak(report_);
    const std::size_t shown = std::min(live.size(), options_.blocks());
    if (shown == 0) {
      return;
    }
    out_ +=
        "<h2>Largest blocks at the peak</h2>\n<div class='scroll'><table>\n<thead><tr>"
        "<th>Category</th><th>Bytes</th><th class='text'>What</th><th class='text'>Made in"
        "</th><th class='text'>Lives</th></tr></thead>\n<tbody>\n";
    for (std::size_t i = 0; i < shown; ++i) {
      const MemoryBlock& block = report_.blocks[live[i]];
      const std::string colour = colour_class(static_cast<std::size_t>(block.category));
      const int64_t born = time_of(report_, block.born);
      const int64_t died =
          block.died == MemoryBlock::kAlive ? end_ns_ : time_of(report_, block.died);
      const char* made_in = block.born == MemoryBlock::kBefore ? "before" : to_string(block.phase);
      out_ += "<tr><td><i class='swatch " + colour + "'></i>" + to_string(block.category) + "</td>";
      out_ += cell(format_bytes(block.bytes));
      out_ += "<td class='text'>" + html_text(block_title(report_, block)) + "</td>";
      out_ += std::string("<td class='text'>") + made_in + "</td>";
      out_ += "<td class='wide'><div class='life'><i class='" + colour +
              "' style='left:" + percent(born, end_ns_) +
              ";width:" + percent(died - born, end_ns_) + "'></i></div></td></tr>\n";
    }
    out_ += "</tbody></table></div>\n";
    if (shown < live.size()) {
      out_ += "<p class='soft'>" + std::to_string(live.size() - shown) +
              " smaller blocks are not shown.</p>\n";
    }
  }

  /// What the readout needs: of each row time, total, phase, text and the bytes of the categories.
  [[nodiscard]] std::string data() const {
    JsonWriter json;
    json.begin_object().member("end_ns", end_ns_).member("width", TimelineSvg::kWidth);
    json.member("left", TimelineSvg::kLeft).member("right", TimelineSvg::kRight);
    json.key("categories").begin_array();
    for (const MemoryCategory category : kStackOrder) {
      json.begin_array().value(to_string(category));
      json.value(colour_class(static_cast<std::size_t>(category))).end_array();
    }
    json.end_array().key("phases").begin_array();
    for (std::size_t i = 0; i < kStepPhases; ++i) {
      json.value(to_string(static_cast<StepPhase>(i)));
    }
    std::unordered_map<std::string, std::size_t> texts;
    std::vector<std::string> text_of;
    json.end_array().key("rows").begin_array();
    for (const TimelineRow& row : timeline_.rows) {
      json.begin_array().value(row.time_ns).value(row.total);
      json.value(static_cast<int>(row.phase));
      if (row.op) {
        std::string text = op_name(report_, row.op) + " of " + module_name(report_, row.module);
        const auto [found, is_new] = texts.try_emplace(text, text_of.size());
        if (is_new) {
          text_of.push_back(std::move(text));
        }
        json.value(found->second);
      } else {
        json.value(-1);
      }
      for (const MemoryCategory category : kStackOrder) {
        json.value(row.bytes[category]);
      }
      json.end_array().line_break();
    }
    json.end_array().key("texts").begin_array();
    for (const std::string& text : text_of) {
      json.value(text);
    }
    json.end_array().end_object();
    return std::move(json).take();
  }

  const MemoryReport& report_;
  const MemoryReportHtmlOptions& options_;
  const MemoryTimeline timeline_;
  const ByteUnit unit_;
  const int64_t end_ns_;
  std::string out_;
};

}  // namespace tidemark::detail

namespace tidemark {

/// The report as one HTML page that needs nothing else, no network either, in light or dark as the
/// browser is set: the timeline as a chart with its phases and the peak, the modules with what they
/// have at the peak, the largest blocks, advice and what is wasted. Without scripts it lacks the
/// readout below the pointer and the sorting of the table. Its size is bounded by the options.
[[nodiscard]] inline std::string to_html(const MemoryReport& report,
                                         const MemoryReportHtmlOptions& options = {}) {
  return detail::ReportHtml(report, options).make();
}

}  // namespace tidemark
