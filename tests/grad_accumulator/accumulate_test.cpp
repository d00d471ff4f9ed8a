// Whole batches, cut into parts that memory holds.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <tidemark/checkpointed_sequential.h>
#include <tidemark/detail/batch_slices.h>
#include <tidemark/detail/out_of_memory.h>
#include <tidemark/grad_accumulator.h>
#include <tidemark/gtest/memory_cap.h>
#include <tidemark/memory/memory_scope.h>
#include <torch/torch.h>

#include <cstdint>
#include <map>
#include <new>
#include <numeric>
#include <optional>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "../support/thrown_text.h"
#include "support.h"

namespace {

using namespace tidemark::tests;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Optional;
using ::testing::SizeIs;
using tidemark::GradAccumulator;
using tidemark::GradAccumulatorOptions;
using tidemark::GradScaler;
using tidemark::GradScalerOptions;
using tidemark::StepResult;
using torch::Tensor;
using torch::optim::SGD;

// What an allocator of the machine says where it has no more, on the CPU and on a device.
void run_out_on_cpu() { (void)torch::empty({int64_t{1} << 46}); }
void run_out_on_device() {
  C10_THROW_ERROR(OutOfMemoryError, "CUDA out of memory. Tried to allocate 2.00 GiB.");
}

// Memory for so many rows.
struct Cap {
  int64_t rows;
  void (*run_out)() = run_out_on_cpu;
  void hold(int64_t wanted) const {
    if (wanted > rows) {
      run_out();
    }
  }
};

struct Rays {
  Tensor origins;
  std::vector<Tensor> views;
  std::string scene;
  std::map<std::string, Tensor> extra;
  double near = 0;
};

TEST(GradAccumulatorSlices, CutEveryTensorOfAnyBatch) {
  const auto w = weight(0);
  SGD sgd({w}, 1);
  GradAccumulator accumulator(sgd, GradAccumulatorOptions().micro_batch(2));
  const auto rows = torch::arange(5, torch::kFloat);
  std::vector<Tensor> seen;
  const auto see = [&](const Tensor& part) {
    seen.push_back(part);
    return (w * part).mean();
  };
  const auto expect_seen = [&] {
    ASSERT_THAT(seen, SizeIs(3));
    EXPECT_TRUE(torch::cat(seen).equal(rows));
    EXPECT_EQ(seen[1].data_ptr(), rows.data_ptr<float>() + 2) << "a view, not a copy";
    seen.clear();
  };

  accumulator.accumulate(rows, see);
  expect_seen();
  accumulator.accumulate(std::pair(rows, rows.view({5, 1})), [&](auto micro) {
    EXPECT_TRUE(micro.first.equal(micro.second.view(-1)));
    return see(micro.first);
  });
  expect_seen();
  accumulator.accumulate(std::tuple(torch::ones({5, 2}), rows, 7), [&](auto micro) {
    EXPECT_EQ(std::get<0>(micro).size(0), std::get<1>(micro).size(0));
    EXPECT_EQ(std::get<2>(micro), 7);
    return see(std::get<1>(micro));
  });
  expect_seen();
  const torch::data::Example<> example(torch::ones({5, 3, 4}), rows);
  accumulator.accumulate(example, [&](auto micro) {
    EXPECT_EQ(micro.data.size(0), micro.target.size(0));
    return see(micro.target);
  });
  expect_seen();
  const torch::data::TensorExample unlabelled(rows);
  accumulator.accumulate(unlabelled, [&](auto micro) { return see(micro.data); });
  expect_seen();
  const torch::data::Example<std::vector<Tensor>, Rays> nested(
      {rows}, {rows, {torch::ones({5}), Tensor()}, "lego", {{"depth", rows}}, 0.5});
  accumulator.accumulate(nested, [&](auto micro) {
    EXPECT_TRUE(micro.target.origins.equal(micro.target.extra.at("depth")));
    EXPECT_EQ(micro.target.views[0].size(0), micro.data[0].size(0));
    EXPECT_FALSE(micro.target.views[1].defined());
    EXPECT_EQ(micro.target.scene, "lego");
    EXPECT_EQ(micro.target.near, 0.5);
    return see(micro.data[0]);
  });
  expect_seen();
  accumulator.accumulate(std::pair(rows, torch::tensor(3.0)), [&](auto micro) {
    EXPECT_EQ(micro.second.item().toDouble(), 3) << "a number has no rows";
    return see(micro.first);
  });
  expect_seen();
}

TEST(GradAccumulatorSlices, RefuseBatchesWithoutRowsInCommon) {
  const auto w = weight(0);
  SGD sgd({w}, 1);
  GradAccumulator accumulator(sgd);
  const auto text = [&](const auto& batch) {
    return thrown_text(
        [&] { accumulator.accumulate(batch, [&](const auto&) { return w.sum(); }); });
  };
  EXPECT_THAT(text(std::pair(torch::ones({4, 2}), torch::ones({3}))),
              Optional(AllOf(HasSubstr("of shape [4, 2]"), HasSubstr("of shape [3]"))));
  EXPECT_THAT(text(torch::ones({0, 2})), Optional(HasSubstr("without rows")));
  EXPECT_THAT(text(torch::ones({})), Optional(HasSubstr("without rows")));
  EXPECT_THAT(text(std::vector<Tensor>()), Optional(HasSubstr("without rows")));
  EXPECT_EQ(value(w), 0);
}

TEST(GradAccumulatorSlices, WeighByRowsOrAsTheFunctionSays) {
  const auto x = torch::tensor({1.0, 2.0, 3.0, 4.0, 10.0});
  const auto w = weight(1);
  RecordingSGD sgd({w});
  GradAccumulator accumulator(sgd, GradAccumulatorOptions(99).micro_batch(3));
  const auto result =
      accumulator.accumulate(x, [&](const Tensor& part) { return (w * part).mean(); });
  EXPECT_EQ(result, StepResult::kStepped);
  EXPECT_NEAR(value(sgd.gradients[0]), 4, 1e-6);
  EXPECT_NEAR(accumulator.window_loss(), 4, 1e-6);
  // Only those above 2 count: 3, 4 and 10.
  const auto masked = [&](const Tensor& part) {
    const auto counts = part > 2;
    return std::pair((w * part).masked_select(counts).mean(), counts.sum().item<int64_t>());
  };
  accumulator.accumulate(x, masked);
  EXPECT_NEAR(value(sgd.gradients[1]), 17 / 3.0, 1e-6);
  accumulator.accumulate(x, [&](const Tensor& part) {
    const auto [loss, count] = masked(part);
    return tidemark::WeightedLoss{loss, static_cast<double>(count)};
  });
  EXPECT_EQ(value(sgd.gradients[2]), value(sgd.gradients[1]));
  accumulator.accumulate(x, [&](const Tensor& part) {
    const auto [loss, count] = masked(part);
    return std::tuple(loss, static_cast<int>(count));
  });
  EXPECT_EQ(value(sgd.gradients[3]), value(sgd.gradients[1]));
  EXPECT_EQ(accumulator.windows(), 4);
}

TEST(GradAccumulatorSlices, WithEqualPartsHaveTheBitsOfTheCommonLoop) {
  torch::manual_seed(1);
  torch::nn::Linear model(3, 2);
  const auto plain = std::dynamic_pointer_cast<torch::nn::LinearImpl>(model->clone());
  const auto x = torch::randn({12, 3});
  SGD sgd(model->parameters(), 0.1);
  GradAccumulator accumulator(sgd, GradAccumulatorOptions().micro_batch(4));
  accumulator.accumulate(x,
                         [&](const Tensor& part) { return model->forward(part).square().mean(); });
  for (const auto& part : x.split(4)) {
    (plain->forward(part).square().mean() / 3).backward();
  }
  SGD plain_sgd(plain->parameters(), 0.1);
  plain_sgd.step();
  EXPECT_TRUE(torch::equal(model->weight, plain->weight));
  EXPECT_TRUE(torch::equal(model->bias, plain->bias));
}

TEST(GradAccumulatorSlices, AreAWindowOfTheirOwn) {
  const auto w = weight(0);
  SGD sgd({w}, 1);
  GradAccumulator accumulator(sgd, GradAccumulatorOptions(4));
  const auto whole = [&] {
    accumulator.accumulate(torch::ones({2}), [&](const Tensor& x) { return (w * x).mean(); });
  };
  accumulator.backward(w.sum());
  EXPECT_THAT(thrown_text(whole), Optional(AllOf(HasSubstr("one is open"), HasSubstr("flush()"))));
  EXPECT_EQ(accumulator.micro_steps(), 1);
  accumulator.flush();
  whole();
  EXPECT_EQ(value(w), -2);
}

// A net that draws random numbers and keeps statistics, in a run of its own from one seed.
struct Training {
  explicit Training(GradAccumulatorOptions options = {}) {
    torch::manual_seed(5);
    model = torch::nn::Sequential(torch::nn::Conv1d(4, 8, 1), torch::nn::BatchNorm1d(8),
                                  torch::nn::Dropout(0.5), torch::nn::Conv1d(8, 1, 1));
    data = torch::randn({16, 4, 3});
    optimizer = std::make_unique<torch::optim::Adam>(model->parameters());
    accumulator = std::make_unique<GradAccumulator>(
        *optimizer, options.module(model).scaler(scaler).drop_nonfinite(true));
  }

  // Runs out behind everything that a part changes; if it can, after another part's backward.
  StepResult step(const Cap& cap) {
    return accumulator->accumulate(data, [&](const Tensor& part) {
      const bool first = sizes.empty() || sizes.back() != part.size(0);
      sizes.push_back(part.size(0));
      auto loss = model->forward(part).square().mean() + torch::rand({}) * 0;
      if (!first || part.size(0) == 16 || part.size(0) == 1) {
        cap.hold(part.size(0));
      }
      return loss;
    });
  }

  std::vector<Tensor> state() {
    std::vector<Tensor> tensors = model->parameters();
    for (const auto& buffer : model->buffers()) {
      tensors.push_back(buffer);
    }
    tensors.push_back(torch::rand({4}));
    const auto scale = scaler.state();
    tensors.push_back(torch::tensor({scale.scale, static_cast<double>(scale.growth_tracker)}));
    return tensors;
  }

  GradScaler scaler;
  torch::nn::Sequential model;
  Tensor data;
  std::unique_ptr<torch::optim::Adam> optimizer;
  std::unique_ptr<GradAccumulator> accumulator;
  std::vector<int64_t> sizes;
};

void expect_equal(const std::vector<Tensor>& a, const std::vector<Tensor>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) {
    EXPECT_TRUE(torch::equal(a[i], b[i])) << i << ": " << a[i] << "\nand " << b[i];
  }
}

TEST(GradAccumulatorAuto, HalvesUntilItFitsAndSeesEverySampleOnce) {
  const auto w = weight(0);
  RecordingSGD sgd({w});
  GradAccumulator accumulator(sgd);
  EXPECT_EQ(accumulator.micro_batch(), std::nullopt);
  std::vector<int64_t> sizes;
  std::vector<float> seen;
  const Cap cap{4};
  const auto step = [&](int64_t rows) {
    seen.clear();
    sizes.clear();
    return accumulator.accumulate(torch::arange(rows, torch::kFloat), [&](const Tensor& part) {
      sizes.push_back(part.size(0));
      cap.hold(part.size(0));
      seen.insert(seen.end(), part.data_ptr<float>(), part.data_ptr<float>() + part.numel());
      return (w * part).mean();
    });
  };
  const auto warnings = warnings_of([&] { step(16); });
  EXPECT_THAT(sizes, ElementsAre(16, 8, 4, 4, 4, 4));
  std::vector<float> all(16);
  std::iota(all.begin(), all.end(), 0.F);
  EXPECT_EQ(seen, all);
  EXPECT_EQ(value(sgd.gradients[0]), 7.5);
  EXPECT_EQ(accumulator.window_loss(), 0);
  EXPECT_EQ(accumulator.windows(), 1);
  EXPECT_EQ(accumulator.micro_batch(), 4);
  EXPECT_THAT(warnings, ElementsAre(AllOf(HasSubstr("micro-batches of 16 rows"), HasSubstr("8.")),
                                    AllOf(HasSubstr("micro-batches of 8 rows"), HasSubstr("4."))));
  // Remembered, for smaller and larger batches.
  EXPECT_THAT(warnings_of([&] { step(10); }), IsEmpty());
  EXPECT_THAT(sizes, ElementsAre(4, 4, 2));
  step(3);
  EXPECT_THAT(sizes, ElementsAre(3));
  EXPECT_EQ(accumulator.micro_batch(), 4);
}

TEST(GradAccumulatorAuto, HalvesOddSizesDownToOne) {
  const auto w = weight(0);
  SGD sgd({w}, 1);
  GradAccumulator accumulator(sgd);
  std::vector<int64_t> tried;
  const auto warnings = warnings_of([&] {
    accumulator.accumulate(torch::ones({5}), [&](const Tensor& part) {
      if (tried.empty() || tried.back() != part.size(0)) {
        tried.push_back(part.size(0));
      }
      Cap{1}.hold(part.size(0));
      return (w * part).mean();
    });
  });
  EXPECT_THAT(tried, ElementsAre(5, 3, 2, 1));
  EXPECT_THAT(warnings, SizeIs(3));
  EXPECT_EQ(value(w), -1);
}

// Several windows with an Adam, dropout, BatchNorm and a scaler; only the first runs out.
TEST(GradAccumulatorAuto, GoesOnBitForBitAsIfItHadBegunWithThatSize) {
  for (auto* run_out : {run_out_on_cpu, run_out_on_device}) {
    Training found;
    Training fixed(GradAccumulatorOptions().micro_batch(4));
    // Each begins at the same random numbers, for they share one generator.
    torch::manual_seed(9);
    const auto warnings = warnings_of([&] {
      for (int i = 0; i < 3; ++i) {
        EXPECT_EQ(found.step({4, run_out}), StepResult::kStepped);
      }
    });
    EXPECT_THAT(warnings, SizeIs(2));
    const auto expected = found.state();
    torch::manual_seed(9);
    for (int i = 0; i < 3; ++i) {
      fixed.step({16});
    }
    expect_equal(fixed.state(), expected);
    EXPECT_EQ(found.accumulator->window_loss(), fixed.accumulator->window_loss());
    EXPECT_EQ(found.accumulator->micro_batch(), 4);
    EXPECT_THAT(found.sizes, SizeIs(1 + 2 + 4 + 4 + 4));
  }
}

TEST(GradAccumulatorAuto, UnderAMemoryCapPeaksAsIfItHadBegunWithTheSizeThatFits) {
  struct Run {
    int64_t peak;
    std::optional<int64_t> size;
  };
  const auto run = [](std::optional<int64_t> size, std::optional<int64_t> cap) {
    torch::manual_seed(0);
    torch::nn::Sequential model(torch::nn::Linear(8, 64), torch::nn::Tanh(),
                                torch::nn::Linear(64, 1));
    SGD sgd(model->parameters(), 0.1);
    GradAccumulator accumulator(sgd, GradAccumulatorOptions().micro_batch(size));
    const Tensor batch = torch::randn({16, 8});
    const tidemark::MemoryScope memory;
    std::optional<tidemark::gtest::MemoryCap> capped;
    if (cap.has_value()) {
      capped.emplace(*cap);
    }
    accumulator.accumulate(
        batch, [&](const Tensor& part) { return model->forward(part).square().mean(); });
    return Run{memory.peak(), accumulator.micro_batch()};
  };
  const int64_t whole = run(16, std::nullopt).peak;
  const int64_t half = run(8, std::nullopt).peak;
  ASSERT_LT(half, whole);
  const Run capped = run(std::nullopt, whole - 1);
  EXPECT_EQ(capped.size, 8);
  EXPECT_EQ(capped.peak, half);
}

TEST(GradAccumulatorAuto, TellsWhatToDoWhereOneRowIsTooMany) {
  Training run;
  std::vector<Tensor> before;
  for (const auto& tensor : run.model->buffers()) {
    before.push_back(tensor.clone());
  }
  const auto warnings = warnings_of([&] {
    EXPECT_THAT(thrown_text([&] { run.step({0}); }),
                Optional(AllOf(HasSubstr("micro-batches of size 1"), HasSubstr("checkpoint"),
                               HasSubstr("AmpScope"), HasSubstr("patches"),
                               HasSubstr("DefaultCPUAllocator"))));
    EXPECT_THROW(run.step({0}), c10::OutOfMemoryError);
  });
  EXPECT_THAT(warnings, SizeIs(4));
  EXPECT_THAT(run.sizes, ElementsAre(16, 8, 8, 4, 4, 2, 2, 1, 1));
  expect_equal(run.model->buffers(), before);
  for (const auto& parameter : run.model->parameters()) {
    EXPECT_FALSE(parameter.grad().defined());
  }
  EXPECT_EQ(run.accumulator->windows(), 0);
}

// In the backward pass a checkpointed region runs again, and may run out there.
TEST(GradAccumulatorAuto, RecoversFromBackwardPassesOfCheckpointedRegions) {
  int forwards = 0;
  torch::manual_seed(3);
  const auto w = torch::randn({3}).requires_grad_();
  const auto run = [&](GradAccumulatorOptions options, const Cap& cap) {
    const auto v = w.detach().clone().requires_grad_();
    SGD sgd({v}, 0.1);
    GradAccumulator accumulator(sgd, options);
    torch::manual_seed(4);
    (void)warnings_of([&] {
      accumulator.accumulate(torch::arange(24, torch::kFloat).view({8, 3}),
                             [&](const Tensor& part) {
                               const auto y = tidemark::checkpoint(
                                   [v, &forwards, cap](const Tensor& x) {
                                     ++forwards;
                                     if (tidemark::recomputing()) {
                                       cap.hold(x.size(0));
                                     }
                                     return torch::dropout(x * v, 0.5, true).square();
                                   },
                                   part);
                               return y.mean();
                             });
    });
    return v;
  };
  const auto found = run({}, {2, run_out_on_device});
  EXPECT_EQ(forwards, 2 + 2 + 4 * 2);
  EXPECT_TRUE(torch::equal(found, run(GradAccumulatorOptions().micro_batch(2), {2})));
}

TEST(GradAccumulatorErrors, OfMemoryPassUnchangedWhereTheSizeIsGiven) {
  Training run(GradAccumulatorOptions().micro_batch(8));
  EXPECT_THROW(run.step({4, run_out_on_device}), c10::OutOfMemoryError);
  EXPECT_THAT(run.sizes, ElementsAre(8, 8));
  EXPECT_THAT(thrown_text([&] { run.step({4}); }),
              Optional(AllOf(HasSubstr("DefaultCPUAllocator"), Not(HasSubstr("tidemark")))));
  EXPECT_THAT(run.sizes, ElementsAre(8, 8, 8));
}

TEST(GradAccumulatorErrors, OfOtherKindsPassUnchangedWithEverythingAsBefore) {
  struct NoStdException {};
  Training run(GradAccumulatorOptions().micro_batch(8));
  Training untouched(GradAccumulatorOptions().micro_batch(8));
  torch::manual_seed(9);
  const auto fail = [&](auto&& raise) {
    int calls = 0;
    run.accumulator->accumulate(run.data, [&](const Tensor& part) {
      if (++calls == 2) {
        raise();
      }
      return (run.model->forward(part) * (calls == 1 ? kNaN : 1)).mean();
    });
  };
  EXPECT_THROW(fail([] { throw std::out_of_range("index"); }), std::out_of_range);
  EXPECT_THROW(fail([] { throw NoStdException(); }), NoStdException);
  EXPECT_THROW(fail([] { throw std::runtime_error("cuDNN error: CUDNN_STATUS_NOT_SUPPORTED"); }),
               std::runtime_error);
  EXPECT_THROW(fail([] { TORCH_CHECK_VALUE(false, "a value"); }), c10::ValueError);
  EXPECT_THROW(
      run.accumulator->accumulate(run.data, [&](const Tensor& part) { return part.mean(); }),
      c10::Error);
  for (const auto& parameter : run.model->parameters()) {
    EXPECT_FALSE(parameter.grad().defined());
  }
  EXPECT_EQ(run.accumulator->micro_steps(), 0);
  EXPECT_EQ(run.accumulator->windows(), 0);
  EXPECT_EQ(run.accumulator->dropped(), 0);
  run.step({16});
  const auto after = run.state();
  torch::manual_seed(9);
  untouched.step({16});
  expect_equal(after, untouched.state());
}

TEST(OutOfMemory, IsToldFromAllElse) {
  const auto is = [](auto&& raise) {
    try {
      raise();
    } catch (const std::exception& error) {
      return tidemark::detail::is_out_of_memory(error);
    }
    return false;
  };
  EXPECT_TRUE(is(run_out_on_device));
  EXPECT_TRUE(is(run_out_on_cpu));
  EXPECT_TRUE(is([] { throw std::bad_alloc(); }));
  const auto says = [&](const std::string& text) {
    const bool plain = is([&] { throw std::runtime_error(text); });
    EXPECT_EQ(is([&] { TORCH_CHECK(false, text); }), plain) << text;
    return plain;
  };
  EXPECT_TRUE(
      says("[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't "
           "allocate memory: you tried to allocate 281474976710656 bytes."));
  EXPECT_TRUE(
      says("[enforce fail at alloc_cpu.cpp:80] data. DefaultCPUAllocator: not enough "
           "memory: you tried to allocate 281474976710656 bytes."));
  EXPECT_TRUE(says("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"));
  EXPECT_TRUE(says("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"));
  EXPECT_TRUE(says("CUDA error: out of memory"));
  EXPECT_TRUE(says("MPS backend out of memory (MPS allocated: 9.06 GB)"));
  EXPECT_FALSE(says("cuDNN error: CUDNN_STATUS_NOT_SUPPORTED"));
  EXPECT_FALSE(says("CUDA error: CUBLAS_STATUS_INVALID_VALUE when calling `cublasSgemm`"));
  EXPECT_FALSE(says("mat1 and mat2 shapes cannot be multiplied (4x3 and 4x3)"));
  EXPECT_FALSE(says("the file is out of memory cards"));
}

}  // namespace
