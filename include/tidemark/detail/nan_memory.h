#pragma once

// What is known of memory that was made or written by watched ops.

#include <ATen/core/Tensor.h>
#include <c10/core/StorageImpl.h>
#include <c10/util/intrusive_ptr.h>

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <optional>
#include <string_view>
#include <unordered_map>

namespace tidemark::detail {

/// Which storages may hold NaN. For one thread at a time.
class NanMemory {
 public:
  enum State {
    kClean,  ///< no op has put NaN there
    kFresh,  ///< nobody has filled it
    kHolds,  ///< NaN may be there, and is accounted for
  };

  /// Nothing for memory that no watched op has made or written.
  [[nodiscard]] std::optional<State> of(const c10::StorageImpl* storage) const {
    const auto known = known_.find(storage);
    return known == known_.end() ? std::nullopt : std::optional<State>(known->second.state);
  }

  /// Notes what a tensor's memory holds now that an op has made or written it.
  void set(const at::Tensor& values, State state) {
    c10::StorageImpl* storage = values.storage().unsafeGetStorageImpl();
    const auto known = known_.find(storage);
    if (known != known_.end()) {
      const bool whole = values.unsafeGetTensorImpl()->is_non_overlapping_and_dense() &&
                         values.nbytes() == values.storage().nbytes();
      if (state != kClean || whole) {
        known->second.state = state;
      }
      return;
    }
    if (known_.size() >= purge_at_) {
      for (auto it = known_.begin(); it != known_.end();) {
        it = it->second.storage.expired() ? known_.erase(it) : std::next(it);
      }
      purge_at_ = 2 * known_.size() + 1024;
    }
    known_.emplace(storage, Known{values.storage().getWeakStorageImpl(), state});
  }

  void clear() { known_.clear(); }

 private:
  struct Known {
    c10::weak_intrusive_ptr<c10::StorageImpl> storage;  // so that its address stays taken
    State state;
  };

  std::unordered_map<const c10::StorageImpl*, Known> known_;
  std::size_t purge_at_ = 1024;
};

/// Whether the op is one of those that make memory, or take it over, without filling it.
inline bool makes_fresh_memory(std::string_view op) {
  static constexpr std::string_view kPrefixes[] = {"aten::empty", "aten::new_empty", "aten::resize",
                                                   "aten::_resize", "aten::set_"};
  return std::any_of(std::begin(kPrefixes), std::end(kPrefixes),
                     [&](std::string_view prefix) { return op.rfind(prefix, 0) == 0; });
}

/// Whether the op copies; a copy of memory that nobody has filled is no more than that.
inline bool is_copy(std::string_view op) {
  static constexpr std::string_view kNames[] = {
      "aten::clone",   "aten::contiguous", "aten::copy_",    "aten::pin_memory",
      "aten::reshape", "aten::to",         "aten::_to_copy", "aten::_pin_memory"};
  return std::find(std::begin(kNames), std::end(kNames), op) != std::end(kNames);
}

}  // namespace tidemark::detail
