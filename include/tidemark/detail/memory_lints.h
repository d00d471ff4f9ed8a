#pragma once

// What a step does that costs memory for nothing.

#include <ATen/core/Tensor.h>
#include <ATen/ops/count_nonzero.h>
#include <c10/util/Exception.h>
#include <tidemark/detail/block_flow.h>
#include <tidemark/detail/step_history.h>
#include <tidemark/detail/step_recording.h>
#include <tidemark/memory/bytes.h>
#include <tidemark/memory/memory_report.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tidemark::detail {

class MemoryLinter {
 public:
  /// `batch` is what the model was given, if it is still there.
  MemoryLinter(const StepRecord& record, const StepHistory& history, const BlockFlow& flow,
               const MemoryReport& report, at::Tensor batch)
      : record_(record),
        history_(history),
        flow_(flow),
        report_(report),
        batch_(std::move(batch)) {}

  std::vector<MemoryLint> lint() {
    find_out_of_place_activations();
    find_duplicated_saves();
    find_kept_graphs();
    find_kept_results();
    find_autocast_copies();
    find_zeroed_gradients();
    look_into_batch();
    return std::move(lints_);
  }

 private:
  static constexpr double kMuch = 0.05;   // of the peak
  static constexpr double kSparse = 0.9;  // zeros in a batch

  // What one lint has found, and in which modules.
  struct Findings {
    int64_t bytes = 0;
    int64_t count = 0;
    std::set<std::string> where;

    void add(int64_t of_bytes, const std::string& module) {
      bytes += of_bytes;
      ++count;
      where.insert(module.empty() ? "the model" : "'" + module + "'");
    }
    [[nodiscard]] std::string places() const {
      constexpr std::size_t kMost = 3;
      std::string text;
      std::size_t named = 0;
      for (const std::string& place : where) {
        if (named == kMost) {
          return text + " and " + std::to_string(where.size() - kMost) + " more";
        }
        text += (named++ == 0 ? "" : ", ") + place;
      }
      return text;
    }
  };

  [[nodiscard]] const std::string& name_of(int32_t op) const {
    return record_.ops[static_cast<std::size_t>(op)].name;
  }
  [[nodiscard]] const std::string& module_of(int32_t op) const {
    return report_.modules[report_.ops[static_cast<std::size_t>(op)].module].name;
  }
  [[nodiscard]] bool makes_nodes(int32_t op) const {
    const RecordedOp& made = record_.ops[static_cast<std::size_t>(op)];
    return made.end_node > made.first_node;
  }
  template <std::size_t N>
  static bool is_one_of(const std::string& name, const std::array<std::string_view, N>& names) {
    return std::find(names.begin(), names.end(), name) != names.end();
  }
  [[nodiscard]] bool is_forward(int32_t op) const {
    return op != StepEvent::kNoOp &&
           record_.ops[static_cast<std::size_t>(op)].phase == StepPhase::kForward;
  }
  [[nodiscard]] bool is_activation(const BlockLife& block) const {
    return !block.known.has_value() && !block.holds.empty();
  }

  void add(const char* name, int64_t bytes, std::string text) {
    lints_.push_back({name, std::move(text), bytes});
  }

  // Those that need their result alone for backward when they work in place, and else keep what
  // they were given, too.
  void find_out_of_place_activations() {
    static constexpr std::array<std::string_view, 7> kNames{
        "aten::leaky_relu", "aten::elu",  "aten::hardtanh", "aten::relu6",
        "aten::selu",       "aten::celu", "aten::threshold"};
    Findings found;
    for (const BlockLife& block : history_.blocks) {
      if (!is_activation(block) || block.was_there_before()) {
        continue;
      }
      const int32_t op = block.holds.front().op;
      const auto is_of_op = [op](const auto& use) { return use.op == op; };
      if (is_forward(op) && is_one_of(name_of(op), kNames) && block.op != op &&
          std::all_of(block.holds.begin(), block.holds.end(), is_of_op) &&
          std::all_of(block.reads.begin(), block.reads.end(), is_of_op)) {
        found.add(block.bytes, module_of(op));
      }
    }
    if (found.count > 0) {
      add("out-of-place activation", found.bytes,
          "Activation functions (" + std::to_string(found.count) + ", in " + found.places() +
              ") keep what they were given for backward although nothing else needs it. In place "
              "(inplace(true), or leaky_relu_ and the like) they would keep " +
              format_bytes(found.bytes) + " less.");
    }
  }

  void find_duplicated_saves() {
    static constexpr std::array<std::string_view, 6> kNames{"aten::clone",   "aten::contiguous",
                                                            "aten::to",      "aten::_to_copy",
                                                            "aten::reshape", "aten::alias_copy"};
    Findings found;
    for (const BlockLife& original : history_.blocks) {
      if (!is_activation(original)) {
        continue;
      }
      for (const BlockLife::Read& read : original.reads) {
        if (!is_forward(read.op) || !is_one_of(name_of(read.op), kNames)) {
          continue;
        }
        for (const std::size_t made : flow_.made_by(static_cast<std::size_t>(read.op))) {
          const BlockLife& copy = history_.blocks[made];
          if (is_activation(copy) && copy.holds.front().begin < original.holds.back().end) {
            found.add(std::min(copy.bytes, original.bytes), module_of(read.op));
          }
        }
      }
    }
    if (found.count > 0) {
      add("saved twice", found.bytes,
          std::to_string(found.count) + " copies in " + found.places() +
              " (contiguous, clone, to) are kept for backward beside what they were made of: " +
              format_bytes(found.bytes) +
              ". Let what comes before work in the layout and dtype that is needed, or copy "
              "before anything else uses it.");
    }
  }

  // Graphs that outlive the step.
  void find_kept_graphs() {
    Findings found;
    for (const BlockLife& block : history_.blocks) {
      const auto open =
          std::find_if(block.holds.begin(), block.holds.end(),
                       [](const BlockLife::Hold& hold) { return hold.end == BlockLife::kNever; });
      if (open != block.holds.end() && !block.known.has_value()) {
        found.add(block.bytes, open->op != StepEvent::kNoOp ? module_of(open->op) : "");
      }
    }
    if (found.count > 0) {
      add("graph kept", found.bytes,
          "A graph still holds " + format_bytes(found.bytes) + " (of " + found.places() +
              ") for a backward when the recording ends. If that is the end of a step, something "
              "keeps a result with its graph: a vector of losses, an output of the step before. "
              "Keep loss.item<float>() or output.detach() instead.");
    }
  }

  // Results of one op that pile up; a graph that has run backward is small, but not nothing.
  void find_kept_results() {
    std::map<std::string, Findings> found;
    for (const BlockLife& block : history_.blocks) {
      if (is_forward(block.op) && block.died == BlockLife::kNever && !block.known.has_value() &&
          block.holds.empty() && makes_nodes(block.op)) {
        found[name_of(block.op)].add(block.bytes, module_of(block.op));
      }
    }
    for (const auto& [op, results] : found) {
      if (results.count > 1) {
        add("results kept", results.bytes,
            std::to_string(results.count) + " results of " + op + " in " + results.places() +
                " are alive at the end. If they are losses kept for a mean, keep "
                "loss.item<float>(): each keeps the nodes of its graph.");
      }
    }
  }

  void find_autocast_copies() {
    int64_t bytes = 0;
    for (const BlockLife& block : history_.blocks) {
      if (block.is_cast && block.born_point <= report_.peak_point &&
          block.died_point > report_.peak_point) {
        bytes += block.bytes;
      }
    }
    if (static_cast<double>(bytes) > kMuch * static_cast<double>(report_.peak)) {
      add("autocast cache", bytes,
          "Copies of parameters in the autocast dtype are " + format_bytes(bytes) +
              " of the peak. Autocast keeps them until the outermost AmpScope closes: close it "
              "before backward; where each parameter is used once, "
              "AmpOptions().cache(false) lets each go as soon as its graph does.");
    }
  }

  void find_zeroed_gradients() {
    Findings found;
    for (const BlockLife& block : history_.blocks) {
      if (block.known != MemoryCategory::kGradients || !block.was_there_before()) {
        continue;
      }
      for (const BlockLife::Read& read : block.reads) {
        if (is_forward(read.op) && name_of(read.op) == "aten::zero_") {
          found.add(block.bytes, "");
          break;
        }
      }
    }
    if (found.count > 0) {
      add("gradients not set to none", found.bytes,
          std::to_string(found.count) + " gradients (" + format_bytes(found.bytes) +
              ") are filled with zeros and live through the forward. "
              "zero_grad(/*set_to_none=*/true), the default, frees them until backward.");
    }
  }

  void look_into_batch() {
    if (!batch_.defined() || batch_.numel() == 0 || batch_.layout() != at::kStrided) {
      return;
    }
    const auto bytes = static_cast<int64_t>(batch_.nbytes());
    const double zeros = 1 - static_cast<double>(at::count_nonzero(batch_).item<int64_t>()) /
                                 static_cast<double>(batch_.numel());
    if (zeros > kSparse) {
      add("sparse batch", bytes,
          std::to_string(static_cast<int>(100 * zeros)) +
              " % of the batch are zeros, but dense ops keep activations for all of it. Crop it "
              "to what is occupied, use smaller patches, or sparse convolutions.");
    }
  }

  const StepRecord& record_;
  const StepHistory& history_;
  const BlockFlow& flow_;
  const MemoryReport& report_;
  at::Tensor batch_;
  std::vector<MemoryLint> lints_;
};

}  // namespace tidemark::detail
