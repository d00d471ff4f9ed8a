#pragma once

/// \file
/// How big a window is and how it ends.

#include <c10/core/ScalarType.h>
#include <tidemark/detail/callable.h>
#include <tidemark/detail/update_window.h>
#include <torch/arg.h>
#include <torch/nn/module.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

namespace tidemark {

class GradScaler;

/// What becomes of the running statistics of BatchNorm (and of InstanceNorm that tracks them) when
/// a window's micro-batches pass through them one by one. The statistics that normalise a
/// micro-batch are its own in any case, and those of a big batch can't be had.
enum class BatchNormPolicy {
  kPlain,  ///< Left alone: they move once per micro-batch, K times as fast as with one big batch.
  /// A window of K micro-batches moves them as far as one big batch would: their momentum m is
  /// 1 - (1 - m)^(1/K) while the accumulator lives, and m again afterwards. A window that ends
  /// early moves them less. A momentum that is set meanwhile counts as a new m. Modules without a
  /// momentum average all batches, which is right as it is.
  kCorrectMomentum,
  kFirstOnly,  ///< Only a window's first micro-batch moves them.
};

/// How a GradAccumulator ends its windows.
///
///     auto options = tidemark::GradAccumulatorOptions(4).scaler(scaler).clip_grad_norm(1.0);
struct GradAccumulatorOptions {
  /// Windows of `steps` micro-batches; from 1 on.
  // NOLINTNEXTLINE(google-explicit-constructor)
  GradAccumulatorOptions(int64_t steps = 1) : steps_(steps) {}

  /// Scales the losses, and steps the optimizers. Has to outlive the accumulator. Its update() is
  /// the accumulator's to call.
  GradAccumulatorOptions& scaler(GradScaler& scaler) {
    scaler_ = &scaler;
    return *this;
  }
  GradAccumulatorOptions& scaler(GradScaler&&) = delete;
  /// Null without a GradScaler.
  [[nodiscard]] GradScaler* scaler() const { return scaler_; }

  /// The model: a module, a holder or a shared_ptr. For batch_norm(), for putting its buffers back
  /// when GradAccumulator::accumulate() fails, and for its parameters where there is no optimizer.
  /// It is shared where somebody shares it; otherwise it has to outlive the accumulator.
  template <class Module>
  GradAccumulatorOptions& module(Module& module) {
    module_ = detail::share_object(module);
    return *this;
  }
  template <class Module>
  GradAccumulatorOptions& module(const Module&&) = delete;
  /// Null if none was given. Does not own a module that nobody shares.
  [[nodiscard]] const std::shared_ptr<torch::nn::Module>& module() const { return module_; }

  /// Scales the gradients of a window down to this norm, taken over all of them, as
  /// torch::nn::utils::clip_grad_norm_ does. Infinity only measures, for grad_norm().
  GradAccumulatorOptions& clip_grad_norm(double max_norm, double norm_type = 2.0) {
    clip_grad_norm_ = max_norm;
    norm_type_ = norm_type;
    return *this;
  }
  /// The norm that gradients are scaled down to; empty if they are not clipped.
  [[nodiscard]] std::optional<double> clip_grad_norm() const { return clip_grad_norm_; }
  /// The p of the norm that is clipped: 2, or what clip_grad_norm() was given; may be infinity.
  [[nodiscard]] double norm_type() const { return norm_type_; }

  /// The number of GradAccumulator::backward() calls that make a window. accumulate() has no use
  /// for it.
  TORCH_ARG(int64_t, steps);

  /// Clamps every element of a window's gradients to at most this, of either sign.
  TORCH_ARG(std::optional<double>, clip_grad_value);

  /// The dtype in which gradients of narrower parameters add up and are unscaled, normalised and
  /// clipped: torch::kFloat for a model in bfloat16 or float16, where small gradients vanish beside
  /// the sum otherwise. The optimizer gets them in the parameters' dtype, rounded once (above 65504
  /// float16 has only inf). Without it all is done in the parameters' dtype.
  TORCH_ARG(std::optional<at::ScalarType>, accumulate_dtype);

  /// What becomes of running statistics; anything but kPlain needs module().
  TORCH_ARG(BatchNormPolicy, batch_norm) = BatchNormPolicy::kPlain;

  /// Called after each window, when gradients are gone and the result can be read: for learning
  /// rate schedulers, moving averages, densification. Several optimizers: see
  /// GradAccumulator::last_result().
  TORCH_ARG(std::function<void(StepResult)>, after_step);

  /// Leaves out micro-batches whose loss is inf or NaN, and their weights. Waits for the device
  /// once per micro-batch.
  TORCH_ARG(bool, drop_nonfinite) = false;

  /// The number of rows that accumulate() passes at a time. Without it that is found: the whole
  /// batch, and whenever memory runs out, half.
  TORCH_ARG(std::optional<int64_t>, micro_batch);

 private:
  GradScaler* scaler_ = nullptr;
  std::shared_ptr<torch::nn::Module> module_;
  std::optional<double> clip_grad_norm_;
  double norm_type_ = 2.0;
};

}  // namespace tidemark
