#pragma once

// Where NaN and inf came up, as ops are seen to make them.

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/isinf.h>
#include <ATen/ops/isnan.h>
#include <ATen/record_function.h>
#include <c10/core/DispatchKeySet.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <tidemark/detail/debug_info_kind.h>
#include <tidemark/detail/module_names.h>
#include <tidemark/detail/nan_memory.h>
#include <tidemark/detail/op_info.h>
#include <tidemark/detail/op_pause.h>
#include <tidemark/detail/tensor_meta.h>
#include <tidemark/detail/watched_op.h>
#include <tidemark/nonfinite.h>
#include <tidemark/remember.h>
#include <torch/arg.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <iterator>
#include <memory>
#include <mutex>
#include <optional>
#include <sstream>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>

namespace tidemark {

/// What a NumericsWatch looks for.
struct NumericsWatchOptions {
  /// Reports inf as well as NaN. Off for programs that make inf on purpose by arithmetic, as
  /// `mask.log()` does.
  TORCH_ARG(bool, inf) = true;

  /// Looks at what backward computes, too; off under a GradScaler, whose scaled gradients are meant
  /// to overflow now and then.
  TORCH_ARG(bool, backward) = true;
};

}  // namespace tidemark

namespace tidemark::detail {

/// What one watch knows. It travels with at::ThreadLocalState to the threads that work for its own,
/// so several threads may report to it at once.
class NumericsLog final : public c10::DebugInfoBase,
                          public std::enable_shared_from_this<NumericsLog> {
 public:
  static constexpr std::string_view kName = "tidemark::NumericsLog";
  static constexpr auto kKind = own_debug_info_kind(0x74, &kName);

  NumericsLog(const torch::nn::Module* model, const NumericsWatchOptions& options)
      : outer_(innermost() != nullptr ? innermost()->shared_from_this() : nullptr),
        options_(options),
        home_(at::RecordFunction::currentThreadId()),
        home_depth_(on_thread().depth) {
    if (model != nullptr) {
      names_.emplace(*model);
    }
  }

  [[nodiscard]] bool is_nested() const { return outer_ != nullptr; }

  static at::RecordFunctionCallback callback() {
    return at::RecordFunctionCallback(&started, &ended)
        .needsInputs(true)
        .needsOutputs(true)
        .scopes({at::RecordScope::FUNCTION, at::RecordScope::BACKWARD_FUNCTION});
  }

  /// Threads that go on working with the state of the watch's thread don't report any more.
  void close() {
    const std::lock_guard<std::mutex> lock(mutex_);
    done_ = true;
    names_.reset();
  }

  [[nodiscard]] std::optional<Nonfinite> first() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (error_ != nullptr) {
      std::rethrow_exception(error_);
    }
    return found_;
  }

 private:
  using Phase = Nonfinite::Phase;

  // An op that reads parameters or has made nodes.
  struct Record {
    const char* op;
    std::optional<std::string> module;
    uint64_t first_node;
    uint64_t end_node;
    uint64_t stretch;
  };
  // Where a report waits for the name of the next module.
  struct Awaited {
    uint64_t thread;
    uint64_t stretch;
  };
  struct Place {
    Nonfinite found;  // all that does not depend on values
    std::optional<Awaited> awaits;
  };
  struct Thread {
    Phase phase = Phase::kForward;
    uint64_t stretch = 0;  // number of its changes of phase
    std::deque<Record> records;
  };
  static constexpr std::size_t kMostRecords = std::size_t{1} << 17;  // per thread; some 10 MB

  struct OnThread {
    int depth = 0;                                 // of running ops
    std::vector<const at::RecordFunction*> nodes;  // that run, innermost last
  };
  static OnThread& on_thread() {
    static thread_local OnThread on_thread;
    return on_thread;
  }

  // While alive, nobody sees the ops of this thread: no observer of a region, no profiler, no
  // watch.
  struct OwnOps {
    at::DisableRecordFunctionGuard unseen;
    at::NoGradGuard no_grad;
    c10::impl::ExcludeDispatchKeyGuard no_autocast{c10::autocast_dispatch_keyset};
  };

  static NumericsLog* innermost() {
    return dynamic_cast<NumericsLog*>(c10::ThreadLocalDebugInfo::get(kKind));
  }

  // Calls `visit` with the watches that look at an op of this depth.
  template <class Visit>
  static void for_each_log(int depth, Visit&& visit) {
    for (NumericsLog* log = innermost(); log != nullptr; log = log->outer_.get()) {
      const bool home = at::RecordFunction::currentThreadId() == log->home_;
      if (!log->done_ && depth == (home ? log->home_depth_ : 0)) {
        visit(*log);
      }
    }
  }

  // Exceptions can't leave a callback, so they are kept for whoever asks.
  template <class Work>
  static void keep_error(int depth, Work&& work) {
    try {
      work();
    } catch (...) {
      for_each_log(depth, [](NumericsLog& log) {
        const std::lock_guard<std::mutex> lock(log.mutex_);
        log.error_ = std::current_exception();
        log.done_ = true;
      });
    }
  }

  static std::unique_ptr<at::ObserverContext> started(const at::RecordFunction& op) {
    OnThread& here = on_thread();
    if (op.scope() == at::RecordScope::BACKWARD_FUNCTION) {
      here.nodes.push_back(&op);
      return nullptr;
    }
    const OpInfo* info = OpInfo::of(op);
    if (info == nullptr) {
      return nullptr;  // a range of the user's
    }
    const int depth = here.depth++;
    bool watched = false;
    for_each_log(depth, [&](const NumericsLog&) { watched = true; });
    std::unique_ptr<at::ObserverContext> context;
    if (watched && !OpPause::active()) {
      keep_error(depth, [&] {
        const OwnOps own_ops;
        context = std::make_unique<WatchedOp>(op, *info);
      });
    }
    return context;
  }

  static void ended(const at::RecordFunction& op, at::ObserverContext* context) {
    OnThread& here = on_thread();
    if (op.scope() == at::RecordScope::BACKWARD_FUNCTION) {
      here.nodes.pop_back();
      return;
    }
    if (OpInfo::of(op) == nullptr) {
      return;
    }
    const int depth = --here.depth;
    auto* watched = static_cast<WatchedOp*>(context);
    if (watched == nullptr || std::uncaught_exceptions() > watched->exceptions) {
      return;
    }
    keep_error(depth, [&] {
      const OwnOps own_ops;
      // Hooks run, and gradients of one tensor are added up, between nodes.
      const bool in_backward = torch::autograd::get_current_graph_task_id() != -1;
      const Phase phase = recomputing() ? Phase::kRerun
                          : in_backward ? Phase::kBackward
                                        : Phase::kForward;
      const auto* node = here.nodes.empty() ? nullptr : here.nodes.back();
      bool look = false;
      for_each_log(depth, [&](const NumericsLog& log) { look = look || log.looks_in(phase); });
      watched->ended(op, look);
      for_each_log(depth, [&](NumericsLog& log) { log.took(op, *watched, phase, node); });
    });
  }

  // A watch that has found something only waits for the next module's name.
  [[nodiscard]] bool looks_in(Phase phase) const {
    return !awaits_name_ && (phase == Phase::kForward || options_.backward());
  }

  void took(const at::RecordFunction& op, WatchedOp& watched, Phase phase,
            const at::RecordFunction* node) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (done_) {
      return;
    }
    Thread& thread = threads_[op.threadId()];
    if (thread.phase != phase) {
      thread.phase = phase;
      ++thread.stretch;
      if (phase == Phase::kForward && names_.has_value()) {
        names_->refresh();  // modules change between iterations
      }
    }
    const auto module = module_read_by(watched);
    if (found_.has_value()) {
      complete(op.threadId(), thread.stretch, module);
      return;
    }
    const Place place = place_of(op, watched, thread, module, phase, node);
    const bool fresh = makes_fresh_memory(op.name());
    for (const WatchedOp::Result& result : watched.results) {
      if (fresh) {
        memory_.set(result.values, NanMemory::kFresh);
      } else if (!result.looked_at || !looks_in(phase)) {
        memory_.set(result.values, NanMemory::kHolds);
      } else if (judge(op, watched, result, place)) {
        return;
      }
    }
  }

  // Whether the result is where NaN or inf first appeared.
  bool judge(const at::RecordFunction& op, WatchedOp& watched, const WatchedOp::Result& result,
             const Place& place) {
    NanMemory::State memory = NanMemory::kClean;
    if (result.bad.nan) {
      memory = NanMemory::kHolds;
      bool made_here = !watched.scalars.nan;
      for (WatchedOp::Input& input : watched.inputs) {
        if (!watched.is_source(input) || !WatchedOp::look(input).nan) {
          continue;
        }
        made_here = false;
        const auto known = memory_.of(input.storage);
        const bool accounted = known == NanMemory::kHolds;
        const bool fresh = known == NanMemory::kFresh;
        if (fresh && (input.tensor.is_same(result.tensor) || is_copy(op.name()))) {
          memory = NanMemory::kFresh;
        } else if (!accounted) {
          report(Nonfinite::Kind::kNan, result, place);
          found_->came_in = describe_source(input, fresh);
          return true;
        }
      }
      if (made_here) {
        report(Nonfinite::Kind::kNan, result, place);
        return true;
      }
    }
    if (result.bad.inf && options_.inf() && !watched.scalars.inf &&
        std::none_of(watched.inputs.begin(), watched.inputs.end(), [&](WatchedOp::Input& input) {
          return watched.is_source(input) && WatchedOp::look(input).inf;
        })) {
      report(Nonfinite::Kind::kInf, result, place);
      return true;
    }
    memory_.set(result.values, memory);
    return false;
  }

  void report(Nonfinite::Kind kind, const WatchedOp::Result& result, const Place& place) {
    found_ = place.found;
    found_->kind = kind;
    found_->result = result.name;
    found_->dtype = result.tensor.scalar_type();
    found_->shape = result.tensor.sizes().vec();
    found_->device = result.tensor.device();
    found_->nan_count = at::isnan(result.values).sum().item<int64_t>();
    found_->inf_count = at::isinf(result.values).sum().item<int64_t>();
    found_->numel = result.values.numel();
    memory_.clear();
    awaited_ = place.awaits;
    awaits_name_ = awaited_.has_value();
    done_ = !awaited_.has_value();
  }

  std::string describe_source(const WatchedOp::Input& input, bool fresh) {
    std::ostringstream out;
    out << "argument " << input.argument << ", ";
    const auto* name = names_.has_value() ? names_->find(input.tensor) : nullptr;
    if (name != nullptr) {
      out << (name->parameter ? "the parameter '" : "the buffer '") << name->name << "' ("
          << describe(input.tensor) << ')';
    } else {
      out << describe(input.tensor)
          << (fresh ? " in memory that no op had filled" : ", which no watched op wrote NaN to");
    }
    return std::move(out).str();
  }

  // Finds out where the op runs, and notes it for the ops and nodes to come.
  Place place_of(const at::RecordFunction& op, const WatchedOp& watched, Thread& thread,
                 std::optional<std::string> module, Phase phase, const at::RecordFunction* node) {
    Place place;
    place.found.op = op.name();
    place.found.phase = phase;
    if (phase == Phase::kBackward) {
      if (node != nullptr) {
        place.found.node = node->name();
        find_forward(*node, place.found);
      }
      if (place.found.module.empty()) {
        place.found.module = module.value_or("");
      }
      module = place.found.module;  // for the nodes of a backward of this backward
    } else if (module.has_value()) {
      place.found.module = *module;
    } else {
      place.found.previous =
          nearest_module(thread.records.rbegin(), thread.records.rend(), thread.stretch);
      place.awaits = Awaited{op.threadId(), thread.stretch};
    }
    if (watched.end_node != watched.first_node || module.has_value()) {
      thread.records.push_back(
          {op.name(), std::move(module), watched.first_node, watched.end_node, thread.stretch});
      if (thread.records.size() > kMostRecords) {
        thread.records.pop_front();
      }
    }
    return place;
  }

  std::optional<std::string> module_read_by(const WatchedOp& watched) {
    std::optional<std::string> module;
    if (names_.has_value()) {
      for (const WatchedOp::Input& input : watched.inputs) {
        if (const TensorName* name = names_->find(input.tensor)) {
          module = module.has_value() ? common_parent(*module, name->module()) : name->module();
        }
      }
    }
    return module;
  }

  // The first name among records of the stretch.
  template <class Iterator>
  static std::string nearest_module(Iterator begin, Iterator end, uint64_t stretch) {
    for (; begin != end && begin->stretch == stretch; ++begin) {
      if (begin->module.has_value()) {
        return *begin->module;
      }
    }
    return "";
  }

  // What made the node: the op whose numbers its sequence number is among, on that op's thread. A
  // node that no op made, as that of a custom Function, still has neighbours.
  void find_forward(const at::RecordFunction& node, Nonfinite& found) const {
    const auto thread = threads_.find(node.forwardThreadId());
    if (node.seqNr() < 0 || thread == threads_.end()) {
      return;
    }
    const auto number = static_cast<uint64_t>(node.seqNr());
    const auto& records = thread->second.records;
    const auto after =
        std::partition_point(records.begin(), records.end(),
                             [&](const Record& record) { return record.first_node <= number; });
    if (after == records.begin()) {
      return;
    }
    const Record& record = *std::prev(after);
    const bool made_it = number < record.end_node;
    if (made_it) {
      found.forward_op = record.op;
    }
    if (made_it && record.module.has_value()) {
      found.module = *record.module;
    } else {
      found.previous =
          nearest_module(std::make_reverse_iterator(after), records.rend(), record.stretch);
      found.next = nearest_module(after, records.end(), record.stretch);
      found.module = common_parent(found.previous, found.next);
    }
  }

  // Gives a report that waits for it the module after its op.
  void complete(uint64_t thread, uint64_t stretch, const std::optional<std::string>& module) {
    if (thread != awaited_->thread) {
      return;
    }
    if (stretch == awaited_->stretch && module.has_value()) {
      found_->next = *module;
      found_->module = common_parent(found_->previous, found_->next);
    }
    done_ = stretch != awaited_->stretch || module.has_value();
  }

  const std::shared_ptr<NumericsLog> outer_;
  const NumericsWatchOptions options_;
  const uint64_t home_;   // the thread of the watch
  const int home_depth_;  // of the ops that the watch was opened in
  std::atomic<bool> done_{false};
  std::atomic<bool> awaits_name_{false};

  mutable std::mutex mutex_;
  std::optional<ModuleNames> names_;
  std::unordered_map<uint64_t, Thread> threads_;
  NanMemory memory_;
  std::optional<Nonfinite> found_;
  std::optional<Awaited> awaited_;
  std::exception_ptr error_;
};

}  // namespace tidemark::detail
