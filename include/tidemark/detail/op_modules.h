#pragma once

// Which module each op of a step belongs to. Ops that read parameters show it; the others belong
// to what their neighbours have in common, and a backward node to the module of what made it.

#include <tidemark/detail/module_names.h>
#include <tidemark/detail/step_recording.h>
#include <tidemark/memory/memory_report.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace tidemark::detail {

class OpModules {
 public:
  explicit OpModules(const std::deque<RecordedOp>& ops)
      : modules_(ops.size()), forward_ops_(ops.size()) {
    name_forward(ops);
    name_nodes(ops);
  }

  /// The module of an op; "" is the model.
  [[nodiscard]] const std::string& module(std::size_t op) const { return modules_[op]; }

  /// Of a node: the op that made it.
  [[nodiscard]] std::optional<std::size_t> forward_op(std::size_t op) const {
    return forward_ops_[op];
  }

 private:
  // Ops of one thread and phase (and re-run) that follow each other.
  struct Stretch {
    StepPhase phase;
    int32_t outer;
    std::vector<std::size_t> ops;
  };

  void name_forward(const std::deque<RecordedOp>& ops) {
    std::unordered_map<uint64_t, Stretch> of_thread;
    for (std::size_t i = 0; i < ops.size(); ++i) {
      const RecordedOp& op = ops[i];
      if (op.phase == StepPhase::kBackward) {
        continue;
      }
      const auto [found, first] = of_thread.emplace(op.thread, Stretch{op.phase, op.outer, {}});
      Stretch& stretch = found->second;
      if (!first && (stretch.phase != op.phase || stretch.outer != op.outer)) {
        name(stretch, ops);
        stretch = {op.phase, op.outer, {}};
      }
      stretch.ops.push_back(i);
    }
    for (auto& [thread, stretch] : of_thread) {
      name(stretch, ops);
    }
  }

  void name(const Stretch& stretch, const std::deque<RecordedOp>& ops) {
    // A re-run is of one region, so what lies at its ends is in there, too.
    std::string outside;
    if (stretch.phase == StepPhase::kRerun) {
      std::optional<std::string> all;
      for (const std::size_t i : stretch.ops) {
        if (ops[i].module.has_value()) {
          all = all.has_value() ? common_parent(*all, *ops[i].module) : *ops[i].module;
        }
      }
      outside = all.value_or("");
    }
    std::vector<std::string> next(stretch.ops.size() + 1, outside);
    for (std::size_t k = stretch.ops.size(); k-- > 0;) {
      next[k] = ops[stretch.ops[k]].module.value_or(next[k + 1]);
    }
    std::string previous = outside;
    for (std::size_t k = 0; k < stretch.ops.size(); ++k) {
      const auto& own = ops[stretch.ops[k]].module;
      modules_[stretch.ops[k]] = own.has_value() ? *own : common_parent(previous, next[k + 1]);
      previous = own.value_or(previous);
    }
  }

  void name_nodes(const std::deque<RecordedOp>& ops) {
    struct Made {
      uint64_t first;
      uint64_t end;
      std::size_t op;
    };
    std::unordered_map<uint64_t, std::vector<Made>> made;
    for (std::size_t i = 0; i < ops.size(); ++i) {
      if (ops[i].end_node > ops[i].first_node) {
        made[ops[i].thread].push_back({ops[i].first_node, ops[i].end_node, i});
      }
    }
    for (std::size_t i = 0; i < ops.size(); ++i) {
      if (!ops[i].forward_thread.has_value()) {
        continue;
      }
      const auto thread = made.find(*ops[i].forward_thread);
      if (thread == made.end()) {
        continue;
      }
      const auto after = std::partition_point(
          thread->second.begin(), thread->second.end(),
          [&](const Made& candidate) { return candidate.first <= ops[i].node; });
      if (after != thread->second.begin() && ops[i].node < std::prev(after)->end) {
        forward_ops_[i] = std::prev(after)->op;
        modules_[i] = modules_[std::prev(after)->op];
      }
    }
  }

  std::vector<std::string> modules_;
  std::vector<std::optional<std::size_t>> forward_ops_;
};

}  // namespace tidemark::detail
