#pragma once

// A batch, cut along the first dimension of its tensors.

#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>
#include <tidemark/detail/tensor_tree.h>

#include <cstdint>
#include <tuple>
#include <type_traits>
#include <utility>

namespace torch::data {
template <typename Data, typename Target>
struct Example;
}  // namespace torch::data

namespace tidemark {

/// A loss that is a mean over `weight` items: voxels, rays, tokens.
struct WeightedLoss {
  at::Tensor loss;  ///< A scalar that requires grad.
  double weight;    ///< The number of items; 0 or more.
};

}  // namespace tidemark

namespace tidemark::detail {

/// Calls `visit(at::Tensor&)` for every tensor of a batch: what for_each_tensor() takes, and what a
/// torch::data::DataLoader gives.
template <class Batch, class Visit>
void for_each_batch_tensor(Batch& batch, Visit&& visit) {
  static_assert(holds_tensors<Batch>(),
                "tidemark: GradAccumulator::accumulate() takes a batch of tensors: a tensor, or "
                "pairs, tuples, containers and structs of them, or a torch::data::Example.");
  for_each_tensor(batch, visit);
}
template <class Data, class Target, class Visit>
void for_each_batch_tensor(torch::data::Example<Data, Target>& batch, Visit&& visit) {
  for_each_batch_tensor(batch.data, visit);
  if constexpr (!std::is_void_v<Target>) {
    for_each_tensor(batch.target, visit);
  }
}

inline bool has_rows(const at::Tensor& tensor) { return tensor.defined() && tensor.dim() > 0; }

/// The number of rows of a batch, which all its tensors share.
template <class Batch>
int64_t count_rows(Batch& batch) {
  at::Tensor first;
  for_each_batch_tensor(batch, [&](at::Tensor& tensor) {
    if (!has_rows(tensor)) {
      return;
    }
    if (!first.defined()) {
      first = tensor;
    }
    TORCH_CHECK(tensor.size(0) == first.size(0),
                "tidemark: GradAccumulator: accumulate() cuts all tensors of a batch along their "
                "first dimension, but one is of shape ",
                first.sizes(), " and one of shape ", tensor.sizes(),
                ". Let the function capture what belongs to no single row.");
  });
  TORCH_CHECK(first.defined() && first.size(0) > 0,
              "tidemark: GradAccumulator: accumulate() got a batch without rows. It cuts tensors "
              "along their first dimension; leave empty batches out.");
  return first.size(0);
}

/// Some rows of every tensor of a batch, as views; all else as it is.
template <class Batch>
Batch rows_of(const Batch& batch, int64_t begin, int64_t rows) {
  Batch part = batch;
  for_each_batch_tensor(part, [&](at::Tensor& tensor) {
    if (has_rows(tensor)) {
      tensor = tensor.narrow(0, begin, rows);
    }
  });
  return part;
}

/// What a function returned for a micro-batch: a loss, a WeightedLoss, or a pair or tuple of a loss
/// and a weight. A loss alone is a mean over the rows.
template <class Result>
WeightedLoss weighted_loss(const Result& result, int64_t rows) {
  if constexpr (std::is_convertible_v<const Result&, at::Tensor>) {
    return {result, static_cast<double>(rows)};
  } else if constexpr (std::is_same_v<Result, WeightedLoss>) {
    return result;
  } else {
    static_assert(IsInstance<std::pair, Result>::value || IsInstance<std::tuple, Result>::value,
                  "tidemark: GradAccumulator::accumulate() takes a function that returns a loss, a "
                  "tidemark::WeightedLoss, or a std::pair of a loss and a weight.");
    static_assert(std::is_arithmetic_v<std::decay_t<decltype(std::get<1>(result))>>,
                  "tidemark: the weight of a loss is a number: call item<int64_t>() on a tensor.");
    return {std::get<0>(result), static_cast<double>(std::get<1>(result))};
  }
}

}  // namespace tidemark::detail
