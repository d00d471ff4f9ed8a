// Checkpointed gradients are bit-equal to plain ones: what a region may be made of.

#include <gtest/gtest.h>
#include <tidemark/checkpoint.h>
#include <torch/torch.h>

#include <string>
#include <utility>
#include <vector>

#include "support/autograd_functions.h"
#include "support/plain_and_checkpointed.h"

namespace {

using tidemark::tests::expect_equal_to_plain;
using torch::Tensor;
namespace F = torch::nn::functional;
namespace tests = tidemark::tests;

using Op = Tensor (*)(const Tensor&);
using Ops = std::vector<std::pair<const char*, Op>>;

/// A region of the given op alone, between two ops outside, equals plain.
void expect_op_equal_to_plain(const std::string& name, const Tensor& x, Op op, bool reruns = true) {
  SCOPED_TRACE(name);
  expect_equal_to_plain(
      [&](auto& region, auto& record) {
        const Tensor in = x.detach().clone().requires_grad_();
        const Tensor out = region(op, in * 1);
        record("out", out);
        torch::abs(out * 3).sum().backward();
        record("gradient", in.grad());
      },
      reruns);
}

TEST(CheckpointOps, EachElementwiseOpKeepsItsGradients) {
  const Ops ops = {{"sin", torch::sin},
                   {"exp", torch::exp},
                   {"log", torch::log},
                   {"sqrt", torch::sqrt},
                   {"rsqrt", torch::rsqrt},
                   {"tanh", torch::tanh},
                   {"sigmoid", torch::sigmoid},
                   {"relu", torch::relu},
                   {"selu", torch::selu},
                   {"silu", torch::silu},
                   {"mish", torch::mish},
                   {"abs", torch::abs},
                   {"asin", torch::asin},
                   {"lgamma", torch::lgamma},
                   {"erf", torch::erf},
                   {"erfinv", torch::erfinv},
                   {"hardswish", torch::hardswish},
                   {"logit", [](const Tensor& x) { return torch::logit(x); }},
                   {"log_sigmoid", torch::log_sigmoid}};
  torch::manual_seed(1);
  const Tensor x = torch::rand({3, 5}) * 0.8 + 0.1;
  for (const auto& [name, op] : ops) {
    expect_op_equal_to_plain(name, x, op);
  }
}

TEST(CheckpointOps, EachReductionAndReorderingKeepsItsGradients) {
  torch::manual_seed(1);
  const Tensor x = torch::rand({4, 6}) + 0.5;
  const Ops ops = {
      {"prod", [](const Tensor& a) { return a.prod(1); }},
      {"std", [](const Tensor& a) { return a.std(1); }},
      {"norm", [](const Tensor& a) { return a.norm(2, 1); }},
      {"logsumexp", [](const Tensor& a) { return a.logsumexp(1); }},
      {"softmax", [](const Tensor& a) { return a.softmax(1); }},
      {"cumprod", [](const Tensor& a) { return a.cumprod(1); }},
      {"max", [](const Tensor& a) { return std::get<0>(a.max(1)); }},
      {"amax", [](const Tensor& a) { return a.amax(1); }},
      {"sort", [](const Tensor& a) { return std::get<0>(a.sort(1)); }},
      {"topk", [](const Tensor& a) { return std::get<0>(a.topk(2)); }},
      {"median", [](const Tensor& a) { return std::get<0>(a.median(1)); }},
      {"cummax", [](const Tensor& a) { return std::get<0>(a.cummax(1)); }},
      {"gather", [](const Tensor& a) { return a.gather(1, a.argsort(1, false)); }},
      {"index", [](const Tensor& a) { return a.index({a > 0.8}); }},
      {"masked_fill", [](const Tensor& a) { return a.masked_fill(a > 0.8, 0).sin(); }},
      {"scatter_add",
       [](const Tensor& a) {
         return torch::zeros_like(a).scatter_add(1, a.argsort(1, false), a).sin();
       }},
      {"index_put",
       [](const Tensor& a) {
         Tensor filled = torch::zeros({8});
         filled.index_put_({torch::tensor({1, 1, 3, 7})}, a.select(1, 2), /*accumulate=*/true);
         return filled.sin();
       }},
      {"where", [](const Tensor& a) { return torch::where(a > 0.8, a.sin(), a * a); }},
      {"clamp", [](const Tensor& a) { return a.clamp(0.6, 0.9); }},
      {"cdist", [](const Tensor& a) { return torch::cdist(a, a.flip({0})); }},
      {"einsum",
       [](const Tensor& a) {
         return torch::einsum("ij,kj->ik", {a, a});
       }},
      {"pow", [](const Tensor& a) { return a.pow(a); }},
      {"unique",
       [](const Tensor& a) { return a * std::get<1>(torch::_unique2(a, true, true)).view_as(a); }},
      {"stack",
       [](const Tensor& a) {
         return torch::stack({a, a.sin(), a}).prod(0);
       }},
      {"split", [](const Tensor& a) { return a.split(2, 1)[1] * a.chunk(3, 1)[0]; }},
      {"cholesky",
       [](const Tensor& a) { return torch::linalg_cholesky(a.mm(a.t()) + torch::eye(4)); }},
      {"svd", [](const Tensor& a) { return std::get<1>(torch::linalg_svd(a, false)); }},
      {"solve",
       [](const Tensor& a) { return torch::linalg_solve(a.mm(a.t()) + torch::eye(4), a); }},
  };
  for (const auto& [name, op] : ops) {
    expect_op_equal_to_plain(name, x, op);
  }
}

TEST(CheckpointOps, EachNetworkOpKeepsItsGradients) {
  torch::manual_seed(1);
  const Tensor x = torch::rand({2, 4, 4, 4, 4});
  const Ops ops = {
      {"max_pool3d", [](const Tensor& a) { return F::max_pool3d(a, F::MaxPool3dFuncOptions(2)); }},
      {"avg_pool3d",
       [](const Tensor& a) { return F::avg_pool3d(a, F::AvgPool3dFuncOptions(2)).sin(); }},
      {"adaptive_max_pool3d",
       [](const Tensor& a) {
         return F::adaptive_max_pool3d(a, F::AdaptiveMaxPool3dFuncOptions(2));
       }},
      {"interpolate",
       [](const Tensor& a) {
         return F::interpolate(a, F::InterpolateFuncOptions()
                                      .scale_factor(std::vector<double>{2, 2, 2})
                                      .mode(torch::kTrilinear)
                                      .align_corners(false))
             .sin();
       }},
      {"grid_sample",
       [](const Tensor& a) {
         const Tensor grid = a.narrow(1, 0, 3).permute({0, 2, 3, 4, 1}) * 2 - 1;
         return F::grid_sample(a, grid, F::GridSampleFuncOptions().align_corners(true));
       }},
      {"group_norm", [](const Tensor& a) { return torch::group_norm(a, 2); }},
      {"layer_norm", [](const Tensor& a) { return torch::layer_norm(a, {4}); }},
      {"pad",
       [](const Tensor& a) {
         return F::pad(a, F::PadFuncOptions({1, 1, 1, 1, 1, 1}).mode(torch::kReplicate)).sin();
       }},
      {"glu", [](const Tensor& a) { return torch::glu(a, 1); }},
      {"prelu", [](const Tensor& a) { return torch::prelu(a - 0.5, torch::full({4}, 0.1)); }},
      {"unfold", [](const Tensor& a) { return a.unfold(2, 2, 1).sin(); }},
      {"attention",
       [](const Tensor& a) {
         const Tensor q = a.flatten(2);
         return torch::scaled_dot_product_attention(q, q.sin(), q.cos());
       }},
      {"cross_entropy",
       [](const Tensor& a) {
         return F::cross_entropy(a, torch::ones({2, 4, 4, 4}, torch::kLong));
       }},
      {"smooth_l1", [](const Tensor& a) { return F::smooth_l1_loss(a, torch::zeros_like(a)); }},
      {"binary_cross_entropy",
       [](const Tensor& a) { return F::binary_cross_entropy(a, a.detach().round()); }},
      {"kl_div",
       [](const Tensor& a) {
         return F::kl_div(a.log_softmax(1), a.detach().softmax(1),
                          F::KLDivFuncOptions(torch::kBatchMean));
       }},
  };
  for (const auto& [name, op] : ops) {
    expect_op_equal_to_plain(name, x, op);
  }
}

TEST(CheckpointOps, OpsWithoutSavedTensorsAreNeverReRun) {
  const Tensor x = torch::ones({2, 3});
  expect_op_equal_to_plain(
      "add", x, [](const Tensor& a) { return a + 1; }, /*reruns=*/false);
  expect_op_equal_to_plain(
      "clone", x, [](const Tensor& a) { return a.clone(); }, false);
  expect_op_equal_to_plain(
      "view", x,
      [](const Tensor& a) {
        return a.view({3, 2}).t();
      },
      false);
  expect_op_equal_to_plain(
      "number", x, [](const Tensor& a) { return a * 2.0 / 3.0; }, false);
}

TEST(CheckpointOps, ViewsAndInPlaceEditsInsideTheRegionKeepTheirGradients) {
  torch::manual_seed(1);
  const Tensor x = torch::rand({4, 6}) + 0.5;
  const Ops regions = {
      {"write through a view",
       [](const Tensor& a) {
         Tensor b = a.sin();
         b.view({24}).narrow(0, 3, 7).mul_(2);
         return b * a;
       }},
      {"write through a view with exp_",
       [](const Tensor& a) {
         Tensor b = a * 2;
         b.select(0, 1).exp_();
         return b.t().contiguous().view({3, 8}) * 2;
       }},
      {"fill a buffer row by row",
       [](const Tensor& a) {
         Tensor out = torch::zeros_like(a);
         for (int64_t row = 0; row < a.size(0); ++row) {
           out[row] = a[row].exp() * (row + 1);
         }
         return out.tanh_();
       }},
      {"in-place chain", [](const Tensor& a) { return (a * a).add_(1).mul_(3).sigmoid_(); }},
      {"in-place with an op's result",
       [](const Tensor& a) {
         Tensor b = a.cos();
         b.mul_(a.sin());
         b += a;
         return b;
       }},
      {"in-place edit after a save that does not need it",
       [](const Tensor& a) {
         Tensor b = a.sin();  // saves a, not b
         return b.mul_(3).exp();
       }},
      {"chunks of one base",
       [](const Tensor& a) {
         const auto parts = (a * 1).chunk(2, 1);
         return parts[0] * parts[1].exp();
       }},
      {"set_ under no_grad of a temporary",
       [](const Tensor& a) {
         Tensor noise = torch::ones_like(a);
         {
           torch::NoGradGuard no_grad;
           noise.mul_(a);
         }
         return noise * a;
       }},
      {"detach and no_grad",
       [](const Tensor& a) {
         Tensor scale;
         {
           torch::NoGradGuard no_grad;
           scale = a.exp().sum();
         }
         return a.sin() * scale + a.detach() * a;
       }},
      {"a branch on grad mode and requires_grad",
       [](const Tensor& a) {
         return torch::GradMode::is_enabled() && a.requires_grad() ? a.exp().sin() : a.cos();
       }},
      {"a branch on the values",
       [](const Tensor& a) { return a.sum().item<float>() > 0 ? a.exp() : a.sin() * a; }},
  };
  for (const auto& [name, region] : regions) {
    expect_op_equal_to_plain(name, x, region);
  }
}

TEST(CheckpointOps, EmptyTensorsAndScalarsKeepTheirGradients) {
  for (const auto& sizes : std::vector<std::vector<int64_t>>{{}, {0}, {0, 3}, {2, 0, 3}, {1}}) {
    expect_op_equal_to_plain("exp, sin", torch::ones(sizes),
                             [](const Tensor& a) { return (a * 2.0).exp().sin(); });
  }
  expect_op_equal_to_plain("max of what may be empty", torch::ones({0, 3}), [](const Tensor& a) {
    return torch::cat({a, torch::ones({1, 3})}).exp().amax(0);
  });
}

TEST(CheckpointOps, AFunctionThatUnpacksTwiceKeepsItsGradients) {
  expect_op_equal_to_plain("twice", torch::rand({3, 4}), [](const Tensor& a) {
    return tests::UnpacksTwice::apply(a.sin(), a.exp());
  });
}

TEST(CheckpointOps, AFunctionThatSavesItsOutputsLastKeepsItsGradients) {
  expect_op_equal_to_plain("outputs", torch::rand({3, 4}), [](const Tensor& a) {
    const auto out = tests::SavesOutputs::apply(a.sin());
    return out[0] + out[1];
  });
}

TEST(CheckpointOps, AFunctionThatMarksInputsDirtyKeepsItsGradients) {
  expect_op_equal_to_plain("dirty", torch::rand({3, 4}),
                           [](const Tensor& a) { return tests::ExpInPlace::apply(a.sin()).cos(); });
}

TEST(CheckpointOps, AFunctionWithAnOutputWithoutGradientKeepsItsGradients) {
  expect_op_equal_to_plain("row max", torch::rand({3, 4}), [](const Tensor& a) {
    const auto out = tests::RowMax::apply(a.sin());
    return out[0] * out[1];
  });
}

TEST(CheckpointOps, AFunctionThatSavesALeafOfItsOwnKeepsItsGradients) {
  expect_op_equal_to_plain("leaf", torch::rand({3, 4}), [](const Tensor& a) {
    return tests::SavesALeafOfItsOwn::apply(a.sin());
  });
}

TEST(CheckpointOps, AFunctionOfRegionsArgumentsAloneKeepsItsGradients) {
  expect_op_equal_to_plain("argument", torch::rand({3, 4}),
                           [](const Tensor& a) { return tests::UnpacksTwice::apply(a, a); });
}

/// x * sum(leaf * leaf), and backward goes on into the leaf that forward made.
struct ReachesALeafOfItsOwn : torch::autograd::Function<ReachesALeafOfItsOwn> {
  static Tensor forward(torch::autograd::AutogradContext* context, const Tensor& x,
                        std::vector<Tensor>* leaves) {
    const Tensor leaf = torch::full({3}, 2.0, x.options()).requires_grad_();
    leaves->push_back(leaf);
    context->save_for_backward({leaf});
    return x * leaf.detach().square().sum();
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list grads) {
    return {grads[0] * context->get_saved_variables()[0].square().sum(), Tensor()};
  }
};

/// x times the slope of exp there, by a backward inside; in ranges that a profiler shows.
Tensor in_ranges(const Tensor& x) {
  RECORD_USER_SCOPE("my block");
  const auto slope = [](const Tensor& at) {
    RECORD_FUNCTION("my range", std::vector<c10::IValue>({at}));
    const Tensor inner = at.detach().requires_grad_();
    return torch::autograd::grad({inner.exp().sum()}, {inner})[0];
  };
  return x * slope(x);
}

TEST(CheckpointOps, RangesOfTheUsersAndNodesOfAnInnerBackwardAreNoOps) {
  expect_op_equal_to_plain("in ranges", torch::rand({4}), in_ranges);
}

TEST(CheckpointOps, ADoubleBackwardReachesALeafThatAFunctionMadeAndSaved) {
  expect_equal_to_plain([](auto& region, auto& record) {
    std::vector<Tensor> leaves;
    const Tensor x = torch::rand({4}).requires_grad_();
    const Tensor y =
        region([&leaves](const Tensor& a) { return ReachesALeafOfItsOwn::apply(a.sin(), &leaves); },
               x * 1);
    const Tensor slope =
        torch::autograd::grad({y.sum()}, {x}, {}, /*retain_graph=*/true, /*create_graph=*/true)[0];
    slope.sum().backward();
    record("the forward's leaf", leaves.front().grad());
    record("x", x.grad());
  });
}

}  // namespace
