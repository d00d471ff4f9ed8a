#pragma once

// One step of a training loop in numbers.

#include <c10/core/Device.h>
#include <tidemark/memory/bytes.h>
#include <tidemark/memory/held_bytes_scope.h>
#include <tidemark/memory/memory_scope.h>

#include <cstdint>
#include <ostream>
#include <type_traits>
#include <utility>

namespace tidemark {

/// What a step did with the memory of a device. In bytes, unless it says otherwise.
struct StepMemory {
  int64_t peak = 0;         ///< the most that was live at one time, above what was live before
  int64_t held = 0;         ///< the most that its graphs held for backward at one time
  int64_t leftover = 0;     ///< live after minus live before; negative if it freed older blocks
  int64_t allocated = 0;    ///< all that it allocated
  int64_t allocations = 0;  ///< number of blocks that it allocated
};

namespace detail {

/// "12.0 MiB (12582912 bytes)".
inline std::string format_exactly(int64_t bytes) {
  const std::string text = format_bytes(bytes);
  return bytes > -1024 && bytes < 1024 ? text : text + " (" + std::to_string(bytes) + " bytes)";
}

}  // namespace detail

inline std::ostream& operator<<(std::ostream& out, const StepMemory& step) {
  using detail::format_exactly;
  return out << "peak " << format_exactly(step.peak) << ", held " << format_exactly(step.held)
             << ", leftover " << format_exactly(step.leftover) << ", allocated "
             << format_exactly(step.allocated) << " in " << step.allocations
             << (step.allocations == 1 ? " block" : " blocks");
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

}  // namespace tidemark
