#pragma once

// The memory of a training step that has a name: parameters and what belongs to them.

#include <ATen/core/Tensor.h>
#include <c10/core/TensorImpl.h>
#include <tidemark/detail/held_bytes.h>
#include <tidemark/detail/optimizer_state.h>
#include <tidemark/memory/memory_report.h>
#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace tidemark::detail {

/// What a recording is about. All of it has to outlive the recording.
struct KnownMemory {
  const torch::nn::Module* model = nullptr;
  std::vector<const torch::optim::Optimizer*> optimizers;
  std::vector<at::Tensor> inputs;

  /// Calls `visit(name, parameter)` with the parameters of the model, and with those that only the
  /// optimizers have.
  template <class Visit>
  void for_each_parameter(Visit&& visit) const {
    std::unordered_map<const c10::TensorImpl*, bool> seen;
    const auto once = [&](const std::string& name, const at::Tensor& parameter) {
      if (parameter.defined() && seen.emplace(parameter.unsafeGetTensorImpl(), true).second) {
        visit(name, parameter);
      }
    };
    if (model != nullptr) {
      for (const auto& item : model->named_parameters()) {
        once(item.key(), item.value());
      }
    }
    for (const auto* optimizer : optimizers) {
      std::size_t group = 0;
      for (const auto& parameters : optimizer->param_groups()) {
        std::size_t index = 0;
        for (const at::Tensor& parameter : parameters.params()) {
          once("parameter " + std::to_string(index++) + " of group " + std::to_string(group),
               parameter);
        }
        ++group;
      }
    }
  }

  /// Calls `visit(storage, category, name)` with the memory of gradients.
  template <class Visit>
  void for_each_gradient(Visit&& visit) const {
    for_each_parameter([&](const std::string& name, const at::Tensor& parameter) {
      if (parameter.grad().defined()) {
        visit_storages(parameter.grad(), MemoryCategory::kGradients, name + ".grad", visit);
      }
    });
  }

  /// The same with all that is known.
  template <class Visit>
  void for_each(Visit&& visit) const {
    std::unordered_map<const c10::TensorImpl*, std::string> names;
    for_each_parameter([&](const std::string& name, const at::Tensor& parameter) {
      names.emplace(parameter.unsafeGetTensorImpl(), name);
      visit_storages(parameter, MemoryCategory::kParameters, name, visit);
    });
    for_each_gradient(visit);
    for (const auto* optimizer : optimizers) {
      for_each_state_tensor(*optimizer, [&](const c10::TensorImpl* parameter,
                                            const std::string& name, const at::Tensor& tensor) {
        const auto known = names.find(parameter);
        const std::string owner = known != names.end() ? known->second + '.' : "";
        visit_storages(tensor, MemoryCategory::kOptimizerState, owner + name, visit);
      });
    }
    if (model != nullptr) {
      for (const auto& item : model->named_buffers()) {
        if (item.value().defined()) {
          visit_storages(item.value(), MemoryCategory::kBuffers, item.key(), visit);
        }
      }
    }
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      if (inputs[i].defined()) {
        visit_storages(inputs[i], MemoryCategory::kInputs, "input " + std::to_string(i), visit);
      }
    }
  }

 private:
  template <class Visit>
  static void visit_storages(const at::Tensor& tensor, MemoryCategory category,
                             const std::string& name, Visit&& visit) {
    for_each_storage(tensor, [&](const c10::Storage& storage) { visit(storage, category, name); });
  }
};

}  // namespace tidemark::detail
