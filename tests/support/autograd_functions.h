#pragma once

// Custom autograd Functions, each with a habit that a checkpointed region has to cope with.

#include <torch/torch.h>

namespace tidemark::tests {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// x * y; backward asks for its saved tensors once for each of them.
struct UnpacksTwice : torch::autograd::Function<UnpacksTwice> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& y) {
    context->save_for_backward({x, y});
    return x * y;
  }
  static variable_list backward(AutogradContext* context, variable_list grads) {
    const at::Tensor x = context->get_saved_variables()[0];
    const at::Tensor y = context->get_saved_variables()[1];
    return {grads[0] * y, grads[0] * x};
  }
};

/// exp(x); saves its outputs, which own the node that saves them.
struct SavesOutputs : torch::autograd::Function<SavesOutputs> {
  static variable_list forward(AutogradContext* context, const at::Tensor& x) {
    at::Tensor y = x.exp();
    at::Tensor z = 2 * y;
    context->save_for_backward({x, y, z});
    return {y, z};
  }
  static variable_list backward(AutogradContext* context, variable_list grads) {
    const auto saved = context->get_saved_variables();
    return {grads[0] * saved[1] + grads[1] * saved[2]};
  }
};

/// Writes exp(x) into x.
struct ExpInPlace : torch::autograd::Function<ExpInPlace> {
  static at::Tensor forward(AutogradContext* context, at::Tensor x) {
    x.exp_();
    context->mark_dirty({x});
    context->save_for_backward({x});
    return x;
  }
  static variable_list backward(AutogradContext* context, variable_list grads) {
    return {grads[0] * context->get_saved_variables()[0]};
  }
};

/// The largest element of each row and where it is; the second output has no gradient.
struct RowMax : torch::autograd::Function<RowMax> {
  static variable_list forward(AutogradContext* context, const at::Tensor& x) {
    auto [values, indices] = x.max(1);
    context->mark_non_differentiable({indices});
    context->save_for_backward({indices});
    context->saved_data["columns"] = x.size(1);
    return {values, indices};
  }
  static variable_list backward(AutogradContext* context, variable_list grads) {
    const at::Tensor indices = context->get_saved_variables()[0];
    const int64_t columns = context->saved_data["columns"].toInt();
    return {grads[0]
                .new_zeros({indices.size(0), columns})
                .scatter(1, indices.unsqueeze(1), grads[0].unsqueeze(1))};
  }
};

/// x * sum(leaf * leaf) for a leaf that it makes itself and that is no input of it.
struct SavesALeafOfItsOwn : torch::autograd::Function<SavesALeafOfItsOwn> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x) {
    at::Tensor leaf = torch::full({3}, 2.0, x.options()).requires_grad_();
    context->save_for_backward({leaf});
    return x * leaf.detach().square().sum();
  }
  static variable_list backward(AutogradContext* context, variable_list grads) {
    return {grads[0] * context->get_saved_variables()[0].detach().square().sum()};
  }
};

}  // namespace tidemark::tests
