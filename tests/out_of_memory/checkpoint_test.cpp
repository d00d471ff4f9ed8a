// A step with checkpointed regions runs out of memory, at every allocation in turn.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <tidemark/amp_scope.h>
#include <tidemark/checkpoint.h>
#include <tidemark/checkpointed.h>
#include <tidemark/checkpointed_sequential.h>
#include <torch/torch.h>

#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "support.h"

namespace {

using namespace tidemark::tests;
using tidemark::AmpScope;
using tidemark::checkpoint;
using tidemark::CheckpointOptions;
using tidemark::MemoryScope;
using torch::Tensor;
namespace nn = torch::nn;

// Conv3d, BatchNorm3d, dropout and ReLU, and a buffer that is read and written.
struct BlockImpl : nn::Module {
  BlockImpl() {
    register_module("conv", conv);
    register_module("norm", norm);
    calls = register_buffer("calls", torch::zeros({2}));
  }
  Tensor forward(Tensor x) {
    {
      const torch::NoGradGuard no_grad;
      calls.add_(1);
    }
    return torch::dropout(norm(conv(x)).relu(), 0.25, is_training()) + 0.125 * calls[0];
  }
  nn::Conv3d conv{nn::Conv3dOptions(2, 2, 3).padding(1)};
  nn::BatchNorm3d norm{2};
  Tensor calls;
};
TORCH_MODULE(Block);

struct MlpImpl : nn::Module {
  MlpImpl() {
    register_module("first", first);
    register_module("norm", norm);
    register_module("second", second);
  }
  Tensor forward(const Tensor& x) {
    return second(torch::dropout(norm(first(x)).tanh(), 0.5, true));
  }
  nn::Linear first{3, 4};
  nn::BatchNorm1d norm{4};
  nn::Linear second{4, 2};
};
TORCH_MODULE(Mlp);

// What is trained, and what besides parameters and buffers a call may change.
struct Net {
  std::vector<std::shared_ptr<nn::Module>> modules;
  std::function<Tensor()> forward;             // the call
  std::function<Tensor(Tensor)> loss_of = {};  // of its result, in plain code
  std::vector<Tensor> others = {};
  std::vector<torch::Generator> generators = {};

  [[nodiscard]] std::vector<Tensor> parameters() const {
    std::vector<Tensor> all;
    for (const auto& module : modules) {
      const auto some = module->parameters();
      all.insert(all.end(), some.begin(), some.end());
    }
    return all;
  }
  [[nodiscard]] State state() const {
    std::vector<Tensor> all = parameters();
    for (const auto& module : modules) {
      const auto some = module->buffers();
      all.insert(all.end(), some.begin(), some.end());
    }
    all.insert(all.end(), others.begin(), others.end());
    return State(all, generators);
  }
};

struct Result {
  State state;
  std::vector<Bytes> gradients;
  void expect_same(const Result& other) const {
    state.expect_same(other.state);
    EXPECT_EQ(differing(gradients, other.gradients), "") << "gradients";
  }
};

Result result_of(const Net& net) { return {net.state(), gradients_of(net.parameters())}; }

Tensor loss_of(const Net& net, const Tensor& result) {
  return (net.loss_of ? net.loss_of(result) : result).square().mean();
}

void step(const Net& net) {
  zero_grad(net.parameters());
  loss_of(net, net.forward()).backward();
}

// At each allocation: the error is thrown, everything is as before the forward or the backward that
// threw it, no memory is left, and the retry gives what an undisturbed run gives.
void expect_nothing_lost(const std::function<Net()>& make, int warm_up = 0) {
  const auto start = [&] {
    torch::manual_seed(0);
    Net net = make();
    torch::manual_seed(1);
    for (int i = 0; i < warm_up; ++i) {
      step(net);
    }
    zero_grad(net.parameters());
    return net;
  };
  const auto expected = [&] {
    const Net net = start();
    step(net);
    return result_of(net);
  }();
  const auto expected_after_another_forward = [&] {
    const Net net = start();
    (void)net.forward();
    step(net);
    return result_of(net);
  }();
  for (const auto fails : {Fails::kOne, Fails::kAllBehind}) {
    const bool same_graph = fails == Fails::kAllBehind;
    SCOPED_TRACE(same_graph ? "all behind it fail, and backward is tried again"
                            : "the step is tried again");
    bool in_forward = false;
    bool in_rest = false;
    for_each_allocation([&](int64_t k) {
      ExhaustedAllocator::get();
      const Net net = start();
      const MemoryScope memory;
      Tensor result;
      Tensor loss;
      State before = net.state();
      bool absorbed = false;
      const bool failed = [&] {
        const Failing failing(fails, k);
        return runs_out(
            failing,
            [&] {
              result = net.forward();
              before = net.state();
              loss = loss_of(net, result);
              loss.backward({}, /*retain_graph=*/same_graph);
            },
            &absorbed);
      }();
      const bool forward_is_over = result.defined();
      if (!failed) {
        result_of(net).expect_same(expected);
        return absorbed;
      }
      (forward_is_over ? in_rest : in_forward) = true;
      net.state().expect_same(before);
      if (forward_is_over && same_graph) {
        zero_grad(net.parameters());
        (loss.defined() ? loss : loss_of(net, result)).backward();
        result_of(net).expect_same(expected);
      } else {
        step(net);
        result_of(net).expect_same(forward_is_over ? expected_after_another_forward : expected);
      }
      result.reset();
      loss.reset();
      zero_grad(net.parameters());
      begin_another_pass();
      EXPECT_EQ(memory.current(), 0) << "bytes leaked";
      return true;
    });
    EXPECT_TRUE(in_forward);
    EXPECT_TRUE(in_rest);
  }
}

Tensor volume() { return torch::randn({2, 2, 3, 3, 3}); }

class Options : public testing::TestWithParam<CheckpointOptions> {};

TEST_P(Options, ARegionOfALambda) {
  const auto options = GetParam();
  expect_nothing_lost([options] {
    Block block;
    nn::Linear head(3, 1);
    const Tensor x = volume();
    return Net{{block.ptr(), head.ptr()},
               [=] {
                 return checkpoint(
                     options, [block](const Tensor& t) mutable { return block(t.sin()); }, x);
               },
               [head](const Tensor& y) mutable { return head(y); }};
  });
}

INSTANTIATE_TEST_SUITE_P(OutOfMemory, Options,
                         testing::Values(CheckpointOptions(), CheckpointOptions().early_stop(true),
                                         CheckpointOptions().verify(true)));

TEST(OutOfMemory, ARegionOfAModule) {
  expect_nothing_lost([] {
    Block block;
    const Tensor x = volume();
    return Net{{block.ptr()}, [=] { return checkpoint(block, x); }};
  });
}

TEST(OutOfMemory, ACheckpointedModule) {
  expect_nothing_lost([] {
    tidemark::Checkpointed<Block> block;
    const Tensor x = volume();
    return Net{{block.ptr()}, [=]() mutable { return block->forward(x); }};
  });
}

Net sequential(bool first_writes_in_place) {
  tidemark::CheckpointedSequential blocks(tidemark::CheckpointedSequentialOptions().segments(2));
  if (first_writes_in_place) {
    blocks->push_back(nn::ReLU(nn::ReLUOptions(true)));
  }
  for (int i = 0; i < 3; ++i) {
    blocks->push_back(Block());
  }
  const Tensor x = volume().relu();
  return {{blocks.ptr()}, [=]() mutable { return blocks->forward(x * 1); }};
}

TEST(OutOfMemory, TheFirstForwardOfACheckpointedSequential) {
  expect_nothing_lost([] { return sequential(false); });
}

TEST(OutOfMemory, LaterForwardsOfACheckpointedSequential) {
  expect_nothing_lost([] { return sequential(false); }, 1);
}

TEST(OutOfMemory, ACheckpointedSequentialWhoseFirstModuleWritesItsInput) {
  expect_nothing_lost([] { return sequential(true); });
}

TEST(OutOfMemory, NestedRegions) {
  expect_nothing_lost([] {
    Block inner;
    Block outer;
    const Tensor x = volume();
    return Net{
        {inner.ptr(), outer.ptr()},
        [=]() mutable {
          return checkpoint(
              [inner, outer](const Tensor& t) mutable {
                return outer(checkpoint(inner, t.sin()).exp());
              },
              x);
        },
    };
  });
}

TEST(OutOfMemory, Chunks) {
  expect_nothing_lost([] {
    Mlp mlp;
    const Tensor x = torch::randn({8, 3});
    return Net{
        {mlp.ptr()},
        [=] { return tidemark::checkpoint_chunks(3, mlp, x); },
    };
  });
}

TEST(OutOfMemory, WhatIsRemembered) {
  expect_nothing_lost([] {
    Mlp mlp;
    const Tensor x = torch::randn({4, 3});
    return Net{
        {mlp.ptr()},
        [=] {
          return checkpoint(
              [mlp](const Tensor& t) mutable {
                const Tensor noise = tidemark::remember([&] { return torch::rand_like(t) * 0.1; });
                return mlp(t + noise) * torch::rand({4, 1});
              },
              x);
        },
    };
  });
}

TEST(OutOfMemory, MixedPrecision) {
  expect_nothing_lost([] {
    Block block;
    nn::Conv3d last(nn::Conv3dOptions(2, 1, 1));
    const Tensor x = volume();
    return Net{{block.ptr(), last.ptr()},
               [=] {
                 const AmpScope amp(torch::kCPU);
                 return checkpoint(
                     [block, last](const Tensor& t) mutable { return last(block(t)); }, x);
               },
               [](const Tensor& y) { return y.to(torch::kFloat); }};
  });
}

// Tensors that are no module's, one of which is overwritten as a whole; and a generator.
TEST(OutOfMemory, CapturedTensorsAndGenerators) {
  expect_nothing_lost([] {
    Mlp mlp;
    const Tensor x = torch::randn({4, 3});
    const Tensor last = torch::zeros({4, 2});
    const Tensor moved = torch::zeros({4, 2});
    auto generator = at::detail::createCPUGenerator(7);
    return Net{{mlp.ptr()},
               [=] {
                 return checkpoint(
                     [=](const Tensor& t) mutable {
                       const Tensor noise = torch::empty({4, 2}).uniform_(0, 1, generator);
                       const Tensor z = mlp(t) + noise;
                       const torch::NoGradGuard no_grad;
                       moved.narrow(0, 0, 2).add_(z.detach().narrow(0, 0, 2));
                       last.copy_(z.detach());
                       const torch::AutoGradMode grad(true);
                       return z * last.clone() * torch::rand({4, 2});
                     },
                     x);
               },
               {},
               {last, moved},
               {generator}};
  });
}

// A forward under autocast keeps casts of weights. None may outlive an AmpScope that an error ends.
TEST(OutOfMemory, LeavesNoCastOfAWeightThatHasChangedSince) {
  torch::manual_seed(0);
  nn::Conv3d conv(nn::Conv3dOptions(2, 2, 1));
  const Tensor x = volume();
  const auto forward = [&] {
    const AmpScope amp(torch::kCPU);
    return checkpoint([conv](const Tensor& t) mutable { return conv(conv(t)); }, x);
  };
  (void)forward();
  for_each_allocation([&](int64_t k) {
    const bool failed = [&] {
      const Failing failing(Fails::kOne, k);
      return runs_out(failing, [&] { (void)forward(); });
    }();
    {
      const torch::NoGradGuard no_grad;
      conv->weight.add_(0.5);
    }
    const Tensor now = forward().detach();
    at::autocast::clear_cache();
    EXPECT_TRUE(torch::equal(now, forward()));
    return failed;
  });
}

// Other exceptions are the user's own way to end a forward, and leave what plain code leaves.
TEST(OutOfMemory, IsUndoneButNoOtherException) {
  const Tensor buffer = torch::zeros({2});
  const auto run = [&](const std::function<void()>& raise) {
    torch::manual_seed(0);
    const auto before = tidemark::detail::CpuRngState::now();
    EXPECT_ANY_THROW(checkpoint(
        [&](Tensor t) {
          buffer.add_(1);
          t = t * torch::rand({2});
          raise();
          return t;
        },
        torch::ones({2}).requires_grad_()));
    return before == tidemark::detail::CpuRngState::now();
  };
  EXPECT_FALSE(run([] { throw std::runtime_error("no"); }));
  EXPECT_TRUE(torch::equal(buffer, torch::ones({2})));
  EXPECT_TRUE(run([] { throw std::bad_alloc(); }));
  EXPECT_TRUE(run([] { TORCH_CHECK(false, "CUDA error: out of memory"); }));
  EXPECT_TRUE(run([] { (void)torch::empty({int64_t{1} << 46}); }));
  EXPECT_TRUE(torch::equal(buffer, torch::ones({2})));
}

// A re-run has old values in a buffer while it holds its lock. What is undone on another thread
// goes there afterwards, or would be lost when the re-run puts today's value back.
TEST(OutOfMemory, IsUndoneWhenNoReRunHoldsTheBuffer) {
  const Tensor buffer = torch::zeros({1});
  const auto count = [buffer](double step) {
    const torch::NoGradGuard no_grad;
    buffer.add_(step);
  };
  const Tensor x = torch::ones({1}).requires_grad_();
  std::promise<void> wrote;
  std::promise<void> in_rerun;
  std::promise<void> undone;
  auto is_undone = undone.get_future();
  const Tensor y = checkpoint(
      [&](const Tensor& t) {
        count(1);
        if (tidemark::recomputing()) {
          in_rerun.set_value();
          is_undone.wait_for(std::chrono::milliseconds(100));  // in vain
        }
        return t.exp().sin();
      },
      x);
  std::thread other([&] {
    EXPECT_THROW(checkpoint(
                     [&](const Tensor& t) {
                       count(10);
                       wrote.set_value();
                       in_rerun.get_future().wait();
                       throw std::bad_alloc();
                       return t;
                     },
                     torch::ones({1}).requires_grad_()),
                 std::bad_alloc);
    undone.set_value();
  });
  wrote.get_future().wait();
  y.backward();
  other.join();
  EXPECT_EQ(buffer.item<float>(), 1);
}

// What LibTorch itself promises: the type of the error, and a thread as it was. Not buffers and
// random numbers, which are put back by hand here.
TEST(OutOfMemory, InPlainCodeKeepsItsTypeAndLeavesTheThreadAsItWas) {
  torch::manual_seed(0);
  Block block;
  const Tensor x = volume();
  std::vector<Tensor> buffers;
  for (const auto& buffer : block->buffers()) {
    buffers.push_back(buffer.clone());
  }
  const auto step = [&] {
    torch::manual_seed(1);
    block->zero_grad();
    for (size_t i = 0; i < buffers.size(); ++i) {
      block->buffers()[i].copy_(buffers[i]);
    }
    block(x).square().mean().backward();
  };
  step();
  const auto expected = gradients_of(block->parameters());
  torch::manual_seed(1);
  const State unchanged({});
  const auto count = for_each_allocation([&](int64_t k) {
    const bool failed = [&] {
      const Failing failing(Fails::kOne, k);
      return runs_out(failing, step);
    }();
    torch::manual_seed(1);
    State({}).expect_same(unchanged);
    step();
    EXPECT_EQ(gradients_of(block->parameters()), expected);
    return failed;
  });
  EXPECT_GT(count, 10);
}

}  // namespace
