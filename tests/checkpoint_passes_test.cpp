// Backward passes over checkpointed regions: several over one graph, parts of it, higher order,
// nested, reentrant, and on other threads.

#include <gtest/gtest.h>
#include <tidemark/checkpoint.h>
#include <torch/torch.h>

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "support/plain_and_checkpointed.h"

namespace {

using tidemark::checkpoint;
using tidemark::CheckpointOptions;
using tidemark::tests::expect_equal_to_plain;
using torch::Tensor;
using torch::autograd::grad;
namespace nn = torch::nn;

Tensor leaf(at::IntArrayRef sizes) { return torch::randn(sizes).requires_grad_(); }

using Counter = std::shared_ptr<std::atomic<int>>;
Counter counter() { return std::make_shared<std::atomic<int>>(0); }

TEST(CheckpointPasses, EachPassOverARetainedGraphReRunsTheRegionOnce) {
  const Counter calls = counter();
  const Tensor x = leaf({3, 3}), weight = leaf({3, 3});
  const Tensor loss = checkpoint(
                          [calls, weight](const Tensor& a) {
                            ++*calls;
                            return a.mm(weight).sin().mm(weight).exp();
                          },
                          x)
                          .sum();
  const auto expected = grad({x.mm(weight).sin().mm(weight).exp().sum()}, {x, weight});
  for (int pass = 1; pass <= 3; ++pass) {
    loss.backward({}, /*retain_graph=*/pass < 3);
    EXPECT_EQ(*calls, 1 + pass);
    EXPECT_TRUE(torch::equal(x.grad(), pass == 3   ? expected[0] + expected[0] + expected[0]
                                       : pass == 2 ? expected[0] + expected[0]
                                                   : expected[0]));
  }
  EXPECT_TRUE(torch::equal(weight.grad(), expected[1] + expected[1] + expected[1]));
  EXPECT_EQ(calls.use_count(), 1) << "the region outlives its graph";
}

TEST(CheckpointPasses, AFreedGraphIsRefusedAsInPlainAutograd) {
  for (const bool checkpointed : {false, true}) {
    const Tensor x = leaf({3});
    const auto fn = [](const Tensor& a) { return a.exp().sin(); };
    const Tensor loss = (checkpointed ? checkpoint(fn, x) : fn(x)).sum();
    loss.backward();
    EXPECT_THROW(loss.backward(), std::exception) << checkpointed;
  }
}

TEST(CheckpointPasses, OutputsDifferentiatedOneByOneReRunTheRegionEachTime) {
  const Counter calls = counter();
  const Tensor x = leaf({3});
  const auto [a, b] = checkpoint(
      [calls](const Tensor& in) {
        ++*calls;
        return std::make_pair(in.exp(), in.tanh());
      },
      x);
  a.sum().backward();
  b.sum().backward();
  EXPECT_EQ(*calls, 3);
  EXPECT_TRUE(
      torch::equal(x.grad(), grad({x.exp().sum()}, {x})[0] + grad({x.tanh().sum()}, {x})[0]));
}

TEST(CheckpointPasses, SecondDerivativesEqualPlain) {
  expect_equal_to_plain([](auto& region, auto& record) {
    const Tensor x = leaf({4}), a = leaf({4});
    const Tensor y = region([a](const Tensor& in) { return (a * in).pow(2).sin().sum(); }, x);
    const Tensor first = grad({y}, {x}, {}, /*retain_graph=*/true, /*create_graph=*/true)[0];
    record("first", first);
    const auto second = grad({first.pow(2).sum()}, {a, x}, {}, true, true);
    record("with respect to a", second[0]);
    record("with respect to x", second[1]);
    const auto third = grad({second[0].sum() + second[1].exp().sum()}, {a, x});
    record("third, a", third[0]);
    record("third, x", third[1]);
  });
}

TEST(CheckpointPasses, BackwardWithCreateGraphEqualsPlain) {
  expect_equal_to_plain([](auto& region, auto& record) {
    nn::Sequential net(nn::Linear(3, 8), nn::Softplus(), nn::Linear(8, 1), nn::Tanh());
    const Tensor x = leaf({5, 3});
    const Tensor y = region([net](const Tensor& in) mutable { return net->forward(in); }, x);
    const Tensor slope = grad({y.sum()}, {x}, {}, true, true)[0];
    ((slope.norm(2, 1) - 1).square().mean() + y.square().mean()).backward();
    record("net", *net);
    record("x", x.grad());
  });
}

TEST(CheckpointPasses,
     GradInsideTheRegionEqualsPlain) {  // the eikonal loss of signed distance fields
  expect_equal_to_plain([](auto& region, auto& record) {
    nn::Sequential net(nn::Linear(3, 8), nn::Softplus(), nn::Linear(8, 1));
    const Tensor points = torch::randn({6, 3});
    for (int step = 0; step < 2; ++step) {
      const Tensor loss = region(
          [net](const Tensor& in) mutable {
            const Tensor p = in.detach().requires_grad_();
            const Tensor distance = net->forward(p);
            const Tensor slope = grad({distance.sum()}, {p}, {}, true, /*create_graph=*/true)[0];
            return (slope.norm(2, 1) - 1).square().mean() + distance.abs().mean();
          },
          points);
      loss.backward();
      record("loss", loss);
      record("net", *net);
    }
  });
}

TEST(CheckpointPasses, GradInsideTheRegionWithRespectToItsArgumentEqualsPlain) {
  expect_equal_to_plain([](auto& region, auto& record) {
    nn::Sequential net(nn::Linear(3, 8), nn::Tanh(), nn::Linear(8, 1));
    const Tensor x = leaf({6, 3});
    for (const Tensor& points : {x, x * 2}) {
      const Tensor out = region(
          [net](const Tensor& p) mutable {
            const Tensor distance = net->forward(p.sin());
            const Tensor slope = grad({distance.sum()}, {p}, {}, true, true)[0];
            return slope.square().sum() * distance;
          },
          points);
      out.sum().backward();
    }
    record("net", *net);
    record("x", x.grad());
  });
}

TEST(CheckpointPasses, GradInsideTheRegionThatFreesItsGraphEqualsPlain) {
  expect_equal_to_plain([](auto& region, auto& record) {
    const Tensor weight = leaf({3});
    const Tensor x = leaf({3});
    region(
        [weight](const Tensor& a) {
          const Tensor p = a.detach().requires_grad_();
          const Tensor slope = grad({(p * weight).exp().sum()}, {p})[0];  // an optimizer of its own
          return (a * weight * slope).sin();
        },
        x)
        .sum()
        .backward();
    record("weight", weight.grad());
    record("x", x.grad());
  });
}

TEST(CheckpointPasses, GradOfARegionInsideARegionEqualsPlain) {
  expect_equal_to_plain([](auto& region, auto& record) {
    nn::Sequential net(nn::Linear(3, 8), nn::Tanh(), nn::Dropout(0.3), nn::Linear(8, 1));
    const Tensor x = leaf({6, 3});
    region(
        [net, region](const Tensor& in) {
          const Tensor p = in * 1;
          const Tensor out = region([net](const Tensor& q) mutable { return net->forward(q); }, p);
          return grad({out.sum()}, {p}, {}, true, true)[0].square().sum() + out.sum();
        },
        x)
        .backward();
    record("net", *net);
    record("x", x.grad());
  });
}

TEST(CheckpointPasses, WithInputsTouchOnlyThose) {
  expect_equal_to_plain([](auto& region, auto& record) {
    const Tensor x = leaf({3}), weight = leaf({3});
    const Tensor y = region([weight](const Tensor& a) { return (a * weight).exp(); }, x).sum();
    y.backward({}, /*retain_graph=*/true, false, std::vector<Tensor>{x});
    EXPECT_FALSE(weight.grad().defined());
    record("x", x.grad());
    record("through grad()", grad({y}, {weight})[0]);
    EXPECT_FALSE(weight.grad().defined());
  });
}

// --- nested regions ---

struct Levels {
  Counter outer = counter(), middle = counter(), inner = counter();
};

template <class Region>
Tensor three_levels(Region& region, const Levels& calls, const Tensor& x, const Tensor& weight) {
  const auto inner = [weight, calls](const Tensor& a) {
    ++*calls.inner;
    return torch::dropout(a.mm(weight).sin(), 0.2, true).exp();
  };
  const auto middle = [region, inner, calls](const Tensor& a) {
    ++*calls.middle;
    return region(inner, a.cos()) * region(inner, a.sin());
  };
  const auto outer = [region, middle, calls](const Tensor& a) {
    ++*calls.outer;
    return region(middle, a.tanh()).sin();
  };
  return region(outer, x);
}

TEST(CheckpointPasses, NestedToDepthThreeEqualPlain) {
  expect_equal_to_plain([](auto& region, auto& record) {
    const Tensor x = leaf({3, 3}), weight = leaf({3, 3});
    const Tensor loss = three_levels(region, Levels(), x, weight).sum();
    loss.backward({}, /*retain_graph=*/true);
    record("x", x.grad());
    loss.backward();
    record("x", x.grad());
    record("weight", weight.grad());
  });
}

// A region re-runs once for a pass; what it is nested in re-runs it once more to get its arguments.
TEST(CheckpointPasses, NestedToDepthThreeReRunEachLevelOncePerLevelAround) {
  const Levels calls;
  const tidemark::tests::CheckpointedRegions region;
  const Tensor x = leaf({3, 3}), weight = leaf({3, 3});
  const Tensor loss = three_levels(region, calls, x, weight).sum();
  EXPECT_EQ(*calls.outer, 1);
  EXPECT_EQ(*calls.middle, 1);
  EXPECT_EQ(*calls.inner, 2);
  loss.backward();
  EXPECT_EQ(*calls.outer, 1 + 1);
  EXPECT_EQ(*calls.middle, 1 + 1 + 1);
  EXPECT_EQ(*calls.inner, 2 * (1 + 1 + 1 + 1));
  EXPECT_EQ(calls.inner.use_count(), 1) << "a region outlives its graph";
}

TEST(CheckpointPasses, NestedInAnUncheckpointedForwardOfManyLayersEqualPlain) {
  expect_equal_to_plain([](auto& region, auto& record) {
    const Tensor x = leaf({3, 3});
    Tensor h = x;
    for (int i = 0; i < 40; ++i) {
      h = region([](const Tensor& a) { return torch::dropout(a.sin() * 1.1, 0.1, true).tanh(); },
                 h);
    }
    h.sum().backward();
    record("x", x.grad());
  });
}

TEST(CheckpointPasses, ARegionThatTakesAnotherRegionsCapturedIntermediateEqualsPlain) {
  expect_equal_to_plain([](auto& region, auto& record) {
    const Tensor x = leaf({3});
    region(
        [region](const Tensor& a) {
          const Tensor h = a.exp();
          return region([h](const Tensor& b) { return (h * b).sin(); }, a.cos()) * h;
        },
        x)
        .sum()
        .backward();
    record("x", x.grad());
  });
}

// --- reentrant backward ---

/// sin(x), whose backward runs a backward of its own over what it is given.
struct Reentrant : torch::autograd::Function<Reentrant> {
  static Tensor forward(torch::autograd::AutogradContext* context, const Tensor& x,
                        const tidemark::tests::CheckpointedRegions* region, int64_t depth) {
    context->save_for_backward({x});
    context->saved_data["depth"] = depth;
    context->saved_data["region"] = reinterpret_cast<int64_t>(region);
    return x.sin();
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list grads) {
    const auto* region = reinterpret_cast<const tidemark::tests::CheckpointedRegions*>(
        context->saved_data["region"].toInt());
    const int64_t depth = context->saved_data["depth"].toInt();
    torch::AutoGradMode with_grad(true);
    const Tensor x = context->get_saved_variables()[0].detach().requires_grad_();
    const auto level = [region, depth](const Tensor& a) {
      return depth == 0 ? a.sin() : Reentrant::apply(a * 1, region, depth - 1);
    };
    const Tensor y = region != nullptr ? (*region)(level, x) : level(x);
    y.sum().backward();
    return {grads[0] * x.grad(), Tensor(), Tensor()};
  }
};

TEST(CheckpointPasses, AHundredReentrantBackwardsAroundRegionsEqualPlain) {
  const tidemark::tests::CheckpointedRegions region;
  Tensor expected;
  for (const auto* used :
       {static_cast<const tidemark::tests::CheckpointedRegions*>(nullptr), &region}) {
    const Tensor x = torch::linspace(0, 1, 4).requires_grad_();
    const auto fn = [used](const Tensor& a) { return Reentrant::apply(a.exp(), used, 100); };
    (used != nullptr ? region(fn, x) : fn(x)).sum().backward();
    if (used == nullptr) {
      expected = x.grad();
    } else {
      EXPECT_TRUE(torch::equal(x.grad(), expected));
    }
  }
  EXPECT_GT(region.calls(), 200);
}

TEST(CheckpointPasses, ABackwardInsideABackwardOverTheSameGraphEqualsPlain) {
  expect_equal_to_plain([](auto& region, auto& record) {
    const Tensor x = leaf({3});
    const Tensor h = region([](const Tensor& a) { return a.exp().sin(); }, x);
    const Tensor y = h * 2;
    int inner = 0;
    y.register_hook([&](const Tensor& g) {
      if (inner++ == 0) {
        torch::AutoGradMode with_grad(true);
        record("inner", grad({h.sum()}, {x}, {}, /*retain_graph=*/true)[0]);
      }
      return g;
    });
    y.sum().backward();
    record("x", x.grad());
  });
}

// --- threads ---

TEST(CheckpointPasses, OnAnotherThreadEqualPlain) {
  expect_equal_to_plain([](auto& region, auto& record) {
    nn::Sequential net(nn::Linear(4, 8), nn::Dropout(0.5), nn::Tanh(), nn::Linear(8, 2));
    const Tensor x = leaf({3, 4});
    const Tensor loss =
        region([net](const Tensor& in) mutable { return net->forward(in); }, x).square().sum();
    std::thread([&] { loss.backward(); }).join();
    record("net", *net);
    record("x", x.grad());
  });
}

TEST(CheckpointPasses, OfTwoThreadsOverOneGraphEqualPlain) {
  const Tensor x = leaf({16, 4}), weight = leaf({4, 4});
  const auto fn = [weight](const Tensor& a) { return a.mm(weight).sin().mm(weight).exp(); };
  const auto expected = grad({fn(x).sum()}, {x, weight});
  const tidemark::tests::CheckpointedRegions region;
  const Tensor loss = region(fn, x).sum();
  constexpr int kPasses = 200;
  std::atomic<int> wrong{0};
  const auto run = [&] {
    for (int i = 0; i < kPasses; ++i) {
      const auto grads = grad({loss}, {x, weight}, {}, /*retain_graph=*/true);
      wrong += !torch::equal(grads[0], expected[0]) || !torch::equal(grads[1], expected[1]);
    }
  };
  std::thread one(run), two(run);
  one.join();
  two.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(region.calls(), 1 + 2 * kPasses);
}

TEST(CheckpointPasses, OfEightThreadsWithTheirOwnGraphsEqualPlain) {
  nn::Sequential net(nn::Linear(4, 8), nn::Tanh(), nn::Linear(8, 2));
  std::vector<std::thread> threads;
  std::atomic<int> wrong{0};
  for (int seed = 0; seed < 8; ++seed) {
    threads.emplace_back([&, seed] {
      const Tensor x = torch::linspace(seed, seed + 1, 12).view({3, 4}).requires_grad_();
      auto fn = [net](const Tensor& in) mutable { return net->forward(in); };
      const auto nested = [fn](const Tensor& in) { return checkpoint(fn, in).sin(); };
      for (int i = 0; i < 30; ++i) {
        const Tensor expected = grad({fn(x).sin().sum()}, {x})[0];
        const Tensor actual = grad({checkpoint(nested, x).sum()}, {x})[0];
        wrong += !torch::equal(actual, expected);
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  EXPECT_EQ(wrong, 0);
}

TEST(CheckpointPasses, OverAForwardOfAThreadThatIsGoneEqualPlain) {
  expect_equal_to_plain([](auto& region, auto& record) {
    const Tensor x = leaf({3, 4});
    Tensor loss;
    std::thread([&] {
      loss =
          region([](const Tensor& a) { return torch::dropout(a.exp(), 0.5, true).sin(); }, x).sum();
    }).join();
    loss.backward();
    record("x", x.grad());
  });
}

TEST(CheckpointPasses, ANestedRegionThatCapturesItsOwnArgumentEqualsPlain) {  // a residual block
  expect_equal_to_plain([](auto& region, auto& record) {
    const Tensor x = leaf({3}), weight = leaf({3});
    region(
        [region, weight](const Tensor& a) {
          const Tensor h = a.exp();
          return region(
              [weight, skip = h](const Tensor& b) { return (b * weight).sin() + skip.tanh(); }, h);
        },
        x)
        .sum()
        .backward();
    record("x", x.grad());
    record("weight", weight.grad());
  });
}

}  // namespace
