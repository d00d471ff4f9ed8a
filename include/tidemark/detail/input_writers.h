#pragma once

#include <torch/nn/module.h>

#include <map>
#include <mutex>
#include <optional>
#include <utility>

namespace tidemark::detail {

/// Which modules write their input in place, in training and in eval mode, as seen when they ran.
/// Thread-safe.
class InputWriters {
 public:
  [[nodiscard]] std::optional<bool> writes(const torch::nn::Module& module) const {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = seen_.find({&module, module.is_training()});
    return found != seen_.end() ? std::optional<bool>(found->second) : std::nullopt;
  }

  void saw(const torch::nn::Module& module, bool wrote) {
    const std::lock_guard<std::mutex> lock(mutex_);
    bool& known = seen_[{&module, module.is_training()}];
    known = known || wrote;
  }

 private:
  mutable std::mutex mutex_;
  std::map<std::pair<const torch::nn::Module*, bool>, bool> seen_;
};

}  // namespace tidemark::detail
