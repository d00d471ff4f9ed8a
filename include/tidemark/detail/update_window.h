#pragma once

// What a GradScaler knows of optimizers and gradients from one update to the next.

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>
#include <c10/core/TensorImpl.h>
#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>
#include <tidemark/detail/loss_scale.h>
#include <tidemark/detail/out_of_memory.h>
#include <tidemark/detail/step_target.h>
#include <tidemark/detail/unscale.h>
#include <tidemark/detail/vector.h>

#include <exception>
#include <functional>
#include <string>

namespace tidemark {

/// What GradScaler::step() did.
enum class StepResult {
  kStepped,  ///< The optimizer, or the step of one's own, has stepped.
  kSkipped,  ///< A gradient was inf or NaN. Gradients stay as they are: zero them as after a step.
  kNoGrads,  ///< No parameter had a gradient; nothing was done and update() does not count it.
};

}  // namespace tidemark

namespace tidemark::detail {

using OwnStep = std::function<void(const at::Tensor& grad_scale, const at::Tensor& found_inf)>;

/// What to know of a step that threw.
inline std::string half_way(const StepTarget& target) {
  return c10::str(
      "tidemark: the step of ", target.name, " (param groups: ", target.groups,
      ", parameters with gradients: ", target.parameters.size(),
      ") failed half-way, so its parameters and its state may be half updated: those before the "
      "one that it failed at are, and another step would move them twice. Go on from the last "
      "checkpoint. Optimizers allocate their state in their first step: where memory runs out "
      "there, take an optimizer with less state, or a smaller model.");
}

/// Steps, and tells autograd that the parameters change: torch::optim::SGD writes to them by
/// data(), which it does not see. First, for a step that throws may have written.
///
/// A c10::Error passes with the step named, and what else says that memory ran out becomes an
/// OutOfMemoryError; any other exception passes as it is.
inline void step_parameters(const StepTarget& target, const OwnStep& own_step,
                            const at::Tensor& grad_scale, const at::Tensor& found_inf) {
  for (const auto& listed : target.parameters) {
    listed.parameter->unsafeGetTensorImpl()->bump_version();
  }
  std::string out_of_memory;
  try {
    own_step(grad_scale, found_inf);
    return;
  } catch (c10::OutOfMemoryError& error) {
    error.add_context(half_way(target));
    throw;
  } catch (std::exception& error) {
    if (!is_out_of_memory(error)) {
      if (auto* torch_error = dynamic_cast<c10::Error*>(&error)) {
        torch_error->add_context(half_way(target));
      }
      throw;
    }
    out_of_memory = text_of(error);
  }
  C10_THROW_ERROR(OutOfMemoryError, c10::str(half_way(target), " What ran out: ", out_of_memory));
}

/// Unscales each gradient and steps each target at most once until it is cleared.
class UpdateWindow {
 public:
  enum class Takes { kUnscaled, kScaled };  // the gradients that a step works on

  explicit UpdateWindow(bool allow_half) : allow_half_(allow_half) {}

  void unscale(const at::Tensor& gradient, const LossScale& scale) {
    check_dtype(gradient, "a gradient");
    TORCH_CHECK(!unscaled_.contains(gradient), "tidemark: GradScaler: the gradient of shape ",
                gradient.sizes(), " was already unscaled since the last update().");
    GradientRefs gradients;
    gradients.push_back(&gradient);
    unscaled_.reserve(1);
    check_and_unscale_all(gradients, scale.inverse());
    unscaled_.insert(gradients);
  }

  void unscale(const StepTarget& target, const LossScale& scale) {
    const auto stage = record_of(target).stage;
    TORCH_CHECK(stage != Stage::kStepped,
                "tidemark: GradScaler: unscale_() was called after step() for this ", target.name,
                ". Call it before step(), or update() in between.");
    TORCH_CHECK(stage != Stage::kUnscaled,
                "tidemark: GradScaler: unscale_() was already called for this ", target.name,
                " since the last update(). Call it once, after the last backward() of "
                "the gradients that accumulate.");
    keep(unscaled(target, scale));
  }

  StepResult step(const StepTarget& target, const OwnStep& own_step, Takes takes,
                  const LossScale& scale) {
    auto record = record_of(target);
    TORCH_CHECK(record.stage != Stage::kStepped,
                "tidemark: GradScaler: step() was already called for this ", target.name,
                " since the last update(). Call update() once, after the steps of all "
                "optimizers.");
    auto grad_scale = scale.tensor();
    if (record.stage == Stage::kReady && takes == Takes::kScaled && none_unscaled(target)) {
      record = checked(target, scale);
    } else {
      if (record.stage == Stage::kReady) {
        record = unscaled(target, scale);
        keep(record);
      }
      grad_scale = scale.one();
    }
    if (record.found_inf.defined()) {
      const bool finite = record.found_inf.item<float>() == 0;
      if (finite) {
        step_parameters(target, own_step, grad_scale, record.found_inf);
      }
      record.result = finite ? StepResult::kStepped : StepResult::kSkipped;
    }
    record.stage = Stage::kStepped;
    keep(record);
    return record.result;
  }

  /// Whether nothing was unscaled for, or stepped.
  [[nodiscard]] bool empty() const { return records_.empty(); }

  /// Whether a step ended so.
  [[nodiscard]] bool had(StepResult result) const {
    for (const auto& record : records_) {
      if (record.stage == Stage::kStepped && record.result == result) {
        return true;
      }
    }
    return false;
  }

  /// Not 0 if some gradient of a target was not finite; undefined if no target had a gradient.
  /// Allocates nothing: after the last step nothing must fail any more.
  [[nodiscard]] at::Tensor found_inf() {
    at::Tensor sum;
    for (const auto& record : records_) {
      if (record.found_inf.defined()) {
        sum = sum.defined() ? sum.add_(record.found_inf) : record.found_inf;
      }
    }
    return sum;
  }

  void clear() {
    records_.clear();
    unscaled_.clear();
  }

 private:
  enum class Stage { kReady, kUnscaled, kStepped };

  struct Record {
    Vector<const void*> key;  // of the target
    Stage stage;
    at::Tensor found_inf;  // on the device of the scale; undefined where there was no gradient
    StepResult result = StepResult::kNoGrads;
  };

  [[nodiscard]] Record record_of(const StepTarget& target) const {
    for (const auto& record : records_) {
      if (record.key == target.key) {
        return record;
      }
    }
    return {target.key, Stage::kReady, {}};
  }

  void keep(Record record) {
    for (auto& kept : records_) {
      if (kept.key == record.key) {
        kept = std::move(record);
        return;
      }
    }
    records_.push_back(std::move(record));
  }

  [[nodiscard]] bool none_unscaled(const StepTarget& target) const {
    for (const auto& listed : target.parameters) {
      if (unscaled_.contains(*listed.gradient)) {
        return false;
      }
    }
    return true;
  }

  // Looks through the gradients, without a change.
  static Record checked(const StepTarget& target, const LossScale& scale) {
    Record record{target.key, Stage::kReady, {}};
    if (!target.parameters.empty()) {
      record.found_inf = check_and_unscale_all(gradients_of(target), scale.one());
    }
    return record;
  }

  Record unscaled(const StepTarget& target, const LossScale& scale) {
    for (const auto& listed : target.parameters) {
      check_dtype(*listed.gradient, listed);
    }
    Record record{target.key, Stage::kUnscaled, {}};
    GradientRefs scaled;
    GradientRefs known;  // and unscaled, as they belong to another target, too
    auto gradients = gradients_of(target);
    sort_by_address(gradients);
    scaled.reserve(gradients.size());
    unscaled_.reserve(gradients.size());
    for (const auto* gradient : gradients) {
      const bool is_known = unscaled_.contains(*gradient);
      TORCH_CHECK(!is_known || !unscaled_.changed(*gradient),
                  "tidemark: GradScaler: a gradient of shape ", gradient->sizes(), " of this ",
                  target.name,
                  " was unscaled before in this update, as another optimizer has it, too, and was "
                  "written to since: no telling whether it is scaled now. Call unscale_() for all "
                  "optimizers before that write, or update() between their backward passes.");
      (is_known ? known : scaled).push_back(gradient);
    }
    // Those to unscale last: all that may run out of memory comes before.
    if (!known.empty()) {
      record.found_inf = check_and_unscale_all(known, scale.one());
    }
    if (!scaled.empty()) {
      const auto found_inf = check_and_unscale_all(scaled, scale.inverse());
      record.found_inf = known.empty() ? found_inf : record.found_inf.add_(found_inf);
    }
    unscaled_.insert(scaled);
    for (const auto* gradient : known) {
      unscaled_.refresh(*gradient);
    }
    return record;
  }

  template <class What>
  void check_dtype(const at::Tensor& gradient, const What& what) const {
    TORCH_CHECK(
        allow_half_ || gradient.scalar_type() != at::kHalf,
        "tidemark: GradScaler: the gradient of ", what,
        " is float16, which would lose small values when it is unscaled. Keep the "
        "parameters in float32 (no module->to(torch::kHalf)) and run the forward in an "
        "AmpScope. If they have to be float16, GradScalerOptions().allow_fp16_grads(true).");
  }

  bool allow_half_;
  Vector<Record> records_;  // one per target: a handful
  UnscaledGradients unscaled_;
};

}  // namespace tidemark::detail
