#pragma once

// The tensors in an optimizer's state, of whatever optimizer: those that it would save.

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <c10/core/TensorImpl.h>
#include <c10/util/Exception.h>
#include <torch/csrc/jit/api/module.h>
#include <torch/optim/optimizer.h>
#include <torch/serialize/output-archive.h>

#include <string>

namespace tidemark::detail {

// An archive can't be read before it is written out. An explicit instantiation may name a private
// member.
template <auto member>
struct ArchiveModule {
  friend const torch::jit::Module& module_of(const torch::serialize::OutputArchive& archive) {
    return archive.*member;
  }
};
const torch::jit::Module& module_of(const torch::serialize::OutputArchive& archive);
template struct ArchiveModule<&torch::serialize::OutputArchive::module_>;

/// Calls `visit(parameter, name, tensor)` with each tensor of the state that `optimizer` has for
/// its parameters, as "exp_avg". A state that can't be saved is passed over. Allocates no tensor.
template <class Visit>
void for_each_state_tensor(const torch::optim::Optimizer& optimizer, Visit&& visit) {
  for (const auto& [key, state] : optimizer.state()) {
    const auto* parameter = static_cast<const c10::TensorImpl*>(key);
    torch::serialize::OutputArchive archive;
    try {
      std::as_const(*state).serialize(archive);
    } catch (const c10::Error&) {
      continue;
    }
    for (const auto& attribute : module_of(archive).named_attributes(/*recurse=*/false)) {
      const auto use = [&](const at::Tensor& tensor) {
        if (tensor.defined()) {
          visit(parameter, attribute.name, tensor);
        }
      };
      if (attribute.value.isTensor()) {
        use(attribute.value.toTensor());
      } else if (attribute.value.isList()) {
        for (const c10::IValue& element : attribute.value.toListRef()) {
          if (element.isTensor()) {
            use(element.toTensor());
          }
        }
      }
    }
  }
}

}  // namespace tidemark::detail
