#pragma once

// Tensors that count themselves: a leak shows as a number, whatever allocator is in use.

#include <torch/torch.h>

#include <algorithm>
#include <atomic>
#include <cstdint>

#include "autograd_functions.h"

namespace tidemark::tests {

/// How many counted tensors' memory is alive.
inline std::atomic<int>& alive() {
  static std::atomic<int> count{0};
  return count;
}

/// A float tensor full of 0.5 that counts in alive() until its memory is given back.
inline at::Tensor counted(at::IntArrayRef sizes) {
  const int64_t size = c10::multiply_integers(sizes);
  auto* data = new float[size];
  std::fill(data, data + size, 0.5F);
  ++alive();
  return torch::from_blob(data, sizes, [](void* memory) {
    delete[] static_cast<float*>(memory);
    --alive();
  });
}

/// exp(x) in a counted tensor, which the Function saves: its output owns the node that saves it.
struct CountedExp : torch::autograd::Function<CountedExp> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x) {
    at::Tensor y = counted(x.sizes());
    y.copy_(x.exp());
    context->save_for_backward({x, y});
    return y;
  }
  static variable_list backward(AutogradContext* context, variable_list grads) {
    return {grads[0] * context->get_saved_variables()[1]};
  }
};

}  // namespace tidemark::tests
