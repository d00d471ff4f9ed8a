#pragma once

// All of a GradAccumulator but the cutting of batches.

#include <ATen/core/Tensor.h>
#include <ATen/ops/isfinite.h>
#include <c10/core/ScalarType.h>
#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>
#include <tidemark/detail/accumulated_grads.h>
#include <tidemark/detail/accumulation_window.h>
#include <tidemark/detail/batch_norm_policy.h>
#include <tidemark/detail/failed_backward.h>
#include <tidemark/detail/grad_accumulator_state.h>
#include <tidemark/detail/in_place.h>
#include <tidemark/detail/window_end.h>
#include <tidemark/detail/window_snapshot.h>
#include <tidemark/grad_accumulator_options.h>
#include <tidemark/grad_scaler.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/optimizer.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <optional>
#include <utility>
#include <vector>

namespace tidemark::detail {

/// Windows of micro-batches, one after the other. A window whose backward pass or end throws is
/// given up.
class AccumulatorCore {
 public:
  using Optimizer = torch::optim::Optimizer;

  AccumulatorCore(std::vector<Optimizer*> optimizers, GradAccumulatorOptions options)
      : optimizers_(std::move(optimizers)), options_(std::move(options)) {
    check_options();
    if (options_.scaler() != nullptr && options_.scaler()->is_enabled()) {
      scaler_ = options_.scaler();
    }
    if (options_.batch_norm() == BatchNormPolicy::kCorrectMomentum) {
      momenta_.emplace(options_.module());
      correct_momenta(options_.steps());
    }
  }

  [[nodiscard]] const GradAccumulatorOptions& options() const { return options_; }

  /// As they are now, each once.
  [[nodiscard]] std::vector<at::Tensor> parameters() const {
    std::vector<at::Tensor> all;
    for (const auto* optimizer : optimizers_) {
      for (const auto& group : optimizer->param_groups()) {
        for (const auto& parameter : group.params()) {
          all.push_back(parameter);
        }
      }
    }
    return distinct(optimizers_.empty() ? options_.module()->parameters() : all);
  }

  [[nodiscard]] int64_t micro_steps() const { return window_.micro_steps; }
  [[nodiscard]] int64_t windows() const { return windows_; }
  [[nodiscard]] int64_t dropped() const { return dropped_; }

  [[nodiscard]] const WindowOutcome& last() const {
    TORCH_CHECK(!last_.results.empty(),
                "tidemark: GradAccumulator: no window has ended yet, or none "
                "since load(). Ask after backward() returned true, after flush(), or in "
                "after_step().");
    return last_;
  }

  /// For windows of so many micro-batches.
  void correct_momenta(int64_t micro_batches) {
    if (momenta_.has_value()) {
      momenta_->correct(static_cast<double>(micro_batches));
    }
  }

  /// Counts a micro-batch. `expected`: see LossWeights. Throws before anything has changed if the
  /// loss or the weight makes no sense.
  void add(const at::Tensor& loss, double weight, double expected) {
    check_loss(loss, weight);
    const bool counts =
        weight > 0 && !(options_.drop_nonfinite() && !at::isfinite(loss.detach()).item<bool>());
    window_.prepare(parameters());
    try {
      if (counts) {
        window_.backpropagate(loss, weight, expected, scaler_, options_.accumulate_dtype());
      }
      if (window_.micro_steps == 0) {
        window_.statistics = TensorValues(statistics());
      }
    } catch (...) {
      give_up();
      throw;
    }
    window_.dropped += weight > 0 && !counts ? 1 : 0;
    ++window_.micro_steps;
  }

  /// Refuses to go on where somebody else has changed gradients or parameters.
  void check_intact() const { window_.check_intact(parameters()); }

  /// Steps with the gradients of the window, which is over then.
  void end_window() {
    try {
      last_ = WindowEnd(window_, options_, scaler_, optimizers_).run();
    } catch (...) {
      give_up();
      throw;
    }
    ++windows_;
    dropped_ += window_.dropped;
    if (optimizers_.empty()) {
      window_.parameters.clear();  // so that their gradients stay
    }
    discard();
    correct_momenta(options_.steps());
  }

  /// To be called behind end_window(), when nothing will be undone any more.
  void after_step() const {
    if (options_.after_step() != nullptr) {
      options_.after_step()(last_.result());
    }
  }

  void discard() {
    drop_gradients(window_.parameters);
    window_.statistics.put_back();
    window_ = {};
  }

  /// The same after an exception, which may have left a backward pass half done.
  void give_up() {
    discard();
    try {
      drop_failed_backward();
    } catch (const std::exception&) {  // there is no memory for it; the next pass does the same
    }
  }

  [[nodiscard]] GradAccumulatorState state() const {
    GradAccumulatorState state;
    state.windows = windows_;
    state.dropped = dropped_;
    state.micro_steps = window_.micro_steps;
    state.window_dropped = window_.dropped;
    state.total = window_.weights.total();
    state.reference = window_.weights.reference();
    for (const auto& parameter : window_.parameters) {
      state.gradients.push_back(parameter.grad());
    }
    state.statistics = window_.statistics.values();
    state.loss_sum = window_.loss_sum;
    state.scale = window_.scale;
    return state;
  }

  /// Changes nothing if it throws.
  void load_state(GradAccumulatorState state) {
    auto now = parameters();
    check_state(state, now, statistics());
    const bool open = state.micro_steps != 0;
    for (size_t i = 0; open && i < now.size(); ++i) {
      if (state.gradients[i].defined()) {
        state.gradients[i] = state.gradients[i].to(now[i].device());
      }
    }
    drop_gradients(window_.parameters);
    window_ = {};
    if (open) {
      for (size_t i = 0; i < now.size(); ++i) {
        now[i].mutable_grad() = state.gradients[i];
      }
      window_.micro_steps = state.micro_steps;
      window_.dropped = state.window_dropped;
      window_.weights = {state.total, state.reference};
      window_.loss_sum = state.loss_sum;
      window_.scale = state.scale;
      window_.gradients = GradRecord(now);
      window_.statistics = {statistics(), state.statistics};
      window_.parameters = std::move(now);
    }
    windows_ = state.windows;
    dropped_ = state.dropped;
    last_ = {};
  }

 private:
  void check_options() const {
    TORCH_CHECK(options_.steps() >= 1, "tidemark: GradAccumulator: steps is ", options_.steps(),
                "; it has to be the number of micro-batches of a window, 1 or more.");
    check_positive("clip_grad_norm", options_.clip_grad_norm());
    check_positive("the type of clip_grad_norm", options_.norm_type());
    check_positive("clip_grad_value", options_.clip_grad_value());
    TORCH_CHECK(!options_.clip_grad_norm().has_value() || !options_.clip_grad_value().has_value(),
                "tidemark: GradAccumulator: it clips by norm or by value, not by both. Leave one "
                "of clip_grad_norm() and clip_grad_value() out.");
    TORCH_CHECK(options_.micro_batch().value_or(1) >= 1,
                "tidemark: GradAccumulator: micro_batch is ", options_.micro_batch().value_or(1),
                "; it has to be a number of rows, 1 or more, or left out to be found.");
    TORCH_CHECK(c10::isFloatingType(options_.accumulate_dtype().value_or(at::kFloat)),
                "tidemark: GradAccumulator: accumulate_dtype is ",
                options_.accumulate_dtype().value_or(at::kFloat),
                "; it has to be a floating dtype, such as torch::kFloat.");
    TORCH_CHECK(
        options_.module() != nullptr || options_.batch_norm() == BatchNormPolicy::kPlain,
        "tidemark: GradAccumulator: batch_norm() has no effect without the model. Pass it by "
        "module(model).");
    TORCH_CHECK(options_.module() != nullptr || !optimizers_.empty(),
                "tidemark: GradAccumulator: there is neither an optimizer nor a module(), so there "
                "are no parameters. Pass one of them.");
    for (size_t i = 0; i < optimizers_.size(); ++i) {
      TORCH_CHECK(optimizers_[i] != nullptr, "tidemark: GradAccumulator: optimizer ", i,
                  " is a null pointer. Make it before the accumulator.");
      const auto listed_before = optimizers_.begin() + static_cast<std::ptrdiff_t>(i);
      TORCH_CHECK(std::find(optimizers_.begin(), listed_before, optimizers_[i]) == listed_before,
                  "tidemark: GradAccumulator: optimizer ", i,
                  " is listed twice and would step twice. List each once.");
      TORCH_CHECK(dynamic_cast<torch::optim::LBFGS*>(optimizers_[i]) == nullptr,
                  "tidemark: GradAccumulator: optimizer ", i,
                  " is a torch::optim::LBFGS, whose step evaluates the model several times, by a "
                  "closure. Pass the whole batch in that closure, or take another optimizer.");
    }
  }

  static void check_positive(const char* option, const std::optional<double>& value) {
    TORCH_CHECK(value.value_or(1) > 0, "tidemark: GradAccumulator: ", option, " is ",
                value.value_or(1), "; it has to be above 0.");
  }

  static void check_loss(const at::Tensor& loss, double weight) {
    TORCH_CHECK(weight >= 0 && std::isfinite(weight), "tidemark: GradAccumulator: the weight is ",
                weight, "; it has to be the number of items that the loss is a mean over.");
    TORCH_CHECK(loss.defined() && loss.numel() == 1 && loss.is_floating_point(),
                "tidemark: GradAccumulator: the loss has to be one real number, but is ",
                loss.defined()
                    ? c10::str("of shape ", loss.sizes(), " and dtype ", loss.dtype().name())
                    : "an undefined tensor",
                ". Call mean() on it.");
    TORCH_CHECK(weight == 0 || loss.requires_grad(),
                "tidemark: GradAccumulator: the loss does not require grad, so there is no "
                "gradient to add. Compute it with grad mode on, from parameters that require grad, "
                "and don't detach it.");
  }

  // Those that only a window's first micro-batch moves.
  [[nodiscard]] std::vector<at::Tensor> statistics() const {
    return options_.batch_norm() == BatchNormPolicy::kFirstOnly
               ? running_statistics(options_.module())
               : std::vector<at::Tensor>();
  }

  std::vector<Optimizer*> optimizers_;
  GradAccumulatorOptions options_;
  GradScaler* scaler_ = nullptr;  // if enabled
  InPlace<CorrectedMomenta> momenta_;
  AccumulationWindow window_;
  WindowOutcome last_;  // without results until a window ends
  int64_t windows_ = 0;
  int64_t dropped_ = 0;
};

}  // namespace tidemark::detail
