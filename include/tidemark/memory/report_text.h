#pragma once

/// \file
/// A MemoryReport as one page for a terminal.

#include <tidemark/detail/decimal.h>
#include <tidemark/detail/memory_timeline.h>
#include <tidemark/detail/report_parts.h>
#include <tidemark/detail/report_words.h>
#include <tidemark/detail/text_table.h>
#include <tidemark/memory/bytes.h>
#include <tidemark/memory/memory_report.h>
#include <torch/arg.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <ostream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tidemark {

/// What a report shows as text: `to_text(report, MemoryReportTextOptions().modules(40))`.
struct MemoryReportTextOptions {
  /// The most rows of the table of modules: those with the most bytes are shown.
  TORCH_ARG(std::size_t, modules) = 20;

  /// How deep the tree of modules is shown; 0 is the whole model only.
  TORCH_ARG(std::size_t, module_depth) = 8;

  /// The most blocks that are named of those live at the peak.
  TORCH_ARG(std::size_t, blocks) = 8;
};

}  // namespace tidemark

namespace tidemark::detail {

class ReportText {
 public:
  ReportText(const MemoryReport& report, const MemoryReportTextOptions& options)
      : report_(report), options_(options), unit_(report.peak) {}

  [[nodiscard]] std::string make() && {
    headline();
    categories();
    statistics();
    modules();
    blocks();
    lints();
    advice();
    return std::move(out_);
  }

 private:
  void headline() {
    out_ += "Memory of a training step on " + report_.device.str() + '\n';
    out_ += paragraph("  Peak       ", format_bytes(report_.peak) + ' ' + peak_place(report_));
    out_ += paragraph("  Held       ", format_bytes(report_.held) + " by graphs for backward");
    out_ += paragraph("  Allocated  ", format_bytes(report_.allocated) + " in " +
                                           std::to_string(report_.allocations) +
                                           (report_.allocations == 1 ? " block" : " blocks"));
    const std::string phases = phase_times(report_);
    out_ += paragraph("  Time       ", tenths_of_ms(nanoseconds(report_.seconds)) + " ms" +
                                           (phases.empty() ? "" : ": ") + phases);
    if (report_.refused) {
      out_ += paragraph("  Refused    ", refusal(report_, *report_.refused));
    }
    if (report_.lost_events > 0) {
      out_ +=
          paragraph("  Lost       ", std::to_string(report_.lost_events) +
                                         " allocations and frees past max_events are not in here");
    }
  }

  void categories() {
    constexpr std::size_t kName = 20;
    constexpr std::size_t kColumn = 11;
    out_ += '\n' + left_aligned("Category, " + unit_.name(), kName) +
            right_aligned("At peak", kColumn) + right_aligned("%", kColumn - 3) +
            right_aligned("Most", kColumn) + right_aligned("Begin", kColumn) +
            right_aligned("End", kColumn) + '\n';
    const auto at_peak = apportioned(report_.at_peak.bytes, unit_.count(report_.at_peak.total()));
    const auto per_mille = apportioned(report_.at_peak.bytes, 1000);
    for (std::size_t i = 0; i < kMemoryCategories; ++i) {
      const MemoryCategory category = category_at(i);
      if (report_.most[category] == 0 && report_.at_peak[category] == 0) {
        continue;
      }
      out_ += left_aligned(to_string(category), kName) +
              right_aligned(unit_.cell(report_.at_peak[category], at_peak[i]), kColumn) +
              right_aligned(report_.at_peak[category] == 0 ? "-" : decimal(per_mille[i], 1),
                            kColumn - 3) +
              right_aligned(unit_(report_.most[category]), kColumn) +
              right_aligned(unit_(report_.at_begin[category]), kColumn) +
              right_aligned(unit_(report_.at_end[category]), kColumn) + '\n';
    }
    out_ += left_aligned("total", kName) + right_aligned(unit_(report_.at_peak.total()), kColumn) +
            right_aligned(report_.at_peak.total() == 0 ? "-" : "100.0", kColumn - 3) +
            right_aligned("", kColumn) + right_aligned(unit_(report_.at_begin.total()), kColumn) +
            right_aligned(unit_(report_.at_end.total()), kColumn) + '\n';
  }

  /// The rows that torch.cuda.memory_summary has, as far as they are known.
  void statistics() {
    using Row = std::pair<const char*, std::array<std::optional<int64_t>, 4>>;
    const int64_t now = report_.at_end.total();
    const int64_t freed = report_.at_begin.total() + report_.allocated - now;
    std::vector<Row> rows;
    if (report_.reserved) {
      rows.push_back({"Allocated memory", {report_.reserved->allocated}});
    }
    rows.push_back({"Requested memory", {now, report_.peak, report_.allocated, freed}});
    if (report_.reserved) {
      rows.push_back({"GPU reserved memory", {report_.reserved->reserved}});
      rows.push_back({"Non-releasable memory", {report_.reserved->inactive_split}});
    }
    constexpr std::size_t kName = 23;
    constexpr std::size_t kColumn = 12;
    out_ += '\n' + left_aligned("Metric, " + unit_.name(), kName) +
            right_aligned("Cur Usage", kColumn) + right_aligned("Peak Usage", kColumn) +
            right_aligned("Tot Alloc", kColumn) + right_aligned("Tot Freed", kColumn) + '\n';
    for (const auto& [name, cells] : rows) {
      std::string row = left_aligned(name, kName);
      for (const std::optional<int64_t>& cell : cells) {
        row += cell ? right_aligned(unit_(*cell), kColumn) : std::string();
      }
      out_ += row + '\n';
    }
    if (report_.reserved && report_.peak > 0) {
      out_ += paragraph("  ",
                        "Reserved is " +
                            decimal(scaled_ratio(report_.reserved->reserved, report_.peak, 10), 1) +
                            " times the peak; what is above 1 is cached or fragmented.");
    }
  }

  void modules() {
    const std::vector<std::size_t> shown =
        modules_to_show(report_, options_.modules(), options_.module_depth());
    if (shown.empty()) {
      return;
    }
    out_ += '\n' + left_aligned("", kModuleName) + right_aligned("", kModuleColumn) +
            right_aligned("Acti-", kModuleColumn) + right_aligned("Model", kModuleColumn) +
            right_aligned("Workspace", kModuleColumn * 2) + right_aligned("", kModuleColumn) +
            right_aligned("Time, ms", kModuleColumn * 2) + '\n';
    out_ += left_aligned("Module, " + unit_.name(), kModuleName) +
            right_aligned("At peak", kModuleColumn) + right_aligned("vations", kModuleColumn) +
            right_aligned("state", kModuleColumn) + right_aligned("forward", kModuleColumn) +
            right_aligned("backward", kModuleColumn) + right_aligned("Re-run", kModuleColumn) +
            right_aligned("forward", kModuleColumn) + right_aligned("backward", kModuleColumn) +
            '\n';
    // of each shown module around the current one: how many are not shown right below it
    std::vector<std::pair<std::size_t, std::size_t>> open;
    const auto close_down_to = [&](std::size_t depth) {
      while (!open.empty() && report_.modules[open.back().first].depth >= depth) {
        close(open.back());
        open.pop_back();
      }
    };
    auto next = shown.begin();
    for (std::size_t i = 0; i < report_.modules.size(); ++i) {
      close_down_to(report_.modules[i].depth);
      if (next != shown.end() && *next == i) {
        ++next;
        module_row(i, open.empty() ? std::string() : report_.modules[open.back().first].name);
        open.emplace_back(i, 0);
      } else if (!open.empty()) {
        ++open.back().second;
      }
    }
    close_down_to(0);
  }

  void close(const std::pair<std::size_t, std::size_t>& module_and_folded) {
    const auto& [module, folded] = module_and_folded;
    if (folded > 0) {
      out_ += std::string(2 * (report_.modules[module].depth + 1), ' ') + "(" +
              std::to_string(folded) + " smaller)\n";
    }
  }

  void module_row(std::size_t index, const std::string& inside) {
    const ModuleMemory& module = report_.modules[index];
    std::string name = module_name(report_, index);
    const bool in_it = !inside.empty() && name.compare(0, inside.size() + 1, inside + '.') == 0;
    name = std::string(2 * module.depth, ' ') + (in_it ? name.substr(inside.size() + 1) : name);
    out_ += left_aligned(one_line(name), kModuleName) +
            right_aligned(unit_(module.at_peak.total()), kModuleColumn) +
            right_aligned(unit_(module.at_peak[MemoryCategory::kActivations]), kModuleColumn) +
            right_aligned(unit_(training_state(module.at_peak)), kModuleColumn) +
            right_aligned(unit_(module.forward_workspace), kModuleColumn) +
            right_aligned(unit_(module.backward_workspace), kModuleColumn) +
            right_aligned(unit_(module.rerun), kModuleColumn) +
            right_aligned(ms(module.forward_seconds), kModuleColumn) +
            right_aligned(ms(module.backward_seconds), kModuleColumn) + '\n';
  }

  [[nodiscard]] static std::string ms(double seconds) {
    return seconds == 0 ? "-" : tenths_of_ms(nanoseconds(seconds));
  }

  void blocks() {
    const std::vector<std::size_t> live = blocks_at_peak(report_);
    if (live.empty() || options_.blocks() == 0) {
      return;
    }
    out_ += "\nLargest blocks at the peak\n";
    const std::size_t shown = std::min(live.size(), options_.blocks());
    for (std::size_t i = 0; i < shown; ++i) {
      const MemoryBlock& block = report_.blocks[live[i]];
      out_ += right_aligned(format_bytes(block.bytes), 12) + "  " +
              left_aligned(to_string(block.category), 17) +
              shortened(block_title(report_, block), kTextColumns - 31) + '\n';
    }
    if (shown < live.size()) {
      int64_t rest = 0;
      for (std::size_t i = shown; i < live.size(); ++i) {
        rest += report_.blocks[live[i]].bytes;
      }
      out_ += right_aligned(format_bytes(rest), 12) + "  in " +
              std::to_string(live.size() - shown) + " smaller\n";
    }
  }

  void lints() {
    if (report_.lints.empty()) {
      return;
    }
    out_ += "\nWasted\n";
    for (const MemoryLint& lint : report_.lints) {
      out_ += paragraph("  - ", lint.name + " (" + format_bytes(lint.bytes) + "): " + lint.text);
    }
  }

  void advice() {
    if (report_.advice.empty()) {
      return;
    }
    out_ += "\nAdvice, each on top of those before\n";
    for (std::size_t i = 0; i < report_.advice.size(); ++i) {
      const MemoryAdvice& advice = report_.advice[i];
      out_ += paragraph(right_aligned(std::to_string(i + 1), 3) + ". ", advice.text);
      const std::string expected = expectation(advice);
      if (!expected.empty()) {
        out_ += paragraph("     ", expected);
      }
    }
  }

  static constexpr std::size_t kModuleName = 28;
  static constexpr std::size_t kModuleColumn = 9;

  const MemoryReport& report_;
  const MemoryReportTextOptions& options_;
  const ByteUnit unit_;
  std::string out_;
};

}  // namespace tidemark::detail

namespace tidemark {

/// The report as one page of at most 100 columns: where the peak is, what it is made of, which
/// modules and blocks it belongs to, what wastes memory and what to do about it.
///
/// Bytes of all tables are in one unit, and what the peak is made of adds up to it as shown. "Model
/// state" of a module is its parameters, gradients, optimizer state and buffers at the peak. A
/// module has what those inside it have; those with less than a hundredth of the peak are counted
/// as smaller. The rows "Allocated memory" and so on mean what they mean in
/// torch.cuda.memory_summary: "Requested memory" is what all other numbers of the report are, and
/// the others are there if the device's allocator tells. Control characters in names become spaces.
[[nodiscard]] inline std::string to_text(const MemoryReport& report,
                                         const MemoryReportTextOptions& options = {}) {
  return detail::ReportText(report, options).make();
}

/// to_text(report) with its default options.
inline std::ostream& operator<<(std::ostream& stream, const MemoryReport& report) {
  return stream << to_text(report);
}

}  // namespace tidemark
