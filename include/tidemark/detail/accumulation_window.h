#pragma once

// The micro-batches from one step to the next.

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <c10/core/ScalarType.h>
#include <c10/util/Exception.h>
#include <tidemark/detail/accumulated_grads.h>
#include <tidemark/detail/unscale.h>
#include <tidemark/detail/window_snapshot.h>
#include <tidemark/grad_scaler.h>

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

namespace tidemark::detail {

/// An open window. Its gradients are those of the parameters; nothing here waits for a device.
struct AccumulationWindow {
  int64_t micro_steps = 0;
  int64_t dropped = 0;  // micro-batches among them that were not counted
  LossWeights weights;
  at::Tensor loss_sum;  // of the losses times their weights
  at::Tensor scale;     // the scaler's, at the first loss
  std::vector<at::Tensor> parameters;
  GradRecord gradients;     // as the last backward left them
  TensorValues statistics;  // running ones to put back at the end

  /// To be called before each micro-batch, with the parameters there are now. A window begins
  /// without gradients.
  void prepare(std::vector<at::Tensor> now) {
    if (micro_steps == 0) {
      parameters = std::move(now);
      drop_gradients(parameters);
      gradients = GradRecord(parameters);
    } else {
      check_intact(now);
    }
  }

  void check_intact(const std::vector<at::Tensor>& now) const {
    TORCH_CHECK(gradients.holds(now), "tidemark: GradAccumulator: after micro-batch ", micro_steps,
                " of the open window a gradient was changed by somebody else (zero_grad(), "
                "clipping, unscale_(), another backward pass), or a parameter was replaced. "
                "Gradients are zeroed, normalised, unscaled and clipped by the accumulator, once "
                "per window: leave that out. Freeze the parameters during backward passes that are "
                "not theirs, and replace parameters in after_step(). discard() gives this window "
                "up.");
  }

  /// Adds the gradient of a loss with that weight, above 0. `expected`: see LossWeights.
  void backpropagate(const at::Tensor& loss, double weight, double expected, GradScaler* scaler,
                     std::optional<at::ScalarType> dtype) {
    multiply_gradients(parameters, weights.add(weight, expected));
    {
      const at::AutoGradMode grad_mode(true);
      // Scaled first, for that makes a float16 loss float32.
      auto scaled = scaler != nullptr ? scaler->scale(loss) : loss;
      // As in `loss / 4`, the common loop's: the same bits.
      if (const double divisor = weights.divisor(weight); divisor != 1) {
        scaled = scaled / divisor;
      }
      scaled.backward();
    }
    const at::NoGradGuard no_grad;
    if (dtype.has_value()) {
      widen_gradients(parameters, *dtype);
    }
    if (!loss_sum.defined()) {
      const bool has_double = loss.is_cpu() || loss.is_cuda();
      loss_sum = at::zeros({}, loss.options().dtype(has_double ? at::kDouble : at::kFloat));
    }
    loss_sum.add_(on_device(loss.detach(), loss_sum.device()).reshape({}), weight);
    if (scaler != nullptr && !scale.defined()) {
      scale = scaler->scale(at::ones({}, loss.options().dtype(at::kFloat)));
    }
    gradients = GradRecord(parameters);
  }

  /// Waits for the device.
  void check_scale(GradScaler& scaler) const {
    const auto now = scaler.scale(at::ones({}, scale.options()));
    TORCH_CHECK(now.eq(scale).item<bool>(),
                "tidemark: GradAccumulator: the GradScaler's scale was ", scale.item<float>(),
                " when the window began and is ", now.item<float>(),
                " at its end, so its gradients can't be added up. The window was given up. Leave "
                "update() to the accumulator, and give optimizers that step at other times a "
                "GradScaler of their own.");
  }
};

}  // namespace tidemark::detail
