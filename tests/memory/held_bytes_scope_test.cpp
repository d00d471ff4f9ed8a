#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <tidemark/checkpoint.h>
#include <tidemark/detail/saved_tensor_hooks.h>
#include <tidemark/memory/bytes.h>
#include <tidemark/memory/held_bytes_scope.h>
#include <tidemark/memory/memory_scope.h>
#include <torch/torch.h>

#include <array>
#include <cstdint>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "../support/threads.h"

namespace {

using namespace tidemark::literals;
using tidemark::HeldBytesScope;
using tidemark::MemoryScope;
using tidemark::tests::on_threads;
using torch::Tensor;

constexpr int64_t kN = 1000;
constexpr int64_t kBytes = kN * 4;

Tensor parameter() { return torch::randn({kN}, torch::requires_grad()); }
Tensor data() { return torch::randn({kN}); }

TEST(HeldBytes, CountsWhatTheGraphHoldsUntilBackward) {
  auto w = parameter();
  const HeldBytesScope held;
  auto y = (w * data()).exp();  // holds the data and its own result
  EXPECT_EQ(held.current(), 2 * kBytes);
  y.sum().backward();
  EXPECT_EQ(held.current(), 0);
  EXPECT_EQ(held.peak(), 2 * kBytes);
}

TEST(HeldBytes, GraphThatIsDroppedHoldsNothing) {
  auto w = parameter();
  const HeldBytesScope held;
  auto y = (w * data()).exp();
  y.reset();
  EXPECT_EQ(held.current(), 0);
  EXPECT_EQ(held.peak(), 2 * kBytes);
}

TEST(HeldBytes, StorageOfManySavedTensorsAndViewsCountsOnce) {
  auto w = parameter();
  auto x = data();
  const HeldBytesScope held;
  auto y = (w * x).sum() + (w.view({10, kN / 10}) * x.view({10, kN / 10})).sum() +
           (w.narrow(0, 0, 10) * x.narrow(0, 0, 10)).sum();
  EXPECT_EQ(held.current(), kBytes);
  auto z = (w.narrow(0, 0, 1) * x.narrow(0, 5, 1)).sum();
  y.backward();
  EXPECT_EQ(held.current(), kBytes) << "one node still holds the storage";
  z.backward();
  EXPECT_EQ(held.current(), 0);
}

TEST(HeldBytes, SmallViewHoldsItsWholeStorage) {
  auto w = torch::randn({1}, torch::requires_grad());
  auto x = data();
  const HeldBytesScope held;
  auto y = w * x.narrow(0, 0, 1);
  x.reset();
  EXPECT_EQ(held.current(), kBytes);
}

TEST(HeldBytes, ParametersAndTheirViewsDoNotCount) {
  auto w = parameter();
  torch::nn::Linear linear(kN, 10);
  auto x = torch::randn({2, kN}, torch::requires_grad());
  const HeldBytesScope held;
  auto y = linear(x * 1.0F);  // saves x * 1 and a transposed weight
  auto z = (w * w.view({kN})).sum();
  EXPECT_EQ(held.current(), 2 * kBytes);
}

TEST(HeldBytes, FrozenWeightsAndInputsCountSinceTheGraphHoldsThem) {
  torch::nn::Linear frozen(torch::nn::LinearOptions(kN, 10).bias(false));
  frozen->weight.set_requires_grad(false);
  auto x = torch::randn({2, kN}, torch::requires_grad());
  const HeldBytesScope held;
  auto y = frozen(x);
  EXPECT_EQ(held.current(), 10 * kBytes);
}

TEST(HeldBytes, RetainedGraphHoldsOn) {
  auto w = parameter();
  const HeldBytesScope held;
  auto y = (w * data()).sum();
  y.backward({}, /*retain_graph=*/true);
  EXPECT_EQ(held.current(), kBytes);
  y.backward();
  EXPECT_EQ(held.current(), 0);
}

TEST(HeldBytes, NothingIsHeldWithoutGrad) {
  auto w = parameter();
  const HeldBytesScope held;
  {
    torch::NoGradGuard no_grad;
    auto y = (w * data()).exp();
    EXPECT_EQ(held.peak(), 0);
  }
  {
    c10::InferenceMode inference;
    auto y = (w * data()).exp();
  }
  EXPECT_EQ(held.peak(), 0);
}

TEST(HeldBytes, GraphRecordedBeforeOrAfterIsNotCounted) {
  auto w = parameter();
  auto before = (w * data()).exp();
  std::unique_ptr<HeldBytesScope> held = std::make_unique<HeldBytesScope>();
  EXPECT_EQ(held->current(), 0);
  auto inside = (w * data()).sum();
  EXPECT_EQ(held->current(), kBytes);
  held.reset();
  auto after = (w * data()).sum();
  (before.sum() + inside + after).backward();
  EXPECT_TRUE(w.grad().defined());
}

TEST(HeldBytes, GraphMayOutliveItsScopeAndDieOnAnotherThread) {
  const MemoryScope memory;
  auto w = parameter();
  Tensor y;
  Tensor z;
  {
    const HeldBytesScope held;
    y = (w * data()).exp();
    z = (w * data()).exp();
    EXPECT_EQ(held.current(), 4 * kBytes);
  }
  std::thread([y = std::move(y)] { y.sum().backward(); }).join();
  std::thread([z = std::move(z)]() mutable { z.reset(); }).join();
  w.reset();
  EXPECT_EQ(memory.current(), 0);
}

TEST(HeldBytes, CountIsExactWhenHooksDieOnOtherThreads) {
  auto w = parameter();
  const HeldBytesScope held;
  for (int round = 0; round < 50; ++round) {
    auto shared = data();
    std::array<Tensor, 8> graphs;
    for (auto& graph : graphs) {
      graph = (w * shared).exp();
    }
    ASSERT_EQ(held.current(), 9 * kBytes);
    on_threads(8, [&graphs](int t) { graphs[t].reset(); });
    ASSERT_EQ(held.current(), 0);
  }
}

TEST(HeldBytes, EachThreadsScopeCountsItsOwnGraphs) {
  on_threads(8, [](int t) {
    auto w = parameter();
    for (int round = 0; round < 50; ++round) {
      const HeldBytesScope held;
      std::vector<Tensor> graphs(t);
      for (auto& graph : graphs) {
        graph = w * data();
      }
      ASSERT_EQ(held.current(), t * kBytes);
    }
  });
}

TEST(HeldBytes, NestedScopesBothCountWhatIsSavedInside) {
  auto w = parameter();
  const HeldBytesScope outer;
  auto a = w * data();
  {
    const HeldBytesScope inner;
    auto b = w * data();
    EXPECT_EQ(inner.current(), kBytes);
    EXPECT_EQ(outer.current(), 2 * kBytes);
  }
  EXPECT_EQ(outer.current(), kBytes);
  EXPECT_EQ(outer.peak(), 2 * kBytes);
}

TEST(HeldBytes, ScopesMayCloseInAnyOrder) {
  auto w = parameter();
  auto first = std::make_unique<HeldBytesScope>();
  auto a = w * data();
  auto second = std::make_unique<HeldBytesScope>();
  auto b = w * data();
  first.reset();
  auto c = w * data();
  EXPECT_EQ(second->current(), 2 * kBytes);
  second.reset();
  (a + b + c).sum().backward();
}

TEST(HeldBytes, StorageThatIsResizedHasItsNewSize) {
  auto w = parameter();
  auto x = data();
  const HeldBytesScope held;
  auto y = w * x;
  x.resize_({3 * kN});
  EXPECT_EQ(held.current(), 3 * kBytes);
  EXPECT_EQ(held.peak(), 3 * kBytes);
  y.reset();
  EXPECT_EQ(held.current(), 0);
  EXPECT_EQ(held.peak(), 3 * kBytes);
}

TEST(HeldBytes, StorageThatIsReplacedIsLetGoAndItsAddressIsNotMistaken) {
  const MemoryScope memory;
  auto w = parameter();
  const HeldBytesScope held;
  std::vector<Tensor> graphs;
  for (int i = 0; i < 200; ++i) {
    auto x = data();
    graphs.push_back(w * x);
    x.set_data(torch::empty({1}));  // frees the storage that was counted
    ASSERT_EQ(held.current(), 0);
    auto other = data();  // may take over the address
    auto graph = w * other;
    ASSERT_EQ(held.current(), kBytes);
    graph.reset();
    ASSERT_EQ(held.current(), 0);
  }
  graphs.clear();
  w.reset();
  EXPECT_EQ(memory.current(), 0);
}

TEST(HeldBytes, InPlaceWriteToASavedTensorIsRefusedAsWithout) {
  auto w = parameter();
  const HeldBytesScope held;
  auto x = data();
  auto y = (w * x).sum();
  x.add_(1);
  EXPECT_THROW(y.backward(), c10::Error);
  auto z = (w * data()).sigmoid();
  z.add_(1);
  EXPECT_THROW(z.sum().backward(), c10::Error);
}

TEST(HeldBytes, GradientsAreBitEqualToThoseWithout) {
  torch::nn::Sequential net(torch::nn::Conv2d(torch::nn::Conv2dOptions(2, 4, 3).padding(1)),
                            torch::nn::BatchNorm2d(4),
                            torch::nn::ReLU(torch::nn::ReLUOptions(/*inplace=*/true)),
                            torch::nn::Flatten(), torch::nn::Linear(4 * 25, 3));
  torch::nn::LSTM lstm(3, 4);
  auto x = torch::randn({2, 2, 5, 5});
  auto parameters = net->parameters();
  for (const auto& weight : lstm->parameters()) {
    parameters.push_back(weight);
  }
  const auto gradients = [&] {
    auto y = std::get<0>(lstm(net->forward(x).unsqueeze(0)));
    auto first = torch::autograd::grad({y.square().sum()}, parameters, {}, true, true);
    auto penalty = torch::zeros({});
    for (const auto& gradient : first) {
      penalty = penalty + gradient.square().sum();
    }
    auto second = torch::autograd::grad({penalty}, parameters, {}, false, false, true);
    first.insert(first.end(), second.begin(), second.end());
    return first;
  };
  const auto plain = gradients();
  const HeldBytesScope held;
  const auto watched = gradients();
  ASSERT_EQ(plain.size(), watched.size());
  for (size_t i = 0; i < plain.size(); ++i) {
    ASSERT_EQ(plain[i].defined(), watched[i].defined());
    EXPECT_TRUE(!plain[i].defined() || plain[i].equal(watched[i]));
  }
  EXPECT_GT(held.peak(), 0);
}

struct SavesInputTwiceAndOutput : torch::autograd::Function<SavesInputTwiceAndOutput> {
  static Tensor forward(torch::autograd::AutogradContext* context, const Tensor& x) {
    auto y = x.exp();
    context->save_for_backward({x, x, y});
    return y;
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    auto saved = context->get_saved_variables();
    auto again = context->get_saved_variables();
    EXPECT_TRUE(saved[2].equal(again[2]));
    return {gradients[0] * saved[2]};
  }
};

TEST(HeldBytes, SavedTensorsOfCustomFunctionsCount) {
  auto w = parameter();
  const HeldBytesScope held;
  auto y = SavesInputTwiceAndOutput::apply(w + 1);
  EXPECT_EQ(held.current(), 2 * kBytes);
  y.sum().backward();
  EXPECT_EQ(held.current(), 0);
  EXPECT_TRUE(w.grad().allclose((w.detach() + 1).exp()));
}

TEST(HeldBytes, SparseTensorsCountTheirIndicesAndValues) {
  auto w = torch::randn({8, 4}, torch::requires_grad());
  auto coo =
      torch::sparse_coo_tensor(torch::tensor({{0, 1, 2}, {2, 0, 7}}), torch::ones({3}), {8, 8});
  const HeldBytesScope held;
  auto y = torch::mm(coo, w);
  EXPECT_EQ(held.current(), 2 * 3 * 8 + 3 * 4);
  y.reset();
  EXPECT_EQ(held.current(), 0);
  auto csr =
      torch::sparse_csr_tensor(torch::tensor({0, 1, 2, 3, 3, 3, 3, 3, 3}), torch::tensor({2, 0, 7}),
                               torch::ones({3}), {8, 8}, torch::kFloat);
  auto z = torch::mm(csr, w);
  EXPECT_EQ(held.current(), 9 * 8 + 3 * 8 + 3 * 4);
}

TEST(HeldBytes, ScopeOfADeviceCountsItsStoragesOnly) {
  auto w = parameter();
  const HeldBytesScope all;
  const HeldBytesScope cpu(c10::Device(c10::kCPU, 0));
  const HeldBytesScope cuda(c10::kCUDA);
  auto y = w * data();
  EXPECT_EQ(all.current(), kBytes);
  EXPECT_EQ(cpu.current(), kBytes);
  EXPECT_EQ(cuda.current(), 0);
}

/// Stands for checkpointed regions and other policies: takes the saved tensors, or declines.
class Policy : public tidemark::detail::HookMaker {
 public:
  explicit Policy(bool takes) : takes_(takes) {}

  std::unique_ptr<torch::autograd::SavedVariableHooks> make_hooks() override {
    ++asked;
    return takes_ ? std::make_unique<Copy>() : nullptr;
  }

  int asked = 0;

 private:
  struct Copy : torch::autograd::SavedVariableHooks {
    void call_pack_hook(const Tensor& tensor) override { copy = tensor.detach().clone(); }
    Tensor call_unpack_hook() override { return copy; }
    Tensor copy;
  };
  bool takes_;
};

TEST(HeldBytes, LeavesTensorsToAPolicyAroundIt) {
  auto w = parameter();
  Policy policy(/*takes=*/true);
  const tidemark::detail::SavedTensorHooksScope around(policy);
  const HeldBytesScope held;
  auto x = data();
  auto y = (w * x).sum();
  EXPECT_EQ(policy.asked, 1);
  EXPECT_EQ(held.current(), 0) << "the policy holds it, not the graph";
  y.backward();
  EXPECT_TRUE(w.grad().equal(x));
}

TEST(HeldBytes, CountsWhatThePolicyAroundItDeclines) {
  auto w = parameter();
  const HeldBytesScope outermost;
  Policy policy(/*takes=*/false);
  const tidemark::detail::SavedTensorHooksScope around(policy);
  const HeldBytesScope held;
  auto y = (w * data()).sum();
  EXPECT_GT(policy.asked, 0);
  EXPECT_EQ(held.current(), kBytes);
  EXPECT_EQ(outermost.current(), kBytes);
}

TEST(HeldBytes, DoesNotSeeWhatAPolicyInsideItTakes) {
  auto w = parameter();
  const HeldBytesScope held;
  Policy policy(/*takes=*/true);
  const tidemark::detail::SavedTensorHooksScope inside(policy);
  auto y = (w * data()).sum();
  EXPECT_EQ(held.current(), 0);
}

TEST(HeldBytes, NothingLeaksOverAThousandSteps) {
  auto w = parameter();
  (w * data()).sum().backward();
  const MemoryScope memory;
  const HeldBytesScope held;
  for (int step = 0; step < 1000; ++step) {
    w.mutable_grad().reset();
    (w * data()).exp().sum().backward();
  }
  EXPECT_EQ(held.current(), 0);
  EXPECT_EQ(held.peak(), 2 * kBytes);
  EXPECT_EQ(memory.current(), 0);
}

TEST(HeldBytes, AScopeInsideARegionSeesNothingAndChangesNoGradient) {
  auto w = parameter();
  auto x = data();
  const auto fn = [w](const Tensor& a) {
    const HeldBytesScope inside;
    Tensor y = (w * a).exp();
    EXPECT_EQ(inside.current(), 0) << "the region's slots keep nothing";
    return y.sin();
  };
  const HeldBytesScope around;
  auto y = tidemark::checkpoint(fn, x).sum();
  EXPECT_EQ(around.current(), kBytes) << "the argument";
  y.backward();
  EXPECT_EQ(around.current(), 0);
  auto expected = torch::autograd::grad({(w * x).exp().sin().sum()}, {w})[0];
  EXPECT_TRUE(w.grad().equal(expected));
}

// Hooks of the user's own inside of a region take what is saved there, in the re-run again.
TEST(HeldBytes, APolicyInsideARegionTakesItsTensorsInTheForwardAndInTheReRun) {
  auto w = parameter();
  auto x = data();
  int asked = 0;
  const auto fn = [w, &asked](const Tensor& a) {
    Tensor inner;
    {
      Policy policy(/*takes=*/true);
      const tidemark::detail::SavedTensorHooksScope scope(policy);
      inner = (w * a).exp();
      asked += policy.asked;
    }
    return inner.sin();
  };
  auto y = tidemark::checkpoint(fn, x).sum();
  const int in_the_forward = asked;
  EXPECT_GT(in_the_forward, 0);
  y.backward();
  EXPECT_EQ(asked, 2 * in_the_forward);
  auto expected = torch::autograd::grad({(w * x).exp().sin().sum()}, {w})[0];
  EXPECT_TRUE(w.grad().equal(expected));
}

}  // namespace
