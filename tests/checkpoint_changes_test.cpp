// A region that can't find again what its forward read, or goes another way, is refused.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <tidemark/checkpoint.h>
#include <torch/csrc/autograd/profiler_legacy.h>
#include <torch/torch.h>

#include <atomic>
#include <cstdlib>
#include <functional>
#include <memory>
#include <optional>
#include <sstream>
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
using tidemark::tests::thrown_text;
using torch::Tensor;
namespace nn = torch::nn;

Tensor input() { return torch::rand({3, 4}).requires_grad_() * 1; }

// Records a region over `layer`, changes something, and returns what backward says.
template <class Change>
std::string after(nn::Linear layer, Change&& change) {
  const Tensor y = checkpoint(
      CheckpointOptions().name("enc"), [layer](Tensor t) mutable { return layer(t.sin()).tanh(); },
      input());
  change();
  return thrown_text([&] { y.sum().backward(); }).value_or("accepted");
}

TEST(RegionChanges, NothingChangedIsAccepted) {
  EXPECT_EQ(after(nn::Linear(4, 4), [] {}), "accepted");
}

TEST(RegionChanges, ParameterWrittenInPlaceIsRefusedWhetherOrNotAnOpSavedIt) {
  for (const char* name : {"weight", "bias"}) {
    nn::Linear layer(4, 4);
    EXPECT_THAT(after(layer,
                      [&] {
                        torch::NoGradGuard no_grad;
                        layer->named_parameters()[name].add_(1);
                      }),
                AllOf(HasSubstr("'enc'"), HasSubstr("inplace"), HasSubstr("Float [4")))
        << name;
  }
}

TEST(RegionChanges, OptimizerStepsAreRefused) {
  const std::vector<std::pair<
      std::string, std::function<std::unique_ptr<torch::optim::Optimizer>(std::vector<Tensor>)>>>
      optimizers = {
          {"SGD", [](std::vector<Tensor>
                         p) { return std::make_unique<torch::optim::SGD>(std::move(p), 0.1); }},
          {"Adam", [](std::vector<Tensor>
                          p) { return std::make_unique<torch::optim::Adam>(std::move(p)); }},
          {"RMSprop", [](std::vector<Tensor>
                             p) { return std::make_unique<torch::optim::RMSprop>(std::move(p)); }},
      };
  for (const auto& [name, make] : optimizers) {
    nn::Linear layer(4, 4);
    auto optimizer = make({layer->bias});
    layer->bias.mutable_grad() = torch::ones({4});
    EXPECT_THAT(after(layer, [&, &opt = optimizer] { opt->step(); }), HasSubstr("Float [4]"))
        << name;
  }
}

TEST(RegionChanges, WritesThroughDataAreRefused) {
  nn::Linear layer(4, 4);
  EXPECT_THAT(after(layer, [&] { layer->bias.data().mul_(2); }),
              AllOf(HasSubstr("aten::"), HasSubstr("other values"), HasSubstr("Float [4] on cpu")));
}

TEST(RegionChanges, ReplacedTensorsAreRefused) {
  nn::Linear layer(4, 4);
  EXPECT_THAT(after(layer, [&] { layer->bias.set_data(torch::full({4}, 3.0)); }),
              HasSubstr("replaced"));
  EXPECT_THAT(after(layer, [&] { layer->to(torch::kDouble); }), HasSubstr("'enc'"));
  layer->to(torch::kFloat);
  EXPECT_THAT(after(layer, [&] { layer->bias = torch::full({4}, 2.0).requires_grad_(); }),
              HasSubstr("replaced"));
  nn::Linear fresh(4, 4), saved(4, 4);
  std::stringstream file;
  torch::save(saved, file);
  EXPECT_THAT(after(fresh, [&] { torch::load(fresh, file); }), HasSubstr("'enc'"));
}

TEST(RegionChanges, CapturedConstantsAreWatched) {
  const Tensor constant = torch::ones({4});
  const Tensor y = checkpoint([constant](Tensor t) { return (t.sin() + constant).exp(); }, input());
  constant.add_(1);
  EXPECT_THAT(thrown_text([&] { y.sum().backward(); }).value_or(""),
              AllOf(HasSubstr("aten::add"), HasSubstr("Float [4]")));
}

TEST(RegionChanges, ArgumentWrittenThroughDataIsRefused) {
  const Tensor x = input();
  const Tensor y = checkpoint([](Tensor t) { return t.sin().exp(); }, x);
  x.data().add_(1);
  EXPECT_THAT(thrown_text([&] { y.sum().backward(); }).value_or(""),
              HasSubstr("argument tensor #0"));
}

TEST(RegionChanges, RecordedWritesToACapturedTensorAreRefusedInTheForward) {
  const Tensor leaf = torch::ones({3, 4}).requires_grad_();
  const auto accumulate = [](Tensor into) {
    return thrown_text([&] {
             checkpoint(
                 CheckpointOptions().name("acc"),
                 [into](Tensor t) mutable {
                   into.add_(t.sin());
                   return into * t;
                 },
                 input());
           })
        .value_or("accepted");
  };
  EXPECT_THAT(accumulate(leaf * 1), AllOf(HasSubstr("'acc'"), HasSubstr("aten::add_")));
  EXPECT_THAT(accumulate(torch::zeros({3, 4})), HasSubstr("aten::add_"));
}

TEST(RegionChanges, EvalInBetweenIsRefused) {
  nn::BatchNorm1d norm(4);
  const Tensor y = checkpoint([norm](Tensor t) mutable { return norm(t.sin()); }, input());
  norm->eval();
  EXPECT_THAT(thrown_text([&] { y.sum().backward(); }).value_or(""),
              HasSubstr("train() and eval()"));
}

TEST(RegionChanges, AnotherBranchIsRefusedAlsoWithEqualShapes) {
  const auto flag = std::make_shared<bool>(true);
  const Tensor y =
      checkpoint([flag](Tensor t) { return *flag ? t.sin().exp() : t.cos().exp(); }, input());
  *flag = false;
  EXPECT_THAT(thrown_text([&] { y.sum().backward(); }).value_or(""),
              AllOf(HasSubstr("op #0"), HasSubstr("aten::sin"), HasSubstr("aten::cos")));
}

TEST(RegionChanges, AnotherNumberIsRefused) {
  const auto factor = std::make_shared<double>(2);
  const Tensor y = checkpoint([factor](Tensor t) { return (t.sin() * *factor).exp(); }, input());
  *factor = 3;
  EXPECT_THAT(thrown_text([&] { y.sum().backward(); }).value_or(""), HasSubstr("aten::mul"));
}

TEST(RegionChanges, MemoisedResultIsRefused) {
  const auto grid = std::make_shared<Tensor>();
  const Tensor y = checkpoint(
      [grid](Tensor t) {
        if (!grid->defined()) {
          *grid = torch::arange(4).to(torch::kFloat);
        }
        return (t.sin() * *grid).exp();
      },
      input());
  EXPECT_THAT(thrown_text([&] { y.sum().backward(); }).value_or(""), HasSubstr("remember"));
}

TEST(RegionChanges, TensorsMadePastTheOpsAreNoChange) {
  tidemark::tests::expect_equal_to_plain([](auto& region, tidemark::tests::Record& record) {
    const Tensor x = torch::rand({3, 4}).requires_grad_();
    region(
        [](Tensor t) {
          float values[4] = {1, 2, 3, 4};
          const Tensor made = torch::from_blob(values, {4}).clone();
          return (t * made + torch::from_blob(values, {4})).sin() +
                 torch::tensor({1.F, 2.F, 3.F, 4.F});
        },
        x * 1)
        .exp()
        .sum()
        .backward();
    record("x.grad", x.grad());
  });
}

TEST(RegionChanges, VerifyCatchesWhatNoOpShows) {
  const auto counter = std::make_shared<int>(0);
  const std::vector<std::function<float()>> sources = {
      [counter] { return static_cast<float>((*counter)++); },
      [] { return static_cast<float>(std::rand()); }};
  for (const auto& source : sources) {
    const auto run = [&](bool verify) {
      const Tensor y = checkpoint(
          CheckpointOptions().name("noise").verify(verify),
          [source](Tensor t) {
            const Tensor noise = torch::empty({3, 4});
            noise.data_ptr<float>()[0] = source();
            noise.slice(0, 1).zero_();
            return (t + noise).sin();
          },
          input());
      return thrown_text([&] { y.sum().backward(); }).value_or("accepted");
    };
    EXPECT_THAT(run(true), AllOf(HasSubstr("saved tensor #0"), HasSubstr("'noise'")));
  }
}

TEST(RegionChanges, VerifyRaisesNoFalseAlarm) {
  torch::manual_seed(0);
  nn::LSTM lstm(nn::LSTMOptions(4, 8).num_layers(2).dropout(0.3));
  nn::GRU gru(4, 8);
  nn::MultiheadAttention attention(nn::MultiheadAttentionOptions(4, 2).dropout(0.2));
  nn::Conv3d conv(2, 2, 1);
  nn::Linear linear(4, 4);
  nn::BatchNorm3d norm(2);
  const Tensor s = torch::rand({5, 2, 4}).requires_grad_();
  const Tensor volume = torch::rand({1, 2, 3, 3, 3}).requires_grad_();
  const std::vector<std::pair<std::string, std::function<Tensor()>>> regions = {
      {"rrelu",
       [&] {
         return checkpoint(
             CheckpointOptions().verify(true),
             [](Tensor t) { return torch::rrelu(t - 0.5, 0.1, 0.9, true).sin(); }, s * 1);
       }},
      {"lstm",
       [&] {
         return checkpoint(
             CheckpointOptions().verify(true),
             [lstm](Tensor t) mutable { return std::get<0>(lstm(t)); }, s * 1);
       }},
      {"gru",
       [&] {
         return checkpoint(
             CheckpointOptions().verify(true),
             [gru](Tensor t) mutable { return std::get<0>(gru(t)); }, s * 1);
       }},
      {"dropout",
       [&] {
         return checkpoint(
             CheckpointOptions().verify(true),
             [](Tensor t) { return torch::dropout(t.sin(), 0.5, true); }, s * 1);
       }},
      {"attention",
       [&] {
         return checkpoint(
             CheckpointOptions().verify(true),
             [attention](Tensor t) mutable { return std::get<0>(attention(t, t, t)); }, s * 1);
       }},
      {"knn",
       [&] {
         return checkpoint(
             CheckpointOptions().verify(true),
             [](Tensor t) {
               const Tensor points = t.view({-1, 4});
               const Tensor nearest = std::get<1>(torch::cdist(points, points).topk(3, 1, false));
               const Tensor order = std::get<1>(points.norm(2, 1).sort());
               return points.index_select(0, order).index({nearest}).sin();
             },
             s * 1);
       }},
      {"conv",
       [&] {
         return checkpoint(
             CheckpointOptions().verify(true),
             [conv](Tensor t) mutable { return conv(t.sin()).relu(); }, volume * 1);
       }},
      {"autocast with cache hits",
       [&] {
         at::autocast::set_autocast_enabled(at::kCPU, true);
         at::autocast::increment_nesting();
         const Tensor y = checkpoint(
             CheckpointOptions().verify(true),
             [linear](Tensor t) mutable { return linear(linear(t.sin()).tanh()); }, s * 1);
         at::autocast::decrement_nesting();
         at::autocast::clear_cache();
         at::autocast::set_autocast_enabled(at::kCPU, false);
         return y.to(torch::kFloat);
       }},
      {"batch norm",
       [&] {
         return checkpoint(
             CheckpointOptions().verify(true),
             [norm](Tensor t) mutable { return norm(t.sin()).relu(); }, volume * 1);
       }},
  };
  for (const auto& [name, region] : regions) {
    EXPECT_EQ(thrown_text([&, &run = region] { run().sum().backward(); }), std::nullopt) << name;
  }
}

TEST(RegionChanges, SharedDefaultGeneratorIsRightOrRefused) {
  std::atomic<int> wrong{0}, right{0}, refused{0};
  tidemark::tests::on_threads(8, [&](int) {
    for (int i = 0; i < 200; ++i) {
      const Tensor x = torch::ones({256}).requires_grad_();
      const Tensor y = checkpoint([](Tensor t) { return torch::dropout(t, 0.5, true) * t; }, x * 1);
      const Tensor mask = y.detach().clone();
      if (thrown_text([&] { y.sum().backward(); }).has_value()) {
        ++refused;
      } else {
        ++(torch::equal(x.grad(), mask * 2) ? right : wrong);  // d(mask x^2)/dx at x = 1
      }
    }
  });
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(right + refused, 1600);
}

TEST(RegionChanges, ObservationOffChecksNoneOfThis) {
  nn::Linear layer(4, 4);
  const Tensor y = checkpoint(
      CheckpointOptions().observe(false),
      [layer](Tensor t) mutable { return layer(t.sin()).tanh(); }, input());
  layer->bias.data().mul_(2);
  EXPECT_EQ(thrown_text([&] { y.sum().backward(); }), std::nullopt);
}

TEST(RegionChanges, WorksWithRecordFunctionOffAndBesideOtherObservers) {
  nn::Linear layer(4, 4);
  const auto run = [&] {
    const Tensor y = checkpoint(
        [layer](Tensor t) mutable { return torch::dropout(layer(t.sin()), 0.5, true).tanh(); },
        input());
    return thrown_text([&] { y.sum().backward(); });
  };
  {
    at::RecordFunctionGuard off(false);
    EXPECT_EQ(run(), std::nullopt);
  }
  const Tensor y = checkpoint([layer](Tensor t) mutable { return layer(t.sin()).tanh(); }, input());
  {
    at::RecordFunctionGuard off(false);
    EXPECT_EQ(thrown_text([&] { y.sum().backward(); }), std::nullopt);
  }
  static std::atomic<int> seen{0};
  const auto handle = at::addThreadLocalCallback(at::RecordFunctionCallback(
      [](const at::RecordFunction&) -> std::unique_ptr<at::ObserverContext> {
        ++seen;
        return nullptr;
      }));
  EXPECT_EQ(run(), std::nullopt);
  at::removeCallback(handle);
  EXPECT_GT(seen, 0);
}

// Variants of an op that texts or absent numbers tell apart; shapes are the same.
TEST(RegionChanges, AnotherTextOrAnAbsentNumberIsRefused) {
  using Variant = Tensor (*)(const Tensor&, bool);
  const std::vector<std::pair<std::string, Variant>> variants = {
      {"gelu", [](const Tensor& t, bool first) { return torch::gelu(t, first ? "none" : "tanh"); }},
      {"einsum",
       [](const Tensor& t, bool first) {
         return torch::einsum(first ? "ij,jk->ik" : "ij,kj->ik", {t, t});
       }},
      {"pad",
       [](const Tensor& t, bool first) {
         return torch::pad(t, {1, 1}, first ? "reflect" : "replicate");
       }},
      {"slice",
       [](const Tensor& t, bool first) {
         return first ? t.slice(0, std::nullopt, 2) : t.slice(0, 2, std::nullopt);
       }},
      {"clamp", [](const Tensor& t, bool first) {
         const std::optional<at::Scalar> bound(0.3), none;
         return first ? torch::clamp(t, bound, none) : torch::clamp(t, none, bound);
       }}};
  for (const auto& [name, variant] : variants) {
    const auto first = std::make_shared<bool>(true);
    const Tensor y =
        checkpoint([first, variant = variant](Tensor t) { return variant(t.sin(), *first).exp(); },
                   torch::rand({4, 4}).requires_grad_() * 1);
    *first = false;
    EXPECT_THAT(thrown_text([&] { y.sum().backward(); }).value_or("accepted"),
                HasSubstr("aten::" + name));
  }
}

TEST(RegionChanges, OneChangedValueOfALargeTensorIsRefused) {
  nn::Linear layer(64, 64);
  for (int64_t column = 0; column < 64; ++column) {
    const Tensor y = checkpoint([layer](Tensor t) mutable { return layer(t.sin()).tanh(); },
                                torch::rand({3, 64}).requires_grad_() * 1);
    layer->weight.data()[7][column].add_(1);
    EXPECT_TRUE(thrown_text([&] { y.sum().backward(); }).has_value()) << "column " << column;
  }
  const Tensor y = checkpoint([layer](Tensor t) mutable { return layer(t.sin()).tanh(); },
                              torch::rand({3, 64}).requires_grad_() * 1);
  Tensor other = layer->weight.detach().clone();
  other[7][10].add_(1);
  layer->weight.set_data(other);
  EXPECT_THAT(thrown_text([&] { y.sum().backward(); }).value_or("accepted"), HasSubstr("replaced"));
}

// SGD moves the rows that were used, and no version counter.
TEST(RegionChanges, AnOptimizerStepOnAFewRowsOfALargeTableIsRefused) {
  nn::Embedding table(1000, 16);
  torch::optim::SGD optimizer(table->parameters(), 0.1);
  const Tensor y = checkpoint([table](const Tensor& index) mutable { return table(index).exp(); },
                              torch::tensor({5}));
  table->weight.mutable_grad() = torch::zeros({1000, 16});
  table->weight.mutable_grad()[5].fill_(1);
  optimizer.step();
  EXPECT_THAT(thrown_text([&] { y.sum().backward(); }).value_or("accepted"),
              HasSubstr("aten::embedding"));
}

TEST(RegionChanges, AStateThatTheRegionReplacesIsRefused) {
  const auto state = std::make_shared<Tensor>(torch::zeros({3, 4}));
  const Tensor y = checkpoint(
      [state](Tensor t) {
        const Tensor h = (t + *state).tanh();
        *state = h.detach();
        return h.exp();
      },
      input());
  EXPECT_THAT(thrown_text([&] { y.sum().backward(); }).value_or("accepted"),
              HasSubstr("replaced between forward and backward"));
}

TEST(RegionChanges, EvalOfAnLstmInBetweenIsRefused) {
  nn::LSTM lstm(nn::LSTMOptions(4, 8).num_layers(2).dropout(0.3));
  for (const bool train_first : {true, false}) {
    lstm->train(train_first);
    const Tensor y = checkpoint([lstm](Tensor t) mutable { return std::get<0>(lstm(t)); },
                                torch::rand({5, 2, 4}).requires_grad_() * 1);
    lstm->train(!train_first);
    EXPECT_THAT(thrown_text([&] { y.sum().backward(); }).value_or("accepted"),
                HasSubstr("train() and eval()"));
  }
}

// Routing that is decided past the ops: another number of rows, as a non-deterministic top-k gives.
TEST(RegionChanges, AnotherNumberOfRoutedRowsIsRefusedWithBothShapes) {
  const auto routed = std::make_shared<int>(3);
  const Tensor y = checkpoint(
      CheckpointOptions().name("moe"),
      [routed](Tensor t) {
        const Tensor score = torch::empty({4});
        for (int i = 0; i < 4; ++i) {
          score.data_ptr<float>()[i] = i < *routed ? 1.F : 0.F;
        }
        const Tensor rows = score.nonzero().squeeze(1);
        return t.index_select(0, rows).exp();
      },
      torch::rand({4, 2}).requires_grad_() * 1);
  *routed = 2;
  EXPECT_THAT(thrown_text([&] { y.sum().backward(); }).value_or("accepted"),
              AllOf(HasSubstr("'moe'"), HasSubstr("[3"), HasSubstr("[2"), HasSubstr("aten::")));
}

TEST(RegionChanges, OpsBehindTheLastSavedTensorAreComparedToo) {
  for (const bool longer_first : {true, false}) {
    const auto longer = std::make_shared<bool>(longer_first);
    const Tensor y = checkpoint(
        [longer](Tensor t) {
          t = t.sin();
          return *longer ? t + 1 : t;  // saves nothing
        },
        input());
    *longer = !longer_first;
    EXPECT_THAT(thrown_text([&] { y.sum().backward(); }).value_or("accepted"),
                longer_first ? HasSubstr("it ran 2 ops in the forward and only 1")
                             : HasSubstr("were followed by aten::add"));
  }
}

TEST(RegionChanges, RefusalsNameRegionTensorOpAndRemedy) {
  nn::Linear layer(4, 4);
  const auto named = [](const char* remedy) {
    return AllOf(testing::StartsWith("tidemark: checkpointed region 'enc'"), HasSubstr("aten::t "),
                 HasSubstr("Float [4, 4] on cpu"), HasSubstr(remedy));
  };
  EXPECT_THAT(after(layer,
                    [&] {
                      torch::NoGradGuard no_grad;
                      layer->weight.add_(1);
                    }),
              named("write after backward()"));
  EXPECT_THAT(after(layer, [&] { layer->weight.data().add_(1); }),
              named("change it after backward()"));
  EXPECT_THAT(after(layer,
                    [&] {
                      layer->weight.set_data(torch::ones({4, 4}));
                    }),
              named("change it after backward()"));
}

template <class Body>
void expect_dropout_net_equal_to_plain(Body&& around) {
  tidemark::tests::expect_equal_to_plain([&](auto& region, tidemark::tests::Record& record) {
    nn::Sequential net(nn::Linear(4, 4), nn::BatchNorm1d(4), nn::Dropout(0.5), nn::Tanh());
    const Tensor x = torch::rand({3, 4}).requires_grad_();
    around([&] {
      region([net](Tensor t) mutable { return net->forward(t.sin()); }, x * 1)
          .exp()
          .sum()
          .backward();
    });
    record("x.grad", x.grad());
    record("net", *net);
    record("batches", net[1]->as<nn::BatchNorm1d>()->num_batches_tracked);
  });
}

TEST(RegionChanges, TheProfilerSeesEveryOpAndChangesNoGradient) {
  expect_dropout_net_equal_to_plain([](const std::function<void()>& step) {
    std::ostringstream trace;
    {
      const torch::autograd::profiler::RecordProfile profile(trace);
      step();
    }
    EXPECT_THAT(trace.str(), HasSubstr("aten::tanh"));
  });
}

TEST(RegionChanges, AGlobalObserverChangesNoGradient) {
  static std::atomic<int> seen{0};
  const auto handle =
      at::addGlobalCallback(at::RecordFunctionCallback([](const at::RecordFunction&)
                                                           -> std::unique_ptr<at::ObserverContext> {
                              ++seen;
                              return nullptr;
                            }).needsInputs(true));
  expect_dropout_net_equal_to_plain([](const std::function<void()>& step) { step(); });
  at::removeCallback(handle);
  EXPECT_GT(seen, 0);
}

TEST(RegionChanges, SwitchedOffRecordFunctionChangesNoGradientWhereNothingIsWritten) {
  tidemark::tests::expect_equal_to_plain([](auto& region, tidemark::tests::Record& record) {
    const at::RecordFunctionGuard off(false);
    const Tensor x = torch::rand({3, 4}).requires_grad_();
    region([](Tensor t) { return torch::dropout(t.sin(), 0.5, true).exp(); }, x * 1)
        .sum()
        .backward();
    record("x.grad", x.grad());
  });
}

}  // namespace
