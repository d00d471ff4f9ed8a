#pragma once

// What a region wrote to, as it was before: to be put back for a re-run, and taken away again.

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <tidemark/detail/op_pause.h>
#include <tidemark/detail/storage_locks.h>
#include <tidemark/detail/tensor_meta.h>
#include <tidemark/detail/vector.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace tidemark::detail {

/// All bytes of a storage as a tensor that shares it.
inline at::Tensor bytes_of(const c10::Storage& storage) {
  return at::empty({0}, at::TensorOptions().dtype(at::kByte).device(storage.device()))
      .set_(storage, 0, {static_cast<int64_t>(storage.nbytes())}, {1});
}

/// A copy of a storage's bytes in memory of the program's own, for when its device has no more.
inline at::Tensor bytes_on_host(const c10::Storage& storage) {
  const auto size = static_cast<int64_t>(storage.nbytes());
  const std::shared_ptr<char[]> memory(new char[storage.nbytes()]);
  return at::from_blob(
             memory.get(), {size}, [memory](void*) {}, at::kByte)
      .copy_(bytes_of(storage));
}

/// A storage before the region's first write to it.
struct WriteSnapshot {
  /// Without values: those of `before` are to be set where they matter.
  explicit WriteSnapshot(const at::Tensor& written)
      : storage(written.storage().getWeakStorageImpl()),
        counter(written.unsafeGetTensorImpl()->version_counter()),
        meta(describe(written)) {}

  /// Undoes the writes, unless the storage was resized. Allocates nothing, so it also works when
  /// memory has run out. The version stays: what was saved since the write goes by it.
  void put_back() const {
    auto alive = storage.lock();
    if (alive && before.defined() && alive->nbytes() == before.nbytes()) {
      bytes_of(c10::Storage(std::move(alive))).copy_(before);
    }
  }

  c10::weak_intrusive_ptr<c10::StorageImpl> storage;
  c10::VariableVersion counter;
  std::string meta;
  at::Tensor before;
  bool for_undo = false;  // no re-run needs the values: the region's first write was to all of it
};

/// The storages of snapshots.
inline Vector<const c10::StorageImpl*> storages_of(const Vector<WriteSnapshot>& snapshots) {
  Vector<const c10::StorageImpl*> result;
  for (const WriteSnapshot& snapshot : snapshots) {
    result.push_back(snapshot.storage._unsafe_get_target());
  }
  return result;
}

/// While alive, the storages hold what they held before the region's forward wrote to them, and no
/// other region may write to them; afterwards they hold again what they held, at the versions they
/// were at. Putting things back allocates nothing, so it also works when memory has run out.
class WriteReplay {
 public:
  /// `snapshots` must outlive this.
  WriteReplay(const Vector<WriteSnapshot>& snapshots, const std::string& region)
      : locks_(storages_of(snapshots)),
        snapshots_(snapshots),
        bytes_(snapshots.size()),
        today_(snapshots.size()),
        versions_(snapshots.size()) {
    const OpPause own_ops;
    const at::NoGradGuard no_grad;
    for (std::size_t i = 0; i < snapshots.size(); ++i) {
      const WriteSnapshot& snapshot = snapshots[i];
      auto storage = snapshot.storage.lock();
      if (!storage) {
        continue;  // the region made it itself, or will be found to read something else
      }
      bytes_[i] = bytes_of(c10::Storage(std::move(storage)));
      TORCH_CHECK(!snapshot.before.defined() || bytes_[i].numel() == snapshot.before.numel(),
                  "tidemark: a tensor that ", region, " writes (", snapshot.meta,
                  ") was resized between forward and backward. Resize it after backward().");
      today_[i] = bytes_[i].clone();
      versions_[i] = snapshot.counter.enabled() ? snapshot.counter.current_version() : 0;
    }
    // Nothing has changed until here, should memory run out.
    for (std::size_t i = 0; i < snapshots.size(); ++i) {
      if (bytes_[i].defined() && snapshots[i].before.defined()) {
        bytes_[i].copy_(snapshots[i].before);
      }
    }
  }
  WriteReplay(const WriteReplay&) = delete;
  WriteReplay& operator=(const WriteReplay&) = delete;

  /// Whether the tensor lives in one of the storages.
  [[nodiscard]] bool holds(const at::Tensor& tensor) const {
    for (const at::Tensor& bytes : bytes_) {
      if (bytes.defined() && tensor.has_storage() &&
          bytes.storage().is_alias_of(tensor.storage())) {
        return true;
      }
    }
    return false;
  }

  ~WriteReplay() {
    const OpPause own_ops;
    const at::NoGradGuard no_grad;
    for (std::size_t i = 0; i < bytes_.size(); ++i) {
      if (!bytes_[i].defined()) {
        continue;
      }
      bytes_[i].copy_(today_[i]);
      if (c10::VariableVersion counter = snapshots_[i].counter; counter.enabled()) {
        counter.set_version(versions_[i]);
      }
    }
  }

 private:
  StorageLocks locks_;
  const Vector<WriteSnapshot>& snapshots_;
  std::vector<at::Tensor> bytes_;  // of each snapshot's storage; undefined if that is gone
  std::vector<at::Tensor> today_;  // what they held
  std::vector<uint32_t> versions_;
};

}  // namespace tidemark::detail
