#pragma once

// Runs a step again and again, with another of its allocations failing each time.

#include <c10/core/CPUAllocator.h>
#include <gtest/gtest.h>
#include <tidemark/detail/autocast_state.h>
#include <tidemark/detail/engine_facade.h>
#include <tidemark/detail/op_pause.h>
#include <tidemark/detail/region_run.h>
#include <tidemark/detail/rng_state.h>
#include <tidemark/gtest/memory_cap.h>
#include <tidemark/memory/memory_scope.h>
#include <torch/torch.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <vector>

namespace tidemark::tests {

/// An allocator before LibTorch's that fails from a chosen allocation on, as where there is really
/// no more memory; MemoryCap::failing() fails one alone.
class ExhaustedAllocator final : public c10::Allocator {
 public:
  static ExhaustedAllocator& get() {
    tidemark::install_memory_meter();
    static auto* const leaked = new ExhaustedAllocator(*c10::GetCPUAllocator());
    if (c10::GetCPUAllocator() != leaked) {
      c10::SetCPUAllocator(leaked, std::numeric_limits<uint8_t>::max());
    }
    return *leaked;
  }

  /// Fails from the k-th allocation on, until the call of clear().
  void fail_from(int64_t k) {
    refused_ = 0;
    left_ = k - 1;
  }
  void clear() { left_ = kNone; }
  [[nodiscard]] int64_t refused() const { return refused_; }

  c10::DataPtr allocate(size_t bytes) override {
    if (bytes > 0 && left_.load() != kNone && left_.fetch_sub(1) <= 0) {
      ++refused_;
      C10_THROW_ERROR(OutOfMemoryError, "there is no more memory");
    }
    return base_.allocate(bytes);
  }
  c10::DeleterFnPtr raw_deleter() const override { return base_.raw_deleter(); }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    base_.copy_data(to, from, bytes);
  }

 private:
  static constexpr int64_t kNone = std::numeric_limits<int64_t>::max();
  explicit ExhaustedAllocator(c10::Allocator& base) : base_(base) {}

  c10::Allocator& base_;
  std::atomic<int64_t> left_{kNone};
  std::atomic<int64_t> refused_{0};
};

enum class Fails { kOne, kAllBehind };

/// While alive, the k-th allocation fails, and with kAllBehind those behind it, too.
class Failing {
 public:
  Failing(Fails fails, int64_t k) {
    if (fails == Fails::kOne) {
      cap_.reset(new auto(gtest::MemoryCap::failing(k)));
    } else {
      exhausted_.fail_from(k);
    }
  }
  Failing(const Failing&) = delete;
  Failing& operator=(const Failing&) = delete;
  ~Failing() { exhausted_.clear(); }
  [[nodiscard]] int64_t refused() const {
    return cap_ != nullptr ? cap_->refused() : exhausted_.refused();
  }

 private:
  ExhaustedAllocator& exhausted_ = ExhaustedAllocator::get();
  std::unique_ptr<gtest::MemoryCap> cap_;
};

using Bytes = std::vector<char>;

/// What a tensor holds. Allocates nothing of LibTorch's.
inline Bytes bytes_of(const torch::Tensor& tensor) {
  if (!tensor.defined()) {
    return {};
  }
  TORCH_CHECK(tensor.is_contiguous(), "give tests contiguous tensors");
  Bytes bytes(tensor.nbytes());
  std::memcpy(bytes.data(), tensor.const_data_ptr(), bytes.size());
  return bytes;
}

inline std::vector<Bytes> bytes_of(const std::vector<torch::Tensor>& tensors) {
  std::vector<Bytes> all;
  for (const auto& tensor : tensors) {
    all.push_back(bytes_of(tensor));
  }
  return all;
}

inline std::vector<Bytes> gradients_of(const std::vector<torch::Tensor>& parameters) {
  std::vector<Bytes> all;
  for (const auto& parameter : parameters) {
    all.push_back(bytes_of(parameter.grad()));
  }
  return all;
}

/// The numbers of the elements that differ.
inline std::string differing(const std::vector<Bytes>& a, const std::vector<Bytes>& b) {
  std::string numbers = a.size() != b.size() ? "another number of tensors" : "";
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    numbers += a[i] == b[i] ? "" : " #" + std::to_string(i);
  }
  return numbers;
}

inline void zero_grad(const std::vector<torch::Tensor>& parameters) {
  for (const auto& parameter : parameters) {
    parameter.mutable_grad() = torch::Tensor();
  }
}

/// Everything that a failed call has to leave as it was, besides the memory. Can be taken while
/// allocations fail.
class State {
 public:
  explicit State(const std::vector<torch::Tensor>& tensors,
                 const std::vector<torch::Generator>& generators = {})
      : tensors_(bytes_of(tensors)) {
    for (const auto& generator : generators) {
      generators_.push_back(detail::CpuRngState::of(generator));
    }
  }

  void expect_same(const State& other) const {
    EXPECT_EQ(differing(tensors_, other.tensors_), "") << "values";
    EXPECT_TRUE(rng_ == other.rng_) << "random numbers";
    EXPECT_TRUE(generators_ == other.generators_) << "random numbers of other generators";
    EXPECT_EQ(maker_, other.maker_) << "saved tensor hooks";
    EXPECT_EQ(run_, other.run_);
    EXPECT_EQ(paused_, other.paused_);
    EXPECT_EQ(grad_mode_, other.grad_mode_);
    EXPECT_TRUE(autocast_ == other.autocast_) << "autocast";
  }

 private:
  static std::vector<int> autocast() {
    std::vector<int> state{at::autocast::is_autocast_cache_enabled(),
                           at::autocast::increment_nesting()};
    at::autocast::decrement_nesting();
    for (const auto type : at::autocast::_AUTOCAST_SUPPORTED_DEVICES) {
      state.push_back(at::autocast::is_autocast_enabled(type));
      state.push_back(static_cast<int>(at::autocast::get_autocast_dtype(type)));
    }
    return state;
  }

  std::vector<Bytes> tensors_;
  std::vector<detail::CpuRngState> generators_;
  detail::CpuRngState rng_ = detail::CpuRngState::now();
  const void* maker_ = detail::EngineLink::innermost_maker();
  const void* run_ = detail::RegionRun::innermost();
  bool paused_ = detail::OpPause::active();
  bool grad_mode_ = torch::GradMode::is_enabled();
  std::vector<int> autocast_ = autocast();
};

/// Calls `body` with k = 1, 2, ... until it returns false, as no allocation failed any more.
/// Returns how many did.
template <class Body>
int64_t for_each_allocation(Body&& body) {
  constexpr int64_t kMost = 5000;
  for (int64_t k = 1; k < kMost; ++k) {
    SCOPED_TRACE("allocation " + std::to_string(k));
    if (!body(k)) {
      return k - 1;
    }
    if (testing::Test::HasFailure()) {
      return k;  // the first is enough
    }
  }
  ADD_FAILURE() << "no end";
  return kMost;
}

/// Whether `call` ran out of memory. Fails the test if it throws anything else, or if an allocation
/// failed and the error got lost, unless that is `absorbed`.
template <class Call>
bool runs_out(const Failing& failing, Call&& call, bool* absorbed = nullptr) {
  try {
    call();
  } catch (const c10::OutOfMemoryError&) {
    return true;
  } catch (const std::exception& error) {
    ADD_FAILURE() << "another exception: " << error.what();
    return true;
  }
  if (absorbed != nullptr) {
    *absorbed = failing.refused() != 0;
  } else {
    EXPECT_EQ(failing.refused(), 0) << "the error got lost";
  }
  return false;
}

/// The engine keeps the tasks of a failed pass until its thread begins the next one.
inline void begin_another_pass() { torch::zeros({1}).requires_grad_().exp().backward(); }

}  // namespace tidemark::tests
