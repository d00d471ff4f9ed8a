#pragma once

/// \file
/// Out-of-memory errors that say where the memory is, and what to do.

#include <c10/util/Exception.h>
#include <tidemark/detail/out_of_memory.h>
#include <tidemark/memory/bytes.h>
#include <tidemark/memory/memory_recorder.h>
#include <tidemark/memory/memory_report.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <new>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

namespace tidemark {

/// What a report knows about memory that ran out: who asked, what was live, which modules had most
/// of it, and what to do. In a few lines.
[[nodiscard]] inline std::string describe_out_of_memory(const MemoryReport& report) {
  std::ostringstream out;
  if (report.refused.has_value()) {
    const RefusedMemory& refused = *report.refused;
    const int64_t live = refused.live.total();
    out << "tidemark: memory of " << report.device << " ran out when ";
    if (refused.op.has_value()) {
      const StepOp& op = report.ops[*refused.op];
      const std::string& module = report.modules[op.module].name;
      out << op.name << " (" << to_string(op.phase) << " of "
          << (module.empty() ? "the model" : "'" + module + "'") << ") asked for ";
    } else {
      out << "something outside of any op asked for ";
    }
    out << format_bytes(refused.bytes) << " with " << format_bytes(live) << " live:";
    for (std::size_t i = 0; i < kMemoryCategories; ++i) {
      const auto category = static_cast<MemoryCategory>(i);
      if (refused.live[category] != 0) {
        out << "\n  " << to_string(category) << ' ' << format_bytes(refused.live[category]) << ", "
            << std::lround(100 * static_cast<double>(refused.live[category]) /
                           static_cast<double>(live))
            << " %";
      }
    }
  } else {
    out << "tidemark: no allocation of " << report.device
        << " was seen to fail. If memory ran out on another device, record that: "
           "MemoryRecorderOptions().device(...).";
  }
  constexpr double kMuch = 0.05;  // of the peak
  std::vector<const ModuleMemory*> modules;
  for (const ModuleMemory& module : report.modules) {
    if (module.depth > 0 &&
        static_cast<double>(module.at_peak.total()) > kMuch * static_cast<double>(report.peak)) {
      modules.push_back(&module);
    }
  }
  std::stable_sort(modules.begin(), modules.end(), [](const auto* a, const auto* b) {
    return a->at_peak.total() > b->at_peak.total();
  });
  constexpr std::size_t kMostModules = 5;
  modules.resize(std::min(modules.size(), kMostModules));
  if (!modules.empty()) {
    out << "\nAt the peak of " << format_bytes(report.peak) << ", most was in";
    for (const ModuleMemory* module : modules) {
      out << "\n  '" << module->name << "' " << format_bytes(module->at_peak.total());
    }
  }
  bool first = true;
  for (const MemoryAdvice& advice : report.advice) {
    out << "\n- " << advice.text;
    if (advice.expected_peak.has_value()) {
      out << (first ? " As far as it came, the step would peak at " : " With that, too: at ")
          << format_bytes(*advice.expected_peak) << '.';
      first = false;
    }
  }
  for (const MemoryLint& lint : report.lints) {
    out << "\n- " << lint.text;
  }
  return std::move(out).str();
}

/// Runs `step()` and returns what it returns. If it runs out of memory, the exception that passes
/// on also says what describe_out_of_memory() says of this step: c10::Error::what() shows it. Its
/// type stays, but for std::bad_alloc, which becomes a c10::OutOfMemoryError.
///
///     tidemark::explain_out_of_memory(*model, [&] { train_step(batch); });
///
/// It records the step, see MemoryRecorder for what that costs, so turn it on when memory runs out
/// rather than always.
template <class Step>
decltype(auto) explain_out_of_memory(const torch::nn::Module& model,
                                     const MemoryRecorderOptions& options, Step&& step) {
  MemoryRecorder recorder(model, options);
  const auto explanation = [&recorder]() -> std::string {
    try {
      return describe_out_of_memory(recorder.report());
    } catch (const std::exception& error) {
      return "tidemark: no report on that: " + detail::text_of(error);
    }
  };
  try {
    return std::forward<Step>(step)();
  } catch (c10::Error& error) {
    if (detail::is_out_of_memory(error)) {
      error.add_context(explanation());
    }
    throw;
  } catch (const std::bad_alloc& error) {
    TORCH_CHECK_WITH(OutOfMemoryError, false, error.what(), "\n", explanation());
  }
}
/// The same with default options: the device of the model's first parameter, and no optimizer.
template <class Step>
decltype(auto) explain_out_of_memory(const torch::nn::Module& model, Step&& step) {
  return explain_out_of_memory(model, MemoryRecorderOptions(), std::forward<Step>(step));
}

}  // namespace tidemark
