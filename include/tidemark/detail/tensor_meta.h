#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>

#include <sstream>
#include <string>
#include <utility>

namespace tidemark::detail {

/// What is known of a tensor without its memory.
struct TensorMeta {
  explicit TensorMeta(const at::Tensor& tensor)
      : sizes(tensor.sizes()),
        dtype(tensor.scalar_type()),
        device(tensor.device()),
        layout(tensor.layout()) {}

  friend bool operator==(const TensorMeta& a, const TensorMeta& b) {
    return a.sizes == b.sizes && a.dtype == b.dtype && a.device == b.device && a.layout == b.layout;
  }

  c10::SmallVector<int64_t, 5> sizes;
  at::ScalarType dtype;
  c10::Device device;
  c10::Layout layout;
};

/// "Float [2, 8, 4] on cpu", with the layout where it is not strided.
inline std::string describe(const TensorMeta& meta) {
  std::ostringstream out;
  out << c10::toString(meta.dtype) << ' ' << c10::IntArrayRef(meta.sizes) << " on " << meta.device;
  if (meta.layout != at::kStrided) {
    out << " (" << meta.layout << ')';
  }
  return std::move(out).str();
}

inline std::string describe(const at::Tensor& tensor) {
  return tensor.defined() ? describe(TensorMeta(tensor)) : "undefined";
}

}  // namespace tidemark::detail
