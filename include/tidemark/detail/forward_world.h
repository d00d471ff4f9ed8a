#pragma once

// The thread's and process's settings that decide what an op does: as they were when a region ran,
// to be set again while it is re-run.

#include <ATen/DeviceAccelerator.h>
#include <ATen/autocast_mode.h>
#include <c10/core/DefaultDtype.h>
#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/ScalarTypeToTypeMeta.h>
#include <c10/core/StreamGuard.h>
#include <tidemark/detail/autocast_state.h>
#include <tidemark/detail/in_place.h>
#include <tidemark/detail/rng_state.h>

#include <optional>

namespace tidemark::detail {

/// Autocast for every device type that has it, the default dtype, the current device and stream.
class ForwardWorld {
 public:
  /// The calling thread's.
  static ForwardWorld now() {
    ForwardWorld world;
    world.autocast_ = AutocastState::now();
    world.default_dtype_ = c10::get_default_dtype_as_scalartype();
    if (const auto type = accelerator_in_use()) {
      const c10::DeviceIndex index = at::accelerator::getDeviceIndex();
      if (at::globalContext().getAcceleratorHooksInterface(*type).hasPrimaryContext(index)) {
        world.stream_ = at::accelerator::getCurrentStream(index);
      }
    }
    return world;
  }

  [[nodiscard]] const std::optional<c10::Stream>& stream() const { return stream_; }

  class Guard;

 private:
  // Writes only what differs: the default dtype is the whole process's.
  static void set_settings(const ForwardWorld& from, const ForwardWorld& to) {
    AutocastState::change(from.autocast_, to.autocast_);
    if (from.default_dtype_ != to.default_dtype_) {
      c10::set_default_dtype(c10::scalarTypeToTypeMeta(to.default_dtype_));
    }
  }

  AutocastState autocast_;
  at::ScalarType default_dtype_ = at::kFloat;
  std::optional<c10::Stream> stream_;
};

/// While alive, the calling thread is in the given world, with grad mode on and inference mode
/// off. Autocast casts afresh: its cache belongs to the forward, or to whoever runs now.
class ForwardWorld::Guard {
 public:
  explicit Guard(const ForwardWorld& world) : before_(ForwardWorld::now()), stream_(world.stream_) {
    if (c10::InferenceMode::is_enabled()) {
      inference_mode_.emplace(false);
    }
    set_settings(before_, world);
    at::autocast::set_autocast_cache_enabled(false);
  }
  Guard(const Guard&) = delete;
  Guard& operator=(const Guard&) = delete;
  ~Guard() { set_settings(ForwardWorld::now(), before_); }

 private:
  ForwardWorld before_;
  c10::OptionalStreamGuard stream_;
  c10::AutoGradMode grad_mode_{true};
  InPlace<c10::InferenceMode> inference_mode_;
};

}  // namespace tidemark::detail
