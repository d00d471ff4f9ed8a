#pragma once

// From the summed gradients of a window to a step.

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>
#include <tidemark/detail/accumulated_grads.h>
#include <tidemark/detail/accumulation_window.h>
#include <tidemark/detail/clip_grads.h>
#include <tidemark/detail/pointer_index.h>
#include <tidemark/detail/step_target.h>
#include <tidemark/detail/unscale.h>
#include <tidemark/detail/update_window.h>
#include <tidemark/detail/vector.h>
#include <tidemark/grad_accumulator_options.h>
#include <tidemark/grad_scaler.h>
#include <torch/optim/optimizer.h>

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

namespace tidemark::detail {

/// What a window came to.
struct WindowOutcome {
  at::Tensor loss_sum;
  double total = 0;                 // of the weights
  at::Tensor grad_norm;             // defined if gradients were clipped by norm
  std::vector<StepResult> results;  // of each optimizer; without any, whether there are gradients

  [[nodiscard]] bool has(StepResult result) const {
    for (const StepResult one : results) {
      if (one == result) {
        return true;
      }
    }
    return false;
  }
  [[nodiscard]] StepResult result() const {
    return has(StepResult::kSkipped)   ? StepResult::kSkipped
           : has(StepResult::kStepped) ? StepResult::kStepped
                                       : StepResult::kNoGrads;
  }
};

/// Ends a window: unscales, normalises, clips and steps, in this order. Gradients stay.
class WindowEnd {
 public:
  WindowEnd(const AccumulationWindow& window, const GradAccumulatorOptions& options,
            GradScaler* scaler, const std::vector<torch::optim::Optimizer*>& optimizers)
      : window_(window), options_(options), scaler_(scaler), optimizers_(optimizers) {}

  WindowOutcome run() {
    const at::NoGradGuard no_grad;
    outcome_.loss_sum = window_.loss_sum;
    outcome_.total = window_.weights.total();
    if (outcome_.total == 0) {
      for (size_t i = 0; i < std::max<size_t>(optimizers_.size(), 1); ++i) {
        outcome_.results.push_back(StepResult::kNoGrads);
      }
      return outcome_;
    }
    if (scaler_ == nullptr) {
      normalise_and_step();
      return outcome_;
    }
    window_.check_scale(*scaler_);
    try {
      unscale();
      normalise_and_step();
    } catch (...) {
      scaler_->discard();
      throw;
    }
    if (!optimizers_.empty()) {
      scaler_->update();
    }
    return outcome_;
  }

 private:
  void unscale() {
    for (auto* optimizer : optimizers_) {
      scaler_->unscale_(*optimizer);
    }
    if (optimizers_.empty()) {
      scaler_->unscale_(window_.parameters);
    }
  }

  void normalise_and_step() {
    divide_gradients(window_.parameters, window_.weights.divisor());
    clip();
    narrow_gradients(window_.parameters);
    for (size_t i = 0; i < optimizers_.size(); ++i) {
      outcome_.results.push_back(step(i));
    }
    if (optimizers_.empty()) {
      const bool none = StepTarget(window_.parameters).parameters.empty();
      outcome_.results.push_back(none ? StepResult::kNoGrads : StepResult::kStepped);
    }
  }

  void clip() {
    const auto& max_norm = options_.clip_grad_norm();
    const auto& max_value = options_.clip_grad_value();
    if (!max_norm.has_value() && !max_value.has_value()) {
      return;
    }
    const auto groups = gradient_groups();
    if (max_norm.has_value()) {
      outcome_.grad_norm = clip_grad_norm(groups, *max_norm, options_.norm_type());
      return;
    }
    for (const auto& group : groups) {
      for (const auto& gradient : group) {
        gradient.clamp_(-*max_value, *max_value);
      }
    }
  }

  // The values of the gradients of each optimizer, each gradient once.
  [[nodiscard]] Vector<std::vector<at::Tensor>> gradient_groups() const {
    Vector<std::vector<at::Tensor>> groups;
    PointerIndex seen;
    const auto add = [&](const StepTarget& target) {
      std::vector<at::Tensor> group;
      for (const auto* gradient : gradients_of(target)) {
        if (seen.add(gradient->unsafeGetTensorImpl(), 0)) {
          group.push_back(values_of(*gradient));
        }
      }
      groups.push_back(std::move(group));
    };
    for (const auto* optimizer : optimizers_) {
      add(StepTarget(*optimizer));
    }
    if (optimizers_.empty()) {
      add(StepTarget(window_.parameters));
    }
    return groups;
  }

  StepResult step(size_t index) {
    auto& optimizer = *optimizers_[index];
    try {
      if (scaler_ != nullptr) {
        return scaler_->step(optimizer);
      }
      const StepTarget target(optimizer);
      if (target.parameters.empty()) {
        return StepResult::kNoGrads;
      }
      step_parameters(target, [&](const auto&, const auto&) { optimizer.step(); }, {}, {});
      return StepResult::kStepped;
    } catch (c10::Error& error) {
      error.add_context(c10::str("tidemark: GradAccumulator: this was the step of optimizer ",
                                 index + 1, " of ", optimizers_.size(),
                                 ". Those before it have stepped. Nothing was tried again, and the "
                                 "window was given up."));
      throw;
    }
  }

  const AccumulationWindow& window_;
  const GradAccumulatorOptions& options_;
  GradScaler* scaler_;
  const std::vector<torch::optim::Optimizer*>& optimizers_;
  WindowOutcome outcome_;
};

}  // namespace tidemark::detail
