#pragma once

// The scale itself: a number on a device that nothing here waits for.

#include <ATen/core/Tensor.h>
#include <ATen/ops/_amp_update_scale.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/where.h>
#include <c10/core/Device.h>
#include <c10/util/Exception.h>
#include <tidemark/detail/grad_scaler_state.h>
#include <tidemark/grad_scaler_options.h>

#include <cstdint>
#include <limits>
#include <utility>

namespace tidemark::detail {

/// The loss scale and how it grows and backs off. Lives on the host until it is started on a
/// device.
class LossScale {
 public:
  /// Throws if the options make no sense.
  explicit LossScale(const GradScalerOptions& options)
      : min_scale_(static_cast<float>(options.min_scale())),
        max_scale_(static_cast<float>(options.max_scale())) {
    const GradScalerState initial{options.init_scale(), options.growth_factor(),
                                  options.backoff_factor(), options.growth_interval(), 0};
    check_state(initial, "of the options");
    TORCH_CHECK(is_scale(options.min_scale()) && is_scale(options.max_scale()) &&
                    options.min_scale() <= options.init_scale() &&
                    options.init_scale() <= options.max_scale(),
                "tidemark: GradScaler: init_scale ", options.init_scale(),
                " has to be from min_scale ", options.min_scale(), " to max_scale ",
                options.max_scale(),
                ", which have to be positive and, like their inverses, finite in float32.");
    load(initial);
  }

  [[nodiscard]] bool started() const { return scale_.defined(); }

  void start(c10::Device device) {
    const auto options = at::TensorOptions(device);
    auto scale = at::full({}, host_.scale, options.dtype(at::kFloat));
    one_ = at::ones({}, scale.options());
    tracker_ = at::full({}, host_.growth_tracker, options.dtype(at::kInt));
    scale_ = std::move(scale);  // last, as it says that all is there
  }

  /// float32, of one element and no dimensions.
  [[nodiscard]] const at::Tensor& tensor() const { return scale_; }

  /// What unscaled gradients are multiples of: 1, as tensor() is. Allocates nothing, so that
  /// nothing fails between the steps of two optimizers.
  [[nodiscard]] const at::Tensor& one() const { return one_; }

  /// By way of float64, as Python, since some builds divide float32 inexactly.
  [[nodiscard]] at::Tensor inverse() const {
    return scale_.is_mps() ? scale_.reciprocal()  // has no float64
                           : scale_.to(at::kDouble).reciprocal_().to(at::kFloat);
  }

  /// Backs off where `found_inf`, on the device of the scale, is not 0, and counts towards growth
  /// where it is.
  void update(const at::Tensor& found_inf) {
    // ATen grows the scale when the count *equals* the interval, which a count that is beyond a
    // lowered interval never would.
    tracker_.clamp_max_(host_.growth_interval - 1);
    at::_amp_update_scale_(scale_, tracker_, found_inf, host_.growth_factor, host_.backoff_factor,
                           host_.growth_interval);
    scale_.clamp_(min_scale_, max_scale_);
  }

  /// Takes a value that is_scale().
  void set(double value) { scale_.fill_(value).clamp_(min_scale_, max_scale_); }

  /// Takes the value of a tensor of one element, unless it is no scale.
  void set(const at::Tensor& value) {
    const auto rounded = value.reshape({}).to(scale_.options(), /*non_blocking=*/!scale_.is_cpu());
    const auto valid = rounded.ge(std::numeric_limits<float>::min())
                           .logical_and(rounded.le(std::numeric_limits<float>::max()));
    scale_.copy_(at::where(valid, rounded, scale_)).clamp_(min_scale_, max_scale_);
  }

  /// The growth and backoff that update() goes by.
  [[nodiscard]] const GradScalerState& host() const { return host_; }

  /// Waits for the device.
  [[nodiscard]] double value() const { return started() ? scale_.item<float>() : host_.scale; }

  /// All of the state. Waits for the device.
  [[nodiscard]] GradScalerState state() const {
    auto state = host_;
    if (started()) {
      state.scale = value();
      state.growth_tracker = tracker_.item<int32_t>();
    }
    return state;
  }

  /// Replaces growth and backoff, but not the scale and its count.
  void set_growth(const GradScalerState& state) {
    host_.growth_factor = state.growth_factor;
    host_.backoff_factor = state.backoff_factor;
    host_.growth_interval = state.growth_interval;
  }

  void load(const GradScalerState& state) {
    host_ = state;
    host_.scale = static_cast<float>(state.scale);
    if (started()) {
      scale_.fill_(state.scale);
      tracker_.fill_(state.growth_tracker);
    }
  }

 private:
  GradScalerState host_;  // its scale and count are those to start with
  float min_scale_;
  float max_scale_;
  at::Tensor scale_;
  at::Tensor tracker_;
  at::Tensor one_;
};

}  // namespace tidemark::detail
