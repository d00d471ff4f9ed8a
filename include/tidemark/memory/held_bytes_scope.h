#pragma once

/// \file
/// How many bytes autograd graphs hold for their backward pass.

#include <c10/core/Device.h>
#include <tidemark/detail/held_bytes.h>
#include <tidemark/detail/saved_tensor_hooks.h>

#include <cstdint>
#include <memory>
#include <optional>

namespace tidemark {

/// Bytes that the graphs which this thread records while the scope is open hold for backward: the
/// storages of their saved tensors, each once however many nodes or views of it are saved.
///
///     tidemark::HeldBytesScope held;
///     auto loss = model->forward(x).sum();
///     std::cout << held.current();  // what checkpointing can save
///     loss.backward();
///     std::cout << held.current();  // 0, unless the graph is retained
///
/// Parameters (leaves that require grad, and views of them) are not counted: they live anyway.
/// Other tensors are, also where the program holds them too, such as the input. A storage has the
/// size that it has when one of its tensors is saved, or when the scope is asked. MKL-DNN tensors
/// and what custom functions keep besides saved tensors are not seen. What a checkpointed region
/// saves is not held; its inputs are.
///
/// Scopes nest, and each counts what is saved inside it. Tensors are kept as autograd keeps them,
/// and an in-place write to one is refused in backward as autograd does. A graph may outlive its
/// scope, and nodes may run and die on any thread; open and close the scope on the thread that runs
/// the forward. current() and peak() are thread-safe.
class HeldBytesScope {
 public:
  /// Counts storages on `device`, or on all devices. Without an index, any of its type.
  explicit HeldBytesScope(std::optional<c10::Device> device = std::nullopt)
      : held_(std::make_shared<detail::HeldBytes>(device)), maker_(held_), hooks_(maker_) {}

  /// Bytes that are held now.
  [[nodiscard]] int64_t current() const { return held_->current(); }

  /// The most bytes that were held at one time.
  [[nodiscard]] int64_t peak() const { return held_->peak(); }

 private:
  std::shared_ptr<detail::HeldBytes> held_;
  detail::SaveWatcher maker_;
  detail::SavedTensorHooksScope hooks_;
};

}  // namespace tidemark
