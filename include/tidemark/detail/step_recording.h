#pragma once

// Watches a training step: its ops and backward nodes, and with them the events of memory.

#include <ATen/SequenceNumber.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/Tensor.h>
#include <ATen/record_function.h>
#include <c10/core/GradMode.h>
#include <c10/core/StorageImpl.h>
#include <c10/core/TensorImpl.h>
#include <c10/core/UndefinedTensorImpl.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <c10/util/intrusive_ptr.h>
#include <tidemark/detail/debug_info_kind.h>
#include <tidemark/detail/known_memory.h>
#include <tidemark/detail/module_names.h>
#include <tidemark/detail/op_info.h>
#include <tidemark/detail/op_pause.h>
#include <tidemark/detail/recorded_op.h>
#include <tidemark/detail/step_events.h>
#include <tidemark/memory/memory_report.h>
#include <tidemark/memory/module_scope.h>
#include <tidemark/remember.h>
#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

namespace tidemark::detail {

/// An outermost op, or a backward node, as it ran.
struct RecordedOp {
  std::string name;
  StepPhase phase = StepPhase::kForward;
  uint64_t thread = 0;
  int32_t outer = StepEvent::kNoOp;   // the node that it runs in
  std::optional<std::string> module;  // by the parameters that it reads, or by a scope
  uint64_t first_node = 0;            // sequence numbers of the nodes that it makes
  uint64_t end_node = 0;
  std::optional<uint64_t> forward_thread;  // of a node: where it was made,
  uint64_t node = 0;                       // and its sequence number
  bool grad_mode = true;
  bool autocast = false;         // on the device of the recording
  std::optional<int64_t> batch;  // dim 0 of what it combines with parameters
  int64_t begin_ns = 0;
  int64_t end_ns = 0;
};

/// All that was seen.
struct StepRecord {
  std::deque<RecordedOp> ops;
  std::deque<StepEvent> events;
  std::vector<std::string> names;  // of kKnown events
  int64_t lost_events = 0;
  int64_t live_before = 0;  // by the meter, when the recording began
  int64_t ended_ns = 0;
};

/// Travels with at::ThreadLocalState to the threads that work for its own.
class StepRecording final : public c10::DebugInfoBase {
 public:
  static constexpr std::string_view kName = "tidemark::StepRecording";
  static constexpr auto kKind = own_debug_info_kind(0x75, &kName);

  StepRecording(c10::Device device, KnownMemory known, int64_t most_events)
      : events(std::make_shared<StepEvents>(device, most_events)), known_(std::move(known)) {
    if (known_.model != nullptr) {
      module_names_.emplace(*known_.model);
    }
  }

  static at::RecordFunctionCallback callback() {
    return at::RecordFunctionCallback(&started, &ended)
        .needsInputs(true)
        .scopes({at::RecordScope::FUNCTION, at::RecordScope::BACKWARD_FUNCTION});
  }

  /// Says what all the memory is that has a name.
  void note_known() {
    const at::DisableRecordFunctionGuard unseen;  // sparse tensors and states of optimizers run ops
    const StepEvents::OwnWork own_work;
    const std::lock_guard<std::mutex> lock(mutex_);
    note_gone();
    known_.for_each([this](const c10::Storage& storage, MemoryCategory category,
                           const std::string& name) { note(storage, category, name); });
  }

  /// The same when the recording begins: the meter may not know of what was there before it.
  void note_known_at_begin() {
    note_known();
    const at::DisableRecordFunctionGuard unseen;
    const std::lock_guard<std::mutex> lock(mutex_);
    known_.for_each([this](const c10::Storage& storage, MemoryCategory, const std::string&) {
      from_before_.push_back(
          {storage.getWeakStorageImpl(), reinterpret_cast<uintptr_t>(storage.data())});
    });
  }

  /// What was seen so far.
  StepRecord so_far() {
    const std::lock_guard<std::mutex> lock(mutex_);
    rethrow_error();
    StepRecord record;
    record.ops = ops_;
    record.names = names_;
    std::tie(record.events, record.lost_events) = events->so_far();
    record.ended_ns = events->now();
    return record;
  }

  [[nodiscard]] bool is_closed() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return closed_;
  }

  /// What the model was given first, if it is still there.
  at::Tensor batch() {
    const std::lock_guard<std::mutex> lock(mutex_);
    auto batch = batch_.has_value() ? batch_->lock() : nullptr;
    return batch ? at::Tensor(std::move(batch)) : at::Tensor();
  }

  /// Threads that go on working with the state of the recording's thread don't add to it any more.
  void close() {
    events->close();
    const std::lock_guard<std::mutex> lock(mutex_);
    closed_ = true;
    module_names_.reset();
    known_ = {};
  }

  const std::shared_ptr<StepEvents> events;

 private:
  struct OnThread {
    int depth = 0;  // of running ops; begins anew in each node
  };
  static OnThread& on_thread() {
    static thread_local OnThread on_thread;
    return on_thread;
  }

  // What is kept of an op or node while it runs.
  struct Running final : at::ObserverContext {
    std::shared_ptr<StepEvents> events;
    int32_t op = StepEvent::kNoOp;
    OpOnThread outer;
    int outer_depth = 0;
  };

  static StepRecording* active() {
    return dynamic_cast<StepRecording*>(c10::ThreadLocalDebugInfo::get(kKind));
  }

  static std::unique_ptr<at::ObserverContext> started(const at::RecordFunction& op) {
    StepRecording* recording = active();
    if (recording == nullptr) {
      return nullptr;
    }
    const bool is_node = op.scope() == at::RecordScope::BACKWARD_FUNCTION;
    if (!is_node && OpInfo::of(op) == nullptr) {
      return nullptr;  // a range of the user's
    }
    OnThread& here = on_thread();
    auto running = std::make_unique<Running>();
    running->events = recording->events;
    running->outer = StepEvents::on_thread();
    running->outer_depth = here.depth;
    if (is_node) {
      here.depth = 0;
      running->op = recording->begin(op, is_node, *running);
    } else if (here.depth++ == 0 && !OpPause::active()) {
      running->op = recording->begin(op, is_node, *running);
    } else if (std::strcmp(op.name(), "aten::_to_copy") == 0) {
      recording->note_cast(inputs_of(op));
    }
    return running;
  }

  static void ended(const at::RecordFunction& /*op*/, at::ObserverContext* context) {
    auto* running = static_cast<Running*>(context);
    if (running == nullptr) {
      return;
    }
    on_thread().depth = running->outer_depth;
    if (running->op != StepEvent::kNoOp) {
      StepEvents::on_thread() = running->outer;
      const bool nested = running->outer.recording == running->events->id();
      running->events->op_ended(running->op, nested ? running->outer.op : StepEvent::kNoOp);
      StepRecording* recording = active();
      if (recording != nullptr && recording->events == running->events) {
        recording->end(running->op);
      }
    }
  }

  // Notes an op or node, unless it is part of the node around it.
  int32_t begin(const at::RecordFunction& op, bool is_node, const Running& running) {
    const bool in_backward = torch::autograd::get_current_graph_task_id() != -1;
    const bool at_home = op.threadId() == home_;
    const bool in_node =
        running.outer.recording == events->id() && running.outer.op != StepEvent::kNoOp;
    const std::lock_guard<std::mutex> lock(mutex_);
    if (closed_ || error_ != nullptr) {
      return StepEvent::kNoOp;
    }
    try {
      RecordedOp recorded;
      recorded.name = op.name();
      recorded.phase = recomputing() ? StepPhase::kRerun
                       : in_backward ? StepPhase::kBackward
                                     : StepPhase::kForward;
      if (in_node && !is_node && recorded.phase != StepPhase::kRerun) {
        return StepEvent::kNoOp;
      }
      if (in_backward) {
        in_backward_ = true;
      } else if (at_home && std::exchange(in_backward_, false)) {  // it is over
        after_backward_ = true;
        note_gradients();
      }
      recorded.grad_mode = c10::GradMode::is_enabled();
      recorded.autocast = at::autocast::is_autocast_enabled(events->device().type());
      if (recorded.phase == StepPhase::kForward && at_home && after_backward_) {
        recorded.phase = StepPhase::kUpdate;
      }
      recorded.thread = op.threadId();
      recorded.outer = in_node ? running.outer.op : StepEvent::kNoOp;
      const auto index = static_cast<int32_t>(ops_.size());
      recorded.first_node = at::sequence_number::peek();
      recorded.end_node = recorded.first_node;
      if (is_node) {
        if (op.seqNr() >= 0) {
          recorded.forward_thread = op.forwardThreadId();
          recorded.node = static_cast<uint64_t>(op.seqNr());
        }
      } else {
        read(op, recorded, index);
        if (!recorded.module.has_value() && !ModuleScope::path().empty()) {
          recorded.module = ModuleScope::path();
        }
      }
      recorded.begin_ns = events->now();
      ops_.push_back(std::move(recorded));
      StepEvents::on_thread() = {events->id(), index};
      events->op_began(index);
      return index;
    } catch (...) {  // can't leave a callback
      error_ = std::current_exception();
      return StepEvent::kNoOp;
    }
  }

  void end(int32_t op) {
    const std::lock_guard<std::mutex> lock(mutex_);
    RecordedOp& recorded = ops_[static_cast<std::size_t>(op)];
    recorded.end_ns = events->now();
    recorded.end_node = at::sequence_number::peek();
    // The update makes no graph: what does is the next forward.
    if (recorded.phase == StepPhase::kUpdate && recorded.end_node > recorded.first_node) {
      recorded.phase = StepPhase::kForward;
      after_backward_ = false;
    }
  }

  // Notes what an op reads, and whose parameters are among that.
  void read(const at::RecordFunction& op, RecordedOp& recorded, int32_t index) {
    const auto inputs = inputs_of(op);
    at::Tensor batch;
    for (const c10::IValue& input : inputs) {
      for_each_tensor_in(input, [&](const at::Tensor& tensor) {
        if (!tensor.defined()) {
          return;
        }
        for_each_storage(tensor, [&](const c10::Storage& storage) {
          events->note(StepEvent::Kind::kRead, storage, index, {}, tensor.requires_grad() ? 1 : 0);
          if (known_.model == nullptr && is_parameter(tensor)) {
            note(storage, MemoryCategory::kParameters, "a leaf that requires grad");
          }
        });
        if (const auto module = module_of(tensor)) {
          recorded.module =
              recorded.module.has_value() ? common_parent(*recorded.module, *module) : *module;
        } else if (!batch.defined() && tensor.dim() > 1) {
          batch = tensor;
        }
      });
    }
    for_each_written(*OpInfo::of(op), inputs, [&](const at::Tensor& tensor, bool) {
      events->note(StepEvent::Kind::kWritten, tensor.storage(), index);
    });
    if (recorded.module.has_value() && recorded.phase == StepPhase::kForward) {
      if (!std::exchange(has_begun_, true)) {
        note_gone();
      }
      if (batch.defined()) {
        recorded.batch = batch.size(0);
        if (!batch_.has_value()) {
          batch_.emplace(batch.getIntrusivePtr());
        }
      }
    }
  }

  std::optional<std::string> module_of(const at::Tensor& tensor) {
    const TensorName* name = module_names_.has_value() ? module_names_->find(tensor) : nullptr;
    return name != nullptr ? std::optional(name->module()) : std::nullopt;
  }

  // Autocast keeps the copies of parameters that it makes.
  void note_cast(c10::ArrayRef<const c10::IValue> inputs) {
    const OpOnThread here = StepEvents::on_thread();
    if (inputs.empty() || !inputs[0].isTensor() || here.recording != events->id()) {
      return;
    }
    const at::Tensor& tensor = inputs[0].toTensor();
    const std::lock_guard<std::mutex> lock(mutex_);
    if (here.op != StepEvent::kNoOp && ops_[static_cast<std::size_t>(here.op)].autocast &&
        tensor.defined() && tensor.is_leaf() && tensor.requires_grad()) {
      events->cast_began(here.op);
    }
  }

  void note_gone() {
    const auto gone = std::remove_if(from_before_.begin(), from_before_.end(), [&](auto& before) {
      if (before.storage.expired()) {
        events->gone(before.address);
        return true;
      }
      return false;
    });
    from_before_.erase(gone, from_before_.end());
  }

  void note_gradients() {
    note_gone();
    known_.for_each_gradient([this](const c10::Storage& storage, MemoryCategory category,
                                    const std::string& name) { note(storage, category, name); });
  }

  void note(const c10::Storage& storage, MemoryCategory category, const std::string& name) {
    const auto [known, first] = name_numbers_.emplace(name, names_.size());
    if (first) {
      names_.push_back(name);
    }
    events->note(StepEvent::Kind::kKnown, storage, StepEvent::kNoOp, category,
                 static_cast<int64_t>(known->second));
  }

  void rethrow_error() const {
    if (error_ != nullptr) {
      std::rethrow_exception(error_);
    }
  }

  const uint64_t home_ = at::RecordFunction::currentThreadId();
  mutable std::mutex mutex_;
  KnownMemory known_;
  std::optional<ModuleNames> module_names_;
  std::deque<RecordedOp> ops_;
  std::unordered_map<std::string, std::size_t> name_numbers_;
  std::vector<std::string> names_;
  struct FromBefore {
    c10::weak_intrusive_ptr<c10::StorageImpl> storage;
    uint64_t address;
  };
  std::vector<FromBefore> from_before_;
  bool has_begun_ = false;  // a parameter was read
  // The first thing that is combined with parameters; weak, for it is not ours to keep.
  std::optional<c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>> batch_;
  bool in_backward_ = false;
  bool after_backward_ = false;
  bool closed_ = false;
  std::exception_ptr error_;
};

}  // namespace tidemark::detail
