#pragma once

// What training changes: the Gaussians, an Adam for each of their attributes, and the gradients
// that say where more of them are needed.

#include <torch/torch.h>

#include <array>
#include <cstdint>
#include <vector>

#include "gaussian_splatting/gaussians.h"

namespace gaussian_splatting {

/// Of the attributes, in the order of Gaussians::kNames; for objects about 1 wide.
inline constexpr std::array<double, 6> kLearningRates{0.004, 0.02, 0.01, 0.05, 0.02, 0.002};

class Model {
 public:
  Model(const Gaussians& gaussians, torch::Device device);
  Model(const Model&) = delete;
  Model& operator=(const Model&) = delete;

  [[nodiscard]] const Gaussians& gaussians() const { return gaussians_; }
  [[nodiscard]] std::vector<torch::optim::Adam>& optimizers() { return optimizers_; }

  /// Multiplies the rates of kLearningRates.
  void set_learning_rates(double factor);

  /// Notes the gradients of a view's loss by the places on the screen, [N, 2] in pixels; those of
  /// Gaussians that weren't visible, and those that overflowed, don't count.
  void note(const torch::Tensor& gradients, const torch::Tensor& visible);

  /// The mean norm of what was noted since the last change of the Gaussians, [N].
  [[nodiscard]] torch::Tensor noted() const { return sums_ / times_.clamp_min(1); }

  /// New leaf tensors: the rows `kept` of the Gaussians, then `added`. The state of the optimizers
  /// goes along with the rows that are kept; that of new ones is zero. What was noted is forgotten.
  void replace(const torch::Tensor& kept, const Gaussians& added);

  /// All of it, for any number of Gaussians. Throws std::runtime_error, or c10::Error, if that is
  /// not what was saved.
  void save(torch::serialize::OutputArchive& archive) const;
  void load(torch::serialize::InputArchive& archive);

 private:
  void take(const std::array<torch::Tensor, 6>& leaves);

  Gaussians gaussians_;
  std::vector<torch::optim::Adam> optimizers_;
  torch::Tensor sums_;   // [N], of the norms
  torch::Tensor times_;  // [N], in how many views
};

/// Replaces the one parameter of an Adam by the rows `kept` of it, then `added`, and its state
/// likewise. Returns the new parameter, which requires grad.
torch::Tensor replace_rows(torch::optim::Adam& optimizer, const torch::Tensor& kept,
                           const torch::Tensor& added);

}  // namespace gaussian_splatting
