#pragma once

// Runs the same code with plain and with checkpointed regions and compares what it leaves behind,
// bit by bit.

#include <gtest/gtest.h>
#include <tidemark/checkpoint.h>
#include <torch/torch.h>

#include <atomic>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace tidemark::tests {

/// Named tensors that a run leaves behind.
class Record {
 public:
  void operator()(std::string name, const at::Tensor& tensor) {
    entries_.emplace_back(std::move(name), tensor.defined() ? tensor.detach().clone() : tensor);
  }

  /// Every parameter of a module and its gradient.
  void operator()(const std::string& name, const torch::nn::Module& module) {
    for (const auto& parameter : module.named_parameters()) {
      (*this)(name + "." + parameter.key(), parameter.value());
      (*this)(name + "." + parameter.key() + ".grad", parameter.value().grad());
    }
  }

  void expect_equal(const Record& plain) const {
    ASSERT_EQ(entries_.size(), plain.entries_.size());
    for (std::size_t i = 0; i < entries_.size(); ++i) {
      const auto& [name, tensor] = entries_[i];
      const auto& [plain_name, expected] = plain.entries_[i];
      ASSERT_EQ(name, plain_name);
      ASSERT_EQ(tensor.defined(), expected.defined()) << name;
      if (tensor.defined()) {
        ASSERT_EQ(tensor.scalar_type(), expected.scalar_type()) << name;
        ASSERT_EQ(tensor.layout(), expected.layout()) << name;
        const at::Tensor a = tensor.layout() == at::kStrided ? tensor : tensor.to_dense();
        const at::Tensor b = expected.layout() == at::kStrided ? expected : expected.to_dense();
        ASSERT_EQ(a.sizes(), b.sizes()) << name;
        EXPECT_TRUE(torch::equal(a, b))
            << name << " differs from plain by at most " << (a - b).abs().max().item<double>();
      }
    }
  }

 private:
  std::vector<std::pair<std::string, at::Tensor>> entries_;
};

/// Calls a region as it is.
class PlainRegions {
 public:
  template <class Fn, class... Args>
  auto operator()(Fn fn, Args... args) const {
    ++*calls_;
    return fn(std::move(args)...);
  }

  [[nodiscard]] int calls() const { return *calls_; }

 private:
  std::shared_ptr<std::atomic<int>> calls_ = std::make_shared<std::atomic<int>>(0);
};

/// Calls a region through checkpoint().
class CheckpointedRegions {
 public:
  explicit CheckpointedRegions(CheckpointOptions options = {}) : options_(std::move(options)) {}

  template <class Fn, class... Args>
  auto operator()(Fn fn, Args... args) const {
    return checkpoint(
        options_,
        [fn = std::move(fn), calls = calls_](auto&&... arguments) mutable {
          ++*calls;
          return fn(std::forward<decltype(arguments)>(arguments)...);
        },
        std::move(args)...);
  }

  [[nodiscard]] int calls() const { return *calls_; }

 private:
  CheckpointOptions options_;
  std::shared_ptr<std::atomic<int>> calls_ = std::make_shared<std::atomic<int>>(0);
};

/// Runs `body(regions, record)` with plain regions and with checkpointed ones, early_stop off and
/// on, from the same seed; what it records and the random numbers after it have to be the same.
/// Unless `reruns` is false, a region must have been re-run, lest nothing was tested.
template <class Body>
void expect_equal_to_plain(Body&& body, bool reruns = true) {
  const auto run = [&](auto& regions) {
    Record record;
    torch::manual_seed(7);
    body(regions, record);
    record("random numbers after it", torch::rand({8}));
    EXPECT_EQ(detail::EngineLink::innermost_maker(), nullptr);
    return record;
  };
  PlainRegions plain;
  const Record expected = run(plain);
  for (const bool early_stop : {false, true}) {
    SCOPED_TRACE(early_stop ? "early_stop on" : "early_stop off");
    CheckpointedRegions checkpointed(CheckpointOptions().early_stop(early_stop));
    run(checkpointed).expect_equal(expected);
    if (reruns) {
      EXPECT_GT(checkpointed.calls(), plain.calls()) << "no region was re-run";
    } else {
      EXPECT_EQ(checkpointed.calls(), plain.calls());
    }
  }
}

}  // namespace tidemark::tests
