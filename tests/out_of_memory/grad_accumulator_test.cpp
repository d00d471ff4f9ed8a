// A window of a GradAccumulator runs out of memory, at every allocation in turn.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <tidemark/checkpoint.h>
#include <tidemark/grad_accumulator.h>
#include <torch/torch.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "../support/thrown_text.h"
#include "support.h"

namespace {

using namespace tidemark::tests;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
using testing::Optional;
using tidemark::GradAccumulator;
using tidemark::GradAccumulatorOptions;
using tidemark::GradScaler;
using tidemark::GradScalerOptions;
using tidemark::MemoryScope;
using torch::Tensor;
namespace nn = torch::nn;
namespace optim = torch::optim;

class Quiet final : public c10::WarningHandler {
 public:
  void process(const c10::Warning& /*warning*/) override {}
};

struct NetImpl : nn::Module {
  NetImpl() {
    register_module("conv", conv);
    register_module("norm", norm);
    register_module("head", head);
  }
  Tensor forward(const Tensor& x) {
    const Tensor y = tidemark::checkpoint(
        [conv = conv, norm = norm](const Tensor& t) mutable {
          return torch::dropout(norm(conv(t)).relu(), 0.25, true);
        },
        x);
    return head(y).square().mean();
  }
  nn::Conv3d conv{nn::Conv3dOptions(1, 2, 3).padding(1)};
  nn::BatchNorm3d norm{2};
  nn::Linear head{3, 1};
};
TORCH_MODULE(Net);

using MakeOptimizer =
    std::function<std::unique_ptr<optim::Optimizer>(const std::vector<Tensor>& parameters)>;

std::unique_ptr<optim::Optimizer> make_sgd(const std::vector<Tensor>& parameters) {
  return std::make_unique<optim::SGD>(parameters, 0.1);
}
std::unique_ptr<optim::Optimizer> make_adam(const std::vector<Tensor>& parameters) {
  return std::make_unique<optim::Adam>(parameters, optim::AdamOptions(0.1));
}

struct Training {
  Training(const MakeOptimizer& make, GradAccumulatorOptions options, bool scaled) {
    torch::manual_seed(0);
    net = Net();
    batch = torch::randn({2, 1, 3, 3, 3});
    for (const auto& part :
         {net->conv->parameters(), net->norm->parameters(), net->head->parameters()}) {
      parameters.insert(parameters.end(), part.begin(), part.end());
    }
    auto first = net->conv->parameters();
    auto second = net->norm->parameters();
    for (const auto& parameter : net->head->parameters()) {
      second.push_back(parameter);
    }
    optimizers.push_back(make(first));
    optimizers.push_back(make(second));
    if (scaled) {
      options.scaler(scaler);
      (void)scaler.scale(torch::ones({}));  // has its own memory from now on
    }
    accumulator = std::make_unique<GradAccumulator>(optimizers, options.module(net));
    torch::manual_seed(1);
  }

  void accumulate() {
    Quiet quiet;
    const c10::WarningUtils::WarningHandlerGuard guard(&quiet);
    accumulator->accumulate(batch, [&](const Tensor& part) { return net(part); });
  }

  [[nodiscard]] State state() {
    auto all = parameters;
    for (const auto& buffer : net->buffers()) {
      all.push_back(buffer);
    }
    return State(all);
  }

  // With what is not in tensors: the scaler's count and the momenta of the BatchNorm.
  [[nodiscard]] std::vector<double> numbers() const {
    const auto scale = scaler.state();
    return {scale.scale, static_cast<double>(scale.growth_tracker), *net->norm->options.momentum(),
            static_cast<double>(accumulator->micro_steps()),
            static_cast<double>(accumulator->windows())};
  }

  Net net{nullptr};
  Tensor batch;
  std::vector<Tensor> parameters;
  std::vector<std::unique_ptr<optim::Optimizer>> optimizers;
  GradScaler scaler{GradScalerOptions().init_scale(1024)};
  std::unique_ptr<GradAccumulator> accumulator;
};

struct Variant {
  bool scaled;
  bool given;  // micro_batch(1), so that nothing is tried again
};

class Accumulate : public testing::TestWithParam<Variant> {};

GradAccumulatorOptions options_of(const Variant& variant) {
  auto options = GradAccumulatorOptions().clip_grad_norm(0.5).batch_norm(
      tidemark::BatchNormPolicy::kCorrectMomentum);
  if (variant.given) {
    options.micro_batch(1);
  }
  return options;
}

// Each allocation in turn: either smaller parts fit, or the error is thrown and everything is as
// before, gradients too; and the next call gives what an undisturbed one gives.
TEST_P(Accumulate, LosesNothing) {
  const auto start = [&](GradAccumulatorOptions options) {
    auto training = std::make_unique<Training>(make_sgd, options, GetParam().scaled);
    for (const auto& parameter : training->parameters) {
      parameter.mutable_grad() = torch::ones_like(parameter);  // somebody's
    }
    return training;
  };
  struct Expected {
    State state;
    std::vector<double> numbers;
    void expect_same(Training& training) const {
      training.state().expect_same(state);
      EXPECT_EQ(training.numbers(), numbers);
    }
  };
  const auto run = [&](const GradAccumulatorOptions& options) {
    const auto training = start(options);
    training->accumulate();
    return Expected{training->state(), training->numbers()};
  };
  const Expected whole = run(options_of(GetParam()));
  const Expected by_row = run(options_of(GetParam()).micro_batch(1));
  bool tried_again = false;
  bool thrown_at_the_end = false;
  for (const auto fails : {Fails::kOne, Fails::kAllBehind}) {
    for_each_allocation([&](int64_t k) {
      ExhaustedAllocator::get();
      const auto training = start(options_of(GetParam()));
      const Expected before{training->state(), training->numbers()};
      const auto gradients = gradients_of(training->parameters);
      const MemoryScope memory;
      bool absorbed = false;
      const bool failed = [&] {
        const Failing failing(fails, k);
        return runs_out(
            failing, [&] { training->accumulate(); }, &absorbed);
      }();
      if (!failed) {
        tried_again = tried_again || absorbed;
        (absorbed ? by_row : whole).expect_same(*training);
        return absorbed;
      }
      thrown_at_the_end = thrown_at_the_end || (fails == Fails::kOne && tried_again);
      before.expect_same(*training);
      EXPECT_EQ(differing(gradients_of(training->parameters), gradients), "") << "gradients";
      begin_another_pass();
      EXPECT_EQ(memory.current(), 0) << "bytes leaked";
      const bool rows_are_few = training->accumulator->micro_batch() == 1;
      training->accumulate();
      (rows_are_few ? by_row : whole).expect_same(*training);
      return true;
    });
  }
  EXPECT_EQ(tried_again, !GetParam().given);
  EXPECT_EQ(thrown_at_the_end, !GetParam().given);
}

INSTANTIATE_TEST_SUITE_P(OutOfMemory, Accumulate,
                         testing::Values(Variant{false, false}, Variant{true, false},
                                         Variant{true, true}));

TEST(GradAccumulatorOutOfMemory, InTheFirstStepOfAdamSaysWhichOptimizerEndedHalfWay) {
  for (const bool scaled : {false, true}) {
    bool first = false;
    bool second = false;
    for_each_allocation([&](int64_t k) {
      Training training(make_adam, GradAccumulatorOptions(), scaled);
      const auto numbers = training.numbers();
      std::optional<std::string> text;
      {
        const Failing failing(Fails::kOne, k);
        text = thrown_text([&] { training.accumulate(); });
        EXPECT_LE(failing.refused(), 1) << "a step that failed was tried again";
        if (!text.has_value()) {
          return failing.refused() != 0;
        }
      }
      if (text->find("half-way") == std::string::npos) {
        return true;
      }
      EXPECT_THAT(text, Optional(AllOf(HasSubstr("torch::optim::Adam"), HasSubstr("of 2"),
                                       HasSubstr("Nothing was tried again"))));
      first = first || text->find("optimizer 1 of 2") != std::string::npos;
      second = second || text->find("optimizer 2 of 2") != std::string::npos;
      EXPECT_EQ(training.numbers(), numbers);
      for (const auto& optimizer : training.optimizers) {
        optimizer->state().clear();
      }
      training.accumulate();  // training can go on
      return true;
    });
    EXPECT_TRUE(first);
    EXPECT_TRUE(second);
  }
}

// A window of two backward() calls. What fails gives it up; the same window may then be done anew.
TEST(GradAccumulatorOutOfMemory, InAWindowGivesItUpAndTheNextIsUndisturbed) {
  for (const auto policy :
       {tidemark::BatchNormPolicy::kPlain, tidemark::BatchNormPolicy::kFirstOnly}) {
    for (const auto fails : {Fails::kOne, Fails::kAllBehind}) {
      const auto start = [&] {
        return std::make_unique<Training>(
            make_sgd,
            GradAccumulatorOptions(2).clip_grad_norm(0.5).batch_norm(policy).drop_nonfinite(true),
            true);
      };
      // Without the layers that draw or keep statistics, so that forwards may be run again.
      const auto window = [](Training& training) {
        const Tensor x = training.batch;
        const auto micro_batch = [&](int64_t row) {
          return (training.net->head(training.net->conv(x.narrow(0, row, 1)))).square().mean();
        };
        training.accumulator->backward(micro_batch(0));
        training.accumulator->backward(micro_batch(1));
      };
      const auto expected = start();
      window(*expected);
      const auto expected_state = [&] {
        auto training = start();
        window(*training);
        return training->state();
      }();
      for_each_allocation([&](int64_t k) {
        ExhaustedAllocator::get();
        const auto training = start();
        const auto before = training->state();
        const auto numbers = training->numbers();
        const MemoryScope memory;
        bool absorbed = false;
        const bool failed = [&] {
          const Failing failing(fails, k);
          return runs_out(
              failing, [&] { window(*training); }, &absorbed);
        }();
        if (!failed) {
          training->state().expect_same(expected_state);
          return absorbed;
        }
        training->state().expect_same(before);
        if (training->accumulator->micro_steps() != 0) {
          training->accumulator->discard();  // a forward failed, which is the caller's
        }
        EXPECT_EQ(training->numbers(), numbers);
        for (const auto& parameter : training->parameters) {
          EXPECT_FALSE(parameter.grad().defined());
        }
        if (fails == Fails::kOne) {
          EXPECT_EQ(memory.current(), 0) << "a failed pass was kept";
        }
        begin_another_pass();
        EXPECT_EQ(memory.current(), 0) << "bytes leaked";
        window(*training);
        training->state().expect_same(expected_state);
        EXPECT_EQ(training->numbers(), expected->numbers());
        return true;
      });
    }
  }
}

// What a failed try has left in the engine's queue must not take the room of the next.
TEST(GradAccumulatorOutOfMemory, InABackwardPassLeavesTheWholeRoomToTheNextTry) {
  torch::manual_seed(0);
  const Tensor w = torch::randn({1000}).requires_grad_();
  optim::SGD sgd({w}, 0.1);
  bool left_something = false;
  for_each_allocation([&](int64_t k) {
    GradAccumulator accumulator(sgd);
    const Tensor batch = torch::ones({2, 1000});
    std::vector<int64_t> live;
    const MemoryScope memory;
    bool absorbed = false;
    const auto loss = [&](const Tensor& part) {
      live.push_back(memory.current());
      const Tensor a = (w * part).sin();
      return (a.exp().cos() * a.exp().tanh()).sum();
    };
    Quiet quiet;
    const c10::WarningUtils::WarningHandlerGuard guard(&quiet);
    {
      const Failing failing(Fails::kOne, k);
      if (runs_out(
              failing, [&] { accumulator.accumulate(batch, loss); }, &absorbed)) {
        return true;
      }
    }
    if (absorbed) {
      EXPECT_EQ(live[1], live[0]);
      left_something = true;
    }
    return absorbed;
  });
  EXPECT_TRUE(left_something);
}

}  // namespace
