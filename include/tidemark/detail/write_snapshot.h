#pragma once

// What a region wrote to, as it was before: to be put back for a re-run, and taken away again.

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <tidemark/detail/op_pause.h>
#include <tidemark/detail/storage_locks.h>
#include <tidemark/detail/tensor_meta.h>

#include <algorithm>
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

namespace tidemark::detail {

/// All bytes of a storage as a tensor that shares it.
inline at::Tensor bytes_of(const c10::Storage& storage) {
  return at::empty({0}, at::TensorOptions().dtype(at::kByte).device(storage.device()))
      .set_(storage, 0, {static_cast<int64_t>(storage.nbytes())}, {1});
}

/// A storage before the region's first write to it; without its values where that wrote all of it.
struct WriteSnapshot {
  WriteSnapshot(const at::Tensor& written, bool overwritten)
      : storage(written.storage().getWeakStorageImpl()),
        counter(written.unsafeGetTensorImpl()->version_counter()),
        meta(describe(written)),
        before(overwritten ? at::Tensor() : bytes_of(written.storage()).clone()) {}

  /// Undoes the writes.
  void put_back() const {
    auto alive = storage.lock();
    if (alive && before.defined()) {
      bytes_of(c10::Storage(std::move(alive))).copy_(before);
    }
  }

  c10::weak_intrusive_ptr<c10::StorageImpl> storage;
  c10::VariableVersion counter;
  std::string meta;
  at::Tensor before;
};

/// While alive, the storages hold what they held before the region's forward wrote to them, and no
/// other region may write to them; afterwards they hold again what they held, at the versions they
/// were at. Putting things back allocates nothing, so it also works when memory has run out.
class WriteReplay {
 public:
  WriteReplay(const std::vector<WriteSnapshot>& snapshots, const std::string& region)
      : locks_(storages(snapshots)) {
    const OpPause own_ops;
    const at::NoGradGuard no_grad;
    today_.reserve(snapshots.size());
    for (const WriteSnapshot& snapshot : snapshots) {
      auto storage = snapshot.storage.lock();
      if (!storage) {
        continue;  // the region made it itself, or will be found to read something else
      }
      at::Tensor bytes = bytes_of(c10::Storage(std::move(storage)));
      TORCH_CHECK(!snapshot.before.defined() || bytes.numel() == snapshot.before.numel(),
                  "tidemark: a tensor that ", region, " writes (", snapshot.meta,
                  ") was resized between forward and backward. Resize it after backward().");
      today_.push_back({bytes, bytes.clone(), snapshot.before, snapshot.counter,
                        snapshot.counter.enabled() ? snapshot.counter.current_version() : 0});
    }
    // Nothing has changed until here, should memory run out.
    for (Today& today : today_) {
      if (today.before.defined()) {
        today.bytes.copy_(today.before);
      }
    }
  }
  WriteReplay(const WriteReplay&) = delete;
  WriteReplay& operator=(const WriteReplay&) = delete;

  /// Whether the tensor lives in one of the storages.
  [[nodiscard]] bool holds(const at::Tensor& tensor) const {
    return tensor.has_storage() &&
           std::any_of(today_.begin(), today_.end(), [&](const Today& today) {
             return today.bytes.storage().is_alias_of(tensor.storage());
           });
  }

  ~WriteReplay() {
    const OpPause own_ops;
    const at::NoGradGuard no_grad;
    for (Today& today : today_) {
      today.bytes.copy_(today.value);
      if (today.counter.enabled()) {
        today.counter.set_version(today.version);
      }
    }
  }

 private:
  struct Today {
    at::Tensor bytes;
    at::Tensor value;
    at::Tensor before;
    c10::VariableVersion counter;
    uint32_t version;
  };

  static std::vector<const c10::StorageImpl*> storages(
      const std::vector<WriteSnapshot>& snapshots) {
    std::vector<const c10::StorageImpl*> result;
    for (const WriteSnapshot& snapshot : snapshots) {
      result.push_back(snapshot.storage._unsafe_get_target());
    }
    return result;
  }

  StorageLocks locks_;
  std::vector<Today> today_;
};

}  // namespace tidemark::detail
