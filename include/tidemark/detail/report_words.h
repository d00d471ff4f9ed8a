#pragma once

// Sentences of a report that people read, as text or as a page.

#include <tidemark/detail/decimal.h>
#include <tidemark/detail/memory_timeline.h>
#include <tidemark/detail/report_parts.h>
#include <tidemark/memory/bytes.h>
#include <tidemark/memory/memory_report.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace tidemark::detail {

/// "in backward: ConvolutionBackward0 of encoder.conv1, after 6.0 ms"
[[nodiscard]] inline std::string peak_place(const MemoryReport& report) {
  if (report.peak_point == MemoryBlock::kBefore) {
    return "at the begin";
  }
  const int64_t time = time_of(report, report.peak_point);
  std::string place = "in ";
  if (report.peak_op && *report.peak_op < report.ops.size()) {
    const StepOp& op = report.ops[*report.peak_op];
    place += to_string(op.phase);
    place += ": " + op.name + " of " + module_name(report, op.module);
  } else {
    place += to_string(phase_at(report, time));
  }
  return place + ", after " + tenths_of_ms(time) + " ms";
}

/// "256.0 KiB for aten::tanh of encoder in forward, with 1.4 MiB live", of an allocation that
/// failed
[[nodiscard]] inline std::string refusal(const MemoryReport& report, const RefusedMemory& refused) {
  std::string text = format_bytes(refused.bytes);
  if (refused.op && *refused.op < report.ops.size()) {
    const StepOp& op = report.ops[*refused.op];
    text += " for " + op.name + " of " + module_name(report, op.module) + " in ";
    text += to_string(op.phase);
  }
  return text + ", with " + format_bytes(refused.live.total()) + " live";
}

/// "forward 3.9, backward 3.9", of the phases that there were
[[nodiscard]] inline std::string phase_times(const MemoryReport& report) {
  std::string times;
  for (std::size_t i = 0; i < kStepPhases; ++i) {
    if (report.phase_seconds[i] > 0) {
      times += times.empty() ? "" : ", ";
      times += to_string(static_cast<StepPhase>(i));
      times += ' ' + tenths_of_ms(nanoseconds(report.phase_seconds[i]));
    }
  }
  return times;
}

/// "Expected peak 12.5 KiB, held 2.0 KiB, saves 8.0 KiB, costs 3.0 ms", as far as it is known
[[nodiscard]] inline std::string expectation(const MemoryAdvice& advice) {
  std::string expected;
  const auto add = [&expected](std::string_view first, std::string_view later,
                               const std::string& what) {
    expected += expected.empty() ? first : later;
    expected += what;
  };
  if (advice.expected_peak) {
    add("Expected peak ", "", format_bytes(*advice.expected_peak));
  }
  if (advice.expected_held) {
    add("Expected held ", ", held ", format_bytes(*advice.expected_held));
  }
  if (advice.saves) {
    add("Saves ", ", saves ", format_bytes(*advice.saves));
  }
  if (advice.costs_seconds > 0) {
    add("Costs ", ", costs ", tenths_of_ms(nanoseconds(advice.costs_seconds)) + " ms");
  }
  return expected;
}

}  // namespace tidemark::detail
