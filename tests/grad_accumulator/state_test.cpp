// What is saved of a GradAccumulator, and going on from there.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <tidemark/grad_accumulator.h>
#include <torch/torch.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "../support/thrown_text.h"
#include "support.h"

namespace {

using namespace tidemark::tests;
using ::testing::HasSubstr;
using ::testing::Optional;
using tidemark::BatchNormPolicy;
using tidemark::GradAccumulator;
using tidemark::GradAccumulatorOptions;
using tidemark::GradScaler;
using tidemark::GradScalerOptions;
using torch::Tensor;

// All of a training, in half precision with an odd scale and uneven weights.
struct Training {
  explicit Training(GradAccumulatorOptions options = GradAccumulatorOptions(3)) {
    torch::manual_seed(2);
    model = torch::nn::Sequential(torch::nn::Linear(3, 5), torch::nn::BatchNorm1d(5),
                                  torch::nn::Linear(5, 1));
    unused = torch::ones({2}, torch::kBFloat16).requires_grad_();
    half = torch::ones({3}, torch::kBFloat16).requires_grad_();
    adam = std::make_unique<torch::optim::Adam>(model->parameters());
    sgd = std::make_unique<torch::optim::SGD>(std::vector<Tensor>{unused, half}, 0.1);
    accumulator = std::make_unique<GradAccumulator>(
        std::vector<torch::optim::Optimizer*>{adam.get(), sgd.get()},
        options.module(model)
            .scaler(scaler)
            .accumulate_dtype(torch::kFloat)
            .batch_norm(BatchNormPolicy::kFirstOnly)
            .drop_nonfinite(true));
  }

  void backward(int i) {
    const auto x = torch::arange(6, torch::kFloat).view({2, 3}) * (0.1 * i + 0.3);
    const auto loss = (model->forward(x * half.to(torch::kFloat)) - i).square().mean();
    accumulator->backward(i == 4 ? loss * kNaN : loss, i % 4 + 0.7);
  }

  std::vector<Tensor> tensors() const {
    auto result = model->parameters();
    for (const auto& buffer : model->buffers()) {
      result.push_back(buffer);
    }
    result.push_back(half);
    return result;
  }

  // Without the accumulator's own.
  void copy_from(const Training& other) {
    const torch::NoGradGuard no_grad;
    for (size_t i = 0; i < tensors().size(); ++i) {
      tensors()[i].copy_(other.tensors()[i]);
    }
    std::stringstream adam_file;
    torch::save(*other.adam, adam_file);
    torch::load(*adam, adam_file);
    scaler.load_state(other.scaler.state());
  }

  GradScaler scaler{GradScalerOptions().init_scale(1000).growth_interval(1).growth_factor(1.7)};
  torch::nn::Sequential model;
  Tensor unused;
  Tensor half;
  std::unique_ptr<torch::optim::Adam> adam;
  std::unique_ptr<torch::optim::SGD> sgd;
  std::unique_ptr<GradAccumulator> accumulator;
};

void expect_equal(const Training& a, const Training& b) {
  for (size_t i = 0; i < a.tensors().size(); ++i) {
    EXPECT_TRUE(torch::equal(a.tensors()[i], b.tensors()[i])) << i;
  }
  EXPECT_EQ(a.scaler.state().scale, b.scaler.state().scale);
  EXPECT_EQ(a.accumulator->windows(), b.accumulator->windows());
  EXPECT_EQ(a.accumulator->micro_steps(), b.accumulator->micro_steps());
  EXPECT_EQ(a.accumulator->dropped(), b.accumulator->dropped());
}

TEST(GradAccumulatorState, GoesOnBitForBitFromAnyPointOfAWindow) {
  for (int saved = 0; saved <= 8; ++saved) {
    Training whole;
    Training resumed;
    for (int i = 0; i < 9; ++i) {
      if (i == saved) {
        std::stringstream file;
        torch::save(*whole.accumulator, file);
        resumed.copy_from(whole);
        torch::load(*resumed.accumulator, file);
        expect_equal(whole, resumed);
      }
      whole.backward(i);
      if (i >= saved) {
        resumed.backward(i);
      }
    }
    expect_equal(whole, resumed);
    EXPECT_EQ(whole.accumulator->window_loss(), resumed.accumulator->window_loss());
    EXPECT_EQ(whole.accumulator->windows(), 3);
    EXPECT_EQ(whole.accumulator->dropped(), 1);
  }
}

TEST(GradAccumulatorState, ReplacesAnOpenWindowAndCanBeFlushedAtOnce) {
  Training saved;
  saved.backward(1);
  std::stringstream file;
  torch::save(*saved.accumulator, file);
  Training loaded;
  loaded.copy_from(saved);
  loaded.backward(7);
  loaded.backward(8);
  loaded.copy_from(saved);
  torch::load(*loaded.accumulator, file);
  EXPECT_FALSE(loaded.unused.grad().defined());
  EXPECT_THAT(thrown_text([&] { (void)loaded.accumulator->window_loss(); }),
              Optional(HasSubstr("since load()")));
  loaded.accumulator->flush();
  saved.accumulator->flush();
  expect_equal(loaded, saved);
}

TEST(GradAccumulatorState, RefusesAScaleThatIsNotTheSavedOne) {
  Training saved;
  saved.backward(1);
  std::stringstream file;
  torch::save(*saved.accumulator, file);
  Training loaded;
  torch::load(*loaded.accumulator, file);
  loaded.scaler.load_state({8, 2, 0.5, 10, 0});
  EXPECT_THAT(thrown_text([&] { loaded.accumulator->flush(); }),
              Optional(AllOf(HasSubstr("was 1000"), HasSubstr("is 8"))));
  saved.accumulator->discard();
}

TEST(GradAccumulatorState, RemembersTheMicroBatch) {
  const auto w = weight(0);
  torch::optim::SGD sgd({w}, 1);
  GradAccumulator accumulator(sgd);
  (void)warnings_of([&] {
    accumulator.accumulate(torch::ones({8}), [&](const Tensor& x) {
      if (x.size(0) > 4) {
        throw std::bad_alloc();
      }
      return (w * x).mean();
    });
  });
  std::stringstream file;
  torch::save(accumulator, file);
  GradAccumulator loaded(sgd);
  torch::load(loaded, file);
  EXPECT_EQ(loaded.micro_batch(), 4);
  EXPECT_EQ(loaded.windows(), 1);
}

TEST(GradAccumulatorState, IsAPartOfALargerArchiveWithSparseGradients) {
  torch::nn::Embedding table(torch::nn::EmbeddingOptions(4, 1).sparse(true));
  torch::nn::init::zeros_(table->weight);
  torch::optim::SGD sgd(table->parameters(), 1);
  std::stringstream file;
  {
    GradAccumulator accumulator(sgd, GradAccumulatorOptions(2));
    accumulator.backward(table->forward(torch::tensor({1, 1, 2})).sum());
    torch::serialize::OutputArchive archive;
    torch::serialize::OutputArchive part(archive.compilation_unit());
    accumulator.save(part);
    archive.write("accumulator", part);
    archive.save_to(file);
    accumulator.discard();
  }
  torch::serialize::InputArchive archive;
  archive.load_from(file);
  torch::serialize::InputArchive part;
  archive.read("accumulator", part);
  GradAccumulator loaded(sgd, GradAccumulatorOptions(2));
  loaded.load(part);
  loaded.backward(table->forward(torch::tensor({3})).sum());
  EXPECT_TRUE(table->weight.equal(torch::tensor({0.0, -1.0, -0.5, -0.5}).view({4, 1})));
}

class GradAccumulatorArchiveRefusal : public ::testing::Test {
 protected:
  using Archive = torch::serialize::OutputArchive;

  // What an accumulator of one parameter of two elements writes after one micro-batch, where
  // entries are written otherwise; None leaves one out.
  static std::optional<std::string> load_with(
      const std::vector<std::pair<std::string, c10::IValue>>& changes) {
    std::vector<std::pair<std::string, c10::IValue>> entries{
        {"grad_accumulator_version", int64_t{1}},
        {"windows", int64_t{5}},
        {"dropped", int64_t{0}},
        {"micro_batch", int64_t{0}},
        {"micro_steps", int64_t{1}},
        {"window_dropped", int64_t{0}},
        {"total", 1.0},
        {"reference", 2.0},
        {"gradients", int64_t{1}},
        {"gradients_0", torch::ones({2})},
        {"statistics", int64_t{0}},
        {"loss_sum", torch::ones({}, torch::kDouble)}};
    for (const auto& [key, changed] : changes) {
      bool known = false;
      for (auto& [name, entry] : entries) {
        if (name == key) {
          entry = changed;
          known = true;
        }
      }
      if (!known) {
        entries.emplace_back(key, changed);
      }
    }
    Archive archive;
    for (const auto& [name, entry] : entries) {
      if (!entry.isNone()) {
        archive.write(name, entry);
      }
    }
    std::ostringstream file;
    archive.save_to(file);
    return load(file.str());
  }

  // The text of the error, after a look that nothing has changed.
  static std::optional<std::string> load(const std::string& bytes) {
    const auto w = torch::zeros({2}).requires_grad_();
    RecordingSGD sgd({w});
    GradAccumulator accumulator(sgd, GradAccumulatorOptions(2));
    accumulator.backward(w.sum());
    std::istringstream file(bytes);
    auto text = thrown_text([&] { torch::load(accumulator, file); });
    if (text.has_value()) {
      EXPECT_EQ(accumulator.windows(), 0);
      accumulator.backward(w.sum() * 3);
      EXPECT_TRUE(w.equal(torch::full({2}, -2.0)));
    } else {
      EXPECT_EQ(accumulator.windows(), 5);
      accumulator.discard();
    }
    return text;
  }
};

TEST_F(GradAccumulatorArchiveRefusal, NotOfWhatItWrites) {
  EXPECT_EQ(load_with({}), std::nullopt);
  EXPECT_EQ(load_with({{"gradients_0", {}}}), std::nullopt);
}

TEST_F(GradAccumulatorArchiveRefusal, OfForeignAndBrokenFiles) {
  const auto w = weight(0);
  torch::optim::SGD sgd({w}, 1);
  std::ostringstream file;
  torch::save(sgd, file);
  EXPECT_THAT(load(file.str()), Optional(AllOf(HasSubstr("no entry 'grad_accumulator_version'"),
                                               HasSubstr("torch::save(accumulator, ...)"))));
  std::ostringstream own;
  const GradAccumulator accumulator(sgd);
  torch::save(accumulator, own);
  EXPECT_NE(load(own.str().substr(0, own.str().size() / 2)), std::nullopt);
  EXPECT_NE(load(""), std::nullopt);
}

TEST_F(GradAccumulatorArchiveRefusal, OfMissingAndMistypedEntries) {
  for (const std::string key :
       {"grad_accumulator_version", "windows", "dropped", "micro_batch", "micro_steps",
        "window_dropped", "total", "reference", "gradients", "statistics"}) {
    EXPECT_THAT(load_with({{key, {}}}), Optional(HasSubstr("no entry '" + key + "'")));
    EXPECT_THAT(load_with({{key, "8"}}), Optional(HasSubstr("entry '" + key + "' is a String")));
  }
  EXPECT_THAT(load_with({{"gradients_0", 1.0}}), Optional(HasSubstr("not a Tensor")));
}

TEST_F(GradAccumulatorArchiveRefusal, OfValuesThatDoNotFit) {
  EXPECT_THAT(load_with({{"grad_accumulator_version", int64_t{2}}}),
              Optional(HasSubstr("of version 2")));
  EXPECT_THAT(load_with({{"micro_steps", int64_t{-1}}}),
              Optional(HasSubstr("'micro_steps' is -1")));
  EXPECT_THAT(load_with({{"total", double{kNaN}}}), Optional(HasSubstr("'total' is nan")));
  EXPECT_THAT(load_with({{"reference", -2.0}}), Optional(HasSubstr("'reference' is -2")));
  EXPECT_THAT(load_with({{"reference", 0.0}}), Optional(HasSubstr("contradict each other")));
  EXPECT_THAT(load_with({{"loss_sum", {}}}), Optional(HasSubstr("contradict each other")));
  EXPECT_THAT(load_with({{"loss_sum", torch::ones({2})}}), Optional(HasSubstr("contradict")));
  EXPECT_THAT(load_with({{"gradients_0", torch::ones({3})}}),
              Optional(AllOf(HasSubstr("of shape [3]"), HasSubstr("[2]"))));
  EXPECT_THAT(load_with({{"gradients_0", torch::ones({2}, torch::kLong)}}),
              Optional(HasSubstr("dtype long")));
  EXPECT_THAT(load_with({{"gradients", int64_t{2}}}),
              Optional(HasSubstr("gradients of 2 parameters, but there are 1")));
  EXPECT_THAT(load_with({{"statistics", int64_t{1}}}), Optional(HasSubstr("1 running statistics")));
}

}  // namespace
