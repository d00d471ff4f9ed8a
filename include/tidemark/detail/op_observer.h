#pragma once

// What a region reads, writes and draws, seen from the dispatcher's ops that it runs, with nobody
// naming modules or captures.

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <ATen/record_function.h>
#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>
#include <tidemark/checkpoint_options.h>
#include <tidemark/detail/fingerprint.h>
#include <tidemark/detail/generator_use.h>
#include <tidemark/detail/op_info.h>
#include <tidemark/detail/op_log.h>
#include <tidemark/detail/op_pause.h>
#include <tidemark/detail/out_of_memory.h>
#include <tidemark/detail/recorded_op.h>
#include <tidemark/detail/rerun_check.h>
#include <tidemark/detail/rng_state.h>
#include <tidemark/detail/storage_locks.h>
#include <tidemark/detail/tensor_meta.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace tidemark::detail {

/// Watches the ops of its thread while a region runs: in the forward to record what it does, in a
/// re-run to compare. Observers nest; an op counts for all of them.
class OpObserver {
 public:
  /// Records a forward. If not `to_rerun`, then only to undo it, and nothing in it is wrong.
  explicit OpObserver(const CheckpointOptions& options, bool to_rerun = true)
      : OpObserver(options.snapshot_limit(), to_rerun ? options.fingerprint_limit() : 0) {
    refuses_ = to_rerun;
  }
  /// Compares a re-run with `forward`.
  explicit OpObserver(const OpLog& forward)
      : OpObserver(0, static_cast<int64_t>(forward.fingerprint_limit)) {
    rerun_check_.emplace(forward, log);
  }

  OpObserver(const OpObserver&) = delete;
  OpObserver& operator=(const OpObserver&) = delete;

  ~OpObserver() {
    innermost() = outer_;
    if (outer_ == nullptr) {
      at::removeCallback(callback_);
    }
  }
  /// Declares the tensor arguments of the region.
  void arguments(const std::vector<at::Tensor>& tensors) {
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      if (tensors[i].defined() && tensors[i].has_storage()) {
        arguments_.emplace(tensors[i].storage().unsafeGetStorageImpl(),
                           Argument{i, tensors[i].storage_offset()});
      }
    }
  }

  /// What was found wrong so far; empty if nothing was. Exceptions can't leave a callback, so
  /// whoever runs the region asks.
  [[nodiscard]] const std::string& error() const { return error_; }

  /// Throws what kept the observer from its work, if something did: memory ran out.
  void rethrow_failure() const {
    if (failure_ != nullptr) {
      std::rethrow_exception(failure_);
    }
  }

  /// Notes where the generators stand after a forward.
  void forward_done() {
    for (GeneratorUse& use : log.generators) {
      use.end = GeneratorState(use.generator);
    }
  }

  /// Whether a region of this thread is being re-run. It has locked what it may write to, and must
  /// not wait for others on top.
  static bool rerunning() {
    const OpObserver* observer = innermost();
    while (observer != nullptr && !observer->rerun_check_.has_value()) {
      observer = observer->outer_;
    }
    return observer != nullptr;
  }

  /// To be called when a whole re-run is over.
  void rerun_done() {
    keep_error([&] { rerun_check_->expect_end(); });
  }

  /// Whether one of LibTorch's own ops runs on this thread while an observer is there to see it.
  /// The code of a custom autograd Function runs outside of ops, or in an op of another library.
  static bool inside_aten_op() {
    const OpObserver* observer = innermost();
    return observer != nullptr && depth() > observer->base_depth_ && !observer->log.ops.empty() &&
           std::strncmp(observer->log.ops.back().name, "aten::", 6) == 0;
  }

  OpLog log;

 private:
  OpObserver(int64_t snapshot_limit, int64_t fingerprint_limit)
      : outer_(innermost()), base_depth_(depth()), snapshot_budget_(snapshot_limit) {
    log.complete = at::isRecordFunctionEnabled() && !OpPause::active();
    log.fingerprint_limit = static_cast<std::size_t>(fingerprint_limit);
    innermost() = this;
    if (outer_ == nullptr) {
      callback_ = at::addThreadLocalCallback(at::RecordFunctionCallback(&started, &ended)
                                                 .needsInputs(true)
                                                 .needsOutputs(true)
                                                 .scopes({at::RecordScope::FUNCTION}));
    }
  }

  static OpObserver*& innermost() {
    static thread_local OpObserver* observer = nullptr;
    return observer;
  }
  static int& depth() {
    static thread_local int depth = 0;
    return depth;
  }

  struct Argument {
    std::size_t number;
    int64_t offset;  // where it begins in its storage
    bool read = false;
  };
  // Weak, so that no storage made later gets the address of one that is gone.
  struct Made {
    c10::weak_intrusive_ptr<c10::StorageImpl> storage;
    std::size_t number;
  };

  // What is kept of an op while it runs.
  struct Running : at::ObserverContext {
    std::optional<StorageLocks> locks;
    std::optional<uint64_t> generator_before;
  };

  static std::unique_ptr<at::ObserverContext> started(const at::RecordFunction& op) {
    const OpInfo* info = OpInfo::of(op);
    if (info == nullptr) {
      return nullptr;  // a range of the user's
    }
    const int depth_of_op = depth()++;
    if (OpPause::active() || innermost() == nullptr) {
      return nullptr;  // callbacks travel with ThreadLocalState to threads where no region runs
    }
    const OpPause own_ops;
    const auto inputs = inputs_of(op);
    std::vector<const c10::StorageImpl*> locked;
    for_each_observer([&](OpObserver& observer) {
      if (depth_of_op == observer.base_depth_) {
        observer.outermost_op(op, *info, inputs);
      }
      for_each_written(*info, inputs, [&](const at::Tensor& tensor, bool) {
        if (observer.external_.count(tensor.storage().unsafeGetStorageImpl()) != 0) {
          locked.push_back(tensor.storage().unsafeGetStorageImpl());
        }
      });
    });
    // Before the snapshots: another region's re-run may have put old values there for a while.
    if (rerunning()) {
      locked.clear();
    }
    std::unique_ptr<Running> running;
    const bool draws = info->may_draw(inputs);
    if (!locked.empty() || draws) {
      running = std::make_unique<Running>();
      if (!locked.empty()) {
        running->locks.emplace(std::move(locked));
      }
      if (draws) {
        running->generator_before = CpuRngState::now().fingerprint();
      }
    }
    for_each_observer([&](OpObserver& observer) {
      const bool outermost = depth_of_op == observer.base_depth_;
      observer.log.random = observer.log.random || (info->draws && info->trains(inputs));
      for_each_written(*info, inputs, [&](const at::Tensor& tensor, bool declared) {
        observer.about_to_write(tensor, op, outermost && declared ? inputs : kNoInputs);
      });
      for (const c10::IValue& input : inputs) {
        if (input.isGenerator()) {
          observer.about_to_use(input.toGenerator());
        }
      }
    });
    return running;
  }

  static void ended(const at::RecordFunction& op, at::ObserverContext* context) {
    const OpInfo* info = OpInfo::of(op);
    if (info == nullptr) {
      return;
    }
    const int depth_of_op = --depth();
    if (OpPause::active() || innermost() == nullptr) {
      return;
    }
    std::optional<Draw> draw;
    const auto* running = static_cast<const Running*>(context);
    if (running != nullptr && running->generator_before.has_value()) {
      draw = draw_of(op, *running->generator_before);
    }
    for_each_observer([&](OpObserver& observer) {
      if (depth_of_op == observer.base_depth_) {
        for (const c10::IValue& output : op.outputs()) {
          for_each_tensor_in(output, [&](const at::Tensor& tensor) { observer.made(tensor); });
        }
      }
      if (draw.has_value()) {
        observer.drew(*draw);
      }
    });
  }

  // Calls `visit` with every observer of the thread; what it throws is kept for the region's end.
  template <class Visit>
  static void for_each_observer(Visit&& visit) {
    for (OpObserver* observer = innermost(); observer != nullptr; observer = observer->outer_) {
      observer->keep_error([&] { visit(*observer); });
    }
  }

  // A c10::Error is a refusal of ours, unless memory ran out; all else is a failure of the
  // observer.
  template <class Work>
  void keep_error(Work&& work) {
    if (!error_.empty()) {
      return;
    }
    try {
      work();
    } catch (const c10::Error& error) {
      if (is_out_of_memory(error)) {
        failure_ = std::current_exception();
      } else {
        error_ = error.what_without_backtrace();
      }
    } catch (...) {
      failure_ = std::current_exception();
    }
  }

  void outermost_op(const at::RecordFunction& op, const OpInfo& info,
                    c10::ArrayRef<const c10::IValue> inputs) {
    OpMark mark = mark_of(op, inputs);
    if (rerun_check_.has_value()) {
      rerun_check_->expect(mark);
    }
    Hash operands;
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      const bool overwrites = info.overwrites && std::find(info.written.begin(), info.written.end(),
                                                           i) != info.written.end();
      for_each_tensor_in(inputs[i], [&](const at::Tensor& tensor) {
        if (tensor.defined() && tensor.has_storage() &&
            !tensor.unsafeGetTensorImpl()->is_wrapped_number()) {
          add_operand(operands, tensor, op.name(), overwrites && is_whole(tensor));
        }
      });
    }
    mark.operands = operands.value();
    if (rerun_check_.has_value()) {
      rerun_check_->expect_operands(mark);
    }
    log.ops.push_back(mark);
  }

  // Whether the tensor is all of its storage.
  static bool is_whole(const at::Tensor& tensor) {
    return tensor.is_contiguous() && tensor.nbytes() == tensor.storage().nbytes();
  }

  // Adds which tensor it is: an argument, the k-th storage that the region made, or the k-th that
  // it found outside; and where in it.
  void add_operand(Hash& operands, const at::Tensor& tensor, const char* op, bool overwritten) {
    enum : uint64_t { kArgument, kInternal, kExternal };
    const c10::StorageImpl* storage = tensor.storage().unsafeGetStorageImpl();
    int64_t offset = tensor.storage_offset();
    if (const auto made = internal_.find(storage); made != internal_.end()) {
      operands.add(kInternal);
      operands.add(made->second.number);
    } else if (const Argument* argument = argument_that_is(tensor, op)) {
      operands.add(kArgument);
      operands.add(argument->number);
      offset -= argument->offset;  // given back by an outer region it may lie elsewhere
    } else {
      operands.add(kExternal);
      operands.add(read(tensor, op, overwritten));
    }
    operands.add(static_cast<uint64_t>(offset));
  }

  // The argument that lives in the tensor's storage, if any.
  const Argument* argument_that_is(const at::Tensor& tensor, const char* op) {
    const c10::StorageImpl* storage = tensor.storage().unsafeGetStorageImpl();
    auto found = arguments_.find(storage);
    if (found == arguments_.end()) {
      if (!rerun_check_.has_value() || external_.count(storage) != 0) {
        return nullptr;
      }
      const auto captured = rerun_check_->argument_of_forward(tensor);
      if (!captured.has_value()) {
        return nullptr;
      }
      found = arguments_.emplace(storage, Argument{captured->first, captured->second}).first;
    }
    Argument& argument = found->second;
    if (!argument.read) {
      argument.read = true;
      ExternalRead now(tensor, op, log.fingerprint_limit);
      if (rerun_check_.has_value()) {
        rerun_check_->expect_argument(argument.number, now);
      } else {
        now.argument_offset = argument.offset;
        log.arguments_read.emplace(argument.number, std::move(now));
      }
    }
    return &argument;
  }

  // The number of the storage among those read from outside.
  std::size_t read(const at::Tensor& tensor, const char* op, bool overwritten) {
    const auto [found, first] =
        external_.emplace(tensor.storage().unsafeGetStorageImpl(), log.reads.size());
    if (first) {
      ExternalRead now(tensor, op, log.fingerprint_limit);
      now.overwritten = overwritten;
      if (rerun_check_.has_value()) {
        rerun_check_->expect(now);
      }
      log.reads.push_back(std::move(now));
    }
    return found->second;
  }

  void made(const at::Tensor& tensor) {
    if (tensor.defined() && tensor.has_storage()) {
      const c10::StorageImpl* storage = tensor.storage().unsafeGetStorageImpl();
      if (external_.count(storage) == 0 && arguments_.count(storage) == 0) {
        internal_.emplace(storage, Made{tensor.storage().getWeakStorageImpl(), internal_.size()});
      }
    }
  }

  void about_to_write(const at::Tensor& tensor, const at::RecordFunction& op,
                      c10::ArrayRef<const c10::IValue> differentiable_inputs) {
    const auto found = external_.find(tensor.storage().unsafeGetStorageImpl());
    if (found == external_.end()) {
      return;  // the region's own; or an argument, writes to which it refuses as a whole
    }
    ExternalRead& target = log.reads[found->second];
    if (c10::GradMode::is_enabled()) {
      bool in_graph = !differentiable_inputs.empty() && tensor.requires_grad();
      for (const c10::IValue& input : differentiable_inputs) {
        for_each_tensor_in(input, [&](const at::Tensor& value) {
          in_graph = in_graph || (value.defined() && value.requires_grad());
        });
      }
      if (in_graph && !refuses_) {
        return;  // to undo it would take its graph back, too
      }
      TORCH_CHECK(!in_graph, op.name(), " writes to a tensor from outside (", describe(tensor),
                  ") in a way that autograd records, which no re-run can repeat. (The write itself "
                  "has happened.) Make it an argument and a result of the region, or write under "
                  "NoGradGuard to a detached value.");
    }
    if (target.written) {
      return;
    }
    target.written = true;
    if (rerun_check_.has_value()) {
      rerun_check_->expect_write(found->second, tensor, op.name());
      return;
    }
    const auto size = static_cast<int64_t>(tensor.storage().nbytes());
    const bool fits = size <= snapshot_budget_;
    TORCH_CHECK(fits || target.overwritten || !refuses_, op.name(),
                " writes to a tensor from outside (", describe(tensor), ", a storage of ", size,
                " bytes), and what it held before does not fit CheckpointOptions::snapshot_limit. "
                "(The write itself has happened.) Raise the limit, or write outside the region.");
    snapshot_budget_ -= fits && !target.overwritten ? size : 0;
    WriteSnapshot write(tensor);
    write.for_undo = target.overwritten;
    if (fits) {
      write.before = bytes_before(tensor.storage());
    }
    log.writes.push_back(std::move(write));
  }

  // Where memory runs out the op goes on to write, and only the region's end can throw. What is to
  // be undone then is kept nevertheless.
  at::Tensor bytes_before(const c10::Storage& storage) {
    try {
      return bytes_of(storage).clone();
    } catch (const std::exception& error) {
      if (!is_out_of_memory(error)) {
        throw;
      }
      failure_ = std::current_exception();
    }
    return bytes_on_host(storage);
  }

  void about_to_use(const at::Generator& generator) {
    if (rerun_check_.has_value() || !generator.defined() || GeneratorUse::is_default(generator)) {
      return;
    }
    for (const GeneratorUse& use : log.generators) {
      if (use.generator == generator) {
        return;
      }
    }
    log.generators.emplace_back(generator);
  }

  void drew(const Draw& draw) {
    if (rerun_check_.has_value()) {
      rerun_check_->expect(draw);
    }
    log.draws.push_back(draw);
  }

  static inline const c10::ArrayRef<const c10::IValue> kNoInputs{};

  OpObserver* outer_;
  int base_depth_;
  int64_t snapshot_budget_;
  bool refuses_ = true;
  at::CallbackHandle callback_ = 0;
  std::optional<RerunCheck> rerun_check_;  // in a re-run
  std::string error_;
  std::exception_ptr failure_;
  std::unordered_map<const c10::StorageImpl*, Argument> arguments_;
  std::unordered_map<const c10::StorageImpl*, Made> internal_;
  std::unordered_map<const c10::StorageImpl*, std::size_t> external_;  // to the index in log.reads
};

}  // namespace tidemark::detail
