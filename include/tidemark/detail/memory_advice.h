#pragma once

// What the numbers of a step suggest.

#include <tidemark/detail/block_flow.h>
#include <tidemark/detail/checkpoint_search.h>
#include <tidemark/detail/checkpoint_simulation.h>
#include <tidemark/detail/op_modules.h>
#include <tidemark/detail/step_history.h>
#include <tidemark/detail/step_recording.h>
#include <tidemark/memory/bytes.h>
#include <tidemark/memory/memory_report.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace tidemark::detail {

/// Advice on a report, the most useful first.
class MemoryAdvisor {
 public:
  MemoryAdvisor(const torch::nn::Module* model, const StepRecord& record,
                const StepHistory& history, const BlockFlow& flow, const OpModules& op_modules,
                const MemoryReport& report)
      : model_(model),
        record_(record),
        history_(history),
        flow_(flow),
        op_modules_(op_modules),
        report_(report) {}

  std::vector<MemoryAdvice> advise() {
    if (report_.peak <= 0) {
      return {};
    }
    say_what_checkpointing_cannot_save();
    say_what_to_checkpoint();
    say_how_to_accumulate();
    return std::move(advice_);
  }

 private:
  using Category = MemoryCategory;
  using Kind = MemoryAdvice::Kind;

  static constexpr double kWorthIt = 0.05;  // of the peak

  [[nodiscard]] double share(int64_t bytes) const {
    return static_cast<double>(bytes) / static_cast<double>(report_.peak);
  }
  [[nodiscard]] std::string percent(int64_t bytes) const {
    return std::to_string(std::lround(100 * share(bytes))) + " %";
  }
  [[nodiscard]] int64_t at_peak(std::initializer_list<Category> categories) const {
    int64_t bytes = 0;
    for (const Category category : categories) {
      bytes += report_.at_peak[category];
    }
    return bytes;
  }

  void say_what_checkpointing_cannot_save() {
    const int64_t state = at_peak({Category::kParameters, Category::kGradients,
                                   Category::kOptimizerState, Category::kBuffers});
    if (share(state) > 0.5) {
      MemoryAdvice advice;
      advice.kind = Kind::kNotCheckpointing;
      advice.text = "Parameters, gradients and optimizer state are " + percent(state) +
                    " of the peak (" + format_bytes(state) + " of " + format_bytes(report_.peak) +
                    "; optimizer state alone " +
                    format_bytes(report_.at_peak[Category::kOptimizerState]) +
                    "). Neither checkpointing nor smaller batches will help with that; fewer "
                    "parameters, an optimizer with less state (SGD keeps one tensor per "
                    "parameter with momentum and none without, Adam two) or gradients that are "
                    "freed before the forward would.";
      advice_.push_back(std::move(advice));
    }
    const int64_t workspace = report_.at_peak[Category::kWorkspace];
    if (share(workspace) > 0.5 && report_.peak_op.has_value()) {
      const StepOp& op = report_.ops[*report_.peak_op];
      MemoryAdvice advice;
      advice.kind = Kind::kNotCheckpointing;
      advice.modules = {report_.modules[op.module].name};
      advice.text = "What " + op.name + " (" + to_string(op.phase) + " of '" +
                    report_.modules[op.module].name + "') allocates for itself is " +
                    percent(workspace) + " of the peak (" + format_bytes(workspace) +
                    "). Checkpointing can't save that; running the module on parts of its input "
                    "would, as checkpoint_chunks() does along dim 0.";
      advice_.push_back(std::move(advice));
    }
  }

  void say_what_to_checkpoint() {
    const CheckpointSimulation simulation(record_.ops, history_, op_modules_);
    CheckpointSearch search(model_, record_.ops, flow_, op_modules_, simulation);
    const CheckpointSearch::Set set = search.best();
    if (set.empty() ||
        share(search.plain().peak - search.step_with(set, set.size()).peak) < kWorthIt) {
      return;
    }
    double seconds = 0;
    for (std::size_t i = 0; i < set.size(); ++i) {
      const SimulatedStep step = search.step_with(set, i + 1);
      seconds += set[i].seconds;
      MemoryAdvice advice;
      advice.kind = set[i].every == 0 ? Kind::kCheckpoint : Kind::kCheckpointSequential;
      advice.modules = {set[i].module};
      advice.every = set[i].every;
      advice.text = text_of(set[i]);
      advice.expected_peak = step.peak;
      advice.expected_held = step.held;
      advice.saves = search.plain().peak - step.peak;
      advice.costs_seconds = seconds;
      advice_.push_back(std::move(advice));
    }
  }

  static std::string text_of(const CheckpointCandidate& candidate) {
    if (candidate.every != 0) {
      const std::string sequential =
          candidate.module.empty() ? "the model" : "'" + candidate.module + "'";
      return "Make " + sequential +
             " a CheckpointedSequential, with CheckpointedSequentialOptions().every(" +
             std::to_string(candidate.every) + ").";
    }
    return "Checkpoint '" + candidate.module +
           "': declare it Checkpointed<Module>, or call checkpoint(module, x).";
  }

  void say_how_to_accumulate() {
    const int64_t grows = at_peak(
        {Category::kActivations, Category::kInputs, Category::kTemporaries, Category::kWorkspace});
    const auto batch = batch_size();
    if (!batch.has_value() || share(grows) <= 0.5) {
      return;
    }
    MemoryAdvice advice;
    advice.kind = Kind::kAccumulate;
    if (*batch > 1) {
      advice.text =
          "Make smaller batches and accumulate: what grows with the batch of " +
          std::to_string(*batch) + " is " + percent(grows) +
          " of the peak. A GradAccumulator over several micro-batches gives the same "
          "gradients" +
          (report_.at_peak[Category::kBuffers] > 0 ? " (but BatchNorm then sees less at a time)."
                                                   : ".");
    } else {
      advice.text =
          "The batch is 1 already. A GradAccumulator gives the effect of a larger one "
          "for no more activations than this.";
    }
    advice_.push_back(std::move(advice));
  }

  // Dim 0 of what the first op with parameters works on.
  [[nodiscard]] std::optional<int64_t> batch_size() const {
    for (const RecordedOp& op : record_.ops) {
      if (op.phase == StepPhase::kForward && op.batch.has_value()) {
        return op.batch;
      }
    }
    return std::nullopt;
  }

  const torch::nn::Module* model_;
  const StepRecord& record_;
  const StepHistory& history_;
  const BlockFlow& flow_;
  const OpModules& op_modules_;
  const MemoryReport& report_;
  std::vector<MemoryAdvice> advice_;
};

}  // namespace tidemark::detail
