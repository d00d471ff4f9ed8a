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
    const auto found = index_.find(&module);
    return found != index_.end() ? seen_[found->second].wrote[module.is_training()] : std::nullopt;
  }

  void saw(const torch::nn::Module& module, bool wrote) {
    const std::lock_guard<std::mutex> lock(mutex_);
    auto found = index_.find(&module);
    if (found == index_.end()) {
      seen_.push_back({});
      found = index_.try_emplace(&module, seen_.size() - 1).first;
    }
    std::optional<bool>& known = seen_[found->second].wrote[module.is_training()];
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
