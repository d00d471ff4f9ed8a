#pragma once

// The timeline of a report as a chart: stacked areas that go up and down in steps, as memory does.

#include <tidemark/detail/decimal.h>
#include <tidemark/detail/html_text.h>
#include <tidemark/detail/memory_timeline.h>
#include <tidemark/memory/bytes.h>
#include <tidemark/memory/memory_report.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tidemark::detail {

class TimelineSvg {
 public:
  // in units of the drawing, which are pixels on a page of usual width
  static constexpr int64_t kWidth = 1080;
  static constexpr int64_t kHeight = 400;
  static constexpr int64_t kLeft = 74;
  static constexpr int64_t kRight = kWidth - 30;
  static constexpr int64_t kTop = 26;
  static constexpr int64_t kBottom = kHeight - 52;

  TimelineSvg(const MemoryReport& report, const MemoryTimeline& timeline)
      : report_(report), timeline_(timeline), end_ns_(std::max<int64_t>(end_of(report), 1)) {
    for (const TimelineRow& row : timeline.rows) {
      most_ = std::max(most_, row.total);
    }
  }

  [[nodiscard]] int64_t end_ns() const { return end_ns_; }
  [[nodiscard]] int64_t top_bytes() const { return most_; }

  [[nodiscard]] std::string make() && {
    out_ = "<svg id='chart' viewBox='0 0 " + std::to_string(kWidth) + ' ' +
           std::to_string(kHeight) + "' role='img' aria-label='Live bytes over time'>\n";
    byte_axis();
    for (std::size_t i = kStackOrder.size(); i-- > 0;) {
      area(i);
    }
    time_axis();
    phases();
    peak();
    out_ += "<g id='cursor' visibility='hidden'><line y1='" + std::to_string(kTop) + "' y2='" +
            std::to_string(kBottom) + "'/></g>\n</svg>\n";
    return std::move(out_);
  }

 private:
  [[nodiscard]] std::string x(int64_t time_ns) const {
    const double share = static_cast<double>(time_ns) / static_cast<double>(end_ns_);
    return decimal(std::llround((kLeft + std::clamp(share, 0.0, 1.0) * (kRight - kLeft)) * 10), 1);
  }
  [[nodiscard]] std::string y(int64_t bytes) const {
    return decimal(
        std::llround((static_cast<double>(kBottom) -
                      static_cast<double>(bytes) / static_cast<double>(most_) * (kBottom - kTop)) *
                     10),
        1);
  }

  void text(std::string_view x, std::string_view y, std::string_view anchor, std::string_view text,
            std::string_view name = "") {
    out_ += "<text x='" + std::string(x) + "' y='" + std::string(y) + "' text-anchor='" +
            std::string(anchor) + "' class='" + std::string(name) + "'>" + html_text(text) +
            "</text>\n";
  }

  /// The area below this and all lower categories; those lower are painted over it.
  void area(std::size_t in_order) {
    const auto height = [in_order](const TimelineRow& row) {
      int64_t sum = 0;
      for (std::size_t i = 0; i <= in_order; ++i) {
        sum += row.bytes[kStackOrder[i]];
      }
      return sum;
    };
    const MemoryCategory category = kStackOrder[in_order];
    if (report_.most[category] == 0) {
      return;
    }
    out_ += "<path class='" + colour_class(static_cast<std::size_t>(category)) + "' d='M" + x(0) +
            ' ' + y(0);
    std::string at = y(0);
    for (const TimelineRow& row : timeline_.rows) {
      const std::string to = y(height(row));
      if (to != at) {
        out_ += 'H' + x(row.time_ns) + 'V' + to;
        at = to;
      }
    }
    out_ += 'H' + x(end_ns_) + 'V' + y(0) + "Z'/>\n";
  }

  void byte_axis() {
    // 1, 2, 4, ... of a unit, so that the labels are whole
    int64_t step = 1;
    while (most_ / step >= 6) {
      step *= 2;
    }
    for (int64_t bytes = 0; bytes <= most_; bytes += step) {
      out_ += "<path class='grid' d='M" + std::to_string(kLeft) + ' ' + y(bytes) + 'H' +
              std::to_string(kRight) + "'/>\n";
      const std::string label = format_bytes(bytes);
      const std::size_t zero = label.find(".0 ");
      text(std::to_string(kLeft - 8), y(bytes), "end",
           bytes == 0
               ? "0"
               : (zero == std::string::npos ? label
                                            : label.substr(0, zero) + label.substr(zero + 2)),
           "tick");
    }
  }

  void time_axis() {
    int64_t step = 1;
    for (int64_t next = 0; end_ns_ / step >= 10; ++next) {
      step = next % 3 == 1 ? step / 2 * 5 : step * 2;  // 1, 2, 5, 10
    }
    for (int64_t time = 0; time <= end_ns_; time += step) {
      const std::string at = x(time);
      out_ += "<path class='axis' d='M" + at + ' ' + std::to_string(kBottom) + "v4'/>\n";
      std::string label = decimal(time, 6);
      label.erase(label.find_last_not_of('0') + 1);
      text(at, std::to_string(kBottom + 17), "middle",
           (label.back() == '.' ? label.substr(0, label.size() - 1) : label) + " ms");
    }
    out_ += "<path class='axis' d='M" + std::to_string(kLeft) + ' ' + std::to_string(kBottom) +
            'H' + std::to_string(kRight) + "'/>\n";
  }

  void phases() {
    constexpr int64_t kBand = kBottom + 27;
    for (const PhaseSpan& span : phase_spans(report_)) {
      const double width = static_cast<double>(span.end_ns - span.begin_ns) /
                           static_cast<double>(end_ns_) * (kRight - kLeft);
      if (width < 0.5) {
        continue;
      }
      const char* name = to_string(span.phase);
      out_ += "<rect class='p" + std::to_string(static_cast<std::size_t>(span.phase)) + "' x='" +
              x(span.begin_ns) + "' y='" + std::to_string(kBand) + "' width='" +
              decimal(std::llround(width * 10), 1) + "' height='16'><title>" + name +
              "</title></rect>\n";
      if (width > 60) {
        text(x((span.begin_ns + span.end_ns) / 2), std::to_string(kBand + 12), "middle", name,
             "phase");
      }
    }
  }

  void peak() {
    const int64_t time = time_of(report_, report_.peak_point);
    const bool at_the_right = time > end_ns_ / 2;
    const std::string at = x(time);
    out_ += "<path class='peak' d='M" + at + ' ' + std::to_string(kTop - 6) + 'V' +
            std::to_string(kBottom) + "'/>\n<circle class='peak' cx='" + at + "' cy='" +
            y(report_.peak) + "' r='4'/>\n";
    text(at, std::to_string(kTop - 11), at_the_right ? "end" : "start",
         "peak " + format_bytes(report_.peak), "peak");
  }

  const MemoryReport& report_;
  const MemoryTimeline& timeline_;
  int64_t end_ns_;
  int64_t most_ = 1;
  std::string out_;
};

}  // namespace tidemark::detail
