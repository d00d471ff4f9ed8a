#pragma once

/// \file
/// Loss scaling for training in half precision, after torch.amp.GradScaler.
///
/// Gradients of a float16 model are easily below 6e-8, which float16 rounds to 0. Multiplying the
/// loss multiplies them all; the optimizer gets them divided again. The factor is found on the way:
/// it halves whenever a gradient overflowed, and that step is skipped; it doubles after 2000
/// updates without an overflow. So the first few steps of a run are often skipped, by design.
///
///     tidemark::GradScaler scaler;
///     for (auto& batch : *loader) {
///       optimizer.zero_grad();
///       torch::Tensor loss;
///       {
///         tidemark::AmpScope amp(device);
///         loss = criterion(model->forward(batch.data), batch.target);
///       }
///       scaler.scale(loss).backward();            // outside of the AmpScope
///       auto result = scaler.step(optimizer);
///       scaler.update();
///       if (result == tidemark::StepResult::kStepped) scheduler.step();
///     }
///
/// Several losses and optimizers share a scaler and an update, for the overflow of one tells about
/// the others' (only those that saw it are skipped):
///
///     for (auto& part : scaler.scale(std::vector<torch::Tensor>{colour, depth})) part.backward();
///     for (auto* optimizer : optimizers) scaler.step(*optimizer);
///     scaler.update();                            // once, after the last step
///
/// Whatever looks at the gradients before the step needs them unscaled first; clipping, say:
///
///     scaler.scale(loss).backward();
///     scaler.unscale_(optimizer);                 // once, after the last backward of this update
///     torch::nn::utils::clip_grad_norm_(model->parameters(), 1.0);
///     scaler.step(optimizer);
///     scaler.update();
///
/// Gradient accumulation: scale() every loss, then step(), update() and zero_grad() once. The scale
/// must not change while gradients add up, so no update() in between.
///
/// A gradient penalty is made of unscaled gradients, and its own loss is scaled again:
///
///     auto gradients = torch::autograd::grad({scaler.scale(loss)}, inputs, {}, true, true);
///     auto penalty = (gradients[0] / scaler.get_scale()).norm();
///     scaler.scale(loss + penalty).backward();
///
/// Densification reads gradients of tensors that no optimizer holds: scaler.unscale_(means.grad()).
///
/// An optimizer with a kernel of its own may divide by the scale in that kernel:
///
///     scaler.step(parameters, [&](const auto& grad_scale, const auto& found_inf) {
///       adam.step(grad_scale, found_inf);         // takes gradient / grad_scale
///     });
///
/// bfloat16 has float32's range: it needs no GradScaler. The trap of float16 weights
/// (model->to(torch::kHalf)): steps smaller than a thousandth of a weight are lost, and so are
/// unscaled gradients, which is why they are refused. Keep the model in float32 and run it in an
/// AmpScope.

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>
#include <tidemark/detail/grad_scaler_state.h>
#include <tidemark/detail/in_place.h>
#include <tidemark/detail/loss_scale.h>
#include <tidemark/detail/nonfinite_grads.h>
#include <tidemark/detail/step_target.h>
#include <tidemark/detail/tensor_tree.h>
#include <tidemark/detail/unscale.h>
#include <tidemark/detail/update_window.h>
#include <tidemark/grad_scaler_options.h>
#include <torch/optim/optimizer.h>
#include <torch/serialize/archive.h>

#include <cstdint>
#include <sstream>
#include <vector>

namespace tidemark {

/// Scales losses and steps optimizers so that float16 gradients neither vanish nor overflow.
/// Recipes: grad_scaler.h.
///
/// Takes optimizers by reference, reads their param_groups() anew in each call and keeps nothing of
/// them beyond update(): parameters may be replaced between steps. An optimizer must not be
/// destroyed between its unscale_() and update(). A parameter that is listed twice, in one
/// optimizer or in two, is unscaled once.
///
/// The scale is on the device of the first tensor that is scaled. scale(), unscale_() and update()
/// do not wait for the device (except for sparse gradients with duplicates, and for a scale on the
/// CPU with gradients elsewhere); step() waits once.
///
/// The scale is, bit for bit, that of torch.amp.GradScaler, with two exceptions: it stays within
/// `min_scale` and `max_scale`, and grows also when growth_interval was set below the number of
/// clean updates so far.
///
/// For one thread at a time. Not copyable.
class GradScaler {
 public:
  /// A step of one's own, without grad mode. It is called only if no gradient is inf or NaN, so
  /// `found_inf` is 0; the gradients are `grad_scale` times what they should be: 1 after
  /// unscale_(). Both are float32 of one element, on the device of the scale. Any callable that a
  /// `std::function<void(const at::Tensor& grad_scale, const at::Tensor& found_inf)>` takes.
  using OwnStep = detail::OwnStep;

  /// Throws if an option makes no sense.
  explicit GradScaler(const GradScalerOptions& options = {})
      : options_(options), scale_(options), window_(options.allow_fp16_grads()) {
    TORCH_CHECK(options.max_consecutive_skips() >= 0,
                "tidemark: GradScaler: max_consecutive_skips is ", options.max_consecutive_skips(),
                "; it has to be 0 (no limit) or the number of skips in a row to give up at.");
  }
  GradScaler(const GradScaler&) = delete;
  GradScaler& operator=(const GradScaler&) = delete;

  /// The loss times the scale, to call backward() on. A product with float16 or bfloat16 is
  /// float32.
  [[nodiscard]] at::Tensor scale(const at::Tensor& loss) {
    TORCH_CHECK(loss.defined(), "tidemark: GradScaler: scale() got an undefined tensor.");
    TORCH_CHECK(is_scalable(loss), "tidemark: GradScaler: scale() got a tensor of dtype ",
                loss.scalar_type(), "; a loss has to be of a floating dtype.");
    at::Tensor scaled = loss;
    scale_tensors(scaled);
    return scaled;
  }

  /// The same for all tensors of a floating dtype in a vector, tuple, map, struct and so on, nested
  /// at will (what checkpoint() takes). Returns what it was given, with these replaced.
  template <class Losses>
  [[nodiscard]] detail::owned_t<Losses> scale(const Losses& losses) {
    static_assert(
        detail::holds_tensors<detail::owned_t<Losses>>(),
        "tidemark: GradScaler::scale() takes a tensor, or containers and structs of them.");
    auto scaled = detail::to_owned(losses);
    scale_tensors(scaled);
    return scaled;
  }

  /// Divides the gradients of an optimizer's parameters by the scale, in place, and notes whether
  /// all are finite. For those who look at gradients before step(), which does it otherwise. Once
  /// per optimizer and update, after the last backward.
  void unscale_(torch::optim::Optimizer& optimizer) {
    unscale_target(detail::steppable(optimizer));
  }
  /// The same for a list of parameters: the one that step(parameters, own_step) will get.
  void unscale_(const std::vector<at::Tensor>& parameters) {
    unscale_target(detail::StepTarget(parameters));
  }

  /// Divides one gradient by the scale, in place, once per update: that of a tensor that no
  /// optimizer holds, for logic of one's own. It may be inf or NaN, step() does not look at it.
  void unscale_(const at::Tensor& gradient) {
    TORCH_CHECK(gradient.defined(),
                "tidemark: GradScaler: unscale_() got an undefined gradient. Call "
                "retain_grad() on the tensor before backward(), and unscale_() after it.");
    TORCH_CHECK(!gradient.requires_grad(),
                "tidemark: GradScaler: unscale_() works in place and can't take a tensor that "
                "requires grad, "
                "of shape ",
                gradient.sizes(),
                ". If this is a tensor, pass its grad(); if it is a "
                "gradient made with create_graph, divide it by get_scale().");
    if (!options_.enabled()) {
      return;
    }
    check_started("unscale_()");
    const at::NoGradGuard no_grad;
    window_.unscale(gradient, scale_);
  }

  /// Unscales the gradients if unscale_() has not, and calls optimizer.step() if all are finite.
  /// Once per optimizer and update. Refuses torch::optim::LBFGS.
  ///
  /// Everything here that throws leaves gradients, scale and the open update as they were, but for
  /// this: when memory runs out (or another c10::Error comes) inside the optimizer's own step, its
  /// first parameters are updated and the others not. The error says so, by the optimizer's type.
  StepResult step(torch::optim::Optimizer& optimizer) {
    return step_target(
        detail::steppable(optimizer), [&](const auto&, const auto&) { optimizer.step(); },
        Takes::kUnscaled);
  }

  /// The same with a step of one's own instead of optimizer.step(). It takes float16 gradients,
  /// too, if unscale_() was not called.
  StepResult step(torch::optim::Optimizer& optimizer, const OwnStep& own_step) {
    return step_target(detail::steppable(optimizer), own_step, Takes::kScaled);
  }
  /// The same without an optimizer. A list of parameters is told from others by what it lists.
  StepResult step(const std::vector<at::Tensor>& parameters, const OwnStep& own_step) {
    return step_target(detail::StepTarget(parameters), own_step, Takes::kScaled);
  }

  /// No closures: they evaluate the model within the step, where nothing scales and unscales.
  StepResult step(torch::optim::Optimizer&, torch::optim::Optimizer::LossClosure) = delete;

  /// Adapts the scale to what the steps since the last update found. To be called once, after the
  /// last of them. Does nothing if none of them had a gradient.
  void update() {
    if (!options_.enabled()) {
      return;
    }
    check_started("update()");
    TORCH_CHECK(
        !window_.empty(),
        "tidemark: GradScaler: update() was called without a step() or unscale_() "
        "since the last update(). Call scaler.step(optimizer) before, not optimizer.step().");
    const auto found_inf = window_.found_inf();
    if (found_inf.defined()) {
      scale_.update(found_inf);
    }
    finish_window();
  }

  /// Sets the scale instead, within min_scale and max_scale; the count of clean updates goes on.
  void update(double new_scale) {
    if (!options_.enabled()) {
      return;
    }
    check_started("update()");
    TORCH_CHECK(detail::is_scale(new_scale), "tidemark: GradScaler: update() got ", new_scale,
                " for a scale; it has to be positive and, like its inverse, finite in float32.");
    scale_.set(new_scale);
    finish_window();
  }

  /// The same from a tensor of one element. Does not wait for it if it is on a device: a value that
  /// is not fit for a scale then leaves the scale as it is.
  void update(const at::Tensor& new_scale) {
    if (!options_.enabled()) {
      return;
    }
    TORCH_CHECK(new_scale.defined() && new_scale.numel() == 1 && new_scale.is_floating_point() &&
                    !new_scale.requires_grad(),
                "tidemark: GradScaler: update() takes a new scale as a tensor of one element, of a "
                "floating "
                "dtype, that does not require grad.");
    if (new_scale.is_cpu()) {
      update(new_scale.item<double>());
      return;
    }
    check_started("update()");
    scale_.set(new_scale);
    finish_window();
  }

  /// Gives the open update up: forgets what was unscaled or stepped since the last update(), whose
  /// gradients are to be dropped, and leaves the scale and its count as they are.
  void discard() { window_.clear(); }

  /// GradScalerOptions::enabled: without it losses are not scaled and step() just steps.
  [[nodiscard]] bool is_enabled() const { return options_.enabled(); }

  /// The scale, or 1 if not enabled. Waits for the device.
  [[nodiscard]] double get_scale() const { return is_enabled() ? scale_.value() : 1.0; }

  /// What a growing scale is multiplied by: as in the options, or as set or loaded since.
  [[nodiscard]] double get_growth_factor() const { return scale_.host().growth_factor; }
  /// What the scale is multiplied by after an inf or NaN: as in the options, or as set or loaded.
  [[nodiscard]] double get_backoff_factor() const { return scale_.host().backoff_factor; }
  /// The clean updates in a row that make the scale grow: as in the options, or as set or loaded.
  [[nodiscard]] int64_t get_growth_interval() const { return scale_.host().growth_interval; }

  /// From the next update() on; above 1 and finite. Changes nothing if it throws.
  void set_growth_factor(double value) { set_growth(&GradScalerState::growth_factor, value); }
  /// From the next update() on; between 0 and 1. Changes nothing if it throws.
  void set_backoff_factor(double value) { set_growth(&GradScalerState::backoff_factor, value); }
  /// From the next update() on; 1 or more. Changes nothing if it throws.
  void set_growth_interval(int64_t value) { set_growth(&GradScalerState::growth_interval, value); }

  /// The number of updates in a row in which a step was skipped, up to the last step(). A skip now
  /// and then is normal; many in a row mean that inf or NaN come from the model itself.
  [[nodiscard]] int64_t consecutive_skips() const { return consecutive_skips_; }

  /// The parameters whose gradients hold inf or NaN, scaled or not, before or after step(). Waits
  /// for the device. `names`: a module's named_parameters().
  [[nodiscard]] std::vector<NonfiniteGrad> nonfinite_grads(
      const torch::optim::Optimizer& optimizer,
      const detail::NamedTensors& names = detail::NamedTensors()) const {
    return detail::nonfinite_grads(detail::StepTarget(optimizer), names);
  }
  /// The same of a list of parameters.
  [[nodiscard]] std::vector<NonfiniteGrad> nonfinite_grads(
      const std::vector<at::Tensor>& parameters,
      const detail::NamedTensors& names = detail::NamedTensors()) const {
    return detail::nonfinite_grads(detail::StepTarget(parameters), names);
  }

  /// What a later run needs to go on bit for bit. Waits for the device. Best taken after update().
  [[nodiscard]] GradScalerState state() const { return scale_.state(); }

  /// Goes on from a state, also before the first scale(). What was unscaled or stepped since the
  /// last update() is forgotten. Changes nothing if it throws.
  void load_state(const GradScalerState& state) {
    detail::check_state(state, "to load");
    scale_.load(state);
    window_.clear();
    consecutive_skips_ = 0;
  }

  /// Writes state(): as a part of an archive of one's own, or by torch::save(scaler, "scaler.pt").
  void save(torch::serialize::OutputArchive& archive) const {
    detail::write_state(archive, state());
  }
  /// load_state() of what save() wrote. Throws, and changes nothing, if the archive holds no such.
  void load(torch::serialize::InputArchive& archive) { load_state(detail::read_state(archive)); }

  /// For torch::save(scaler, "scaler.pt"): save().
  friend torch::serialize::OutputArchive& operator<<(torch::serialize::OutputArchive& archive,
                                                     const GradScaler& scaler) {
    scaler.save(archive);
    return archive;
  }
  /// For torch::load(scaler, "scaler.pt"): load().
  friend torch::serialize::InputArchive& operator>>(torch::serialize::InputArchive& archive,
                                                    GradScaler& scaler) {
    scaler.load(archive);
    return archive;
  }

 private:
  using Takes = detail::UpdateWindow::Takes;

  static bool is_scalable(const at::Tensor& tensor) {
    return tensor.defined() && (tensor.is_floating_point() || tensor.is_complex());
  }

  template <class Losses>
  void scale_tensors(Losses& losses) {
    if (!options_.enabled()) {
      return;
    }
    detail::InPlace<detail::DeviceCopies> copies;
    detail::for_each_tensor(losses, [&](at::Tensor& loss) {
      if (!is_scalable(loss)) {
        return;
      }
      if (!scale_.started()) {
        scale_.start(loss.device());
      }
      if (!copies.has_value()) {
        copies.emplace(scale_.tensor());
      }
      loss = loss * detail::broadcast_like(copies->on(loss.device()), loss);
    });
  }

  void unscale_target(const detail::StepTarget& target) {
    if (options_.enabled()) {
      check_started("unscale_()");
      const at::NoGradGuard no_grad;
      window_.unscale(target, scale_);
    }
  }

  StepResult step_target(const detail::StepTarget& target, const OwnStep& own_step, Takes takes) {
    const at::NoGradGuard no_grad;
    if (!options_.enabled()) {
      const auto device = target.parameters.empty() ? c10::Device(c10::kCPU)
                                                    : target.parameters[0].parameter->device();
      const auto number = at::TensorOptions(device).dtype(at::kFloat);
      detail::step_parameters(target, own_step, at::ones({}, number), at::zeros({}, number));
      return StepResult::kStepped;
    }
    check_started("step()");
    const bool skipped_before = window_.had(StepResult::kSkipped);
    const auto result = window_.step(target, own_step, takes, scale_);
    if (result == StepResult::kSkipped) {
      consecutive_skips_ += skipped_before ? 0 : 1;
      check_consecutive_skips(target);
    }
    return result;
  }

  void check_started(const char* call) const {
    TORCH_CHECK(scale_.started(), "tidemark: GradScaler: ", call,
                " was called before scale(). Call "
                "scaler.scale(loss).backward() instead of loss.backward().");
  }

  void check_consecutive_skips(const detail::StepTarget& target) const {
    const auto limit = options_.max_consecutive_skips();
    if (limit == 0 || consecutive_skips_ < limit) {
      return;
    }
    std::ostringstream parameters;
    for (const auto& grad : detail::nonfinite_grads(target, detail::NamedTensors())) {
      parameters << "\n  " << grad;
    }
    TORCH_CHECK(false, "tidemark: GradScaler: ", consecutive_skips_,
                " updates in a row were skipped, as "
                "gradients were inf or NaN, though the scale went down to ",
                get_scale(), " (max_consecutive_skips is ", limit,
                "). So inf or NaN come from the model, its "
                "input or its loss, not from the scale. Parameters of this ",
                target.name, " with such gradients:", parameters.str());
  }

  void finish_window() {
    if (window_.had(StepResult::kStepped) && !window_.had(StepResult::kSkipped)) {
      consecutive_skips_ = 0;
    }
    window_.clear();
  }

  template <class T>
  void set_growth(T GradScalerState::*member, T value) {
    auto changed = scale_.host();
    changed.*member = value;
    detail::check_state(changed, "to set");
    scale_.set_growth(changed);
  }

  GradScalerOptions options_;
  detail::LossScale scale_;
  detail::UpdateWindow window_;
  int64_t consecutive_skips_ = 0;
};

}  // namespace tidemark
