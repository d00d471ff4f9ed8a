#pragma once

// Lets go of what a backward pass that threw had still to do.

#include <ATen/core/Tensor.h>
#include <ATen/ops/zeros.h>

namespace tidemark::detail {

/// The engine's queue of a thread keeps the tasks of a failed pass, with their gradients and graph
/// nodes, until that thread starts the next pass. This is one: of a single number.
inline void drop_failed_backward() { at::zeros({}).requires_grad_().backward(); }

}  // namespace tidemark::detail
