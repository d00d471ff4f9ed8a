#pragma once

// Gradients, divided by the scale and looked through for inf and NaN, without waiting for a device.

#include <ATen/core/Tensor.h>
#include <ATen/ops/_amp_foreach_non_finite_check_and_unscale.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/view_as_real.h>
#include <ATen/ops/zeros.h>
#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>
#include <c10/core/TensorImpl.h>
#include <c10/core/UndefinedTensorImpl.h>
#include <c10/util/intrusive_ptr.h>

#include <algorithm>
#include <cstdint>
#include <unordered_map>
#include <utility>
#include <vector>

namespace tidemark::detail {

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
  const auto values = gradient.is_sparse() ? gradient._values() : gradient;
  return values.is_complex() ? at::view_as_real(values) : values;
}

/// What _amp_foreach_non_finite_check_and_unscale_ does, for devices whose kernel lacks a dtype.
inline void check_and_unscale_by_parts(at::TensorList gradients, at::Tensor& found_inf,
                                       const at::Tensor& inv_scale) {
  for (const auto& gradient : gradients) {
    found_inf.masked_fill_(at::isfinite(gradient).all().logical_not(), 1);
    gradient.mul_(broadcast_like(inv_scale, gradient));
  }
}

/// Multiplies tensors of one dtype on one device by `inv_scale`, in float32 where they are
/// narrower, and sets `found_inf` to 1 where one was not finite. In place.
inline void check_and_unscale(at::TensorList gradients, at::Tensor& found_inf,
                              const at::Tensor& inv_scale) {
  // The CUDA kernel has no bfloat16 (pytorch#127176).
  const bool by_parts =
      gradients.front().scalar_type() == at::kBFloat16 && !gradients.front().is_cpu();
  if (by_parts) {
    check_and_unscale_by_parts(gradients, found_inf, inv_scale);
  } else {
    at::_amp_foreach_non_finite_check_and_unscale_(gradients, found_inf, inv_scale);
  }
}

/// The same for the values of gradients of any kind. Returns a number on the device of `inv_scale`
/// that is 0 where all were finite.
inline at::Tensor check_and_unscale_all(const std::vector<at::Tensor>& gradients,
                                        const at::Tensor& inv_scale) {
  struct Bucket {
    c10::Device device;
    c10::ScalarType dtype;
    std::vector<at::Tensor> values;
  };
  std::vector<Bucket> buckets;
  for (const auto& gradient : gradients) {
    const auto values = values_of(gradient);
    const auto fits = [&](const Bucket& bucket) {
      return bucket.device == values.device() && bucket.dtype == values.scalar_type();
    };
    auto bucket = std::find_if(buckets.begin(), buckets.end(), fits);
    if (bucket == buckets.end()) {
      bucket = buckets.insert(bucket, {values.device(), values.scalar_type(), {}});
    }
    bucket->values.push_back(values);
  }
  auto all_found = at::zeros({}, inv_scale.options());
  DeviceCopies inverses(inv_scale);
  for (const auto& bucket : buckets) {
    auto found = at::zeros({}, inv_scale.options().device(bucket.device));
    check_and_unscale(bucket.values, found, inverses.on(bucket.device));
    all_found += on_device(found, inv_scale.device());
  }
  return all_found;
}

/// The gradients that were unscaled since the last update, so that none is unscaled twice. Keeps
/// none of them alive.
class UnscaledGradients {
 public:
  [[nodiscard]] bool contains(const at::Tensor& gradient) const {
    return entries_.count(gradient.unsafeGetTensorImpl()) != 0;
  }

  /// Whether a gradient that it contains was written to since.
  [[nodiscard]] bool changed(const at::Tensor& gradient) const {
    return entries_.at(gradient.unsafeGetTensorImpl()).version != gradient._version();
  }

  /// Adds a gradient as it is now, or notes that it is now unscaled as it is.
  void insert(const at::Tensor& gradient) {
    entries_.insert_or_assign(gradient.unsafeGetTensorImpl(),
                              Entry{WeakTensor(gradient.getIntrusivePtr()), gradient._version()});
  }

  void clear() { entries_.clear(); }

 private:
  using WeakTensor = c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;
  struct Entry {
    WeakTensor tensor;  // so that no other tensor gets the address
    int64_t version;
  };
  std::unordered_map<const c10::TensorImpl*, Entry> entries_;
};

}  // namespace tidemark::detail
