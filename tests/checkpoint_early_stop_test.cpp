// early_stop: where it saves work, and where it must not stop. That gradients stay equal is tested
// with every model: the other files run all of theirs with it on as well.

#include <gtest/gtest.h>
#include <tidemark/checkpoint.h>
#include <torch/library.h>
#include <torch/torch.h>

#include <functional>
#include <memory>
#include <optional>

#include "support/autograd_functions.h"
#include "support/counted_tensor.h"
#include "support/thrown_text.h"

namespace {

using tidemark::checkpoint;
using tidemark::CheckpointOptions;
using tidemark::tests::alive;
using tidemark::tests::CountedExp;
using torch::Tensor;

CheckpointOptions early() { return CheckpointOptions().early_stop(true); }

Tensor leaf(at::IntArrayRef sizes) { return torch::randn(sizes).requires_grad_(); }

/// How often the re-run reaches the end of a region that ends with `last`, an op that saves, and
/// one that does not.
int ends_reached(const std::function<Tensor(const Tensor&)>& last, bool early_stop = true) {
  int ends = 0;
  const Tensor y = checkpoint(
      CheckpointOptions().early_stop(early_stop),
      [&ends, last](const Tensor& a) {
        const Tensor out = last((a * 2).exp()) + 1;
        ++ends;
        return out;
      },
      torch::full({3, 4}, 0.5).requires_grad_());
  y.sum().backward();
  return ends - 1;
}

TEST(CheckpointEarlyStop, SkipsWhatComesAfterTheLastSavedTensor) {
  EXPECT_EQ(ends_reached([](const Tensor& a) { return a.tanh(); }), 0);
  EXPECT_EQ(ends_reached([](const Tensor& a) { return a.matmul(a.t()); }), 0);
  EXPECT_EQ(ends_reached([](const Tensor& a) { return a.clone().relu_(); }), 0);
  EXPECT_EQ(ends_reached([](const Tensor& a) { return a.tanh(); }, /*early_stop=*/false), 1);
}

TEST(CheckpointEarlyStop, IsIgnoredWhereTheRegionDrawsRandomNumbers) {
  EXPECT_EQ(ends_reached([](const Tensor& a) { return torch::dropout(a, 0.5, true); }), 1);
  EXPECT_EQ(ends_reached([](const Tensor& a) { return torch::rrelu(a - 2, 0.1, 0.9, true); }), 1);
}

TEST(CheckpointEarlyStop, IsIgnoredWhereACustomFunctionSavesLast) {
  EXPECT_EQ(ends_reached([](const Tensor& a) { return CountedExp::apply(a); }), 1);
  EXPECT_EQ(
      ends_reached([](const Tensor& a) { return tidemark::tests::UnpacksTwice::apply(a, a); }), 1);
}

TEST(CheckpointEarlyStop, IsIgnoredWhereABackwardInsideTheRegionSavesLast) {
  EXPECT_EQ(ends_reached([](const Tensor& a) {
              return torch::autograd::grad({a.exp().sum()}, {a}, {}, true,
                                           /*create_graph=*/true)[0];
            }),
            1);
}

/// Counted tensors alive after 20 steps of a region with early_stop.
int leaked(const std::function<Tensor(const Tensor&)>& region) {
  const int before = alive();
  for (int step = 0; step < 20; ++step) {
    checkpoint(early(), region, leaf({3})).sum().backward();
  }
  return alive() - before;
}

TEST(CheckpointEarlyStop, LeaksNoOutputsThatACustomFunctionSaves) {
  EXPECT_EQ(leaked([](const Tensor& a) { return CountedExp::apply(a * 2); }), 0);
}

// What torchvision and most point cloud extensions do: an op whose autograd kernel is a Function.
Tensor counted_exp(const Tensor& x) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("tidemark_early_stop_test::counted_exp", "")
                             .typed<Tensor(const Tensor&)>();
  return op.call(x);
}
TORCH_LIBRARY(tidemark_early_stop_test, library) { library.def("counted_exp(Tensor x) -> Tensor"); }
TORCH_LIBRARY_IMPL(tidemark_early_stop_test, Autograd, library) {
  library.impl("counted_exp", [](const Tensor& x) { return CountedExp::apply(x); });
}

TEST(CheckpointEarlyStop, LeaksNoOutputsThatACustomFunctionOfARegisteredOpSaves) {
  EXPECT_EQ(leaked([](const Tensor& a) { return counted_exp(a * 2); }), 0);
}

TEST(CheckpointEarlyStop, LeaksNoOutputsThatACustomFunctionInARangeOfTheUsersSaves) {
  EXPECT_EQ(leaked([](const Tensor& a) {
              RECORD_FUNCTION("my block", {});
              return CountedExp::apply(a * 2);
            }),
            0);
}

// Documented: such a region must rethrow. If it does not, backward is right or an error.
TEST(CheckpointEarlyStop, ARegionThatCatchesEverythingIsNeverSilentlyWrong) {
  for (const bool repeats : {true, false}) {
    const Tensor x = leaf({3});
    const Tensor y = checkpoint(
        early(),
        [repeats](const Tensor& a) {
          try {
            return (a * 2).exp() + 1;
          } catch (...) {
            return repeats ? (a * 2).exp() + 1 : a + 1;
          }
        },
        x);
    if (!tidemark::tests::thrown_text([&] { y.sum().backward(); }).has_value()) {
      EXPECT_TRUE(torch::equal(x.grad(), 2 * (2 * x.detach()).exp()));
    }
    EXPECT_EQ(tidemark::detail::EngineLink::innermost_maker(), nullptr);
  }
}

}  // namespace
