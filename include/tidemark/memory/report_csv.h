#pragma once

/// \file
/// The timeline of a MemoryReport as a table, for spreadsheets and plots.

#include <tidemark/detail/decimal.h>
#include <tidemark/detail/memory_timeline.h>
#include <tidemark/detail/report_parts.h>
#include <tidemark/detail/utf8.h>
#include <tidemark/memory/memory_report.h>
#include <torch/arg.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace tidemark {

/// How much of a timeline is written: `to_csv(report, MemoryReportCsvOptions().max_rows(1000))`.
struct MemoryReportCsvOptions {
  /// The most rows below the header; at least 12.
  TORCH_ARG(std::size_t, max_rows) = 100'000;
};

}  // namespace tidemark

namespace tidemark::detail {

/// Quoted where it has to be (RFC 4180).
[[nodiscard]] inline std::string csv_field(std::string_view text) {
  std::string line = one_line(text);
  if (line.find_first_of(",\"") == std::string::npos) {
    return line;
  }
  std::string quoted = "\"";
  for (const char c : line) {
    quoted += c;
    if (c == '"') {
      quoted += c;
    }
  }
  return quoted + '"';
}

}  // namespace tidemark::detail

namespace tidemark {

/// The live bytes over time as CSV: `time_ms`, `total`, a column for each category, and the
/// `phase`, `op` and `module` that allocated or freed. The first row is the begin of the recording;
/// then there is one for each allocation and free, with what is live from then on. Times have six
/// decimals, whatever the locale.
///
/// If there are more rows than `max_rows`, those of the begin, the end, the peak and the most of
/// each category are kept. The others are cut into equal spans, and of each the row with the most
/// and the one with the least bytes are kept.
[[nodiscard]] inline std::string to_csv(const MemoryReport& report,
                                        const MemoryReportCsvOptions& options = {}) {
  std::string csv = "time_ms,total";
  for (std::size_t i = 0; i < kMemoryCategories; ++i) {
    csv += ',' + detail::snake_case(to_string(detail::category_at(i)));
  }
  csv += ",phase,op,module\n";
  for (const detail::TimelineRow& row : detail::memory_timeline(report, options.max_rows()).rows) {
    csv += detail::decimal(row.time_ns, 6) + ',' + std::to_string(row.total);
    for (const int64_t bytes : row.bytes.bytes) {
      csv += ',' + std::to_string(bytes);
    }
    csv += std::string(",") + to_string(row.phase) + ',' +
           detail::csv_field(detail::op_name(report, row.op)) + ',' +
           detail::csv_field(detail::module_name(report, row.module)) + '\n';
  }
  return csv;
}

}  // namespace tidemark
