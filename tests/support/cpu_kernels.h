#pragma once

#include <ATen/autocast_mode.h>
#include <torch/torch.h>

#include <exception>

namespace tidemark::tests {

/// Whether LibTorch's autocast can run an LSTM in this dtype, which depends on the CPU's
/// instructions.
inline bool cpu_autocast_has_lstm(torch::ScalarType dtype) {
  const bool enabled_before = at::autocast::is_autocast_enabled(torch::kCPU);
  const auto dtype_before = at::autocast::get_autocast_dtype(torch::kCPU);
  at::autocast::set_autocast_dtype(torch::kCPU, dtype);
  at::autocast::set_autocast_enabled(torch::kCPU, true);
  bool runs = true;
  try {
    torch::nn::LSTM(3, 3)(torch::ones({2, 1, 3}));
  } catch (const std::exception&) {  // dnnl::error
    runs = false;
  }
  at::autocast::clear_cache();
  at::autocast::set_autocast_enabled(torch::kCPU, enabled_before);
  at::autocast::set_autocast_dtype(torch::kCPU, dtype_before);
  return runs;
}

}  // namespace tidemark::tests
