#pragma once

// Which ops of a step make and read which blocks.

#include <tidemark/detail/step_events.h>
#include <tidemark/detail/step_history.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace tidemark::detail {

class BlockFlow {
 public:
  BlockFlow(std::size_t ops, const StepHistory& history)
      : history_(history), made_by_(ops), read_by_(ops), written_by_(ops), reads_graph_(ops) {
    for (std::size_t i = 0; i < history.blocks.size(); ++i) {
      const BlockLife& block = history.blocks[i];
      if (block.op != StepEvent::kNoOp && block.died > history.spans[index(block.op)].end) {
        made_by_[index(block.op)].push_back(i);
      }
      for (const BlockLife::Read& read : block.reads) {
        read_by_[index(read.op)].push_back(i);
        reads_graph_[index(read.op)] = reads_graph_[index(read.op)] || read.requires_grad;
      }
      for (const int32_t op : block.written_by) {
        written_by_[index(op)].push_back(i);
      }
    }
  }

  /// The blocks that an op allocates and leaves behind.
  [[nodiscard]] const std::vector<std::size_t>& made_by(std::size_t op) const {
    return made_by_[op];
  }
  [[nodiscard]] const std::vector<std::size_t>& read_by(std::size_t op) const {
    return read_by_[op];
  }

  /// Those that it writes in place.
  [[nodiscard]] const std::vector<std::size_t>& written_by(std::size_t op) const {
    return written_by_[op];
  }
  /// Whether it reads a tensor that requires grad.
  [[nodiscard]] bool reads_graph(std::size_t op) const { return reads_graph_[op]; }

  [[nodiscard]] int64_t bytes(std::size_t block) const { return history_.blocks[block].bytes; }

  [[nodiscard]] bool is_made_in(std::size_t block, std::size_t first, std::size_t last) const {
    const int32_t op = history_.blocks[block].op;
    return op != StepEvent::kNoOp && index(op) >= first && index(op) <= last;
  }
  [[nodiscard]] bool is_read_in(std::size_t block, std::size_t first, std::size_t last) const {
    const auto& reads = history_.blocks[block].reads;
    return std::any_of(reads.begin(), reads.end(), [&](const BlockLife::Read& read) {
      return index(read.op) >= first && index(read.op) <= last;
    });
  }

 private:
  static std::size_t index(int32_t op) { return static_cast<std::size_t>(op); }

  const StepHistory& history_;
  std::vector<std::vector<std::size_t>> made_by_;
  std::vector<std::vector<std::size_t>> read_by_;
  std::vector<std::vector<std::size_t>> written_by_;
  std::vector<bool> reads_graph_;
};

}  // namespace tidemark::detail
