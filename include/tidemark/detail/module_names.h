#pragma once

// Which module a tensor belongs to. Modules in C++ have no hooks, but an op shows what it reads.

#include <ATen/core/Tensor.h>
#include <c10/core/StorageImpl.h>
#include <c10/util/intrusive_ptr.h>
#include <torch/nn/module.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace tidemark::detail {

/// The nearest module that both are, or are in: "net.a" for "net.a.conv1" and "net.a.conv2"; "" is
/// the model itself.
inline std::string common_parent(std::string_view a, std::string_view b) {
  std::size_t shared = 0;
  for (std::size_t i = 0; i <= a.size() && i <= b.size(); ++i) {
    const bool a_ends = i == a.size() || a[i] == '.';
    const bool b_ends = i == b.size() || b[i] == '.';
    if (a_ends && b_ends) {
      shared = i;
    }
    if (i == a.size() || i == b.size() || a[i] != b[i]) {
      break;
    }
  }
  return std::string(a.substr(0, shared));
}

/// Where a tensor is registered.
struct TensorName {
  std::string name;  ///< "net.conv1.weight"
  bool parameter;    ///< or a buffer

  /// "net.conv1"; "" is the model itself.
  [[nodiscard]] std::string module() const {
    const auto dot = name.rfind('.');
    return dot == std::string::npos ? "" : name.substr(0, dot);
  }
};

/// The names of a model's parameters and buffers, found by the memory that they are. A view of one
/// has its name, and several that share a storage (flattened weights of an RNN) are told apart by
/// where they begin. A tensor that is registered twice has its first name.
///
/// Not thread-safe. The model has to outlive it.
class ModuleNames {
 public:
  explicit ModuleNames(const torch::nn::Module& model) : model_(&model) { refresh(); }

  /// Looks at what the model has now.
  void refresh() {
    const auto before = std::exchange(ranges_, {});
    for (const auto& item : model_->named_parameters()) {
      add(item.value(), TensorName{item.key(), true});
    }
    for (const auto& item : model_->named_buffers()) {
      add(item.value(), TensorName{item.key(), false});
    }
    for (const auto& [begin, range] : before) {
      if (!range.name.has_value() && !range.storage.expired()) {
        ranges_.emplace(begin, range);
      }
    }
  }

  /// The name of what `tensor` is, or is a view of; nullptr if the model does not have it. Valid
  /// until the next call. A leaf that requires grad and was never seen may have taken a parameter's
  /// place, so the model is looked at again.
  const TensorName* find(const at::Tensor& tensor) {
    if (!is_memory(tensor)) {
      return nullptr;
    }
    const Range* range = range_of(tensor);
    if (range == nullptr && tensor.is_leaf() && tensor.requires_grad()) {
      refresh();
      range = range_of(tensor);
      if (range == nullptr) {
        add(tensor, std::nullopt);
      }
    }
    return range != nullptr && range->name.has_value() ? &*range->name : nullptr;
  }

 private:
  using Begin = std::pair<const c10::StorageImpl*, int64_t>;
  struct Range {
    c10::weak_intrusive_ptr<c10::StorageImpl> storage;  // so that its address stays taken
    int64_t end;
    std::optional<TensorName> name;  // none: known to be no tensor of the model
  };

  static bool is_memory(const at::Tensor& tensor) {
    return tensor.defined() && tensor.has_storage() && tensor.numel() != 0;
  }
  static Begin begin_of(const at::Tensor& tensor) {
    return {tensor.storage().unsafeGetStorageImpl(),
            tensor.storage_offset() * static_cast<int64_t>(tensor.itemsize())};
  }

  void add(const at::Tensor& tensor, std::optional<TensorName> name) {
    if (!is_memory(tensor)) {
      return;
    }
    int64_t last = 0;
    for (int64_t i = 0; i < tensor.dim(); ++i) {
      last += (tensor.size(i) - 1) * tensor.stride(i);
    }
    const Begin begin = begin_of(tensor);
    ranges_.emplace(
        begin,
        Range{c10::weak_intrusive_ptr<c10::StorageImpl>(tensor.storage().getWeakStorageImpl()),
              begin.second + (last + 1) * static_cast<int64_t>(tensor.itemsize()),
              std::move(name)});
  }

  // The range that the tensor begins in.
  [[nodiscard]] const Range* range_of(const at::Tensor& tensor) const {
    const Begin begin = begin_of(tensor);
    auto found = ranges_.upper_bound(begin);
    if (found == ranges_.begin()) {
      return nullptr;
    }
    --found;
    const bool inside = found->first.first == begin.first && begin.second < found->second.end;
    return inside ? &found->second : nullptr;
  }

  const torch::nn::Module* model_;
  std::map<Begin, Range> ranges_;
};

}  // namespace tidemark::detail
