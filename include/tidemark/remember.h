#pragma once

/// \file
/// What a checkpointed region computes once only, and knowing that it is run again.

#include <c10/util/Exception.h>
#include <tidemark/detail/op_pause.h>
#include <tidemark/detail/region_run.h>
#include <tidemark/detail/rng_state.h>
#include <tidemark/detail/saved_tensor_hooks.h>
#include <tidemark/detail/tensor_tree.h>
#include <tidemark/detail/vector.h>

#include <memory>
#include <type_traits>
#include <typeinfo>
#include <utility>
#include <vector>

namespace tidemark {

/// Whether the code that asks runs because a checkpointed region is re-run for backward: for
/// logging and counters that should count once. The library's own result depends on it nowhere.
[[nodiscard]] inline bool recomputing() noexcept {
  for (auto* run = detail::RegionRun::innermost(); run != nullptr; run = run->outer()) {
    if (run->again()) {
      return true;
    }
  }
  return false;
}

namespace detail {

/// Saves tensors as if no region were there.
class PlainSaves final : public HookMaker {
 public:
  std::unique_ptr<torch::autograd::SavedVariableHooks> make_hooks() override { return nullptr; }
};

/// A result of remember(), its tensors detached, and where it left the default generators: what a
/// region draws afterwards has to go on from there.
template <class T>
class RememberedValue final : public Remembered {
 public:
  RememberedValue(T value, const DefaultRngState& before)
      : Remembered(typeid(T)), value_(std::move(value)) {
    drew = after_.cpu != before.cpu;
    drew_on_devices_ = after_.devices != before.devices;
    for_each_tensor(value_, [&](at::Tensor& tensor) {
      requires_grad_.push_back(tensor.defined() && tensor.requires_grad());
      if (tensor.defined()) {
        tensor = tensor.detach();
      }
    });
  }

  /// The result once more; `redraws` moves the generators on as computing it did.
  [[nodiscard]] T replay(bool redraws) const {
    if (redraws && drew) {
      after_.cpu.restore();
    }
    if (redraws && drew_on_devices_) {
      after_.devices.restore();
    }
    T value = value_;
    auto requires_grad = requires_grad_.begin();
    for_each_tensor(value, [&](at::Tensor& tensor) {
      if (tensor.defined()) {
        tensor = tensor.detach().set_requires_grad(*requires_grad);
      }
      ++requires_grad;
    });
    return value;
  }

 private:
  T value_;
  std::vector<bool> requires_grad_;
  DefaultRngState after_;
  bool drew_on_devices_ = false;
};

}  // namespace detail

/// Calls `fn()` once and returns its result; when the checkpointed region around it is re-run for
/// backward, the result of the forward is returned again instead. For what must not run twice or
/// would not repeat itself: sampling, nearest neighbours, ball queries, rulebooks, the results of
/// non-deterministic ops. Outside of a region it is a plain call.
///
///     auto neighbours = tidemark::remember([&] { return knn(points, k); });
///
/// The result, and what `fn` saves for backward, is kept in memory until the region's backward is
/// over. It may be a tensor, anything that checkpoint() takes tensors in, or any copyable value.
/// Gradients flow through it. `fn` runs at once, so it may capture by reference. Calls are matched
/// by their order: a region must remember the same things each time it runs.
template <class Fn>
auto remember(Fn&& fn) {
  using Result = std::decay_t<std::invoke_result_t<Fn>>;
  static_assert(std::is_copy_constructible_v<Result>,
                "tidemark: what is remembered is returned again, so it has to be copyable.");
  // The forwards on the way out remember it; the first re-run, if there is one, knows it already.
  detail::Vector<detail::RegionRun*> forwards;
  detail::RegionRun* run = detail::RegionRun::innermost();
  for (; run != nullptr && !run->again(); run = run->outer()) {
    forwards.push_back(run);
  }
  const detail::OpPause not_the_regions_ops;
  if (run != nullptr) {
    const auto value = run->next();
    TORCH_CHECK(value != nullptr && value->type == typeid(Result),
                "tidemark: a checkpointed region called remember() more often when it was re-run "
                "than in the forward, or for a value of another type. Its calls are matched by "
                "their order, so it has to make the same ones each time.");
    for (detail::RegionRun* forward : forwards) {
      forward->add(value);
    }
    return static_cast<const detail::RememberedValue<Result>&>(*value).replay(run->redraws());
  }
  if (forwards.empty()) {
    return static_cast<Result>(std::forward<Fn>(fn)());
  }
  const detail::DefaultRngState before;
  Result result = [&]() -> Result {
    const detail::RegionRun::Outside outside;
    detail::PlainSaves plain;
    const detail::SavedTensorHooksScope scope(plain);
    return std::forward<Fn>(fn)();
  }();
  const std::shared_ptr<const detail::Remembered> value(
      new detail::RememberedValue<Result>(result, before));  // compiles faster than make_shared
  for (detail::RegionRun* forward : forwards) {
    forward->add(value);
  }
  return result;
}

}  // namespace tidemark
