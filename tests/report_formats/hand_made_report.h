#pragma once

// Reports whose numbers are known from paper.

#include <tidemark/memory/memory_report.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

namespace tidemark::tests {

inline CategoryBytes category_bytes(int64_t parameters, int64_t gradients, int64_t inputs,
                                    int64_t activations, int64_t workspace) {
  CategoryBytes bytes;
  bytes[MemoryCategory::kParameters] = parameters;
  bytes[MemoryCategory::kGradients] = gradients;
  bytes[MemoryCategory::kInputs] = inputs;
  bytes[MemoryCategory::kActivations] = activations;
  bytes[MemoryCategory::kWorkspace] = workspace;
  return bytes;
}

inline MemoryBlock block(uint64_t address, int64_t bytes, MemoryCategory category, StepPhase phase,
                         std::size_t module, std::optional<std::size_t> op, int64_t born,
                         int64_t died) {
  MemoryBlock made;
  made.address = address;
  made.bytes = bytes;
  made.category = category;
  made.phase = phase;
  made.module = module;
  made.op = op;
  made.born = born;
  made.died = died;
  return made;
}

inline ModuleMemory module(const std::string& name, std::size_t depth, const CategoryBytes& at_peak,
                           int64_t forward_workspace, int64_t backward_workspace,
                           double forward_seconds, double backward_seconds) {
  ModuleMemory made;
  made.name = name;
  made.depth = depth;
  made.at_peak = at_peak;
  made.most = at_peak;
  made.forward_workspace = forward_workspace;
  made.backward_workspace = backward_workspace;
  made.forward_seconds = forward_seconds;
  made.backward_seconds = backward_seconds;
  return made;
}

/// A step in nine points, of which point k is at k + 1 ms:
///
///   point           live   what happens
///   begin           6144   conv1.weight 4096 and an input 2048
///   0  forward      7168   workspace   1024 of encoder.conv1
///   1              15360   activations 8192 of encoder.conv1
///   2              14336   the workspace is freed
///   3              16384   activations 2048 of head
///   4  backward    20480   a gradient  4096 of encoder.conv1
///   5              20992   workspace    512 of encoder.conv1: the peak
///   6              12800   the 8192 are freed
///   7              12288   the workspace is freed
///   8  update      10240   the 2048 are freed
inline MemoryReport small_report() {
  using Category = MemoryCategory;
  constexpr int64_t kBefore = MemoryBlock::kBefore;
  constexpr int64_t kAlive = MemoryBlock::kAlive;
  MemoryReport report;
  report.peak = 20992;
  report.peak_point = 5;
  report.peak_op = 2;
  report.at_peak = category_bytes(4096, 4096, 2048, 10240, 512);
  report.at_begin = category_bytes(4096, 0, 2048, 0, 0);
  report.at_end = category_bytes(4096, 4096, 2048, 0, 0);
  report.most = category_bytes(4096, 4096, 2048, 10240, 1024);
  report.held = 10240;
  report.allocated = 1024 + 8192 + 2048 + 4096 + 512;
  report.allocations = 5;
  report.modules = {
      module("", 0, report.at_peak, 1024, 512, 3.9e-3, 3.9e-3),
      module("encoder", 1, category_bytes(4096, 4096, 0, 8192, 512), 1024, 512, 3e-3, 3.9e-3),
      module("encoder.conv1", 2, category_bytes(4096, 4096, 0, 8192, 512), 1024, 512, 3e-3, 3.9e-3),
      module("head", 1, category_bytes(0, 0, 0, 2048, 0), 0, 0, 0.9e-3, 0),
  };
  report.ops = {
      {"aten::conv2d", StepPhase::kForward, 2, 500'000, 3'500'000, 7},
      {"aten::relu", StepPhase::kForward, 3, 3'600'000, 4'500'000, 7},
      {"ConvolutionBackward0", StepPhase::kBackward, 2, 4'600'000, 8'500'000, 140'000'000'000'009},
      {"aten::add_", StepPhase::kUpdate, 0, 8'600'000, 9'500'000, 7},
  };
  report.blocks = {
      block(0x10000, 4096, Category::kParameters, StepPhase::kForward, 2, {}, kBefore, kAlive),
      block(0x12000, 2048, Category::kInputs, StepPhase::kForward, 0, {}, kBefore, kAlive),
      block(0x20000, 1024, Category::kWorkspace, StepPhase::kForward, 2, 0, 0, 2),
      block(0x7f0000000000, 8192, Category::kActivations, StepPhase::kForward, 2, 0, 1, 6),
      block(0x20000, 2048, Category::kActivations, StepPhase::kForward, 3, 1, 3, 8),
      block(0x14000, 4096, Category::kGradients, StepPhase::kBackward, 2, 2, 4, kAlive),
      block(0x15000, 512, Category::kWorkspace, StepPhase::kBackward, 2, 2, 5, 7),
  };
  report.blocks[0].name = "conv1.weight";
  for (int64_t point = 0; point < 9; ++point) {
    report.times_ns.push_back((point + 1) * 1'000'000);
  }
  report.seconds = 10e-3;
  report.phase_seconds = {3.9e-3, 3.9e-3, 0, 0.9e-3};
  MemoryAdvice advice;
  advice.text = "Run encoder as a checkpointed region.";
  advice.modules = {"encoder"};
  advice.expected_peak = 12800;
  advice.expected_held = 2048;
  advice.saves = 8192;
  advice.costs_seconds = 3e-3;
  report.advice = {advice};
  report.lints = {{"out-of-place activation", "aten::relu of head could be in place.", 2048}};
  return report;
}

/// Names that try to break out of where they are put.
inline std::string hostile_name() {
  return "a\"b'c</script><b>&amp;,\n\t\x1b[31m\xC3\xA9\xFF\xE2\x82\x01\\";
}

/// A report of `count` blocks of 1, 2, ... bytes that are all allocated before any is freed.
inline MemoryReport large_report(int64_t count) {
  MemoryReport report;
  report.modules = {module("", 0, {}, 0, 0, 0, 0)};
  const int64_t ops = count / 10;
  for (int64_t i = 0; i < ops; ++i) {
    report.ops.push_back({"aten::op" + std::to_string(i % 50), StepPhase::kForward, 0, i * 10'000,
                          i * 10'000 + 9'000, 1});
  }
  for (int64_t i = 0; i < count; ++i) {
    report.blocks.push_back(
        block(0x10000000 + static_cast<uint64_t>(i) * 0x1000000, i + 1,
              i % 2 == 0 ? MemoryCategory::kActivations : MemoryCategory::kTemporaries,
              StepPhase::kForward, 0, static_cast<std::size_t>(i / 10), i, 2 * count - 1 - i));
    report.at_peak[report.blocks.back().category] += i + 1;
  }
  for (int64_t point = 0; point < 2 * count; ++point) {
    report.times_ns.push_back(point * 1000);
  }
  report.most = report.at_peak;
  report.peak = report.at_peak.total();
  report.peak_point = count - 1;
  report.allocated = report.peak;
  report.allocations = count;
  report.modules[0].at_peak = report.at_peak;
  report.seconds = static_cast<double>(2 * count) * 1e-6;
  return report;
}

}  // namespace tidemark::tests
