#pragma once

// Counts what autograd graphs hold: hooks that keep a saved tensor as autograd would, and an
// account of the storages behind them.

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/StorageImpl.h>
#include <c10/util/intrusive_ptr.h>
#include <tidemark/detail/engine_facade.h>
#include <tidemark/detail/saved_tensor_hooks.h>
#include <torch/csrc/autograd/saved_variable_hooks.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

namespace tidemark::detail {

inline namespace process_v1 {

/// Is told of the storages that saved tensors hold. Shared by the scope that asks and by the hooks,
/// which may outlive it and die on any thread. Thread-safe.
class SavedAccount {
 public:
  SavedAccount() = default;
  SavedAccount(const SavedAccount&) = delete;
  SavedAccount& operator=(const SavedAccount&) = delete;
  virtual ~SavedAccount() = default;

  /// One more saved tensor holds `storage`. What it returns is given back to remove().
  virtual int64_t add(const c10::Storage& storage) = 0;

  /// That saved tensor is gone.
  virtual void remove(c10::StorageImpl* storage, int64_t number) noexcept = 0;
};

/// The storages that saved tensors hold, each counted once.
class HeldBytes final : public SavedAccount {
 public:
  explicit HeldBytes(std::optional<c10::Device> device) : device_(device) {}

  int64_t add(const c10::Storage& storage) override {
    const c10::StorageImpl* const address = storage.unsafeGetStorageImpl();
    const int64_t bytes = bytes_of(*address);
    const std::lock_guard<std::mutex> lock(mutex_);
    if (held_.size() == held_.capacity()) {
      held_.reserve(2 * held_.size() + 1);  // lest push_back() throws once the index is there
    }
    const auto [found, added] = indices_.try_emplace(address, held_.size());
    if (added) {
      held_.push_back({address, storage.getWeakStorageImpl()});
    }
    Held& held = held_[found->second];
    ++held.tensors;
    resize(held, bytes);
    peak_ = std::max(peak_, current_);
    return 0;
  }

  void remove(c10::StorageImpl* storage, int64_t /*number*/) noexcept override {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = indices_.find(storage);
    Held& held = held_[found->second];
    if (--held.tensors == 0) {
      resize(held, 0);
      indices_.find(held_.back().address)->second = found->second;
      held = std::move(held_.back());
      held_.pop_back();
      indices_.erase(found);
    }
  }

  [[nodiscard]] int64_t current() {
    look_again();
    const std::lock_guard<std::mutex> lock(mutex_);
    return current_;
  }

  [[nodiscard]] int64_t peak() {
    look_again();
    const std::lock_guard<std::mutex> lock(mutex_);
    return peak_;
  }

 private:
  struct Held {
    const c10::StorageImpl* address;
    // Weak, so that a tensor whose storage is replaced lets go of the old one; as long as it is
    // there, no other storage can have the same address.
    c10::weak_intrusive_ptr<c10::StorageImpl> storage;
    int64_t bytes = 0;
    int64_t tensors = 0;
  };

  [[nodiscard]] int64_t bytes_of(const c10::StorageImpl& storage) const {
    const c10::Device at = storage.device();
    const bool counts =
        !device_ || (device_->type() == at.type() && (!device_->has_index() || device_->is_cpu() ||
                                                      device_->index() == at.index()));
    return counts ? static_cast<int64_t>(storage.nbytes()) : 0;
  }

  void resize(Held& held, int64_t bytes) {
    current_ += bytes - held.bytes;
    held.bytes = bytes;
  }

  /// Takes notice of storages that were resized or replaced since they were saved.
  void look_again() {
    // Declared before the lock, since the last reference to a storage may run a user's deleter.
    std::vector<c10::intrusive_ptr<c10::StorageImpl>> alive;
    const std::lock_guard<std::mutex> lock(mutex_);
    alive.reserve(held_.size());
    for (Held& held : held_) {
      alive.push_back(held.storage.lock());
      resize(held, alive.back().defined() ? bytes_of(*alive.back()) : 0);
    }
    peak_ = std::max(peak_, current_);
  }

  const std::optional<c10::Device> device_;
  std::mutex mutex_;
  std::vector<Held> held_;
  std::unordered_map<const void*, std::size_t> indices_;  // in held_
  int64_t current_ = 0;
  int64_t peak_ = 0;
};

}  // namespace process_v1

/// Calls `use` with each storage of a tensor; MKL-DNN tensors have none that can be seen.
template <class Use>
void for_each_storage(const at::Tensor& tensor, Use&& use) {
  switch (tensor.layout()) {
    case at::kSparse:
      for_each_storage(tensor._indices(), use);
      for_each_storage(tensor._values(), use);
      break;
    case at::kSparseCsr:
    case at::kSparseBsr:
      for_each_storage(tensor.crow_indices(), use);
      for_each_storage(tensor.col_indices(), use);
      for_each_storage(tensor.values(), use);
      break;
    case at::kSparseCsc:
    case at::kSparseBsc:
      for_each_storage(tensor.ccol_indices(), use);
      for_each_storage(tensor.row_indices(), use);
      for_each_storage(tensor.values(), use);
      break;
    default:
      if (tensor.has_storage()) {
        use(tensor.storage());
      }
  }
}

/// Whether the memory is a parameter's: a leaf that requires grad, or a view of one.
inline bool is_parameter(const at::Tensor& tensor) {
  const auto is_leaf_with_grad = [](const at::TensorBase& base) {
    return base.is_leaf() && base.requires_grad();
  };
  return is_leaf_with_grad(tensor) || (tensor.is_view() && is_leaf_with_grad(tensor._base()));
}

/// Keeps a saved tensor as autograd would, on the accounts of the scopes that were open.
class WatchedSave final : public torch::autograd::SavedVariableHooks {
 public:
  explicit WatchedSave(std::vector<std::shared_ptr<SavedAccount>> accounts)
      : accounts_(std::move(accounts)) {}

  ~WatchedSave() override {
    for (const auto& entry : entries_) {
      entry.account->remove(entry.storage, entry.number);
    }
  }

  void call_pack_hook(const at::Tensor& tensor) override {
    kept_ = KeptTensor(tensor);
    if (is_parameter(tensor)) {
      return;
    }
    for_each_storage(tensor, [this](const c10::Storage& storage) {
      for (const auto& account : accounts_) {
        entries_.reserve(entries_.size() + 1);
        const int64_t number = account->add(storage);
        entries_.push_back({account.get(), storage.unsafeGetStorageImpl(), number});
      }
    });
  }

  at::Tensor call_unpack_hook() override { return kept_.unpack(); }

 private:
  struct Entry {
    SavedAccount* account;
    c10::StorageImpl* storage;
    int64_t number;
  };
  KeptTensor kept_;
  std::vector<std::shared_ptr<SavedAccount>> accounts_;
  std::vector<Entry> entries_;
};

inline namespace process_v1 {

/// Watches, and leaves what happens to the tensors to the makers around it.
class SaveWatcher : public HookMaker {
 public:
  explicit SaveWatcher(std::shared_ptr<SavedAccount> account) : account_(std::move(account)) {}

  std::unique_ptr<torch::autograd::SavedVariableHooks> make_hooks() override {
    std::vector<std::shared_ptr<SavedAccount>> accounts;
    for (HookMaker* maker = this; maker != nullptr; maker = maker->outer) {
      if (auto* watcher = dynamic_cast<SaveWatcher*>(maker)) {
        accounts.push_back(watcher->account_);
      } else if (auto hooks = maker->make_hooks()) {
        return hooks;  // it keeps the tensor in its own way, so the graph does not
      }
    }
    return std::make_unique<WatchedSave>(std::move(accounts));
  }

 private:
  std::shared_ptr<SavedAccount> account_;
};

}  // namespace process_v1

}  // namespace tidemark::detail
