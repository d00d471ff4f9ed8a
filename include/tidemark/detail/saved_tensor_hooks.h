#pragma once

// The pipeline that every saved tensor goes through: a scope decides whose hooks it gets, and a
// VersionCheck does what SavedVariable stops doing once a tensor has hooks.

#include <ATen/core/Tensor.h>
#include <tidemark/detail/engine_facade.h>
#include <tidemark/detail/tensor_meta.h>
#include <tidemark/detail/version_check.h>

#include <utility>

namespace tidemark::detail {

/// While alive, the tensors that its thread saves get the hooks that `maker` makes, unless an inner
/// scope is open. To be destroyed on the thread that made it; scopes may close in any order.
class SavedTensorHooksScope {
 public:
  explicit SavedTensorHooksScope(HookMaker& maker) : maker_(maker) {
    EngineLink::ensure();
    HookMaker*& innermost = EngineLink::innermost_maker();
    maker_.outer = innermost;
    innermost = &maker_;
  }

  SavedTensorHooksScope(const SavedTensorHooksScope&) = delete;
  SavedTensorHooksScope& operator=(const SavedTensorHooksScope&) = delete;

  ~SavedTensorHooksScope() {
    HookMaker** link = &EngineLink::innermost_maker();
    while (*link != nullptr && *link != &maker_) {
      link = &(*link)->outer;
    }
    if (*link != nullptr) {
      *link = maker_.outer;
    }
  }

 private:
  HookMaker& maker_;
};

/// A tensor kept as plain autograd keeps it: by itself where it is a leaf, else detached, so that
/// no graph node owns its own output.
class KeptTensor {
 public:
  KeptTensor() = default;
  explicit KeptTensor(const at::Tensor& variable)
      : tensor_(variable.is_leaf() ? variable : variable.tensor_data()), check_(variable) {}

  [[nodiscard]] bool defined() const { return tensor_.defined(); }
  [[nodiscard]] const at::Tensor& tensor() const { return tensor_; }
  void reset() { tensor_.reset(); }

  /// The tensor, provided that nobody wrote to it since.
  [[nodiscard]] at::Tensor unpack() const {
    check_.expect_unchanged([&] { return describe(tensor_); });
    return tensor_;
  }

 private:
  at::Tensor tensor_;
  VersionCheck check_;
};

}  // namespace tidemark::detail
