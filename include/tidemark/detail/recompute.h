#pragma once

#include <ATen/DeviceAccelerator.h>
#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>
#include <tidemark/detail/forward_trace.h>
#include <tidemark/detail/in_place.h>
#include <tidemark/detail/saved_tensor_hooks.h>
#include <tidemark/detail/vector.h>

#include <cstddef>
#include <exception>

namespace tidemark::detail {

/// What one backward pass has got back from re-running a region.
struct Recompute {
  Recompute(int pass, std::size_t slots) : pass(pass), values(slots) {}

  /// To be called when the re-run is queued on `stream`, the forward's.
  void finish_on(const c10::Stream& stream) {
    finished.emplace(stream.device_type());
    finished->record(stream);
  }

  /// Makes the current stream, which may be another, wait for one of the values.
  void hand_over_to_current_stream(const at::Tensor& value) const {
    if (!finished.has_value() || value.device().type() != finished->device_type()) {
      return;
    }
    const c10::Stream current = at::accelerator::getCurrentStream(value.device().index());
    finished->block(current);
    value.record_stream(current);
  }

  const int pass;  // the id of the backward pass; negative outside of one
  enum class State { kRunning, kDone, kFailed };
  State state = State::kRunning;
  std::exception_ptr error;
  ForwardTrace::Replay* replay = nullptr;  // while it runs
  std::size_t packed = 0;
  Vector<KeptTensor> values;
  InPlace<c10::Event> finished;
};

}  // namespace tidemark::detail
