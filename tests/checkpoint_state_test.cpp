// What a region writes is written once, however often it is re-run.

#include <gmock/gmock.h>
#include <tidemark/checkpoint.h>
#include <tidemark/checkpointed.h>
#include <tidemark/remember.h>
#include <torch/torch.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "support/plain_and_checkpointed.h"
#include "support/threads.h"
#include "support/thrown_text.h"

namespace {

using testing::AllOf;
using testing::HasSubstr;
using tidemark::checkpoint;
using tidemark::CheckpointOptions;
using tidemark::tests::expect_equal_to_plain;
using tidemark::tests::on_threads;
using tidemark::tests::Record;
using tidemark::tests::thrown_text;
using torch::Tensor;
namespace nn = torch::nn;

void record_buffers(Record& record, const nn::Module& module) {
  for (const auto& buffer : module.named_buffers()) {
    record(buffer.key(), buffer.value());
  }
}

// Spectral norm's power iteration: the estimate of the last call starts the next, and the output
// depends on it.
struct SpectralLinearImpl : nn::Module {
  SpectralLinearImpl() {
    weight = register_parameter("weight", torch::randn({4, 4}));
    u = register_buffer("u", torch::randn({4}));
  }
  Tensor forward(Tensor x) {
    Tensor v;
    {
      torch::NoGradGuard no_grad;
      v = nn::functional::normalize(weight.t().mv(u),
                                    nn::functional::NormalizeFuncOptions().dim(0));
      u.copy_(
          nn::functional::normalize(weight.mv(v), nn::functional::NormalizeFuncOptions().dim(0)));
    }
    const Tensor sigma = u.clone().dot(weight.mv(v));
    return x.matmul((weight / sigma).t()).tanh();
  }
  Tensor weight, u;
};
TORCH_MODULE(SpectralLinear);

// An EMA codebook, as in VQ-VAE: assigns, then moves the codes.
struct CodebookImpl : nn::Module {
  CodebookImpl() { codes = register_buffer("codes", torch::randn({3, 4})); }
  Tensor forward(Tensor x) {
    const Tensor nearest = torch::cdist(x.detach(), codes).argmin(1);
    const Tensor quantized = codes.index_select(0, nearest);
    if (is_training()) {
      torch::NoGradGuard no_grad;
      const Tensor one_hot = torch::one_hot(nearest, 3).to(x.dtype());
      codes.mul_(0.9).add_(one_hot.t().matmul(x.detach()), 0.1);
    }
    return (x * quantized).sin();
  }
  Tensor codes;
};
TORCH_MODULE(Codebook);

struct CounterImpl : nn::Module {
  CounterImpl() { calls = register_buffer("calls", torch::zeros({}, torch::kLong)); }
  Tensor forward(Tensor x) {
    calls += 1;
    return (x * calls.clone()).sin();
  }
  Tensor calls;
};
TORCH_MODULE(Counter);

nn::Sequential norm_net() {
  return nn::Sequential(nn::Conv3d(nn::Conv3dOptions(2, 4, 3).padding(1)), nn::BatchNorm3d(4),
                        nn::ReLU(nn::ReLUOptions().inplace(true)),
                        nn::InstanceNorm3d(nn::InstanceNorm3dOptions(4).track_running_stats(true)),
                        nn::BatchNorm3d(nn::BatchNorm3dOptions(4).momentum(std::nullopt)));
}

TEST(RegionState, NormStatisticsAreThoseOfOneRun) {
  expect_equal_to_plain([](auto& region, Record& record) {
    nn::Sequential net = norm_net();
    torch::optim::SGD optimizer(net->parameters(), 0.1);
    for (int step = 0; step < 3; ++step) {
      optimizer.zero_grad();
      const Tensor x = torch::randn({2, 2, 4, 4, 4}) * 1;
      region([net](Tensor t) mutable { return net->forward(t); }, x).square().sum().backward();
      optimizer.step();
      record_buffers(record, *net);
      record("net", *net);
    }
  });
}

TEST(RegionState, HoldsForEveryModuleWithAStateOfItsOwn) {
  expect_equal_to_plain([](auto& region, Record& record) {
    SpectralLinear spectral;
    Codebook codebook;
    Counter counter;
    const Tensor x = torch::randn({5, 4}).requires_grad_();
    for (int step = 0; step < 3; ++step) {
      Tensor y = region([spectral](Tensor t) mutable { return spectral(t); }, x * 1);
      y = region([codebook](Tensor t) mutable { return codebook(t); }, y);
      y = region([counter](Tensor t) mutable { return counter(t); }, y);
      y.square().sum().backward();
      record("x.grad", x.grad());
      record("spectral", *spectral);
      record_buffers(record, *spectral);
      record_buffers(record, *codebook);
      record_buffers(record, *counter);
    }
  });
}

TEST(RegionState, RetainedGraphsMayBeGoneThroughTwice) {
  expect_equal_to_plain([](auto& region, Record& record) {
    nn::Sequential net = norm_net();
    const Tensor x = torch::randn({2, 2, 4, 4, 4}) * 1;
    const Tensor y = region([net](Tensor t) mutable { return net->forward(t); }, x).square().sum();
    y.backward({}, /*retain_graph=*/true);
    y.backward({}, /*retain_graph=*/true);
    y.backward();
    record("net", *net);
    record_buffers(record, *net);
  });
}

TEST(RegionState, ForwardAloneWritesOnce) {
  expect_equal_to_plain(
      [](auto& region, Record& record) {
        nn::Sequential net = norm_net();
        region([net](Tensor t) mutable { return net->forward(t); }, torch::randn({2, 2, 4, 4, 4}));
        record_buffers(record, *net);
      },
      /*reruns=*/false);
}

TEST(RegionState, NestedRegionsWriteOnce) {
  expect_equal_to_plain([](auto& region, Record& record) {
    nn::Sequential net = norm_net();
    Counter counter;
    const Tensor x = torch::randn({2, 2, 4, 4, 4}) * 1;
    auto inner = [net, counter, region](Tensor t) mutable {
      return region([counter](Tensor s) mutable { return counter(s); }, net->forward(t));
    };
    region([inner, region, counter](Tensor t) mutable { return counter(region(inner, t)); }, x)
        .square()
        .sum()
        .backward();
    record("net", *net);
    record_buffers(record, *net);
    record_buffers(record, *counter);
  });
}

// A GAN's discriminator: real and fake go through the same region before either's backward.
TEST(RegionState, OneRegionMayRunTwiceBeforeBackward) {
  expect_equal_to_plain([](auto& region, Record& record) {
    nn::Sequential net = norm_net();
    SpectralLinear spectral;
    const auto discriminate = [net, spectral](Tensor t) mutable {
      return spectral(net->forward(t).view({-1, 4}));
    };
    const Tensor real = region(discriminate, torch::randn({2, 2, 4, 4, 4}) * 1);
    const Tensor fake = region(discriminate, torch::randn({2, 2, 4, 4, 4}) * 1);
    (fake.mean() - real.mean()).backward();
    record("net", *net);
    record_buffers(record, *net);
  });
}

TEST(RegionState, ThreadsThatShareABatchNormCountEveryCallOnce) {
  constexpr int kThreads = 8, kSteps = 20;
  nn::BatchNorm3d norm(3);
  on_threads(kThreads, [&](int) {
    for (int step = 0; step < kSteps; ++step) {
      const Tensor x = (torch::ones({2, 3, 2, 2, 2}) * 1).requires_grad_();
      checkpoint([norm](Tensor t) mutable { return norm(t.sin() * 2).exp(); }, x).sum().backward();
    }
  });
  EXPECT_EQ(norm->num_batches_tracked.item<int64_t>(), kThreads * kSteps);
  nn::BatchNorm3d alone(3);  // the same batch as often, by one thread
  for (int step = 0; step < kThreads * kSteps; ++step) {
    alone((torch::ones({2, 3, 2, 2, 2}) * 1).sin() * 2);
  }
  EXPECT_TRUE(torch::equal(norm->running_mean, alone->running_mean));
  EXPECT_TRUE(torch::equal(norm->running_var, alone->running_var));
}

// The buffer's version counter moves as in plain, so that plain's check of other graphs holds too.
TEST(RegionState, RerunLeavesVersionCountersWhereTheyWere) {
  const Tensor buffer = torch::zeros({4});
  const Tensor x = torch::ones({4}).requires_grad_() * 1;
  const Tensor y = checkpoint(
      [buffer](Tensor t) mutable {
        buffer.add_(1);
        return (t * buffer).sin();
      },
      x);
  const auto version = buffer._version();
  y.sum().backward();
  EXPECT_EQ(buffer._version(), version);
  EXPECT_TRUE(torch::equal(buffer, torch::ones({4})));
}

TEST(RegionState, IsPutBackWhenARerunFails) {
  const Tensor buffer = torch::zeros({4});
  const auto runs = std::make_shared<int>(0);
  const Tensor y = checkpoint(
      [buffer, runs](Tensor t) mutable {
        buffer.add_(1);
        t = (t * buffer).sin();
        TORCH_CHECK((*runs)++ != 1, "boom");
        return t;
      },
      torch::ones({4}).requires_grad_() * 1);
  EXPECT_THROW(y.sum().backward({}, true), c10::Error);
  EXPECT_TRUE(torch::equal(buffer, torch::ones({4})));
  y.sum().backward();
  EXPECT_TRUE(torch::equal(buffer, torch::ones({4})));
}

TEST(RegionState, RefusesASnapshotOverTheLimit) {
  const Tensor buffer = torch::zeros({1024});
  const auto text = tidemark::tests::thrown_text([&] {
    checkpoint(
        CheckpointOptions().name("codebook").snapshot_limit(4095),
        [buffer](Tensor t) mutable {
          buffer.add_(1);
          return (t * buffer).sin();
        },
        torch::ones({1024}).requires_grad_() * 1);
  });
  ASSERT_TRUE(text.has_value());
  EXPECT_NE(text->find("'codebook'"), std::string::npos) << *text;
  EXPECT_NE(text->find("4096 bytes"), std::string::npos) << *text;
  EXPECT_NE(text->find("snapshot_limit"), std::string::npos) << *text;
}

TEST(RegionState, GeneratorPassedToAnOpIsReplayedAndStandsWherePlainLeavesIt) {
  expect_equal_to_plain([](auto& region, Record& record) {
    at::Generator generator = at::detail::createCPUGenerator(5);
    const Tensor x = torch::ones({16}).requires_grad_();
    Tensor y = region(
        [generator](Tensor t) {
          t = t * torch::rand({16}, generator);
          return t * torch::empty({16}).normal_(0, 1, generator) + torch::rand({16});
        },
        x * 1);
    record("drawn between", torch::rand({4}, generator));
    y.sin().sum().backward();
    record("x.grad", x.grad());
    record("drawn after", torch::rand({4}, generator));
  });
}

// A module may keep what it computed last, with its graph. The re-run assigns it again, and that
// graph knows nothing of what led to the arguments.
struct Keeper : torch::nn::Module {
  Tensor forward(const Tensor& t) {
    const Tensor computed = t.sin();
    if (always || !tidemark::recomputing()) {
      features = computed;
    }
    return computed.exp();
  }
  bool always = true;
  Tensor features;
};

TEST(RegionState, ABackwardFromATensorThatTheRerunLeftInAMemberIsRefused) {
  const auto net = std::make_shared<Keeper>();
  const Tensor x = torch::rand({4}).requires_grad_();
  checkpoint(
      CheckpointOptions().name("enc"), [net](const Tensor& t) { return net->forward(t); }, x * 1)
      .sum()
      .backward();
  EXPECT_THAT(thrown_text([&] { net->features.sum().backward(); }).value_or("accepted"),
              AllOf(HasSubstr("'enc'"), HasSubstr("recomputing()")));
}

TEST(RegionState, AMemberAssignedInTheForwardOnlyKeepsItsGraph) {
  expect_equal_to_plain([](auto& region, Record& record) {
    const auto net = std::make_shared<Keeper>();
    net->always = false;
    const Tensor x = torch::rand({4}).requires_grad_();
    region([net](const Tensor& t) { return net->forward(t); }, x * 1)
        .sum()
        .backward({}, /*retain_graph=*/true);
    net->features.sum().backward();
    record("x.grad", x.grad());
    net->features.reset();
  });
}

// A loss from a member, as of a mixture of experts, is the forward's: taken before the re-run.
TEST(RegionState, ALossThatTheForwardLeftInAMemberMayBeAdded) {
  expect_equal_to_plain([](auto& region, Record& record) {
    const auto net = std::make_shared<Keeper>();
    const Tensor x = torch::rand({4}).requires_grad_();
    for (int step = 0; step < 2; ++step) {
      const Tensor y = region([net](const Tensor& t) { return net->forward(t); }, x * 1);
      (y.sum() + net->features.square().sum()).backward();
    }
    record("x.grad", x.grad());
    net->features.reset();
  });
}

// Saved by the product itself, not through a clone.
TEST(RegionState, ABufferThatTheRegionWritesAndSavesGivesPlainsGradients) {
  expect_equal_to_plain([](auto& region, Record& record) {
    const Tensor steps = torch::zeros({3});
    const Tensor x = torch::rand({3}).requires_grad_();
    for (int step = 0; step < 3; ++step) {
      region(
          [steps](const Tensor& t) {
            steps.add_(1);
            return (t * steps).sin() * steps;
          },
          x * 1)
          .sum()
          .backward();
      record("steps", steps);
      record("x.grad", x.grad());
    }
  });
}

TEST(RegionState, EveryStateOfAModuleMayBeGoneThroughTwice) {
  expect_equal_to_plain([](auto& region, Record& record) {
    SpectralLinear spectral;
    Codebook codebook;
    Counter counter;
    const Tensor x = torch::randn({5, 4}).requires_grad_();
    const Tensor loss = region([spectral, codebook, counter](
                                   Tensor t) mutable { return counter(codebook(spectral(t))); },
                               x * 1)
                            .square()
                            .sum();
    loss.backward({}, /*retain_graph=*/true);
    loss.backward({}, /*retain_graph=*/true);
    loss.backward();
    record("x.grad", x.grad());
    record("spectral", *spectral);
    record_buffers(record, *spectral);
    record_buffers(record, *codebook);
    record_buffers(record, *counter);
  });
}

TEST(RegionState, HoldsForWrappedModulesToo) {
  const auto run = [](auto counter, auto spectral) {
    torch::manual_seed(3);
    {
      torch::NoGradGuard no_grad;
      spectral->weight.copy_(torch::randn({4, 4}));
      spectral->u.copy_(torch::randn({4}));
    }
    const Tensor x = torch::randn({5, 4}).requires_grad_();
    for (int step = 0; step < 3; ++step) {
      const Tensor loss = counter->forward(spectral->forward(x * 1)).square().sum();
      loss.backward({}, /*retain_graph=*/true);
      loss.backward();
    }
    Record record;
    record("x.grad", x.grad());
    record("spectral", *spectral);
    record_buffers(record, *spectral);
    record_buffers(record, *counter);
    return record;
  };
  const Record plain = run(Counter(), SpectralLinear());
  run(tidemark::Checkpointed<Counter>(), tidemark::Checkpointed<SpectralLinear>())
      .expect_equal(plain);
}

}  // namespace
