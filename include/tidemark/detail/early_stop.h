#pragma once

// Whether a re-run may end with the last tensor that its region saved.

#include <ATen/ATen.h>
#include <tidemark/detail/op_observer.h>
#include <tidemark/detail/op_pause.h>
#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>

namespace tidemark::detail {

/// Thrown through a re-run when all that backward needs is there. Not a std::exception, so that a
/// region's own handling of errors lets it pass.
struct RecomputeIsComplete {};

/// Leaving a re-run from inside of a save is safe in most places, not in all: an op may fill a
/// tensor after it was saved (the noise of RReLU), a custom Function that is left there leaks what
/// it was about to save, and an engine that runs a backward inside the region must not be left.
class EarlyStop {
 public:
  explicit EarlyStop(bool wanted) : wanted_(wanted) {}

  /// To be called with the data of every tensor that the region's forward saves.
  void saved(const at::Tensor& data) {
    if (wanted_) {
      safe_place_ = OpObserver::inside_aten_op() &&
                    torch::autograd::get_current_graph_task_id() == outer_pass_;
      bytes_when_saved_ = leading_bytes(data);
    }
  }

  /// To be called when the forward is over, with the data of the last tensor saved.
  void forward_done(const at::Tensor& last, const OpLog& log) {
    allowed_ = wanted_ && safe_place_ && log.complete && !log.random && last.defined() &&
               bytes_when_saved_.defined() && at::equal(leading_bytes(last), bytes_when_saved_);
    bytes_when_saved_.reset();
  }

  [[nodiscard]] bool allowed() const { return allowed_; }

 private:
  // A copy of the first bytes; undefined where a tensor has no storage to look at.
  static at::Tensor leading_bytes(const at::Tensor& data) {
    if (!data.has_storage() || data.numel() == 0) {
      return {};
    }
    const OpPause own_ops;
    const int64_t offset = data.storage_offset() * data.element_size();
    const int64_t count = std::min<int64_t>(256, data.storage().nbytes() - offset);
    return at::empty({0}, data.options().dtype(at::kByte))
        .set_(data.storage(), offset, {count}, {1})
        .clone();
  }

  bool wanted_;
  bool safe_place_ = false;
  bool allowed_ = false;
  int outer_pass_ = torch::autograd::get_current_graph_task_id();
  at::Tensor bytes_when_saved_;
};

}  // namespace tidemark::detail
