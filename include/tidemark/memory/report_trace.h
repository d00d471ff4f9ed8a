#pragma once

/// \file
/// A MemoryReport as a trace for https://ui.perfetto.dev and chrome://tracing.

#include <tidemark/detail/json_writer.h>
#include <tidemark/detail/memory_timeline.h>
#include <tidemark/detail/report_parts.h>
#include <tidemark/memory/bytes.h>
#include <tidemark/memory/memory_report.h>
#include <torch/arg.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace tidemark {

/// How much of a report goes into its trace:
/// `to_chrome_trace(report, MemoryReportTraceOptions().max_ops(5000))`.
struct MemoryReportTraceOptions {
  /// The most ops: the longest are written.
  TORCH_ARG(std::size_t, max_ops) = 100'000;

  /// The most values of each counter; at least 12. Thinned as to_csv() does it.
  TORCH_ARG(std::size_t, max_rows) = 20'000;
};

}  // namespace tidemark

namespace tidemark::detail {

class ReportTrace {
 public:
  ReportTrace(const MemoryReport& report, const MemoryReportTraceOptions& options)
      : report_(report), options_(options) {}

  [[nodiscard]] std::string make() && {
    const MemoryTimeline timeline = memory_timeline(report_, options_.max_rows());
    const std::vector<std::size_t> ops =
        largest(report_.ops.size(), options_.max_ops(),
                [this](std::size_t i) { return report_.ops[i].end_ns - report_.ops[i].begin_ns; });
    json_.begin_object().member("displayTimeUnit", "ms");
    json_.key("otherData").begin_object();
    json_.member("made_by", "tidemark").member("device", report_.device.str());
    json_.member("ops_dropped", report_.ops.size() - ops.size());
    json_.member("counter_values_dropped", timeline.all_rows - timeline.rows.size());
    json_.end_object();
    json_.line_break().key("traceEvents").begin_array();
    name("process_name", 0, "memory of " + report_.device.str());
    for (const std::size_t op : ops) {
      add(report_.ops[op]);
    }
    for (const TimelineRow& row : timeline.rows) {
      add(row);
    }
    peak();
    json_.line_break().end_array().end_object();
    return std::move(json_).take() + '\n';
  }

 private:
  JsonWriter& event(const char* kind, std::string_view name, int64_t time_ns) {
    json_.line_break().begin_object().member("ph", kind).member("name", name).member("pid", 1);
    return json_.key("ts").decimal_value(time_ns, 3);  // in microseconds
  }

  void name(const char* what, int64_t thread, std::string_view name) {
    json_.line_break().begin_object().member("ph", "M").member("name", what).member("pid", 1);
    json_.member("tid", thread).key("args").begin_object().member("name", name).end_object();
    json_.end_object();
  }

  /// Threads as 1, 2, ...: viewers take 32 bits.
  int64_t thread_of(const StepOp& op) {
    const auto [found, is_new] =
        threads_.try_emplace(op.thread, static_cast<int64_t>(threads_.size()) + 1);
    if (is_new) {
      name("thread_name", found->second, "thread " + std::to_string(op.thread));
    }
    return found->second;
  }

  void add(const StepOp& op) {
    const int64_t thread = thread_of(op);
    event("X", op.name, op.begin_ns).key("dur").decimal_value(op.end_ns - op.begin_ns, 3);
    json_.member("tid", thread).member("cat", to_string(op.phase));
    json_.key("args").begin_object();
    json_.member("module", module_name(report_, op.module));
    json_.member("phase", to_string(op.phase));
    json_.end_object().end_object();
  }

  void add(const TimelineRow& row) {
    event("C", "live bytes", row.time_ns).key("args").begin_object();
    json_.member("total", row.total).end_object().end_object();
    event("C", "live bytes of", row.time_ns).key("args").begin_object();
    for (std::size_t i = 0; i < kMemoryCategories; ++i) {
      const MemoryCategory category = category_at(i);
      if (report_.most[category] > 0) {
        json_.member(to_string(category), row.bytes[category]);
      }
    }
    json_.end_object().end_object();
  }

  void peak() {
    event("i", "peak of " + format_bytes(report_.peak), time_of(report_, report_.peak_point));
    json_.member("tid", 1).member("s", "g").key("args").begin_object();
    json_.member("bytes", report_.peak).end_object().end_object();
  }

  const MemoryReport& report_;
  const MemoryReportTraceOptions& options_;
  JsonWriter json_;
  std::unordered_map<uint64_t, int64_t> threads_;
};

}  // namespace tidemark::detail

namespace tidemark {

/// The report as a trace in Chrome's JSON format, which Perfetto opens: counters of the live bytes,
/// in total and of each category, the ops of each thread with module and phase, and a mark at the
/// peak. `otherData` says how much is past the limits of the options.
[[nodiscard]] inline std::string to_chrome_trace(const MemoryReport& report,
                                                 const MemoryReportTraceOptions& options = {}) {
  return detail::ReportTrace(report, options).make();
}

}  // namespace tidemark
