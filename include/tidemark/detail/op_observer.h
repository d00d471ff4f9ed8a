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
#include <tidemark/detail/pointer_index.h>
#include <tidemark/detail/recorded_op.h>
#include <tidemark/detail/rerun_check.h>
#include <tidemark/detail/rng_state.h>
#include <tidemark/detail/storage_locks.h>
#include <tidemark/detail/tensor_meta.h>
#include <tidemark/detail/vector.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <memory>
#include <optional>
#include <string>
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
    forward_ = &forward;
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
        add_storage(tensors[i], {Operand::kArgument, i, tensors[i].storage_offset()});
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
    while (observer != nullptr && observer->forward_ == nullptr) {
      observer = observer->outer_;
    }
    return observer != nullptr;
  }

  /// To be called when a whole re-run is over.
  void rerun_done() {
    keep_error([&] { rerun_check().expect_end(); });
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
    if (outer_ == nullptr) {
      // Of one scope, since LibTorch then makes one list of callbacks anew instead of ten.
      static const auto kCallback = at::RecordFunctionCallback(&started, &ended)
                                        .needsInputs(true)
                                        .needsOutputs(true)
                                        .scopes({at::RecordScope::FUNCTION});
      callback_ = at::addThreadLocalCallback(kCallback);
    }
    innermost() = this;  // last, since no destructor takes it back if something throws
  }

  static OpObserver*& innermost() {
    static thread_local OpObserver* observer = nullptr;
    return observer;
  }
  static int& depth() {
    static thread_local int depth = 0;
    return depth;
  }

  // A storage that ops of the region work on: that of its argument #number, the one that it made as
  // the number-th, or the one that it found outside as the number-th.
  struct Operand {
    enum Kind : uint64_t { kArgument, kInternal, kExternal };
    Kind kind;
    std::size_t number;
    int64_t offset = 0;  // of an argument: where it begins in its storage
    bool read = false;
  };

  // What is kept of an op while it runs.
  struct Running : at::ObserverContext {
    explicit Running(Vector<const c10::StorageImpl*> locked) : locks(std::move(locked)) {}
    StorageLocks locks;
    std::optional<uint64_t> generator_before;
  };

  static std::unique_ptr<at::ObserverContext> started(const at::RecordFunction& op) {
    const OpInfo* info = OpInfo::of(op);
    if (info == nullptr) {
      return nullptr;
    }
    const int depth_of_op = depth()++;
    if (OpPause::active() || innermost() == nullptr) {
      return nullptr;  // callbacks travel with ThreadLocalState to threads where no region runs
    }
    const OpPause own_ops;
    const auto inputs = inputs_of(op);
    Vector<const c10::StorageImpl*> locked;
    for_each_observer([&](OpObserver& observer) {
      if (depth_of_op == observer.base_depth_) {
        observer.outermost_op(op, *info, inputs);
      }
      for_each_written(*info, inputs, [&](const at::Tensor& tensor, bool) {
        if (observer.external(tensor) != nullptr) {
          locked.push_back(tensor.storage().unsafeGetStorageImpl());
        }
      });
    });
    // Before the snapshots: another region's re-run may have put old values there for a while.
    if (rerunning()) {
      locked.clear();
    }
    std::unique_ptr<at::ObserverContext> context;
    const bool draws = info->may_draw(inputs);
    if (!locked.empty() || draws) {
      auto* running = new Running(std::move(locked));
      context.reset(running);
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
    return context;
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
    Draw draw;
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
      if (draw.op != nullptr) {
        observer.drew(draw);
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

  [[nodiscard]] RerunCheck rerun_check() const { return {*forward_, log}; }

  void outermost_op(const at::RecordFunction& op, const OpInfo& info,
                    c10::ArrayRef<const c10::IValue> inputs) {
    OpMark mark = mark_of(op, inputs);
    if (forward_ != nullptr) {
      rerun_check().expect(mark);
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
    if (forward_ != nullptr) {
      rerun_check().expect_operands(mark);
    }
    log.ops.push_back(mark);
  }

  // Whether the tensor is all of its storage.
  static bool is_whole(const at::Tensor& tensor) {
    return tensor.is_contiguous() && tensor.nbytes() == tensor.storage().nbytes();
  }

  // Adds which tensor it is, and where in its storage.
  void add_operand(Hash& operands, const at::Tensor& tensor, const char* op, bool overwritten) {
    const Operand& operand = operand_of(tensor, op, overwritten);
    operands.add(operand.kind);
    operands.add(operand.number);
    // An argument that an outer region gives back may lie elsewhere.
    operands.add(static_cast<uint64_t>(tensor.storage_offset() - operand.offset));
  }

  // The storage of what `op` works on; arguments and what lies outside are noted when first read.
  const Operand& operand_of(const at::Tensor& tensor, const char* op, bool overwritten) {
    Operand* operand = find(tensor);
    if (operand == nullptr) {
      Operand found{Operand::kExternal, log.reads.size()};
      const ExternalRead* argument =
          forward_ != nullptr ? rerun_check().argument_of_forward(tensor) : nullptr;
      if (argument != nullptr) {
        found = {Operand::kArgument, argument->argument, argument->argument_offset};
      } else {
        note_external(tensor, op, overwritten);
      }
      add_storage(tensor, found);
      operand = &operands_.back();
    }
    if (operand->kind == Operand::kArgument && !operand->read) {
      operand->read = true;
      note_argument(*operand, tensor, op);
    }
    return *operand;
  }

  void note_argument(const Operand& operand, const at::Tensor& tensor, const char* op) {
    ExternalRead now(tensor, op, log.fingerprint_limit);
    now.argument = operand.number;
    now.argument_offset = operand.offset;
    if (forward_ != nullptr) {
      rerun_check().expect_argument(now);
    } else {
      log.arguments_read.push_back(std::move(now));
    }
  }

  void note_external(const at::Tensor& tensor, const char* op, bool overwritten) {
    ExternalRead now(tensor, op, log.fingerprint_limit);
    now.overwritten = overwritten;
    if (forward_ != nullptr) {
      rerun_check().expect(now);
    }
    log.reads.push_back(std::move(now));
  }

  // What is known of the tensor's storage; nullptr if nothing is.
  Operand* find(const at::Tensor& tensor) {
    const std::size_t* found = index_.find(tensor.storage().unsafeGetStorageImpl());
    return found != nullptr ? &operands_[*found] : nullptr;
  }
  // The same if the region found it outside.
  const Operand* external(const at::Tensor& tensor) {
    const Operand* operand = find(tensor);
    return operand != nullptr && operand->kind == Operand::kExternal ? operand : nullptr;
  }

  // Keeps what was known first.
  void add_storage(const at::Tensor& tensor, const Operand& operand) {
    operands_.push_back(operand);
    if (!index_.add(tensor.storage().unsafeGetStorageImpl(), operands_.size() - 1)) {
      operands_.pop_back();
    }
  }

  void made(const at::Tensor& tensor) {
    if (tensor.defined() && tensor.has_storage() && find(tensor) == nullptr) {
      // Weak, so that no storage made later gets the address of one that is gone.
      made_.push_back(tensor.storage().getWeakStorageImpl());
      add_storage(tensor, {Operand::kInternal, made_.size() - 1});
    }
  }

  void about_to_write(const at::Tensor& tensor, const at::RecordFunction& op,
                      c10::ArrayRef<const c10::IValue> differentiable_inputs) {
    const Operand* operand = external(tensor);
    if (operand == nullptr) {
      return;  // the region's own; or an argument, writes to which it refuses as a whole
    }
    ExternalRead& target = log.reads[operand->number];
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
    if (forward_ != nullptr) {
      rerun_check().expect_write(operand->number, tensor, op.name());
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
    if (forward_ != nullptr || !generator.defined() || GeneratorUse::is_default(generator)) {
      return;
    }
    for (const GeneratorUse& use : log.generators) {
      if (use.generator == generator) {
        return;
      }
    }
    log.generators.push_back(GeneratorUse(generator));
  }

  void drew(const Draw& draw) {
    if (forward_ != nullptr) {
      rerun_check().expect(draw);
    }
    log.draws.push_back(draw);
  }

  static inline const c10::ArrayRef<const c10::IValue> kNoInputs{};

  OpObserver* outer_;
  int base_depth_;
  int64_t snapshot_budget_;
  bool refuses_ = true;
  at::CallbackHandle callback_ = 0;
  const OpLog* forward_ = nullptr;  // in a re-run: what it is held to
  std::string error_;
  std::exception_ptr failure_;
  PointerIndex index_;  // of a storage in operands_
  Vector<Operand> operands_;
  Vector<c10::weak_intrusive_ptr<c10::StorageImpl>> made_;
};

}  // namespace tidemark::detail
