#include "gaussian_splatting/model.h"

#include <memory>
#include <stdexcept>
#include <string>
#include <utility>

namespace gaussian_splatting {

torch::Tensor replace_rows(torch::optim::Adam& optimizer, const torch::Tensor& kept,
                           const torch::Tensor& added) {
  torch::Tensor& parameter = optimizer.param_groups().front().params().front();
  torch::Tensor leaf =
      torch::cat({parameter.detach().index_select(0, kept), added.detach()}).requires_grad_();
  // the state is kept under the address of the old parameter
  auto& states = optimizer.state();
  const auto found = states.find(parameter.unsafeGetTensorImpl());
  if (found != states.end()) {
    auto state = std::move(found->second);
    states.erase(found);
    auto& adam = static_cast<torch::optim::AdamParamState&>(*state);
    const torch::Tensor nothing = torch::zeros_like(added);
    adam.exp_avg(torch::cat({adam.exp_avg().index_select(0, kept), nothing}));
    adam.exp_avg_sq(torch::cat({adam.exp_avg_sq().index_select(0, kept), nothing}));
    states[leaf.unsafeGetTensorImpl()] = std::move(state);
  }
  parameter = leaf;
  return leaf;
}

Model::Model(const Gaussians& gaussians, torch::Device device) {
  const Gaussians leaves = gaussians.as_leaves(device);
  for (size_t i = 0; i < kLearningRates.size(); ++i) {
    optimizers_.emplace_back(std::vector<torch::Tensor>{leaves.tensors()[i]},
                             torch::optim::AdamOptions(kLearningRates[i]));
  }
  take(leaves.tensors());
}

void Model::set_learning_rates(double factor) {
  for (size_t i = 0; i < optimizers_.size(); ++i) {
    optimizers_[i].param_groups().front().options().set_lr(factor * kLearningRates[i]);
  }
}

void Model::note(const torch::Tensor& gradients, const torch::Tensor& visible) {
  const torch::NoGradGuard no_grad;
  const torch::Tensor norms = gradients.norm(2, 1);
  const torch::Tensor counts = visible & norms.isfinite();
  sums_ += norms.masked_fill(~counts, 0);
  times_ += counts;
}

void Model::replace(const torch::Tensor& kept, const Gaussians& added) {
  std::array<torch::Tensor, 6> leaves = added.tensors();
  for (size_t i = 0; i < leaves.size(); ++i) {
    leaves[i] = replace_rows(optimizers_[i], kept, leaves[i]);
  }
  take(leaves);
}

void Model::take(const std::array<torch::Tensor, 6>& leaves) {
  gaussians_ = Gaussians::of(leaves);
  sums_ = torch::zeros({gaussians_.count()}, leaves[0].options().requires_grad(false));
  times_ = torch::zeros_like(sums_);
}

void Model::save(torch::serialize::OutputArchive& archive) const {
  const auto tensors = gaussians_.tensors();
  for (size_t i = 0; i < tensors.size(); ++i) {
    archive.write(Gaussians::kNames[i], tensors[i]);
    torch::serialize::OutputArchive state;
    optimizers_[i].save(state);
    archive.write(Gaussians::kNames[i] + std::string("_adam"), state);
  }
  archive.write("sums", sums_);
  archive.write("times", times_);
}

void Model::load(torch::serialize::InputArchive& archive) {
  std::array<torch::Tensor, 6> tensors;
  std::array<torch::serialize::InputArchive, 6> states;
  torch::Tensor sums, times;
  for (size_t i = 0; i < tensors.size(); ++i) {
    archive.read(Gaussians::kNames[i], tensors[i]);
    archive.read(Gaussians::kNames[i] + std::string("_adam"), states[i]);
    const auto now = gaussians_.tensors()[i].sizes().slice(1);
    if (tensors[i].dim() < 1 || tensors[i].sizes().slice(1) != now ||
        tensors[i].size(0) != tensors[0].size(0)) {
      throw std::runtime_error("the " + std::string(Gaussians::kNames[i]) +
                               " of the training state have the wrong shape");
    }
  }
  archive.read("sums", sums);
  archive.read("times", times);
  // no rows of what is there and all of what was saved, and then its state
  const torch::Device device = gaussians_.means.device();
  replace(torch::empty({0}, torch::device(device).dtype(torch::kInt64)),
          Gaussians::of(tensors).as_leaves(device));
  for (size_t i = 0; i < tensors.size(); ++i) {
    optimizers_[i].load(states[i]);
  }
  sums_ = sums;
  times_ = times;
}

}  // namespace gaussian_splatting
