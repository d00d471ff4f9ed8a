#pragma once

/// \file
/// Steps of a training loop in numbers: one, several in a row, or one for each of several sizes.

#include <c10/core/Device.h>
#include <c10/util/ArrayRef.h>
#include <c10/util/Exception.h>
#include <tidemark/memory/bytes.h>
#include <tidemark/memory/held_bytes_scope.h>
#include <tidemark/memory/memory_scope.h>

#include <cstddef>
#include <cstdint>
#include <ostream>
#include <type_traits>
#include <utility>
#include <vector>

namespace tidemark {

/// What a step did with the memory of a device. In bytes, unless it says otherwise.
struct StepMemory {
  int64_t peak = 0;         ///< the most that was live at one time, above what was live before
  int64_t held = 0;         ///< the most that its graphs held for backward at one time
  int64_t leftover = 0;     ///< live after minus live before; negative if it freed older blocks
  int64_t allocated = 0;    ///< all that it allocated
  int64_t allocations = 0;  ///< number of blocks that it allocated
};

/// A step of a model of some size: of so many blocks, voxels, samples.
struct SizedStep {
  int64_t size = 0;   ///< as measure_series() was given it
  StepMemory memory;  ///< of one step of that size, after one to warm up
};

namespace detail {

/// "12.0 MiB (12582912 bytes)".
inline std::string format_exactly(int64_t bytes) {
  const std::string text = format_bytes(bytes);
  return bytes > -1024 && bytes < 1024 ? text : text + " (" + std::to_string(bytes) + " bytes)";
}

}  // namespace detail

/// All figures in one line, exact to the byte.
inline std::ostream& operator<<(std::ostream& out, const StepMemory& step) {
  using detail::format_exactly;
  return out << "peak " << format_exactly(step.peak) << ", held " << format_exactly(step.held)
             << ", leftover " << format_exactly(step.leftover) << ", allocated "
             << format_exactly(step.allocated) << " in " << step.allocations
             << (step.allocations == 1 ? " block" : " blocks");
}

/// "size 16: " and the figures of the step.
inline std::ostream& operator<<(std::ostream& out, const SizedStep& step) {
  return out << "size " << step.size << ": " << step.memory;
}

/// Runs `step` once and tells what it did with the memory of `device`: see MemoryScope for what the
/// bytes are, and HeldBytesScope for `held`. What the step returns is dropped before `leftover` is
/// taken, so a graph that it leaves behind is one that it stored somewhere.
///
/// The first step of a program allocates what stays (gradients, optimizer state, workspaces): run
/// it once before measuring. And call zero_grad() before measuring rather than at the beginning of
/// the step: what a step frees first makes room for its peak, which then does not show.
///
/// If the step throws, the exception passes on.
template <class Step>
[[nodiscard]] StepMemory measure(Step&& step, c10::Device device = c10::kCPU) {
  static_assert(std::is_invocable_v<Step>,
                "tidemark: measure() takes a callable without arguments.");
  StepMemory result;
  const MemoryScope memory(device);
  {
    const HeldBytesScope held(device);
    static_cast<void>(std::forward<Step>(step)());
    result.held = held.peak();
  }
  result.peak = memory.peak();
  result.leftover = memory.current();
  result.allocated = memory.allocated();
  result.allocations = memory.allocations();
  return result;
}

/// Runs `step` `count` times in a row and measures each run. The first one allocates what stays, so
/// it is the runs behind it that should leave nothing. A step that frees only every few times what
/// it keeps, as one that accumulates gradients, is measured as a whole: all of its micro-batches.
///
///     auto steps = tidemark::measure_steps(5, [&] { train_step(model, optimizer, batch); });
///
/// Throws if `count` is below 1. If a step throws, the exception passes on.
template <class Step>
[[nodiscard]] std::vector<StepMemory> measure_steps(int64_t count, Step&& step,
                                                    c10::Device device = c10::kCPU) {
  TORCH_CHECK(count >= 1, "tidemark: measure_steps() got ", count, " steps; give 1 or more.");
  std::vector<StepMemory> steps;
  steps.reserve(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) {
    steps.push_back(measure(step, device));
  }
  return steps;
}

/// How a step's memory follows from a size. For each of `sizes` it calls `make_step(size)` for a
/// callable, runs that twice, and measures the second run: the first one allocates what stays. The
/// callable owns the model of that size, and is gone before the next one is made.
///
///     auto series = tidemark::measure_series({4, 16, 64}, [&](int64_t n) {
///       return [&x, chain = make_chain(n)]() mutable { chain->forward(x).sum().backward(); };
///     });
///
/// Throws if a size is below 1. If a step throws, the exception passes on.
template <class MakeStep>
[[nodiscard]] std::vector<SizedStep> measure_series(c10::IntArrayRef sizes, MakeStep&& make_step,
                                                    c10::Device device = c10::kCPU) {
  static_assert(std::is_invocable_v<MakeStep&, int64_t>,
                "tidemark: measure_series() takes a callable that makes the step of a size.");
  std::vector<SizedStep> series;
  series.reserve(sizes.size());
  for (const int64_t size : sizes) {
    TORCH_CHECK(size >= 1, "tidemark: measure_series() got the size ", size, "; give 1 or more.");
    auto step = make_step(size);
    static_cast<void>(step());
    series.push_back({size, measure(step, device)});
  }
  return series;
}

}  // namespace tidemark
