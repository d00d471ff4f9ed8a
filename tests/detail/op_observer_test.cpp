#include <gtest/gtest.h>
#include <tidemark/detail/op_observer.h>
#include <tidemark/detail/rng_state.h>
#include <torch/torch.h>

#include <thread>

#include "../support/random_ops.h"

namespace {

using tidemark::detail::CpuRngState;
using tidemark::detail::OpObserver;

using torch::Tensor;

const tidemark::CheckpointOptions kOptions;

TEST(OpObserver, SeesEveryOpThatDrawsFromTheDefaultGenerator) {
  for (const auto& [name, op] : tidemark::tests::random_ops()) {
    SCOPED_TRACE(name);
    const Tensor x = torch::full({4, 4}, 0.4).requires_grad_();
    const CpuRngState before = CpuRngState::now();
    OpObserver watch(kOptions);
    op(x);
    EXPECT_NE(CpuRngState::now(), before) << "draws nothing, so proves nothing";
    EXPECT_TRUE(watch.log.drew_on(c10::kCPU));
    EXPECT_FALSE(watch.log.draws.empty());
    EXPECT_FALSE(watch.log.drew_on(c10::kCUDA));
  }
}

TEST(OpObserver, SeesNothingInOpsThatDrawNothing) {
  const Tensor x = torch::rand({2, 3, 4, 4, 4}).requires_grad_();
  OpObserver watch(kOptions);
  torch::nn::Conv3d(3, 2, 1)->weight.exp();  // made by ops that draw
  EXPECT_FALSE(watch.log.draws.empty());
  torch::nn::Conv3d conv(3, 2, 1);
  OpObserver inner(kOptions);
  conv(x).relu().sum().backward();
  std::get<0>(x.sort()).mul(x).std();
  EXPECT_TRUE(inner.log.draws.empty());
}

TEST(OpObserver, CountsAnOpForAllWatchesThatAreOpen) {
  OpObserver outer(kOptions);
  {
    OpObserver inner(kOptions);
    EXPECT_TRUE(inner.log.draws.empty());
    torch::rand({3});
    EXPECT_FALSE(inner.log.draws.empty());
  }
  EXPECT_FALSE(outer.log.draws.empty());
  OpObserver later(kOptions);
  EXPECT_TRUE(later.log.draws.empty());
}

TEST(OpObserver, SeesItsOwnThreadOnly) {
  OpObserver watch(kOptions);
  std::thread([] {
    torch::rand({3});
    OpObserver other(kOptions);
    torch::rand({3});
    EXPECT_FALSE(other.log.draws.empty());
  }).join();
  EXPECT_TRUE(watch.log.draws.empty());
}

TEST(OpObserver, KnowsWhetherItRunsInsideOfAnOp) {
  EXPECT_FALSE(OpObserver::inside_aten_op());
  struct Probe : torch::autograd::SavedVariableHooks {
    explicit Probe(bool& inside) : inside_(inside) {}
    void call_pack_hook(const Tensor& tensor) override {
      inside_ = OpObserver::inside_aten_op();
      kept_ = tensor.detach();
    }
    Tensor call_unpack_hook() override { return kept_; }
    bool& inside_;
    Tensor kept_;
  };
  bool inside = true;
  OpObserver watch(kOptions);
  torch::autograd::SavedVariable saved(torch::rand({3}).requires_grad_(), false);
  saved.register_hooks(std::make_unique<Probe>(inside));
  EXPECT_FALSE(inside);
  EXPECT_FALSE(OpObserver::inside_aten_op());
}

TEST(OpObserver, SaysWhenRecordFunctionIsSwitchedOff) {
  EXPECT_TRUE(OpObserver(kOptions).log.complete);
  at::RecordFunctionGuard off(/*is_enabled=*/false);
  OpObserver watch(kOptions);
  EXPECT_FALSE(watch.log.complete);
  torch::rand({3});
  EXPECT_TRUE(watch.log.draws.empty());
}

TEST(OpObserver, LeavesNoCallbackBehind) {
  const bool before = at::hasThreadLocalCallbacks();
  { OpObserver watch(kOptions); }
  try {
    OpObserver watch(kOptions);
    TORCH_CHECK(false, "left by an exception");
  } catch (const c10::Error&) {
  }
  EXPECT_EQ(at::hasThreadLocalCallbacks(), before);
  EXPECT_FALSE(OpObserver::inside_aten_op());
}

}  // namespace
