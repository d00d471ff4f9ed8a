#pragma once

// Density out of a network in mixed precision.

#include <torch/types.h>

namespace nerf {

/// exp(raw), in float32 whatever autocast makes of other ops; backward takes no raw value for more
/// than 15, so that what became too dense by mistake isn't thrown far away. As in Instant Neural
/// Graphics Primitives (Mueller et al., 2022), which has this activation in a kernel of its own.
torch::Tensor truncated_exp(const torch::Tensor& raw);

}  // namespace nerf
