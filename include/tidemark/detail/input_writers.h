#pragma once

#include <tidemark/detail/pointer_index.h>
#include <tidemark/detail/vector.h>
#include <torch/nn/module.h>

#include <array>
#include <mutex>
#include <optional>

namespace tidemark::detail {

/// Which modules write their input in place, in training and in eval mode, as seen when they ran.
/// Thread-safe.
class InputWriters {
 public:
  [[nodiscard]] std::optional<bool> writes(const torch::nn::Module& module) const {
    const std::lock_guard<std::mutex> lock(mutex_);
    const std::size_t* found = index_.find(&module);
    return found != nullptr ? seen_[*found].wrote[module.is_training()] : std::nullopt;
  }

  void saw(const torch::nn::Module& module, bool wrote) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const std::size_t* found = index_.find(&module);
    const std::size_t index = found != nullptr ? *found : seen_.size();
    if (found == nullptr) {
      seen_.push_back({});
      index_.add(&module, index);
    }
    std::optional<bool>& known = seen_[index].wrote[module.is_training()];
    known = wrote || known.value_or(false);
  }

 private:
  struct Seen {
    std::array<std::optional<bool>, 2> wrote;  // in eval, in training mode
  };

  mutable std::mutex mutex_;
  PointerIndex index_;  // of a module in seen_
  Vector<Seen> seen_;
};

}  // namespace tidemark::detail
