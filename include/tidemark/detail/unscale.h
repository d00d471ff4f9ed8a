#pragma once

// Gradients, divided by the scale and looked through for inf and NaN, without waiting for a device.

#include <ATen/core/Tensor.h>
#include <ATen/ops/_amp_foreach_non_finite_check_and_unscale.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/view_as_real.h>
#include <ATen/ops/zeros.h>
#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>
#include <c10/core/TensorImpl.h>
#include <c10/core/UndefinedTensorImpl.h>
#include <c10/util/intrusive_ptr.h>
#include <tidemark/detail/vector.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

namespace tidemark::detail {

/// Refers to gradients where their parameters keep them.
using GradientRefs = Vector<const at::Tensor*>;

/// `tensor` on `device`, without waiting where that is safe: a copy to the CPU is read at once.
inline at::Tensor on_device(const at::Tensor& tensor, c10::Device device) {
  return tensor.to(device, tensor.scalar_type(), /*non_blocking=*/!device.is_cpu());
}

/// One copy of a tensor for each device that asks.
class DeviceCopies {
 public:
  explicit DeviceCopies(at::Tensor original) { copies_.push_back(std::move(original)); }

  [[nodiscard]] at::Tensor on(c10::Device device) {
    for (const auto& copy : copies_) {
      if (copy.device() == device) {
        return copy;
      }
    }
    return copies_.emplace_back(on_device(copies_.front(), device));
  }

 private:
  std::vector<at::Tensor> copies_;
};

/// `number`, of one element, with as many dimensions as `tensor`, for only then does a product of
/// the two get the wider dtype.
inline at::Tensor broadcast_like(const at::Tensor& number, const at::Tensor& tensor) {
  return number.view(std::vector<int64_t>(static_cast<size_t>(tensor.dim()), 1));
}

/// The real, strided tensor with the memory of a gradient's values.
inline at::Tensor values_of(const at::Tensor& gradient) {
  auto values = gradient.is_sparse() ? gradient._values() : gradient;
  return values.is_complex() ? at::view_as_real(values) : std::move(values);
}

/// Sets `found_inf` to 1 where a gradient is not finite.
inline void note_nonfinite(at::TensorList gradients, at::Tensor& found_inf) {
  for (const auto& gradient : gradients) {
    found_inf.masked_fill_(at::isfinite(gradient).all().logical_not(), 1);
  }
}

inline void multiply(at::TensorList gradients, const at::Tensor& inv_scale) {
  for (const auto& gradient : gradients) {
    gradient.mul_(broadcast_like(inv_scale, gradient));
  }
}

/// What _amp_foreach_non_finite_check_and_unscale_ does, for devices whose kernel lacks a dtype.
inline void check_and_unscale_by_parts(at::TensorList gradients, at::Tensor& found_inf,
                                       const at::Tensor& inv_scale) {
  note_nonfinite(gradients, found_inf);
  multiply(gradients, inv_scale);
}

/// Gradients of one dtype on one device.
struct GradientBucket {
  c10::Device device;
  c10::ScalarType dtype;
  std::vector<at::Tensor> values;
  at::Tensor inv_scale;
  at::Tensor found_inf;

  [[nodiscard]] bool takes(const at::Tensor& more) const {
    return device == more.device() && dtype == more.scalar_type();
  }

  // The CUDA kernel of _amp_foreach_non_finite_check_and_unscale_ has no bfloat16 (pytorch#127176).
  [[nodiscard]] bool by_parts() const { return dtype == at::kBFloat16 && !device.is_cpu(); }

  /// What may run out of memory: to be called for all buckets before one is unscaled.
  void prepare(DeviceCopies& inverses, const at::TensorOptions& number) {
    inv_scale = inverses.on(device);
    found_inf = at::zeros({}, number.device(device));
    if (by_parts()) {
      note_nonfinite(values, found_inf);
    }
  }

  /// Multiplies by `inv_scale`, in float32 where gradients are narrower, and sets `found_inf` to 1
  /// where one was not finite. In place; allocates nothing.
  void unscale() {
    if (by_parts()) {
      multiply(values, inv_scale);
    } else {
      at::_amp_foreach_non_finite_check_and_unscale_(values, found_inf, inv_scale);
    }
  }
};

/// Multiplies the values of gradients of any kind by `inv_scale`, all of them or, if memory runs
/// out, none. Returns a number on its device that is 0 where all were finite.
inline at::Tensor check_and_unscale_all(const GradientRefs& gradients,
                                        const at::Tensor& inv_scale) {
  Vector<GradientBucket> buckets;
  for (const auto* gradient : gradients) {
    auto values = values_of(*gradient);
    size_t i = 0;
    while (i < buckets.size() && !buckets[i].takes(values)) {
      ++i;
    }
    if (i == buckets.size()) {
      buckets.push_back({values.device(), values.scalar_type(), {}, {}, {}});
      buckets.back().values.reserve(gradients.size());
    }
    buckets[i].values.push_back(std::move(values));
  }
  DeviceCopies inverses(inv_scale);
  for (auto& bucket : buckets) {
    bucket.prepare(inverses, inv_scale.options());
  }
  auto all_found = at::zeros({}, inv_scale.options());
  auto from_elsewhere = at::empty_like(all_found);
  for (auto& bucket : buckets) {
    bucket.unscale();
    const bool here = bucket.device == all_found.device();
    all_found.add_(here ? bucket.found_inf
                        : from_elsewhere.copy_(bucket.found_inf,
                                               /*non_blocking=*/!all_found.is_cpu()));
  }
  return all_found;
}

/// Sorts gradients by address, and leaves each once.
inline void sort_by_address(GradientRefs& gradients) {
  std::sort(gradients.begin(), gradients.end(), [](const at::Tensor* a, const at::Tensor* b) {
    return std::less<>()(a->unsafeGetTensorImpl(), b->unsafeGetTensorImpl());
  });
  const auto same = [](const at::Tensor* a, const at::Tensor* b) { return a->is_same(*b); };
  gradients.erase(std::unique(gradients.begin(), gradients.end(), same), gradients.end());
}

/// A gradient, or none, at a version. Does not keep it alive, but no other tensor gets its address.
class GradientVersion {
 public:
  explicit GradientVersion(const at::Tensor& gradient = {})
      : tensor_(gradient.getIntrusivePtr()), version_(version_of(gradient)) {}

  [[nodiscard]] const c10::TensorImpl* address() const { return tensor_._unsafe_get_target(); }

  [[nodiscard]] bool is_current(const at::Tensor& gradient) const {
    return address() == gradient.unsafeGetTensorImpl() && version_ == version_of(gradient);
  }

 private:
  static int64_t version_of(const at::Tensor& gradient) {
    return gradient.defined() ? gradient._version() : 0;
  }

  c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl> tensor_;
  int64_t version_;
};

/// The gradients that were unscaled since the last update, so that none is unscaled twice. Keeps
/// none of them alive. Sorted by address: a step has thousands of them, and hashing each would cost
/// as much as unscaling it.
class UnscaledGradients {
 public:
  [[nodiscard]] bool contains(const at::Tensor& gradient) const {
    const auto at = place_of(gradient);
    return at != entries_.end() && at->address() == gradient.unsafeGetTensorImpl();
  }

  /// Whether a gradient that it contains was written to since.
  [[nodiscard]] bool changed(const at::Tensor& gradient) const {
    return !place_of(gradient)->is_current(gradient);
  }

  /// Notes that a gradient which it contains is unscaled as it is now.
  void refresh(const at::Tensor& gradient) {
    const auto at = place_of(gradient) - entries_.begin();
    entries_[static_cast<size_t>(at)] = GradientVersion(gradient);
  }

  /// Adds gradients that it doesn't contain, sorted by sort_by_address().
  void insert(const GradientRefs& gradients) {
    size_t old = entries_.size();
    size_t added = gradients.size();
    entries_.resize(old + added);
    while (added > 0) {  // from the back, so that each entry moves at most once
      const auto& gradient = *gradients[added - 1];
      if (old > 0 && is_before(gradient, entries_[old - 1])) {
        entries_[old + added - 1] = std::move(entries_[old - 1]);
        --old;
      } else {
        entries_[old + added - 1] = GradientVersion(gradient);
        --added;
      }
    }
  }

  void reserve(size_t more) { entries_.reserve(entries_.size() + more); }

  void clear() { entries_.clear(); }

 private:
  static bool is_before(const at::Tensor& gradient, const GradientVersion& entry) {
    return std::less<>()(gradient.unsafeGetTensorImpl(), entry.address());
  }

  // That of a gradient, or of the one behind the place where it would be.
  [[nodiscard]] Vector<GradientVersion>::const_iterator place_of(const at::Tensor& gradient) const {
    return std::lower_bound(entries_.begin(), entries_.end(), gradient.unsafeGetTensorImpl(),
                            [](const GradientVersion& entry, const c10::TensorImpl* address) {
                              return std::less<>()(entry.address(), address);
                            });
  }

  Vector<GradientVersion> entries_;
};

}  // namespace tidemark::detail
