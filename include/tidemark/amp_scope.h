#pragma once

/// \file
/// Automatic mixed precision, after torch.autocast: inside an AmpScope matrix products and
/// convolutions run in half precision, and ops that need float32's range or precision in float32.
///
/// The model stays in float32. A training step:
///
///     optimizer.zero_grad();
///     torch::Tensor loss;
///     {
///       tidemark::AmpScope amp(device);           // float16 on CUDA, bfloat16 on the CPU
///       loss = criterion(model->forward(batch.data), batch.target);
///     }
///     loss.backward();                            // outside: every op runs in its forward's dtype
///     optimizer.step();
///
/// bfloat16 has float32's range and needs nothing else. Gradients of float16 vanish below 6e-8, so
/// there a step ends with (more in grad_scaler.h)
///
///     scaler.scale(loss).backward();
///     scaler.step(optimizer);
///     scaler.update();
///
/// Where float16 overflows (65504) or an epsilon becomes 0 (below 3e-8: 1e-8 in a dice loss), leave
/// half precision for a block:
///
///     tidemark::AmpScope amp(torch::kCUDA, torch::kBFloat16);
///     auto features = backbone->forward(x);
///     auto full = tidemark::AmpScope::off(torch::kCUDA);
///     auto loss = dice(tidemark::amp_cast(torch::kFloat, features), target);
///
/// off() stops casting; what is in half precision already stays so until it is cast (amp_cast.h).
///
/// The trap of half weights: don't call model->to(torch::kHalf). Updates smaller than a thousandth
/// of a weight are lost then, and autocast does not bring them back.
///
/// A custom autograd Function runs its backward where backward() is called, outside of the scope,
/// unless it says otherwise: amp_function.h.
///
/// The weight cache. Inside of a scope the cast of a float32 leaf that requires grad is kept and
/// used again, until the outermost scope ends. (torch::nn::Linear passes a transposed view, so its
/// weight is cast anew every time; convolutions' are kept.) Two traps:
///   - A weight that changes while a scope is open (EMA, weight clipping, torch::load, a step in
///     the scope) goes on being used as it was. Open a scope for each step, or call
///     AmpScope::refresh() after the change.
///   - All uses of a weight in a scope share one cast, so their gradients are added in half
///     precision: 256 gradients of 1/512 and one of 1 make 1.0 instead of 1.5 in bfloat16. Where a
///     weight is used many times for one backward (recurrent cells, chunks of rays), switch the
///     cache off, or call backward for each chunk in a scope of its own:
///
///         tidemark::AmpScope amp(device, tidemark::AmpOptions().cache(false));
///         for (const auto& rays : all_rays.split(4096)) colours.push_back(render(rays));
///
/// Checkpointed regions re-run under the settings of their forward, wherever backward is called.

#include <ATen/autocast_mode.h>
#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/util/Exception.h>
#include <tidemark/detail/autocast_state.h>
#include <torch/arg.h>

#include <optional>
#include <string>

namespace tidemark {

/// What an AmpScope sets: `AmpOptions().dtype(torch::kBFloat16).cache(false)`.
struct AmpOptions {
  AmpOptions() = default;
  /// AmpOptions().dtype(dtype), so that an AmpScope takes a dtype in place of options.
  AmpOptions(at::ScalarType dtype) : dtype_(dtype) {}  // NOLINT(google-explicit-constructor)

  /// bfloat16 or float16. Without it that of the enclosing scope or, if there is none, torch's:
  /// float16 on CUDA, bfloat16 on the CPU. CUDA devices older than Ampere emulate bfloat16, slowly.
  TORCH_ARG(std::optional<at::ScalarType>, dtype);

  /// Without it ops run in the dtypes they are given, as outside of any scope.
  TORCH_ARG(bool, enabled) = true;

  /// Whether casts of weights are kept; without it as in the enclosing scope, on if there is none.
  TORCH_ARG(std::optional<bool>, cache);
};

/// While alive, autocast is on, for the ops of the calling thread on the given type of device.
/// Recipes: amp_scope.h.
///
///     tidemark::AmpScope amp(device);
///     tidemark::AmpScope on_cpu(torch::kCPU, torch::kBFloat16);
///     tidemark::AmpScope half(device, tidemark::AmpOptions().dtype(torch::kHalf).cache(false));
///
/// Scopes nest, for one or for several types of device. At its end a scope puts back everything as
/// it was, also when an exception ends it. The settings are the thread's own, but torch keeps one
/// weight cache for the process: an outermost scope of any thread empties it when it begins and
/// ends, which costs the others a cast, and threads that use the same weights in two dtypes at a
/// time must open their scopes with `cache(false)`.
///
/// A scope has to end on the thread it was opened on and before those around it. Otherwise it
/// warns: on another thread nothing is put back; out of order its settings hold until the scopes
/// that were opened inside of it have ended, too.
class [[nodiscard]] AmpScope {
 public:
  /// Throws, and changes nothing, if autocast can't run on that type of device or in that dtype.
  explicit AmpScope(c10::Device device, const AmpOptions& options = {})
      : scope_(wanted(device.type(), options)) {}
  AmpScope(const AmpScope&) = delete;
  AmpScope& operator=(const AmpScope&) = delete;

  /// A scope without autocast: ops run in the dtypes they are given.
  static AmpScope off(c10::Device device) { return AmpScope(device, AmpOptions().enabled(false)); }

  /// Whether autocast is on for that type of device, on this thread.
  [[nodiscard]] static bool enabled(c10::DeviceType type) {
    return at::autocast::is_autocast_available(type) && at::autocast::is_autocast_enabled(type);
  }

  /// The dtype that autocast uses, or would use if it were on, for that type of device on this
  /// thread. Throws for a type without autocast.
  [[nodiscard]] static at::ScalarType dtype(c10::DeviceType type) {
    check_has_autocast(type);
    return at::autocast::get_autocast_dtype(type);
  }

  /// Whether casts of weights are kept on this thread.
  [[nodiscard]] static bool cache_enabled() { return at::autocast::is_autocast_cache_enabled(); }

  /// Forgets the casts of weights, so that the next ops use the weights as they are now. To be
  /// called after changing weights inside of a scope. Thread-safe; concerns all threads.
  static void refresh() { at::autocast::clear_cache(); }

 private:
  static detail::AutocastState wanted(c10::DeviceType type, const AmpOptions& options) {
    check_has_autocast(type);
    const auto dtype = options.dtype().value_or(at::autocast::get_autocast_dtype(type));
    if (options.enabled()) {
      TORCH_CHECK(is_present(type), "tidemark: AmpScope: there is no ", type,
                  " device, or the program is not linked with what drives it. Autocast can run on ",
                  present_types(), ".");
      TORCH_CHECK(dtype == at::kBFloat16 || dtype == at::kHalf,
                  "tidemark: AmpScope: autocast can't run in ", dtype, " on ", type,
                  "; it can in BFloat16 and Half. For full precision use AmpScope::off(device).");
    }
    return detail::AutocastState::now()
        .with(type, options.enabled(), dtype)
        .with_cache(options.cache().value_or(cache_enabled()));
  }

  static void check_has_autocast(c10::DeviceType type) {
    TORCH_CHECK(at::autocast::is_autocast_available(type),
                "tidemark: AmpScope: torch has no autocast for ", type, ". It can run on ",
                present_types(), ".");
  }

  static bool is_present(c10::DeviceType type) {
    return c10::impl::hasDeviceGuardImpl(type) &&
           c10::impl::getDeviceGuardImpl(type)->deviceCount() > 0;
  }

  static std::string present_types() {
    std::string names;
    for (const auto type : at::autocast::_AUTOCAST_SUPPORTED_DEVICES) {
      if (is_present(type)) {
        names += (names.empty() ? "" : ", ") + c10::DeviceTypeName(type, /*lower_case=*/true);
      }
    }
    return names;
  }

  detail::AutocastScope scope_;
};

}  // namespace tidemark
