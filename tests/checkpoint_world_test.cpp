// The settings that a region runs under: its re-run finds those of the forward, whatever holds
// where backward is called, and leaves those of the caller behind.

#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <tidemark/checkpoint.h>
#include <torch/torch.h>

#include <stdexcept>
#include <string>
#include <vector>

#include "support/plain_and_checkpointed.h"

namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::SizeIs;
using tidemark::checkpoint;
using tidemark::tests::expect_equal_to_plain;
using torch::Tensor;
namespace autocast = at::autocast;
namespace nn = torch::nn;

Tensor leaf(at::IntArrayRef sizes) { return torch::randn(sizes).requires_grad_(); }

/// What `with torch.autocast("cpu")` does in Python.
class Autocast {
 public:
  explicit Autocast(bool enabled = true, bool cache = true, at::ScalarType dtype = at::kBFloat16)
      : enabled_before_(autocast::is_autocast_enabled(at::kCPU)),
        cache_before_(autocast::is_autocast_cache_enabled()),
        dtype_before_(autocast::get_autocast_dtype(at::kCPU)) {
    autocast::increment_nesting();
    autocast::set_autocast_enabled(at::kCPU, enabled);
    autocast::set_autocast_dtype(at::kCPU, dtype);
    autocast::set_autocast_cache_enabled(cache);
  }
  ~Autocast() {
    if (autocast::decrement_nesting() == 0) {
      autocast::clear_cache();
    }
    autocast::set_autocast_enabled(at::kCPU, enabled_before_);
    autocast::set_autocast_dtype(at::kCPU, dtype_before_);
    autocast::set_autocast_cache_enabled(cache_before_);
  }

 private:
  bool enabled_before_;
  bool cache_before_;
  at::ScalarType dtype_before_;
};

/// Sets the default dtype of the process while alive.
class DefaultDtype {
 public:
  explicit DefaultDtype(at::ScalarType dtype) : before_(torch::get_default_dtype()) {
    torch::set_default_dtype(torch::scalarTypeToTypeMeta(dtype));
  }
  ~DefaultDtype() { torch::set_default_dtype(before_); }

 private:
  caffe2::TypeMeta before_;
};

/// A net of its own for each run, and what it leaves behind.
struct Net {
  nn::Sequential layers{nn::Linear(8, 8), nn::ReLU(), nn::Linear(8, 8)};
  nn::Linear shared{8, 8};
  Tensor x = leaf({4, 8});

  template <class Record>
  void backward(const Tensor& loss, Record& record) {
    loss.backward();
    record("x", x.grad());
    record("layers", *layers);
    record("shared", *shared);
  }
};

/// Runs `forward(region, net)` under autocast and backward outside, as a training loop does.
template <class Forward>
void expect_equal_to_plain_under_autocast(Forward&& forward) {
  for (const bool cache : {true, false}) {
    SCOPED_TRACE(cache ? "cache on" : "cache off");
    expect_equal_to_plain([&](auto& region, auto& record) {
      Net net;
      Tensor y;
      {
        const Autocast scope(true, cache);
        y = forward(region, net);
      }
      EXPECT_EQ(y.scalar_type(), torch::kBFloat16);
      record("y", y);
      net.backward(y.to(torch::kFloat).square().mean(), record);
    });
  }
}

TEST(CheckpointWorld, AutocastOfTheForwardHoldsWhenBackwardIsCalledOutside) {
  expect_equal_to_plain_under_autocast([](auto& region, Net& net) {
    return region([layers = net.layers](const Tensor& a) mutable { return layers->forward(a); },
                  net.x);
  });
}

TEST(CheckpointWorld, ALayerMayBeUsedInsideAndOutsideOfARegionUnderAutocast) {
  expect_equal_to_plain_under_autocast([](auto& region, Net& net) {
    Tensor y = net.shared(net.x);
    for (int i = 0; i < 2; ++i) {
      y = region([layers = net.layers, shared = net.shared](
                     const Tensor& a) mutable { return shared(layers->forward(shared(a))); },
                 y);
    }
    return net.shared(y);
  });
}

TEST(CheckpointWorld, AWeightFirstUsedWithoutGradModeUnderTheSameAutocastScope) {
  expect_equal_to_plain_under_autocast([](auto& region, Net& net) {
    {
      const torch::NoGradGuard no_grad;
      net.layers->forward(net.x);
    }
    return region(
        [layers = net.layers](const Tensor& a) mutable { return layers->forward(a).sin(); }, net.x);
  });
}

TEST(CheckpointWorld, AnInnerBlockMaySwitchAutocastOff) {
  expect_equal_to_plain_under_autocast([](auto& region, Net& net) {
    return region(
        [layers = net.layers, shared = net.shared](const Tensor& a) mutable {
          const Tensor h = layers->forward(a);
          Tensor full;
          {
            const Autocast off(false);
            full = shared(h.to(torch::kFloat).sin());
            EXPECT_EQ(full.scalar_type(), torch::kFloat);
          }
          return shared(full);
        },
        net.x);
  });
}

TEST(CheckpointWorld, ARegionMayBeAnExceptionFromAutocast) {
  expect_equal_to_plain([](auto& region, auto& record) {
    Net net;
    Tensor y;
    {
      const Autocast scope;
      const Tensor h = net.shared(net.x).to(torch::kFloat);
      {
        const Autocast off(false);
        y = region([layers = net.layers](const Tensor& a) mutable { return layers->forward(a); },
                   h);
      }
      EXPECT_EQ(y.scalar_type(), torch::kFloat);
      // Backward runs inside of the scope, the re-run must not.
      net.backward(y.square().mean(), record);
    }
  });
}

TEST(CheckpointWorld, ARegionMayOpenAnAutocastScopeOfItsOwn) {
  expect_equal_to_plain([](auto& region, auto& record) {
    Net net;
    const Tensor y = region(
        [layers = net.layers, shared = net.shared](const Tensor& a) mutable {
          Tensor h = shared(a);
          {
            const Autocast scope;
            h = shared(layers->forward(h));
            EXPECT_EQ(h.scalar_type(), torch::kBFloat16);
          }
          return shared(h.to(torch::kFloat));
        },
        net.x);
    net.backward(y.square().mean(), record);
  });
}

TEST(CheckpointWorld, TheReRunSeesTheDtypesOfTheForward) {
  std::vector<at::ScalarType> seen;
  Net net;
  Tensor y;
  {
    const Autocast scope(true, true, at::kHalf);  // not the default
    y = checkpoint(
        [&seen, layers = net.layers](const Tensor& a) mutable {
          seen.push_back(autocast::get_autocast_dtype(at::kCPU));
          seen.push_back(layers->forward(a).exp().scalar_type());
          return a.exp();
        },
        net.x);
  }
  y.sum().backward();
  EXPECT_THAT(seen, AllOf(SizeIs(4), Each(at::kHalf)));
}

TEST(CheckpointWorld, TheDefaultDtypeOfTheForwardHoldsInTheReRun) {
  expect_equal_to_plain([](auto& region, auto& record) {
    const Tensor x = leaf({3});
    Tensor y;
    {
      const DefaultDtype wide(torch::kDouble);
      y = region([](const Tensor& a) { return (a.exp() * torch::ones({3})).sin(); }, x);
      EXPECT_EQ(y.scalar_type(), torch::kDouble);
    }
    y.sum().backward();
    EXPECT_EQ(torch::get_default_dtype_as_scalartype(), torch::kFloat);
    record("x", x.grad());
  });
}

// --- where backward is called ---

template <class Guard>
void expect_equal_to_plain_with_backward_under() {
  expect_equal_to_plain([](auto& region, auto& record) {
    Net net;
    const Tensor loss = region(
        [layers = net.layers](const Tensor& a) mutable {
          EXPECT_TRUE(torch::GradMode::is_enabled());
          EXPECT_FALSE(c10::InferenceMode::is_enabled());
          return layers->forward(a).exp().sum();
        },
        net.x);
    const Guard guard;
    net.backward(loss, record);
    EXPECT_FALSE(torch::GradMode::is_enabled());
  });
}

TEST(CheckpointWorld, BackwardMayBeCalledWithGradModeOff) {
  expect_equal_to_plain_with_backward_under<torch::NoGradGuard>();
}

TEST(CheckpointWorld, BackwardMayBeCalledInInferenceMode) {
  expect_equal_to_plain_with_backward_under<c10::InferenceMode>();
}

TEST(CheckpointWorld, TheCallersSettingsAreBackAfterAnExceptionInTheReRun) {
  Net net;
  Tensor y;
  {
    const DefaultDtype wide(torch::kDouble);
    const Autocast scope;
    y = checkpoint(
        [layers = net.layers](const Tensor& a) mutable {
          Tensor out = torch::dropout(layers->forward(a), 0.5, true);
          if (tidemark::recomputing()) {
            throw std::runtime_error("no");
          }
          return out.exp();
        },
        net.x);
  }
  const Tensor loss = y.to(torch::kFloat).sum();
  torch::manual_seed(1);
  const torch::NoGradGuard no_grad;
  EXPECT_THROW(loss.backward(), std::runtime_error);
  EXPECT_FALSE(torch::GradMode::is_enabled());
  EXPECT_FALSE(autocast::is_autocast_enabled(at::kCPU));
  EXPECT_TRUE(autocast::is_autocast_cache_enabled());
  EXPECT_EQ(torch::get_default_dtype_as_scalartype(), torch::kFloat);
  const Tensor next = torch::rand({3});
  torch::manual_seed(1);
  EXPECT_TRUE(torch::equal(next, torch::rand({3})));
}

// --- plain calls ---

template <class Guard>
void expect_plain_call() {
  const Guard guard;
  int calls = 0;
  const auto region = [&calls](const Tensor& a) {
    EXPECT_EQ(tidemark::detail::EngineLink::innermost_maker(), nullptr);
    ++calls;
    return a.exp();
  };
  const Tensor x = torch::rand({3});
  const Tensor y = checkpoint(region, x);
  EXPECT_EQ(calls, 1);
  EXPECT_FALSE(y.requires_grad());
  EXPECT_TRUE(torch::equal(y, x.exp()));
}

TEST(CheckpointWorld, WithoutGradModeTheRegionIsCalledOnceAndWithoutHooks) {
  expect_plain_call<torch::NoGradGuard>();
}

TEST(CheckpointWorld, InInferenceModeTheRegionIsCalledOnceAndWithoutHooks) {
  expect_plain_call<c10::InferenceMode>();
}

TEST(CheckpointWorld, ARegionWarnsOfNothing) {
  struct Warnings final : c10::WarningHandler {
    void process(const c10::Warning& warning) override { texts.push_back(warning.msg()); }
    std::vector<std::string> texts;
  };
  Warnings warnings;
  {
    const c10::WarningUtils::WarningHandlerGuard guard(&warnings);
    const c10::WarningUtils::WarnAlways always(true);
    for (const bool under_autocast : {false, true}) {
      Net net;
      Tensor y;
      {
        const Autocast scope(under_autocast);
        y = checkpoint(
            [layers = net.layers](const Tensor& a) mutable { return layers->forward(a); }, net.x);
      }
      y.to(torch::kFloat).sum().backward();
    }
  }
  EXPECT_THAT(warnings.texts, testing::IsEmpty());
}

}  // namespace
