#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>

#include <cstdint>

namespace tidemark::detail {

/// Remembers the version of a tensor when it was saved, without keeping its memory.
class VersionCheck {
 public:
  VersionCheck() = default;
  explicit VersionCheck(const at::Tensor& tensor)
      : counter_(tensor.unsafeGetTensorImpl()->version_counter()),
        version_(counter_.enabled() ? counter_.current_version() : 0) {}

  /// How many in-place writes the tensor has seen since.
  [[nodiscard]] uint32_t writes_since() const {
    return counter_.enabled() ? counter_.current_version() - version_ : 0;
  }

  /// Refuses what plain autograd refuses. `what` tells which tensor it is, and comes first in the
  /// message; it is called on failure only.
  template <class Describe>
  void expect_unchanged(Describe&& what) const {
    TORCH_CHECK(writes_since() == 0,
                "one of the variables needed for gradient computation has been modified by an "
                "inplace operation: ",
                what(), " is at version ", counter_.current_version(), "; expected version ",
                version_, " instead. Clone it before writing to it, or write after backward().");
  }

 private:
  c10::VariableVersion counter_;
  uint32_t version_ = 0;
};

}  // namespace tidemark::detail
