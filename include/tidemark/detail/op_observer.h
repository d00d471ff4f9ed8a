#pragma once

// What a region reads, writes and draws, seen from the dispatcher's ops that it runs, with nobody
// naming modules or captures.

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <ATen/record_function.h>
#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>
#include <tidemark/detail/generator_use.h>
#include <tidemark/detail/op_info.h>
#include <tidemark/detail/op_log.h>
#include <tidemark/detail/op_pause.h>
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
  /// Records a forward.
  explicit OpObserver(int64_t snapshot_limit)
      : outer_(innermost()), base_depth_(depth()), snapshot_budget_(snapshot_limit) {
    log.complete = at::isRecordFunctionEnabled() && !OpPause::active();
    innermost() = this;
    if (outer_ == nullptr) {
      callback_ = at::addThreadLocalCallback(at::RecordFunctionCallback(&started, &ended)
                                                 .needsInputs(true)
                                                 .needsOutputs(true)
                                                 .scopes({at::RecordScope::FUNCTION}));
    }
  }
  /// Compares a re-run with `forward`.
  explicit OpObserver(const OpLog& forward) : OpObserver(int64_t{0}) {
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
        arguments_.emplace(tensors[i].storage().unsafeGetStorageImpl(), i);
      }
    }
  }

  /// What was found wrong so far; empty if nothing was. Exceptions can't leave a callback, so
  /// whoever runs the region asks.
  [[nodiscard]] const std::string& error() const { return error_; }

  /// Notes where the generators stand after a forward.
  void forward_done() {
    for (GeneratorUse& use : log.generators) {
      use.end = GeneratorUse::state_of(use.generator);
    }
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

  /// Notes that remember() drew random numbers, which no op shows, for all observers.
  static void remembered_draws() {
    for (OpObserver* observer = innermost(); observer != nullptr; observer = observer->outer_) {
      observer->log.remembered_draws = true;
    }
  }

  OpLog log;

 private:
  static OpObserver*& innermost() {
    static thread_local OpObserver* observer = nullptr;
    return observer;
  }
  static int& depth() {
    static thread_local int depth = 0;
    return depth;
  }

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
    bool again = false;
    for_each_observer([&](OpObserver& observer) {
      if (depth_of_op == observer.base_depth_) {
        observer.outermost_op(op, *info, inputs);
      }
      again = again || observer.rerun_check_.has_value();
      for_each_written(*info, inputs, [&](const at::Tensor& tensor, bool) {
        if (observer.external_.count(tensor.storage().unsafeGetStorageImpl()) != 0) {
          locked.push_back(tensor.storage().unsafeGetStorageImpl());
        }
      });
    });
    // Before the snapshots: another region's re-run may have put old values there for a while. A
    // re-run itself holds the locks of what it may write, and must not wait for others on top.
    if (again) {
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

  template <class Work>
  void keep_error(Work&& work) {
    if (!error_.empty()) {
      return;
    }
    try {
      work();
    } catch (const c10::Error& error) {
      error_ = error.what_without_backtrace();
    } catch (const std::exception& error) {
      error_ = error.what();
    }
  }

  void outermost_op(const at::RecordFunction& op, const OpInfo& info,
                    c10::ArrayRef<const c10::IValue> inputs) {
    const OpMark mark = mark_of(op, inputs);
    if (rerun_check_.has_value()) {
      rerun_check_->expect(mark);
    }
    log.ops.push_back(mark);
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      const bool overwrites = info.overwrites && std::find(info.written.begin(), info.written.end(),
                                                           i) != info.written.end();
      for_each_tensor_in(inputs[i], [&](const at::Tensor& tensor) {
        read(tensor, op.name(), overwrites && is_whole(tensor));
      });
    }
  }

  // Whether the tensor is all of its storage.
  static bool is_whole(const at::Tensor& tensor) {
    return tensor.defined() && tensor.has_storage() && tensor.is_contiguous() &&
           tensor.nbytes() == tensor.storage().nbytes();
  }

  void read(const at::Tensor& tensor, const char* op, bool overwritten) {
    if (!tensor.defined() || !tensor.has_storage() ||
        tensor.unsafeGetTensorImpl()->is_wrapped_number()) {
      return;
    }
    const c10::StorageImpl* storage = tensor.storage().unsafeGetStorageImpl();
    if (internal_.count(storage) != 0 || !external_.emplace(storage, log.reads.size()).second) {
      return;
    }
    ExternalRead now(tensor, op);
    now.overwritten = overwritten;
    const auto argument = arguments_.find(storage);
    if (argument != arguments_.end()) {
      now.argument = static_cast<std::ptrdiff_t>(argument->second);
    }
    if (rerun_check_.has_value()) {
      rerun_check_->expect(now);
    }
    log.reads.push_back(std::move(now));
  }

  void made(const at::Tensor& tensor) {
    if (tensor.defined() && tensor.has_storage()) {
      const c10::StorageImpl* storage = tensor.storage().unsafeGetStorageImpl();
      if (external_.count(storage) == 0 && internal_.count(storage) == 0) {
        internal_.emplace(storage, tensor.storage().getWeakStorageImpl());
      }
    }
  }

  void about_to_write(const at::Tensor& tensor, const at::RecordFunction& op,
                      c10::ArrayRef<const c10::IValue> differentiable_inputs) {
    const auto found = external_.find(tensor.storage().unsafeGetStorageImpl());
    if (found == external_.end()) {
      return;
    }
    ExternalRead& target = log.reads[found->second];
    if (c10::GradMode::is_enabled()) {
      bool in_graph = !differentiable_inputs.empty() && tensor.requires_grad();
      for (const c10::IValue& input : differentiable_inputs) {
        for_each_tensor_in(input, [&](const at::Tensor& value) {
          in_graph = in_graph || (value.defined() && value.requires_grad());
        });
      }
      TORCH_CHECK(!in_graph, op.name(), " writes to a tensor from outside (", describe(tensor),
                  ") in a way that autograd records, which no re-run can repeat. (The write itself "
                  "has happened.) Make it an argument and a result of the region, or write under "
                  "NoGradGuard to a detached value.");
    }
    if (target.argument >= 0 || target.written) {
      return;  // the region refuses writes to its arguments as a whole
    }
    target.written = true;
    if (rerun_check_.has_value()) {
      rerun_check_->expect_write(found->second, tensor, op.name());
      return;
    }
    snapshot_budget_ -= target.overwritten ? 0 : static_cast<int64_t>(tensor.storage().nbytes());
    TORCH_CHECK(snapshot_budget_ >= 0, op.name(), " writes to a tensor from outside (",
                describe(tensor), ", a storage of ", tensor.storage().nbytes(),
                " bytes), and what it held before does not fit CheckpointOptions::snapshot_limit. "
                "(The write itself has happened.) Raise the limit, or write outside the region.");
    log.writes.emplace_back(tensor, target.overwritten);
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
  at::CallbackHandle callback_ = 0;
  std::optional<RerunCheck> rerun_check_;  // in a re-run
  std::string error_;
  std::unordered_map<const c10::StorageImpl*, std::size_t> arguments_;
  std::unordered_map<const c10::StorageImpl*, std::size_t> external_;  // to the index in log.reads
  // Weak, so that no storage made later gets the address of one that is gone.
  std::unordered_map<const c10::StorageImpl*, c10::weak_intrusive_ptr<c10::StorageImpl>> internal_;
};

}  // namespace tidemark::detail
