#pragma once

/// \file
/// Activation checkpointing: what a region saves for backward is thrown away after its forward, and
/// computed again when backward asks for it.

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <tidemark/checkpoint_options.h>
#include <tidemark/detail/callable.h>
#include <tidemark/detail/in_place.h>
#include <tidemark/detail/region.h>
#include <tidemark/detail/same_structure.h>
#include <tidemark/detail/tensor_tree.h>
#include <tidemark/detail/vector.h>
#include <tidemark/remember.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

namespace tidemark {

namespace detail {

template <class... Args, class Fn, std::size_t... I>
auto call_with_kept(Fn& fn, std::tuple<owned_t<Args>...>& kept, std::index_sequence<I...>) {
  return fn(lend<Args>(std::get<I>(kept))...);
}

/// A region that calls `Fn` with `Args`, which it keeps as their owners.
template <class Fn, class... Args>
class CallRegion final : public Region {
 public:
  using Kept = std::tuple<owned_t<Args>...>;

  static_assert(std::is_copy_constructible_v<Fn>,
                "tidemark: a checkpointed callable is run again for backward, so it has to be "
                "copyable. Capture shared_ptrs instead of unique_ptrs.");
  static_assert((std::is_copy_constructible_v<Args> && ...),
                "tidemark: the arguments of a checkpointed call are used again for backward, so "
                "they have to be copyable. Capture the argument in the callable by shared_ptr.");
  static_assert(!(holds_views<owned_t<Args>>() || ...),
                "tidemark: a view (ArrayRef, TensorList, string_view) inside of another argument "
                "would dangle when the region is run again. Pass a vector or string there.");
  static_assert(std::is_invocable_v<Fn&, Args...>,
                "tidemark: a checkpointed callable is called with rvalues of its arguments: take "
                "tensors by value or by const reference, not by Tensor&.");

  CallRegion(CheckpointOptions options, Fn fn, Kept args) : Region(std::move(options)) {
    call_.emplace(Call{std::move(fn), std::move(args)});
  }

  auto forward() {
    Kept args = call_->args;
    for_each_tensor(call_->args, [&](at::Tensor& tensor) {
      save_input(tensor);
      tensor.reset();
    });
    return record([&] { return call(args); });
  }

 private:
  void run_again(std::vector<at::Tensor> inputs) override {
    Kept args = call_->args;
    auto input = inputs.begin();
    for_each_tensor(args, [&](at::Tensor& tensor) { tensor = std::move(*input++); });
    call(args);
  }

  // With a copy of the callable: a mutable one starts from the same state every time.
  auto call(Kept& args) const {
    Fn fn = call_->fn;
    return call_with_kept<Args...>(fn, args, std::index_sequence_for<Args...>());
  }

  void drop_call() override { call_.reset(); }

  struct Call {
    Fn fn;
    Kept args;
  };
  InPlace<Call> call_;
};

template <class T>
inline constexpr bool is_checkpoint_options = std::is_same_v<std::decay_t<T>, CheckpointOptions>;

/// The tensors of all chunks as one; undefined where all are.
inline at::Tensor join_rows(std::vector<at::Tensor> parts) {
  const auto defined = std::count_if(parts.begin(), parts.end(),
                                     [](const at::Tensor& part) { return part.defined(); });
  TORCH_CHECK(defined == 0 || defined == static_cast<std::ptrdiff_t>(parts.size()),
              "tidemark: checkpoint_chunks got an undefined tensor from ", parts.size() - defined,
              " of ", parts.size(), " chunks; every chunk must return the same.");
  TORCH_CHECK(
      defined == 0 || parts.front().dim() > 0,
      "tidemark: checkpoint_chunks joins results along dim 0, but got a scalar from a chunk. "
      "Return a row for each row of the chunk, and reduce the joined result.");
  if (defined == 0 || parts.size() == 1) {
    return std::move(parts.front());
  }
  return at::cat(parts);
}

template <class... Args, class Fn>
auto checkpoint_kept(CheckpointOptions options, Fn fn, std::tuple<owned_t<Args>...> kept) {
  if (!c10::GradMode::is_enabled()) {
    return call_with_kept<Args...>(fn, kept, std::index_sequence_for<Args...>());
  }
  // Compiles faster than make_shared, at each call.
  return std::shared_ptr<CallRegion<Fn, Args...>>(
             new CallRegion<Fn, Args...>(std::move(options), std::move(fn), std::move(kept)))
      ->forward();
}

template <class Fn, class... Args>
auto checkpoint_callable(CheckpointOptions options, Fn fn, Args&&... args) {
  return checkpoint_kept<std::decay_t<Args>...>(
      std::move(options), std::move(fn),
      std::tuple<owned_t<Args>...>(to_owned(std::forward<Args>(args))...));
}

template <class Member, class Object, class... Args>
auto checkpoint_member(CheckpointOptions options, Member member, Object&& object, Args&&... args) {
  auto shared = share_object(std::forward<Object>(object));
  using Target = typename decltype(shared)::element_type;
  return checkpoint_callable(std::move(options),
                             MemberOf<Member, Target>{member, std::move(shared)},
                             std::forward<Args>(args)...);
}

}  // namespace detail

/// Calls `fn(args...)` and returns its result, without keeping what it saves for backward: the
/// first backward that needs it calls `fn` once more on the same arguments. Gradients are bit-equal
/// to those of a plain call.
///
///     auto y = tidemark::checkpoint(
///         [net = net](torch::Tensor x) mutable { return net->forward(x); }, x);
///
/// `fn` may be any callable, a module (by holder, shared_ptr or reference), an AnyModule, or a
/// member function with its object: `checkpoint(&NetImpl::stage, this, x)`. A module that no
/// shared_ptr owns must live until backward is over.
///
/// A callable is copied and lives until backward is over, so it must own what it uses: capture
/// holders and shared_ptrs by value; a `[&]` of locals dangles by then. Arguments and results may
/// be tensors (undefined ones too), optionals, pairs, tuples, arrays and vectors of them, and any
/// copyable value. It is called with rvalues: take tensors by value or `const&`. With grad mode off
/// this is a plain call.
///
/// The re-run sees the forward's random numbers, autocast settings, default dtype, device and
/// stream. It must do the same as the forward did: a region that saves other tensors, draws other
/// random numbers or writes to its arguments is refused with a c10::Error, and so is a backward
/// that plain autograd would refuse because a saved tensor was written to. What a region writes to
/// captured tensors (say BatchNorm's running statistics) is written once: the re-run puts it back,
/// see CheckpointOptions::observe.
///
/// When memory runs out in the forward or the re-run, the c10::OutOfMemoryError passes as it is,
/// and what the region wrote and drew is undone, so that the call can be made again. Any other
/// exception leaves what it leaves in a plain call.
///
/// Thread-safe like the plain call: different threads may record and run backward at the same time.
///
/// Method: Chen et al., Training Deep Nets with Sublinear Memory Cost, 2016; recorded as PyTorch's
/// torch.utils.checkpoint does with use_reentrant=False.
template <class Fn, class... Args>
auto checkpoint(CheckpointOptions options, Fn&& fn, Args&&... args) {
  if constexpr (std::is_member_function_pointer_v<std::decay_t<Fn>>) {
    return detail::checkpoint_member(std::move(options), fn, std::forward<Args>(args)...);
  } else {
    return detail::checkpoint_callable(
        std::move(options), detail::as_callable(std::forward<Fn>(fn)), std::forward<Args>(args)...);
  }
}

/// As above, with default options.
template <class Fn, class... Args, class = std::enable_if_t<!detail::is_checkpoint_options<Fn>>>
auto checkpoint(Fn&& fn, Args&&... args) {
  return checkpoint(CheckpointOptions(), std::forward<Fn>(fn), std::forward<Args>(args)...);
}

/// As above for an AnyModule whose forward() returns something else than a Tensor:
/// `checkpoint<std::pair<Tensor, Tensor>>(any, x)`.
template <class Result, class Any, class... Args,
          class = std::enable_if_t<std::is_same_v<std::decay_t<Any>, torch::nn::AnyModule>>>
Result checkpoint(Any&& any, Args&&... args) {
  return detail::checkpoint_callable(
      CheckpointOptions(),
      detail::ForwardOfAny<Result, torch::nn::AnyModule>{std::forward<Any>(any)},
      std::forward<Args>(args)...);
}

/// The same with options.
template <class Result, class Any, class... Args,
          class = std::enable_if_t<std::is_same_v<std::decay_t<Any>, torch::nn::AnyModule>>>
Result checkpoint(CheckpointOptions options, Any&& any, Args&&... args) {
  return detail::checkpoint_callable(
      std::move(options),
      detail::ForwardOfAny<Result, torch::nn::AnyModule>{std::forward<Any>(any)},
      std::forward<Args>(args)...);
}

/// Calls `fn` on at most `chunk` rows at a time, each chunk a checkpointed region of its own, and
/// returns the results joined along dim 0: the loop that NeRFs write over points and rays, with the
/// memory of one chunk instead of all.
///
///     auto rgb = tidemark::checkpoint_chunks(32768, mlp, points, directions);
///
/// Every defined tensor argument is cut along dim 0 and must have the same number of rows there;
/// other arguments go to each call as they are. Results are tensors, or optionals, pairs, tuples,
/// arrays, vectors, maps, variants and structs of nothing but tensors. No rows make one call on
/// none. When memory runs out in one chunk, what all of them wrote and drew is undone.
///
/// Throws c10::Error for `chunk` < 1, for tensors without a dim 0 or with different numbers of
/// rows, without a tensor argument, and for chunks whose results have not the same tensors under
/// the same keys.
template <class Fn, class... Args>
auto checkpoint_chunks(CheckpointOptions options, int64_t chunk, Fn&& fn, Args&&... args) {
  const auto callable = detail::as_callable(std::forward<Fn>(fn));
  using Callable = std::remove_const_t<decltype(callable)>;
  using Result = std::decay_t<std::invoke_result_t<Callable&, std::decay_t<Args>...>>;
  static_assert(detail::holds_only_tensors<Result>(),
                "tidemark: checkpoint_chunks can only join results that are tensors, or optionals, "
                "pairs, tuples, arrays, vectors, maps, variants and structs of them.");
  TORCH_CHECK(chunk >= 1, "tidemark: checkpoint_chunks got a chunk of ", chunk,
              " rows; it must be at least 1.");
  auto all = std::tuple<detail::owned_t<Args>...>(detail::to_owned(std::forward<Args>(args))...);
  int64_t rows = -1;
  std::size_t index = 0;
  detail::for_each_tensor(all, [&](const at::Tensor& tensor) {
    if (tensor.defined()) {
      TORCH_CHECK(tensor.dim() > 0,
                  "tidemark: checkpoint_chunks cuts every tensor along dim 0, but "
                  "argument tensor #",
                  index, " is a scalar. Capture it in the callable instead.");
      TORCH_CHECK(rows == -1 || tensor.size(0) == rows,
                  "tidemark: checkpoint_chunks cuts every "
                  "tensor along dim 0, but argument tensor #",
                  index, " has ", tensor.size(0), " rows and the ones before it have ", rows,
                  ". Capture what is not to be cut.");
      rows = tensor.size(0);
    }
    ++index;
  });
  TORCH_CHECK(rows >= 0,
              "tidemark: checkpoint_chunks needs a defined tensor among its arguments to cut.");

  detail::Vector<std::vector<at::Tensor>> parts;  // of each tensor of the result
  const auto run = [&](int64_t begin) {
    auto part = all;
    detail::for_each_tensor(part, [&](at::Tensor& tensor) {
      if (tensor.defined()) {
        tensor = tensor.narrow(0, begin, std::min(chunk, rows - begin));
      }
    });
    Result result =
        detail::checkpoint_kept<std::decay_t<Args>...>(options, callable, std::move(part));
    std::vector<at::Tensor> tensors;
    detail::for_each_tensor(result, [&](at::Tensor& tensor) { tensors.push_back(tensor); });
    return std::pair(std::move(result), std::move(tensors));
  };
  std::vector<at::Tensor> arguments;
  detail::for_each_tensor(all, [&](const at::Tensor& tensor) { arguments.push_back(tensor); });
  return detail::undone_if_out_of_memory(options, std::move(arguments), [&] {
    auto [result, tensors] = run(0);
    for (at::Tensor& tensor : tensors) {
      parts.push_back({std::move(tensor)});
    }
    for (int64_t begin = chunk; begin < rows; begin += chunk) {
      auto [next, next_tensors] = run(begin);
      TORCH_CHECK(
          detail::same_structure(result, next), "tidemark: checkpoint_chunks got ",
          next_tensors.size(), " tensors from the chunk of rows ", begin, " to ",
          std::min(begin + chunk, rows) - 1, " and ", parts.size(),
          " from the first, or other ones: every chunk must return the same, under the same "
          "keys in the same order.");
      for (std::size_t i = 0; i < next_tensors.size(); ++i) {
        parts[i].push_back(std::move(next_tensors[i]));
      }
    }
    auto part = parts.begin();
    detail::for_each_tensor(
        result, [&](at::Tensor& tensor) { tensor = detail::join_rows(std::move(*part++)); });
    return std::move(result);
  });
}

/// As above, with default options.
template <class Fn, class... Args>
auto checkpoint_chunks(int64_t chunk, Fn&& fn, Args&&... args) {
  return checkpoint_chunks(CheckpointOptions(), chunk, std::forward<Fn>(fn),
                           std::forward<Args>(args)...);
}

}  // namespace tidemark
