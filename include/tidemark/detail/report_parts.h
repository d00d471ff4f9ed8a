#pragma once

// What the files of a report have in common: names, and the choice of what is shown.

#include <tidemark/detail/utf8.h>
#include <tidemark/memory/memory_report.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tidemark::detail {

/// "optimizer_state" for "optimizer state": names of columns and fields.
[[nodiscard]] inline std::string snake_case(std::string_view name) {
  std::string snake(name);
  std::replace_if(
      snake.begin(), snake.end(), [](char c) { return c == ' ' || c == '-'; }, '_');
  return snake;
}

[[nodiscard]] inline MemoryCategory category_at(std::size_t index) {
  return static_cast<MemoryCategory>(index);
}

/// What a module is called: "(model)" is the whole.
[[nodiscard]] inline std::string module_name(const MemoryReport& report, std::size_t module) {
  if (module >= report.modules.size() || report.modules[module].name.empty()) {
    return "(model)";
  }
  return report.modules[module].name;
}

/// The name of the op, empty without one.
[[nodiscard]] inline std::string op_name(const MemoryReport& report,
                                         const std::optional<std::size_t>& op) {
  return op && *op < report.ops.size() ? report.ops[*op].name : std::string();
}

/// "conv1.weight", "aten::convolution of encoder.conv1", "encoder.conv1": the best that is known.
[[nodiscard]] inline std::string block_title(const MemoryReport& report, const MemoryBlock& block) {
  if (!block.name.empty()) {
    return block.name;
  }
  const std::string op = op_name(report, block.op);
  const std::string module = module_name(report, block.module);
  if (op.empty()) {
    return block.born == MemoryBlock::kBefore ? "from before the recording" : module;
  }
  return op + " of " + module;
}

/// The `count` indices with the most of `size(index)` of those below `of`, in their own order; of
/// two of a size the first.
template <typename Size>
[[nodiscard]] std::vector<std::size_t> largest(std::size_t of, std::size_t count,
                                               const Size& size) {
  std::vector<std::size_t> indices(of);
  std::iota(indices.begin(), indices.end(), std::size_t{0});
  if (count < of) {
    const auto cut = indices.begin() + static_cast<std::ptrdiff_t>(count);
    std::nth_element(indices.begin(), cut, indices.end(), [&](std::size_t a, std::size_t b) {
      return size(a) != size(b) ? size(a) > size(b) : a < b;
    });
    indices.erase(cut, indices.end());
    std::sort(indices.begin(), indices.end());
  }
  return indices;
}

/// The blocks that are live at the peak, the largest first.
[[nodiscard]] inline std::vector<std::size_t> blocks_at_peak(const MemoryReport& report) {
  std::vector<std::size_t> live;
  for (std::size_t i = 0; i < report.blocks.size(); ++i) {
    const MemoryBlock& block = report.blocks[i];
    if (block.bytes > 0 && block.born <= report.peak_point && block.died > report.peak_point) {
      live.push_back(i);
    }
  }
  std::stable_sort(live.begin(), live.end(), [&](std::size_t a, std::size_t b) {
    return report.blocks[a].bytes > report.blocks[b].bytes;
  });
  return live;
}

/// What a model keeps of a module between steps, and its gradients.
[[nodiscard]] inline int64_t training_state(const CategoryBytes& bytes) {
  return bytes[MemoryCategory::kParameters] + bytes[MemoryCategory::kGradients] +
         bytes[MemoryCategory::kOptimizerState] + bytes[MemoryCategory::kBuffers];
}

/// By how many bytes a module is noticed.
[[nodiscard]] inline int64_t weight_of(const ModuleMemory& module) {
  return std::max({module.at_peak.total(), module.most[MemoryCategory::kActivations],
                   module.forward_workspace, module.backward_workspace, module.rerun});
}

/// Which modules to show: the whole model, and of the others up to `max_depth` the `max_modules -
/// 1` with the most bytes that have at least a hundredth of the peak. All their parents are among
/// them, for a module has at least what those inside it have.
[[nodiscard]] inline std::vector<std::size_t> modules_to_show(const MemoryReport& report,
                                                              std::size_t max_modules,
                                                              std::size_t max_depth) {
  const auto weight = [&report, max_depth](std::size_t i) -> int64_t {
    return report.modules[i].depth > max_depth ? -1 : weight_of(report.modules[i]);
  };
  std::vector<std::size_t> shown = largest(report.modules.size(), max_modules, weight);
  shown.erase(std::remove_if(shown.begin(), shown.end(),
                             [&](std::size_t i) {
                               return i > 0 && (weight(i) < 0 || weight(i) < report.peak / 100);
                             }),
              shown.end());
  return shown;
}

}  // namespace tidemark::detail
