#pragma once

// What the blocks of a step are for.

#include <tidemark/detail/block_flow.h>
#include <tidemark/detail/step_history.h>
#include <tidemark/detail/step_recording.h>
#include <tidemark/memory/memory_report.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <vector>

namespace tidemark::detail {

/// The category of each block of `history`, see MemoryCategory.
class BlockCategories {
 public:
  BlockCategories(const StepRecord& record, const StepHistory& history, const BlockFlow& flow)
      : ops_(record.ops), history_(history), flow_(flow), is_data_(history.blocks.size()) {
    find_data();
    find_rerun_ends(record);
    categories_.reserve(history.blocks.size());
    for (std::size_t i = 0; i < history.blocks.size(); ++i) {
      categories_.push_back(category_of(i));
    }
  }

  [[nodiscard]] MemoryCategory operator[](std::size_t block) const { return categories_[block]; }

 private:
  [[nodiscard]] const RecordedOp& op_of(int32_t op) const {
    return ops_[static_cast<std::size_t>(op)];
  }

  [[nodiscard]] bool is_forward(int32_t op) const {
    return op != StepEvent::kNoOp && op_of(op).phase == StepPhase::kForward;
  }

  // Data is what the forward finds, or is given by other threads, and what it makes of data alone,
  // or of nothing, and reads; until something else is written to it.
  void find_data() {
    const auto& blocks = history_.blocks;
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      const auto& reads = blocks[i].reads;
      const bool found = blocks[i].op == StepEvent::kNoOp && !blocks[i].known.has_value() &&
                         !reads.empty() && is_forward(reads.front().op);
      is_data_[i] = found || blocks[i].known == MemoryCategory::kInputs;
    }
    for (std::size_t op = 0; op < ops_.size(); ++op) {
      if (ops_[op].phase != StepPhase::kForward) {
        continue;
      }
      const auto& read = flow_.read_by(op);
      if (!flow_.reads_graph(op) &&
          std::all_of(read.begin(), read.end(), [&](std::size_t i) { return is_data_[i]; })) {
        for (const std::size_t block : flow_.made_by(op)) {
          is_data_[block] = is_data_[block] || !blocks[block].reads.empty();
        }
      } else {
        for (const std::size_t block : flow_.written_by(op)) {
          is_data_[block] = is_data_[block] && blocks[block].known == MemoryCategory::kInputs;
        }
      }
    }
  }

  [[nodiscard]] const OpSpan& span_of(int32_t op) const {
    return history_.spans[static_cast<std::size_t>(op)];
  }

  // A re-run is over when, behind its last op, something else than giving back happens.
  void find_rerun_ends(const StepRecord& record) {
    rerun_ends_.assign(ops_.size(), BlockLife::kNever);
    std::vector<int64_t> last_op_end(ops_.size(), -1);  // of the re-runs in a node
    for (std::size_t op = 0; op < ops_.size(); ++op) {
      if (ops_[op].phase == StepPhase::kRerun && ops_[op].outer != StepEvent::kNoOp) {
        auto& end = last_op_end[static_cast<std::size_t>(ops_[op].outer)];
        end = std::max(end, history_.spans[op].end);
      }
    }
    for (std::size_t node = 0; node < ops_.size(); ++node) {
      if (last_op_end[node] < 0 || last_op_end[node] == BlockLife::kNever) {
        continue;
      }
      auto end = static_cast<std::size_t>(last_op_end[node]) + 1;
      while (end < record.events.size() &&
             (record.events[end].kind == StepEvent::Kind::kFreed ||
              record.events[end].kind == StepEvent::Kind::kReleased)) {
        ++end;
      }
      rerun_ends_[node] = static_cast<int64_t>(end);
    }
  }

  [[nodiscard]] bool is_made_by_rerun(const BlockLife& block) const {
    if (block.op == StepEvent::kNoOp || op_of(block.op).phase != StepPhase::kRerun ||
        op_of(block.op).outer == StepEvent::kNoOp) {
      return false;
    }
    const int64_t end = rerun_ends_[static_cast<std::size_t>(op_of(block.op).outer)];
    return end != BlockLife::kNever && block.died >= end;
  }

  [[nodiscard]] MemoryCategory category_of(std::size_t index) const {
    const BlockLife& block = history_.blocks[index];
    if (block.known.has_value()) {
      return *block.known;
    }
    if (is_data_[index]) {
      return MemoryCategory::kInputs;
    }
    if (!block.holds.empty() || is_made_by_rerun(block)) {
      return MemoryCategory::kActivations;
    }
    if (block.was_there_before()) {
      return MemoryCategory::kOther;
    }
    if (block.op != StepEvent::kNoOp && block.died < span_of(block.op).end) {
      return MemoryCategory::kWorkspace;
    }
    return block.died != BlockLife::kNever ? MemoryCategory::kTemporaries : MemoryCategory::kOther;
  }

  const std::deque<RecordedOp>& ops_;
  const StepHistory& history_;
  const BlockFlow& flow_;
  std::vector<bool> is_data_;
  std::vector<int64_t> rerun_ends_;  // by node, as an event
  std::vector<MemoryCategory> categories_;
};

}  // namespace tidemark::detail
