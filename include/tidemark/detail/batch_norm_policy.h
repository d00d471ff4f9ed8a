#pragma once

// The running statistics of a model's BatchNorm and InstanceNorm modules.

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/instancenorm.h>

#include <array>
#include <cmath>
#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

namespace tidemark::detail {

template <class Norm, class Visit>
void visit_norm(const std::shared_ptr<torch::nn::Module>& module, Visit& visit) {
  if (auto norm = std::dynamic_pointer_cast<Norm>(module)) {
    visit(norm);
  }
}

/// Calls `visit` with a shared_ptr to every BatchNorm and InstanceNorm module in `root`.
template <class Visit>
void for_each_norm(const std::shared_ptr<torch::nn::Module>& root, Visit visit) {
  auto modules = root->modules(/*include_self=*/false);
  modules.push_back(root);
  for (const auto& module : modules) {
    visit_norm<torch::nn::BatchNorm1dImpl>(module, visit);
    visit_norm<torch::nn::BatchNorm2dImpl>(module, visit);
    visit_norm<torch::nn::BatchNorm3dImpl>(module, visit);
    visit_norm<torch::nn::InstanceNorm1dImpl>(module, visit);
    visit_norm<torch::nn::InstanceNorm2dImpl>(module, visit);
    visit_norm<torch::nn::InstanceNorm3dImpl>(module, visit);
  }
}

/// Momenta of running statistics, corrected for windows of several micro-batches while it lives.
class CorrectedMomenta {
 public:
  explicit CorrectedMomenta(const std::shared_ptr<torch::nn::Module>& root) {
    for_each_norm(root, [&](const auto& norm) {
      entries_.push_back({[norm] { return value_of(norm->options.momentum()); }, 0, 0});
    });
  }
  CorrectedMomenta(const CorrectedMomenta&) = delete;
  CorrectedMomenta& operator=(const CorrectedMomenta&) = delete;
  ~CorrectedMomenta() {
    for (auto& entry : entries_) {
      if (double* momentum = entry.momentum();
          momentum != nullptr && *momentum == entry.corrected) {
        *momentum = entry.original;
      }
    }
  }

  /// Makes a window of so many micro-batches move the statistics as far as one batch would. What
  /// somebody else has set since the last call is corrected in its turn.
  void correct(double micro_batches) {
    for (auto& entry : entries_) {
      double* momentum = entry.momentum();
      if (momentum == nullptr) {
        continue;
      }
      if (*momentum != entry.corrected) {
        entry.original = *momentum;
      }
      entry.corrected = micro_batches == 1 || entry.original >= 1
                            ? entry.original
                            : 1 - std::pow(1 - entry.original, 1 / micro_batches);
      *momentum = entry.corrected;
    }
  }

 private:
  struct Entry {
    std::function<double*()> momentum;  // keeps the module; null where it averages all batches
    double original;
    double corrected;
  };

  static double* value_of(std::optional<double>& momentum) {
    return momentum.has_value() ? &*momentum : nullptr;
  }
  static double* value_of(double& momentum) { return &momentum; }

  std::vector<Entry> entries_;
};

/// The running statistics in `root`: the tensors themselves.
inline std::vector<at::Tensor> running_statistics(const std::shared_ptr<torch::nn::Module>& root) {
  std::vector<at::Tensor> statistics;
  for_each_norm(root, [&](const auto& norm) {
    const std::array<at::Tensor, 3> all{norm->running_mean, norm->running_var,
                                        norm->num_batches_tracked};
    for (const auto& tensor : all) {
      if (tensor.defined()) {
        statistics.push_back(tensor);
      }
    }
  });
  return statistics;
}

}  // namespace tidemark::detail
