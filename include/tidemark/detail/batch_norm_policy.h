#pragma once

// The running statistics of a model's BatchNorm and InstanceNorm modules.

#include <ATen/core/Tensor.h>
#include <tidemark/detail/vector.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/instancenorm.h>

#include <array>
#include <cmath>
#include <memory>
#include <optional>
#include <vector>

namespace tidemark::detail {

/// A BatchNorm or InstanceNorm module.
struct Norm {
  /// Null where it averages all batches.
  [[nodiscard]] double* momentum() const {
    return optional_momentum != nullptr && optional_momentum->has_value() ? &**optional_momentum
                                                                          : plain_momentum;
  }

  std::shared_ptr<torch::nn::Module> module;  // keeps what the others point to
  std::array<const at::Tensor*, 3> statistics;
  double* plain_momentum = nullptr;                    // of InstanceNorm
  std::optional<double>* optional_momentum = nullptr;  // of BatchNorm
  double original = 0;                                 // momentum
  double corrected = 0;                                // momentum, once CorrectedMomenta has set it
};

inline void set_momentum(Norm& norm, double& momentum) { norm.plain_momentum = &momentum; }
inline void set_momentum(Norm& norm, std::optional<double>& momentum) {
  norm.optional_momentum = &momentum;
}

template <class Impl>
void add_norm(const std::shared_ptr<torch::nn::Module>& module, Vector<Norm>& norms) {
  if (auto* impl = module->as<Impl>()) {
    norms.push_back(
        {module, {&impl->running_mean, &impl->running_var, &impl->num_batches_tracked}});
    set_momentum(norms.back(), impl->options.momentum());
  }
}

/// Every BatchNorm and InstanceNorm module in `root`.
inline Vector<Norm> norms_in(const std::shared_ptr<torch::nn::Module>& root) {
  auto modules = root->modules(/*include_self=*/false);
  modules.push_back(root);
  Vector<Norm> norms;
  for (const auto& module : modules) {
    add_norm<torch::nn::BatchNorm1dImpl>(module, norms);
    add_norm<torch::nn::BatchNorm2dImpl>(module, norms);
    add_norm<torch::nn::BatchNorm3dImpl>(module, norms);
    add_norm<torch::nn::InstanceNorm1dImpl>(module, norms);
    add_norm<torch::nn::InstanceNorm2dImpl>(module, norms);
    add_norm<torch::nn::InstanceNorm3dImpl>(module, norms);
  }
  return norms;
}

/// Momenta of running statistics, corrected for windows of several micro-batches while it lives.
class CorrectedMomenta {
 public:
  explicit CorrectedMomenta(const std::shared_ptr<torch::nn::Module>& root)
      : norms_(norms_in(root)) {}
  CorrectedMomenta(const CorrectedMomenta&) = delete;
  CorrectedMomenta& operator=(const CorrectedMomenta&) = delete;
  ~CorrectedMomenta() {
    for (auto& norm : norms_) {
      if (double* momentum = norm.momentum(); momentum != nullptr && *momentum == norm.corrected) {
        *momentum = norm.original;
      }
    }
  }

  /// Makes a window of so many micro-batches move the statistics as far as one batch would. What
  /// somebody else has set since the last call is corrected in its turn.
  void correct(double micro_batches) {
    for (auto& norm : norms_) {
      double* momentum = norm.momentum();
      if (momentum == nullptr) {
        continue;
      }
      if (*momentum != norm.corrected) {
        norm.original = *momentum;
      }
      norm.corrected = micro_batches == 1 || norm.original >= 1
                           ? norm.original
                           : 1 - std::pow(1 - norm.original, 1 / micro_batches);
      *momentum = norm.corrected;
    }
  }

 private:
  Vector<Norm> norms_;
};

/// The running statistics in `root`: the tensors themselves.
inline std::vector<at::Tensor> running_statistics(const std::shared_ptr<torch::nn::Module>& root) {
  std::vector<at::Tensor> statistics;
  for (const auto& norm : norms_in(root)) {
    for (const auto* tensor : norm.statistics) {
      if (tensor->defined()) {
        statistics.push_back(*tensor);
      }
    }
  }
  return statistics;
}

}  // namespace tidemark::detail
