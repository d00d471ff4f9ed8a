#pragma once

/// \file
/// Watches one training step, to report where its memory goes.

#include <ATen/record_function.h>
#include <c10/core/Device.h>
#include <c10/util/Exception.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <tidemark/detail/block_categories.h>
#include <tidemark/detail/block_flow.h>
#include <tidemark/detail/device_counter.h>
#include <tidemark/detail/known_memory.h>
#include <tidemark/detail/memory_advice.h>
#include <tidemark/detail/memory_lints.h>
#include <tidemark/detail/memory_meter.h>
#include <tidemark/detail/op_modules.h>
#include <tidemark/detail/optimizer_ref.h>
#include <tidemark/detail/report_sums.h>
#include <tidemark/detail/saved_tensor_hooks.h>
#include <tidemark/detail/step_history.h>
#include <tidemark/detail/step_recording.h>
#include <tidemark/memory/memory_report.h>
#include <tidemark/memory/memory_scope.h>
#include <tidemark/memory/memory_stats.h>
#include <torch/arg.h>
#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

namespace tidemark {

/// What a MemoryRecorder is told beside the model.
///
///     auto options = tidemark::MemoryRecorderOptions().optimizer(optimizer).device(torch::kCPU);
struct MemoryRecorderOptions {
  /// Adds an optimizer, given by reference or by any kind of pointer; it has to outlive the
  /// recorder. Without it, its state is among `other` and `temporaries`.
  template <class Optimizer>
  MemoryRecorderOptions& optimizer(Optimizer&& optimizer) {
    optimizers_.push_back(detail::OptimizerRef(std::forward<Optimizer>(optimizer)).pointer());
    return *this;
  }

  /// Those that optimizer() has added, in that order.
  [[nodiscard]] const std::vector<const torch::optim::Optimizer*>& optimizers() const {
    return optimizers_;
  }

  /// The device whose memory is recorded; without it that of the model's first parameter, or the
  /// CPU.
  TORCH_ARG(std::optional<c10::Device>, device);

  /// Tensors that are input beside those that the forward is seen to read. They are kept alive.
  TORCH_ARG(std::vector<at::Tensor>, inputs);

  /// How many events are recorded at most, at about 40 bytes each; those behind are lost, which the
  /// report says, and it has no advice and no lints then. A step of 1000 ops has about 10'000.
  TORCH_ARG(int64_t, max_events) = int64_t{1} << 22;

 private:
  std::vector<const torch::optim::Optimizer*> optimizers_;
};

/// Watches a training step of an unmodified model, and tells where its memory goes.
///
///     tidemark::MemoryReport report;
///     {
///       tidemark::MemoryRecorder recorder(*model,
///                                         tidemark::MemoryRecorderOptions().optimizer(optimizer));
///       optimizer.zero_grad();
///       criterion(model->forward(batch.data), batch.target).backward();
///       optimizer.step();
///       report = recorder.report();
///     }
///     std::cout << report;                             // memory/report_text.h
///     tidemark::write_report(report, "memory");        // memory/report_files.h
///
/// Record a step of full training, not the first: that one also allocates gradients, optimizer
/// state and what libraries keep.
///
/// An op that reads a parameter belongs to the module of that parameter; others belong to the
/// nearest module that their neighbours have in common (refine that by a ModuleScope); a backward
/// node belongs to the module of the op that made it. What threads do for the recorder's, as device
/// threads of the engine, is seen too; what others allocate is counted, but no ops of theirs are
/// seen.
///
/// The tensors that graphs hold are those of graphs which the recorder's own thread makes.
///
/// On the CPU all blocks are known that LibTorch's allocator hands out. What was there before is
/// known in total if install_memory_meter() was called early, else as far as it is a parameter, a
/// gradient, a buffer, optimizer state or read. Memory that is not LibTorch's, as from_blob()
/// gives, is left out. Other devices need something that tells of their blocks: for CUDA,
/// memory/cuda_block_events.h.
///
/// Costs one or two microseconds per op. A scope: ends on the thread that made it; one at a time
/// per thread. report() may be called at any time on that thread. The model and the optimizers have
/// to outlive it.
class MemoryRecorder {
 public:
  /// Records without naming modules.
  explicit MemoryRecorder(const MemoryRecorderOptions& options = {})
      : MemoryRecorder(nullptr, options) {}
  /// Records, and names the modules of `model`, which has to outlive the recorder.
  explicit MemoryRecorder(const torch::nn::Module& model, const MemoryRecorderOptions& options = {})
      : MemoryRecorder(&model, options) {}

  MemoryRecorder(const MemoryRecorder&) = delete;
  MemoryRecorder& operator=(const MemoryRecorder&) = delete;
  ~MemoryRecorder() {
    meter_.remove_observer(*recording_->events);
    at::removeCallback(callback_);
    recording_->close();
  }

  /// What was recorded so far. Throws what went wrong in recording.
  [[nodiscard]] MemoryReport report() {
    const at::DisableRecordFunctionGuard unseen;
    const detail::StepEvents::OwnWork own_work;
    recording_->note_known();
    detail::StepRecord record = recording_->so_far();
    record.live_before = live_before_;
    const detail::StepHistory history(record);
    const detail::BlockFlow flow(record.ops.size(), history);
    const detail::BlockCategories categories(record, history, flow);
    const detail::OpModules op_modules(record.ops);
    detail::ModuleTable modules(model_);
    MemoryReport report =
        detail::ReportSums(record, history, categories, op_modules, modules).report;
    report.device = device_;
    const MemoryStats stats = memory_stats(device_);
    if (stats.allocated && stats.reserved && stats.inactive_split) {
      report.reserved = ReservedMemory{stats.allocated->current, stats.reserved->current,
                                       stats.inactive_split->current};
    }
    if (record.lost_events > 0) {
      return report;
    }
    report.lints = detail::MemoryLinter(record, history, flow, report, recording_->batch()).lint();
    report.advice =
        detail::MemoryAdvisor(model_, record, history, flow, op_modules, report).advise();
    return report;
  }

 private:
  MemoryRecorder(const torch::nn::Module* model, const MemoryRecorderOptions& options)
      : model_(model),
        device_(device_of(model, options)),
        meter_(detail::ProcessMeter::get()),
        recording_(std::make_shared<detail::StepRecording>(
            device_, detail::KnownMemory{model, options.optimizers(), options.inputs()},
            checked(options.max_events()))),
        maker_(recording_->events),
        carried_(detail::StepRecording::kKind, recording_),
        hooks_(maker_) {
    TORCH_CHECK(at::isRecordFunctionEnabled(),
                "tidemark: a MemoryRecorder sees no ops, for at::RecordFunction is switched off on "
                "this thread. Open it outside of the at::RecordFunctionGuard, or call "
                "at::enableRecordFunction(true).");
    TORCH_CHECK(meter_.watches(device_.type()), "tidemark: a MemoryRecorder sees no blocks of ",
                device_,
                ": nothing tells of them. For CUDA, include "
                "<tidemark/memory/cuda_block_events.h> and call tidemark::watch_cuda_memory() "
                "before.");
    recording_->note_known_at_begin();
    live_before_ = MemoryScope(device_).baseline();
    meter_.add_observer(*recording_->events);
    callback_ = at::addThreadLocalCallback(detail::StepRecording::callback());
  }

  static c10::Device device_of(const torch::nn::Module* model,
                               const MemoryRecorderOptions& options) {
    c10::Device device = options.device().value_or(c10::kCPU);
    if (!options.device().has_value() && model != nullptr && !model->parameters().empty()) {
      device = model->parameters().front().device();
    }
    return device.is_cpu() ? c10::Device(c10::kCPU) : detail::ready_device(device);
  }

  static int64_t checked(int64_t max_events) {
    const auto* open = dynamic_cast<detail::StepRecording*>(
        c10::ThreadLocalDebugInfo::get(detail::StepRecording::kKind));
    TORCH_CHECK(open == nullptr || open->is_closed(),
                "tidemark: this thread has a MemoryRecorder already; one at a time.");
    TORCH_CHECK(max_events > 0, "tidemark: MemoryRecorderOptions::max_events is ", max_events,
                "; it must be above 0.");
    return max_events;
  }

  const torch::nn::Module* model_;
  c10::Device device_;
  detail::MemoryMeter& meter_;
  std::shared_ptr<detail::StepRecording> recording_;
  detail::SaveWatcher maker_;
  c10::DebugInfoGuard carried_;
  detail::SavedTensorHooksScope hooks_;
  int64_t live_before_ = 0;
  at::CallbackHandle callback_ = 0;
};

}  // namespace tidemark
