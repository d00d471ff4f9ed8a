#pragma once

/// \file
/// Names the module and the op where a NaN or inf first appeared, on an unmodified model.

#include <ATen/record_function.h>
#include <c10/util/Exception.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <tidemark/detail/numerics_log.h>
#include <tidemark/nonfinite.h>
#include <torch/nn/module.h>

#include <memory>
#include <optional>

namespace tidemark {

/// While alive, looks at what every op makes and names the place where NaN or inf first appeared:
/// the op, its module, whether in the forward, in backward or in the re-run of a checkpointed
/// region. The model needs no change.
///
///     tidemark::NumericsWatch watch(*model);
///     auto loss = criterion(model->forward(x), y);
///     loss.backward();
///     watch.expect_finite();                               // throws, naming the place
///     if (auto found = watch.first()) std::cerr << *found;
///
/// What counts: NaN that an op makes of inputs without any, and inf likewise (not where a scalar
/// argument is inf, as in `masked_fill(mask, -inf)`). NaN that comes in with a tensor made outside
/// of the watch, or in memory that was written to by other means than watched ops (`data_ptr`, an
/// accessor, a kernel of your own, the result of remember()), is reported by the first op whose
/// result has NaN of it. inf from outside is let through, since masks are made of it, and so are
/// torch::empty and what is left in it where it was written in part.
///
/// How modules are found: C++ modules have no hooks, but an op that reads the parameter
/// `net.conv.weight` ran in `net.conv`, and one that reads none between its neighbours. The name
/// of the module after it is only known when that module has run, so ask when the forward is over.
/// Parameters may be replaced meanwhile; a frozen one is known from the next iteration on.
///
/// The watch sees the outermost ops of its thread and of the threads that at::ThreadLocalState is
/// handed to, as the engine's are. It looks at float, double, half, bfloat16 and complex values, of
/// sparse tensors at those that are stored. TorchScript's fused kernels, and switching
/// at::RecordFunction off, hide ops from it.
///
/// Costs a reduction over the results of every op that is no view, one more over what an op writes
/// in place, and waits for the device after each op: made for finding a fault, not for every run.
/// Results, gradients and random numbers are the same with it. Once it has found something it looks
/// at nothing more; make a new one to go on.
///
/// A scope: ends on the thread that made it, watches in reverse order. The model, of which it
/// reads the names of parameters and buffers, has to outlive it. first() and expect_finite() may be
/// called on any thread.
class NumericsWatch {
 public:
  /// Watches without naming modules.
  explicit NumericsWatch(const NumericsWatchOptions& options = {})
      : NumericsWatch(nullptr, options) {}
  /// Watches, and names the modules of `model`, which has to outlive the watch.
  explicit NumericsWatch(const torch::nn::Module& model, const NumericsWatchOptions& options = {})
      : NumericsWatch(&model, options) {}

  NumericsWatch(const NumericsWatch&) = delete;
  NumericsWatch& operator=(const NumericsWatch&) = delete;
  ~NumericsWatch() {
    if (callback_.has_value()) {
      at::removeCallback(*callback_);
    }
    log_->close();
  }

  /// Where NaN or inf first appeared; nothing if all was finite so far. Throws what went wrong in
  /// looking, such as an out-of-memory error.
  [[nodiscard]] std::optional<Nonfinite> first() const { return log_->first(); }

  /// Throws a c10::Error that names the place of the first NaN or inf, if there was one.
  void expect_finite() const {
    const auto found = first();
    TORCH_CHECK(!found.has_value(), "tidemark: ", *found);
  }

 private:
  NumericsWatch(const torch::nn::Module* model, const NumericsWatchOptions& options)
      : log_(std::make_shared<detail::NumericsLog>(model, options)),
        carried_(detail::NumericsLog::kKind, log_) {
    TORCH_CHECK(at::isRecordFunctionEnabled(),
                "tidemark: a NumericsWatch sees no ops, for at::RecordFunction is switched off on "
                "this thread. Open it outside of the at::RecordFunctionGuard, or call "
                "at::enableRecordFunction(true).");
    if (!log_->is_nested()) {
      callback_ = at::addThreadLocalCallback(detail::NumericsLog::callback());
    }
  }

  std::shared_ptr<detail::NumericsLog> log_;
  c10::DebugInfoGuard carried_;
  std::optional<at::CallbackHandle> callback_;
};

}  // namespace tidemark
