// Each lint finds what it is for, with its bytes, and keeps quiet about code that does it right.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <tidemark/amp_scope.h>
#include <tidemark/memory/memory_recorder.h>
#include <torch/torch.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace {

using testing::HasSubstr;
using tidemark::MemoryAdvice;
using tidemark::MemoryLint;
using tidemark::MemoryRecorder;
using tidemark::MemoryRecorderOptions;
using tidemark::MemoryReport;

struct Layers : torch::nn::Module {
  Layers() : first(64, 64), second(64, 64) {
    register_module("first", first);
    register_module("second", second);
  }
  torch::nn::Linear first, second;
};

MemoryReport record(const torch::nn::Module& model, const std::function<void()>& step) {
  MemoryRecorder recorder(model);
  step();
  return recorder.report();
}

std::optional<MemoryLint> lint_of(const MemoryReport& report, const std::string& name) {
  const auto found = std::find_if(report.lints.begin(), report.lints.end(),
                                  [&](const MemoryLint& lint) { return lint.name == name; });
  return found != report.lints.end() ? std::optional(*found) : std::nullopt;
}

constexpr int64_t kHidden = 128 * 64 * 4;

TEST(MemoryLints, FindActivationFunctionsThatKeepTheirInput) {
  Layers layers;
  const auto x = torch::randn({128, 64});
  const auto out_of_place = record(layers, [&] {
    const auto hidden = torch::leaky_relu(layers.first(x), 0.1);
    layers.second(hidden).sum().backward();
  });
  const auto lint = lint_of(out_of_place, "out-of-place activation");
  ASSERT_TRUE(lint.has_value());
  EXPECT_EQ(lint->bytes, kHidden);
  EXPECT_THAT(lint->text, HasSubstr("Activation functions (1, in the model)"));

  const auto in_place = record(layers, [&] {
    auto hidden = layers.first(x);
    torch::leaky_relu_(hidden, 0.1);
    layers.second(hidden).sum().backward();
  });
  EXPECT_FALSE(lint_of(in_place, "out-of-place activation").has_value());
  EXPECT_EQ(out_of_place.held - in_place.held, lint->bytes);
}

TEST(MemoryLints, LeaveActivationFunctionsAloneWhoseInputIsNeededElsewhere) {
  Layers layers;
  const auto x = torch::randn({128, 64});
  const auto report = record(layers, [&] {
    const auto made = layers.first(x);
    (layers.second(torch::leaky_relu(made, 0.1)) + made.square()).sum().backward();
  });
  EXPECT_FALSE(lint_of(report, "out-of-place activation").has_value());
}

TEST(MemoryLints, FindCopiesThatAreSavedBesideTheOriginal) {
  Layers layers;
  const auto x = torch::randn({128, 64});
  const auto report = record(layers, [&] {
    const auto made = layers.first(x).square();  // saves its input
    const auto squares = made.square();          // saves made
    const auto copy = made.t().contiguous();
    (copy.square().sum() + squares.sum()).backward();
  });
  const auto lint = lint_of(report, "saved twice");
  ASSERT_TRUE(lint.has_value());
  EXPECT_EQ(lint->bytes, kHidden);

  const auto once =
      record(layers, [&] { layers.first(x).t().contiguous().square().sum().backward(); });
  EXPECT_FALSE(lint_of(once, "saved twice").has_value());
}

TEST(MemoryLints, FindAGraphThatIsKept) {
  Layers layers;
  const auto x = torch::randn({128, 64});
  std::vector<torch::Tensor> outputs;
  const auto report = record(layers, [&] { outputs.push_back(layers.first(x).square()); });
  const auto lint = lint_of(report, "graph kept");
  ASSERT_TRUE(lint.has_value());
  EXPECT_EQ(lint->bytes, kHidden + static_cast<int64_t>(x.nbytes()));
  outputs.clear();
  const auto detached =
      record(layers, [&] { outputs.push_back(layers.first(x).square().detach()); });
  EXPECT_FALSE(lint_of(detached, "graph kept").has_value());
}

TEST(MemoryLints, FindLossesThatAreKept) {
  Layers layers;
  const auto x = torch::randn({128, 64});
  std::vector<torch::Tensor> losses;
  const auto steps = [&](bool keep) {
    for (int i = 0; i < 3; ++i) {
      const auto loss = layers.first(x).square().mean();
      loss.backward();
      if (keep) {
        losses.push_back(loss);
      }
    }
  };
  const auto lint = lint_of(record(layers, [&] { steps(true); }), "results kept");
  ASSERT_TRUE(lint.has_value());
  EXPECT_EQ(lint->bytes, 3 * 4);
  EXPECT_THAT(lint->text, HasSubstr("3 results of aten::mean"));
  losses.clear();
  EXPECT_FALSE(lint_of(record(layers, [&] { steps(false); }), "results kept").has_value());
}

TEST(MemoryLints, FindCopiesThatAutocastKeeps) {
  torch::nn::Conv3d conv(torch::nn::Conv3dOptions(16, 16, 3).padding(1));
  const auto x = torch::randn({1, 16, 2, 2, 2});
  const auto step = [&](bool enabled) {
    const tidemark::AmpScope amp(torch::kCPU, tidemark::AmpOptions().enabled(enabled));
    conv(x).sum().backward();
  };
  const auto lint = lint_of(record(*conv, [&] { step(true); }), "autocast cache");
  ASSERT_TRUE(lint.has_value());
  EXPECT_EQ(lint->bytes, (16 * 16 * 27 + 16) * 2);
  EXPECT_FALSE(lint_of(record(*conv, [&] { step(false); }), "autocast cache").has_value());
}

TEST(MemoryLints, FindGradientsThatAreFilledWithZeros) {
  Layers layers;
  const auto x = torch::randn({2, 64});
  const auto step = [&](bool set_to_none) {
    layers.zero_grad(set_to_none);
    layers.second(layers.first(x)).sum().backward();
  };
  step(true);
  const auto lint = lint_of(record(layers, [&] { step(false); }), "gradients not set to none");
  ASSERT_TRUE(lint.has_value());
  EXPECT_EQ(lint->bytes, 2 * (64 * 64 + 64) * 4);
  EXPECT_FALSE(
      lint_of(record(layers, [&] { step(true); }), "gradients not set to none").has_value());
}

TEST(MemoryLints, FindABatchThatIsMostlyZeros) {
  Layers layers;
  auto x = torch::zeros({128, 64});
  x.narrow(0, 0, 4).fill_(1);
  const auto step = [&] { layers.first(x).sum().backward(); };
  const auto lint = lint_of(record(layers, step), "sparse batch");
  ASSERT_TRUE(lint.has_value());
  EXPECT_EQ(lint->bytes, 128 * 64 * 4);
  EXPECT_THAT(lint->text, HasSubstr("96 % of the batch are zeros"));  // 124 / 128, rounded down
  x.fill_(1);
  EXPECT_FALSE(lint_of(record(layers, step), "sparse batch").has_value());
}

TEST(MemoryLints, LookAtTheBatchAndNotAtTheTarget) {
  Layers layers;
  const auto x = torch::randn({128, 64});
  const auto target = torch::zeros({128, 64});
  const auto report = record(layers, [&] {
    const auto doubled = target * 2;  // read first
    torch::mse_loss(layers.first(x), doubled).backward();
  });
  EXPECT_FALSE(lint_of(report, "sparse batch").has_value());
}

TEST(MemoryLints, LeaveDataAlone) {
  Layers layers;
  std::vector<torch::Tensor> kept;
  const auto report = record(layers, [&] {
    for (int i = 0; i < 3; ++i) {
      kept.push_back(torch::rand({8}));
    }
  });
  EXPECT_FALSE(lint_of(report, "results kept").has_value());
}

TEST(MemoryAdviceText, SaysThatCheckpointingWillNotHelpWhereStateDominates) {
  // a million Gaussians, few of which a picture shows
  const auto gaussians = torch::randn({100'000, 14}).requires_grad_();
  torch::optim::Adam adam({gaussians}, torch::optim::AdamOptions(1e-3));
  const auto step = [&] {
    adam.zero_grad();
    gaussians.narrow(0, 0, 1000).square().sum().backward();
    adam.step();
  };
  step();
  MemoryRecorder recorder(MemoryRecorderOptions().optimizer(adam));
  step();
  const MemoryReport report = recorder.report();
  ASSERT_FALSE(report.advice.empty());
  EXPECT_EQ(report.advice[0].kind, MemoryAdvice::Kind::kNotCheckpointing);
  EXPECT_THAT(report.advice[0].text, HasSubstr("Neither checkpointing nor smaller batches"));
  for (const MemoryAdvice& advice : report.advice) {
    EXPECT_NE(advice.kind, MemoryAdvice::Kind::kCheckpoint);
    EXPECT_NE(advice.kind, MemoryAdvice::Kind::kAccumulate);
  }
}

TEST(MemoryAdviceText, SuggestsToAccumulateByTheSizeOfTheBatch) {
  const auto advice_for = [](int64_t batch) {
    torch::nn::Conv3d conv(torch::nn::Conv3dOptions(1, 8, 3).padding(1));
    const auto x = torch::randn({batch, 1, 16, 16, 16});
    const auto report = record(*conv, [&] { conv(x).square().sum().backward(); });
    for (const MemoryAdvice& advice : report.advice) {
      if (advice.kind == MemoryAdvice::Kind::kAccumulate) {
        return advice;
      }
    }
    return MemoryAdvice{MemoryAdvice::Kind::kCheckpoint, "none", {}, 0, {}, {}, {}, 0};
  };
  const MemoryAdvice one = advice_for(1);
  ASSERT_EQ(one.kind, MemoryAdvice::Kind::kAccumulate);
  EXPECT_THAT(one.text, HasSubstr("The batch is 1 already"));
  EXPECT_FALSE(one.saves.has_value());
  const MemoryAdvice eight = advice_for(8);
  ASSERT_EQ(eight.kind, MemoryAdvice::Kind::kAccumulate);
  EXPECT_THAT(eight.text, HasSubstr("grows with the batch of 8"));
  EXPECT_FALSE(eight.saves.has_value());
}

TEST(MemoryAdviceText, NamesTheOpWhoseWorkspaceFillsTheMemory) {
  torch::nn::Conv3d conv(torch::nn::Conv3dOptions(8, 1, 5).padding(2));
  const auto x = torch::randn({1, 8, 12, 12, 12}, torch::kFloat64);  // im2col: 125 times as large
  conv->to(torch::kFloat64);
  const auto report = record(*conv, [&] { conv(x).sum().backward(); });
  ASSERT_FALSE(report.advice.empty());
  EXPECT_EQ(report.advice[0].kind, MemoryAdvice::Kind::kNotCheckpointing);
  EXPECT_THAT(report.advice[0].text, HasSubstr("allocates for itself is"));
}

}  // namespace
