#pragma once

/// \file
/// A MemoryReport as JSON, for other programs.

#include <c10/util/Exception.h>
#include <tidemark/detail/decimal.h>
#include <tidemark/detail/json_writer.h>
#include <tidemark/detail/memory_timeline.h>
#include <tidemark/detail/report_parts.h>
#include <tidemark/memory/memory_report.h>
#include <torch/arg.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace tidemark {

/// How much of a report goes into its JSON:
/// `to_json(report, MemoryReportJsonOptions().max_blocks(1000))`.
struct MemoryReportJsonOptions {
  /// The most blocks: the largest are written.
  TORCH_ARG(std::size_t, max_blocks) = 100'000;

  /// The most ops: the first are written, so that their indices stay what they are.
  TORCH_ARG(std::size_t, max_ops) = 100'000;
};

}  // namespace tidemark

namespace tidemark::detail {

[[nodiscard]] inline const char* kind_name(MemoryAdvice::Kind kind) {
  switch (kind) {
    case MemoryAdvice::Kind::kCheckpoint:
      return "checkpoint";
    case MemoryAdvice::Kind::kCheckpointSequential:
      return "checkpoint_sequential";
    case MemoryAdvice::Kind::kAccumulate:
      return "accumulate";
    case MemoryAdvice::Kind::kNotCheckpointing:
      return "not_checkpointing";
  }
  TORCH_CHECK(false, "tidemark: ", static_cast<int>(kind), " is no MemoryAdvice::Kind.");
}

class ReportJson {
 public:
  ReportJson(const MemoryReport& report, const MemoryReportJsonOptions& options)
      : report_(report), options_(options) {}

  [[nodiscard]] std::string make() && {
    json_.begin_object();
    json_.member("format", "tidemark.memory_report").member("version", 1);
    sums();
    array("modules", report_.modules, [this](const ModuleMemory& module) { add(module); });
    ops();
    blocks();
    array("advice", report_.advice, [this](const MemoryAdvice& advice) { add(advice); });
    array("lints", report_.lints, [this](const MemoryLint& lint) {
      json_.member("name", lint.name).member("text", lint.text).member("bytes", lint.bytes);
    });
    json_.line_break().end_object();
    return std::move(json_).take() + '\n';
  }

 private:
  void sums() {
    json_.line_break().member("device", report_.device.str());
    json_.member("peak", report_.peak);
    json_.member("peak_point", report_.peak_point);
    json_.member("peak_ns", time_of(report_, report_.peak_point));
    json_.member("peak_op", report_.peak_op);
    json_.member("held", report_.held);
    json_.member("allocated", report_.allocated);
    json_.member("allocations", report_.allocations);
    json_.member("lost_events", report_.lost_events);
    json_.member("duration_ns", nanoseconds(report_.seconds));
    json_.key("phase_ns").begin_object();
    for (std::size_t i = 0; i < kStepPhases; ++i) {
      json_.member(snake_case(to_string(static_cast<StepPhase>(i))),
                   nanoseconds(report_.phase_seconds[i]));
    }
    json_.end_object();
    add("at_peak", report_.at_peak);
    add("at_begin", report_.at_begin);
    add("at_end", report_.at_end);
    add("most", report_.most);
    json_.line_break().key("reserved");
    if (report_.reserved) {
      json_.begin_object()
          .member("allocated", report_.reserved->allocated)
          .member("reserved", report_.reserved->reserved)
          .member("inactive_split", report_.reserved->inactive_split)
          .end_object();
    } else {
      json_.value(std::optional<int64_t>());
    }
    json_.line_break().key("refused");
    if (report_.refused) {
      json_.begin_object()
          .member("bytes", report_.refused->bytes)
          .member("op", report_.refused->op);
      add("live", report_.refused->live);
      json_.end_object();
    } else {
      json_.value(std::optional<int64_t>());
    }
  }

  void add(const char* name, const CategoryBytes& bytes) {
    json_.line_break().key(name).begin_object();
    for (std::size_t i = 0; i < kMemoryCategories; ++i) {
      json_.member(snake_case(to_string(category_at(i))), bytes.bytes[i]);
    }
    json_.end_object();
  }

  /// An array of objects, one a line.
  template <typename Items, typename AddMembers>
  void array(const char* name, const Items& items, const AddMembers& add_members) {
    json_.line_break().key(name).begin_array();
    for (const auto& item : items) {
      json_.line_break().begin_object();
      add_members(item);
      json_.end_object();
    }
    json_.end_array();
  }

  void add(const ModuleMemory& module) {
    json_.member("name", module.name).member("depth", module.depth);
    add("at_peak", module.at_peak);
    add("most", module.most);
    json_.member("forward_workspace", module.forward_workspace);
    json_.member("backward_workspace", module.backward_workspace);
    json_.member("rerun", module.rerun);
    json_.member("forward_ns", nanoseconds(module.forward_seconds));
    json_.member("backward_ns", nanoseconds(module.backward_seconds));
    json_.member("rerun_ns", nanoseconds(module.rerun_seconds));
  }

  void ops() {
    const std::size_t written = std::min(report_.ops.size(), options_.max_ops());
    json_.line_break().member("ops_dropped", report_.ops.size() - written);
    json_.line_break().key("ops").begin_array();
    for (std::size_t i = 0; i < written; ++i) {
      const StepOp& op = report_.ops[i];
      json_.line_break().begin_object();
      json_.member("name", op.name);
      json_.member("phase", snake_case(to_string(op.phase)));
      json_.member("module", op.module);
      json_.member("begin_ns", op.begin_ns).member("end_ns", op.end_ns);
      json_.member("thread", op.thread);
      json_.end_object();
    }
    json_.end_array();
  }

  void blocks() {
    const std::vector<std::size_t> written =
        largest(report_.blocks.size(), options_.max_blocks(),
                [this](std::size_t i) { return report_.blocks[i].bytes; });
    json_.line_break().member("blocks_dropped", report_.blocks.size() - written.size());
    array("blocks", written, [this](std::size_t i) {
      const MemoryBlock& block = report_.blocks[i];
      const bool before = block.born == MemoryBlock::kBefore;
      const bool alive = block.died == MemoryBlock::kAlive;
      json_.member("address", block.address).member("bytes", block.bytes);
      json_.member("category", snake_case(to_string(block.category)));
      json_.member("phase", snake_case(to_string(block.phase)));
      json_.member("module", block.module).member("op", block.op).member("name", block.name);
      json_.member("born", before ? std::nullopt : std::optional(block.born));
      json_.member("died", alive ? std::nullopt : std::optional(block.died));
      json_.member("born_ns", before ? std::nullopt : std::optional(time_of(report_, block.born)));
      json_.member("died_ns", alive ? std::nullopt : std::optional(time_of(report_, block.died)));
    });
  }

  void add(const MemoryAdvice& advice) {
    json_.member("kind", kind_name(advice.kind)).member("text", advice.text);
    json_.key("modules").begin_array();
    for (const std::string& module : advice.modules) {
      json_.value(module);
    }
    json_.end_array();
    json_.member("every", advice.every);
    json_.member("expected_peak", advice.expected_peak);
    json_.member("expected_held", advice.expected_held);
    json_.member("saves", advice.saves);
    json_.member("costs_ns", nanoseconds(advice.costs_seconds));
  }

  const MemoryReport& report_;
  const MemoryReportJsonOptions& options_;
  JsonWriter json_;
};

}  // namespace tidemark::detail

namespace tidemark {

/// The report as one JSON object. All numbers are integers: bytes, or nanoseconds since the
/// recording began (`_ns`). Strings are valid UTF-8 whatever the names hold.
///
/// The fields are named as in MemoryReport, with these differences:
///
/// - `format` is "tidemark.memory_report" and `version` 1; the version grows when a field changes
///   its meaning or goes away, not when one comes.
/// - Sums by category are objects with `parameters`, `gradients`, `optimizer_state`, `buffers`,
///   `inputs`, `activations`, `workspace`, `temporaries` and `other`; phases are `forward`,
///   `backward`, `re_run` and `update`.
/// - `peak_ns` is the time of the peak, `duration_ns` that of the recording, `phase_ns` by phase.
/// - `born`, `died`, `born_ns` and `died_ns` of a block are null if it was there before or after.
/// - `peak_op` and what else is not known is null; so is `reserved` where the device doesn't tell,
///   and `refused` where no allocation failed.
/// - `ops_dropped` and `blocks_dropped` say how many are past the limits of the options. An index
///   of an op past the end of `ops` is of one that was dropped.
[[nodiscard]] inline std::string to_json(const MemoryReport& report,
                                         const MemoryReportJsonOptions& options = {}) {
  return detail::ReportJson(report, options).make();
}

}  // namespace tidemark
