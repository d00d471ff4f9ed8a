#pragma once

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <tidemark/detail/fingerprint.h>
#include <tidemark/detail/op_pause.h>

#include <cstdint>

namespace tidemark::detail {

/// A hash of all that a tensor holds; 0 where that is not a region's to decide: kernels of RNNs
/// leave parts of their byte workspace as they found them.
inline uint64_t content_hash(const at::Tensor& tensor) {
  if (!tensor.defined() || tensor.layout() != at::kStrided || tensor.scalar_type() == at::kByte) {
    return 0;
  }
  const OpPause own_ops;
  const at::NoGradGuard no_grad;
  const at::Tensor data = tensor.detach().cpu().contiguous();
  Hash hash;
  hash.add_bytes(data.const_data_ptr(), data.nbytes());
  return hash.value();
}

}  // namespace tidemark::detail
