#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <tidemark/amp_scope.h>
#include <tidemark/checkpoint.h>
#include <tidemark/memory/bytes.h>
#include <tidemark/memory/measure.h>
#include <tidemark/memory/memory_recorder.h>
#include <tidemark/memory/memory_scope.h>
#include <tidemark/memory/module_scope.h>
#include <tidemark/numerics_watch.h>
#include <torch/torch.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "../support/thrown_text.h"

namespace {

using namespace tidemark::literals;
using tidemark::CategoryBytes;
using tidemark::MemoryBlock;
using tidemark::MemoryRecorder;
using tidemark::MemoryRecorderOptions;
using tidemark::MemoryReport;
using tidemark::MemoryScope;
using tidemark::ModuleMemory;
using tidemark::StepPhase;
using Category = tidemark::MemoryCategory;
using tidemark::tests::thrown_text;

class MemoryRecorderTest : public testing::Test {
 protected:
  static void SetUpTestSuite() { tidemark::install_memory_meter(); }
};

// Two matrices: 4 x 8 and 8 x 2 floats.
struct Mlp : torch::nn::Module {
  Mlp()
      : first(torch::nn::LinearOptions(4, 8).bias(false)),
        second(torch::nn::LinearOptions(8, 2).bias(false)) {
    register_module("first", first);
    register_module("second", second);
  }
  torch::Tensor forward(const torch::Tensor& x) {
    const auto hidden = torch::relu(first(x));
    return second(hidden);
  }
  torch::nn::Linear first, second;
};

struct ConvNet : torch::nn::Module {
  ConvNet() : conv(torch::nn::Conv3dOptions(1, 4, 3).padding(1)), norm(4), head(4, 2) {
    register_module("conv", conv);
    register_module("norm", norm);
    register_module("head", head);
  }
  torch::Tensor forward(const torch::Tensor& x) {
    return head(torch::relu(norm(conv(x))).mean({2, 3, 4}));
  }
  torch::nn::Conv3d conv;
  torch::nn::BatchNorm3d norm;
  torch::nn::Linear head;
};

const ModuleMemory& module_named(const MemoryReport& report, const std::string& name) {
  const auto found = std::find_if(report.modules.begin(), report.modules.end(),
                                  [&](const ModuleMemory& module) { return module.name == name; });
  TORCH_CHECK(found != report.modules.end(), "no module '", name, "'");
  return *found;
}

int64_t bytes_of(const MemoryReport& report, Category category, const std::string& module) {
  int64_t bytes = 0;
  for (const MemoryBlock& block : report.blocks) {
    if (block.category == category && report.modules[block.module].name == module) {
      bytes += block.bytes;
    }
  }
  return bytes;
}

// Live bytes of each category after each point, from the blocks alone.
std::vector<CategoryBytes> timeline(const MemoryReport& report) {
  std::vector<CategoryBytes> changes(report.times_ns.size() + 1);
  for (const MemoryBlock& block : report.blocks) {
    changes[static_cast<std::size_t>(block.born + 1)][block.category] += block.bytes;
    if (block.died != MemoryBlock::kAlive) {
      changes[static_cast<std::size_t>(block.died + 1)][block.category] -= block.bytes;
    }
  }
  for (std::size_t i = 1; i < changes.size(); ++i) {
    for (std::size_t c = 0; c < tidemark::kMemoryCategories; ++c) {
      changes[i].bytes[c] += changes[i - 1].bytes[c];
    }
  }
  return changes;
}

TEST_F(MemoryRecorderTest, CountsAStepOfASmallNetworkToTheByte) {
  Mlp model;
  torch::optim::Adam adam(model.parameters(), torch::optim::AdamOptions(1e-3));
  const auto x = torch::ones({16, 4});
  MemoryReport report;
  for (int step = 0; step < 2; ++step) {
    MemoryRecorder recorder(model, MemoryRecorderOptions().optimizer(adam));
    adam.zero_grad();
    {
      const auto loss = model.forward(x).sum();
      loss.backward();
    }
    adam.step();
    report = recorder.report();
  }

  constexpr int64_t kFirst = 4 * 8 * 4;
  constexpr int64_t kSecond = 8 * 2 * 4;
  constexpr int64_t kInput = 16 * 4 * 4;
  constexpr int64_t kHidden = 16 * 8 * 4;
  EXPECT_EQ(report.at_begin[Category::kParameters], kFirst + kSecond);
  EXPECT_EQ(report.at_begin[Category::kGradients], kFirst + kSecond);
  EXPECT_EQ(report.at_begin[Category::kOptimizerState], 2 * (kFirst + kSecond));
  EXPECT_EQ(report.at_begin[Category::kInputs], kInput);
  EXPECT_EQ(report.most[Category::kActivations], kHidden);
  EXPECT_EQ(report.held, kInput + kHidden);
  // In ReLU's backward: what came in and what goes out, the loss and what backward began with.
  EXPECT_EQ(report.at_peak[Category::kParameters], kFirst + kSecond);
  EXPECT_EQ(report.at_peak[Category::kGradients], kSecond);
  EXPECT_EQ(report.at_peak[Category::kOptimizerState], 2 * (kFirst + kSecond));
  EXPECT_EQ(report.at_peak[Category::kInputs], kInput);
  EXPECT_EQ(report.at_peak[Category::kActivations], kHidden);
  EXPECT_EQ(report.at_peak[Category::kTemporaries], kHidden + kHidden + 4 + 4);
  EXPECT_EQ(report.at_peak[Category::kWorkspace], 0);
  EXPECT_EQ(report.at_peak.total(), report.peak);
  ASSERT_TRUE(report.peak_op.has_value());
  EXPECT_EQ(report.ops[*report.peak_op].name, "ReluBackward0");
  EXPECT_EQ(report.at_end[Category::kGradients], kFirst + kSecond);
  EXPECT_EQ(report.at_end.total(), report.at_begin.total());
}

TEST_F(MemoryRecorderTest, AddsUpToWhatAMemoryScopeSees) {
  ConvNet model;
  torch::optim::SGD sgd(model.parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  const auto x = torch::randn({2, 1, 8, 8, 8});
  const auto mine = torch::zeros({1 << 18});  // 1 MiB that the step has nothing to do with
  std::vector<torch::Tensor> kept;
  for (int step = 0; step < 2; ++step) {
    const MemoryScope scope;
    MemoryRecorder recorder(model, MemoryRecorderOptions().optimizer(sgd));
    sgd.zero_grad();
    model.forward(x).square().mean().backward();
    sgd.step();
    kept.push_back(torch::zeros({1000}));
    const int64_t peak = scope.peak();
    const int64_t left = scope.current();
    const int64_t allocated = scope.allocated();
    const int64_t allocations = scope.allocations();
    const MemoryReport report = recorder.report();

    EXPECT_EQ(report.peak, scope.baseline() + peak);
    EXPECT_EQ(report.at_begin.total(), scope.baseline());
    EXPECT_EQ(report.at_end.total(), scope.baseline() + left);
    EXPECT_EQ(report.allocated, allocated);
    EXPECT_EQ(report.allocations, allocations);
    EXPECT_GE(report.at_begin[Category::kOther], 1_MiB);
    EXPECT_GE(report.at_end[Category::kOther], report.at_begin[Category::kOther] + 4000);
    const auto line = timeline(report);
    int64_t most = 0;
    for (const CategoryBytes& bytes : line) {
      most = std::max(most, bytes.total());
      for (const int64_t of_category : bytes.bytes) {
        ASSERT_GE(of_category, 0);
      }
    }
    EXPECT_EQ(most, report.peak);
    EXPECT_EQ(line.front().total(), report.at_begin.total());
    EXPECT_EQ(line.back().total(), report.at_end.total());
  }
}

TEST_F(MemoryRecorderTest, KnowsBuffersAndWhatTheForwardReads) {
  ConvNet model;
  const auto x = torch::randn({2, 1, 8, 8, 8});
  const auto target = torch::zeros({2, 2});
  MemoryRecorder recorder(model);
  const auto augmented = x.flip({2}) * 2;   // made of data alone
  const auto noise = torch::randn({2, 2});  // made of nothing
  torch::mse_loss(model.forward(augmented), target + noise).backward();
  const MemoryReport report = recorder.report();
  // running mean and variance, and the number of batches
  EXPECT_EQ(report.at_begin[Category::kBuffers], 4 * 4 + 4 * 4 + 8);
  EXPECT_EQ(report.at_begin[Category::kInputs], static_cast<int64_t>(x.nbytes() + target.nbytes()));
  // flipped, doubled; noise, and target with noise
  const auto of_step = static_cast<int64_t>(2 * x.nbytes() + 2 * target.nbytes());
  EXPECT_LE(report.most[Category::kInputs], report.at_begin[Category::kInputs] + of_step);
  EXPECT_GE(report.most[Category::kInputs],
            report.at_begin[Category::kInputs] + static_cast<int64_t>(x.nbytes()));
}

TEST_F(MemoryRecorderTest, TellsModulesAndPhasesApart) {
  Mlp model;
  const auto x = torch::ones({16, 4});
  MemoryRecorder recorder(model);
  model.forward(x).sum().backward();
  const MemoryReport report = recorder.report();

  EXPECT_EQ(report.modules.front().name, "");
  EXPECT_EQ(report.modules.front().depth, 0U);
  EXPECT_EQ(module_named(report, "first").depth, 1U);
  // What `first` makes is freed when the ReLU has read it; its backward makes its gradient.
  EXPECT_EQ(bytes_of(report, Category::kTemporaries, "first"), 16 * 8 * 4);
  EXPECT_EQ(bytes_of(report, Category::kGradients, "first"), 4 * 8 * 4);
  // second's backward makes its gradient and that of its input
  EXPECT_EQ(bytes_of(report, Category::kGradients, "second"), 8 * 2 * 4);
  EXPECT_EQ(bytes_of(report, Category::kTemporaries, "second"), 16 * 2 * 4 + 16 * 8 * 4);
  // the ReLU lies between the two: it is the model's
  EXPECT_EQ(bytes_of(report, Category::kActivations, ""), 16 * 8 * 4);
  EXPECT_EQ(module_named(report, "").most[Category::kParameters], (4 * 8 + 8 * 2) * 4);
  EXPECT_EQ(module_named(report, "first").most[Category::kParameters], 4 * 8 * 4);
  for (const char* name : {"first", "second"}) {
    EXPECT_GT(module_named(report, name).forward_seconds, 0);
    EXPECT_GT(module_named(report, name).backward_seconds, 0);
    EXPECT_EQ(module_named(report, name).rerun_seconds, 0);
  }
}

TEST_F(MemoryRecorderTest, LetsAScopeNameWhatReadsNoParameters) {
  Mlp model;
  const auto x = torch::ones({16, 4});
  MemoryRecorder recorder(model);
  {
    const tidemark::ModuleScope scope("outer");
    const auto sines = torch::sin(x);
    torch::Tensor squares;
    {
      const tidemark::ModuleScope inner("inner");
      squares = sines.square();
    }
    model.forward(squares).sum().backward();
  }
  const auto outside = torch::cos(x);
  const MemoryReport report = recorder.report();
  EXPECT_EQ(bytes_of(report, Category::kInputs, "outer"), 16 * 4 * 4);
  EXPECT_EQ(bytes_of(report, Category::kInputs, "outer.inner"), 16 * 4 * 4);
  EXPECT_EQ(module_named(report, "outer.inner").depth, 2U);
  EXPECT_EQ(bytes_of(report, Category::kActivations, "outer"), 16 * 8 * 4);
  EXPECT_EQ(tidemark::ModuleScope::path(), "");
}

TEST_F(MemoryRecorderTest, TellsReRunsApart) {
  ConvNet model;
  const auto x = torch::randn({2, 1, 8, 8, 8});
  const auto step = [&](bool checkpointed) {
    const auto forward = [&model](const torch::Tensor& input) {
      return torch::relu(model.norm(model.conv(input)));
    };
    const auto hidden = checkpointed ? tidemark::checkpoint(forward, x) : forward(x);
    model.head(hidden.mean({2, 3, 4})).sum().backward();
  };
  const auto record = [&](bool checkpointed) {
    step(checkpointed);
    model.zero_grad();
    MemoryRecorder recorder(model);
    step(checkpointed);
    return recorder.report();
  };
  const MemoryReport plain = record(false);
  const MemoryReport checkpointed = record(true);
  const auto activation = static_cast<int64_t>(4 * x.nbytes());

  EXPECT_EQ(module_named(plain, "").rerun, 0);
  EXPECT_EQ(plain.phase_seconds[static_cast<std::size_t>(StepPhase::kRerun)], 0);
  EXPECT_GT(checkpointed.phase_seconds[static_cast<std::size_t>(StepPhase::kRerun)], 0);
  // The re-run makes the convolution's output, the norm's and the ReLU's.
  EXPECT_GE(module_named(checkpointed, "").rerun, 2 * activation);
  EXPECT_LE(checkpointed.held, plain.held - activation);
  // Of those, the convolution's and the ReLU's are held for backward as in plain training.
  int64_t kept = 0;
  int64_t in_forward = 0;
  for (const MemoryBlock& block : checkpointed.blocks) {
    if (block.category == Category::kActivations && block.bytes == activation) {
      (block.phase == StepPhase::kRerun ? kept : in_forward) += block.bytes;
    }
  }
  EXPECT_EQ(kept, 2 * activation);
  EXPECT_EQ(in_forward, 0);
  EXPECT_GT(module_named(checkpointed, "conv").rerun_seconds, 0);
}

TEST_F(MemoryRecorderTest, DoesNotChangeTheStep) {
  const auto gradients = [](bool recorded) {
    torch::manual_seed(1);
    ConvNet model;
    torch::optim::Adam adam(model.parameters(), torch::optim::AdamOptions(1e-2));
    for (int step = 0; step < 3; ++step) {
      std::optional<MemoryRecorder> recorder;
      if (recorded) {
        recorder.emplace(model, MemoryRecorderOptions().optimizer(adam));
      }
      adam.zero_grad();
      const auto x = torch::randn({2, 1, 6, 6, 6});
      tidemark::checkpoint(
          [&model](const torch::Tensor& input) {
            return torch::dropout(model.forward(input), 0.5, true);
          },
          x)
          .square()
          .sum()
          .backward();
      adam.step();
      if (recorded) {
        static_cast<void>(recorder->report());
      }
    }
    std::vector<torch::Tensor> result;
    for (const auto& parameter : model.parameters()) {
      result.push_back(parameter.detach().clone());
      result.push_back(parameter.grad().clone());
    }
    for (const auto& buffer : model.buffers()) {
      result.push_back(buffer.clone());
    }
    return result;
  };
  const auto plain = gradients(false);
  const auto recorded = gradients(true);
  ASSERT_EQ(plain.size(), recorded.size());
  for (std::size_t i = 0; i < plain.size(); ++i) {
    EXPECT_TRUE(torch::equal(plain[i], recorded[i]));
  }
}

TEST_F(MemoryRecorderTest, DoesNotChangeWhatTheStepAllocates) {
  ConvNet model;
  const auto x = torch::randn({2, 1, 8, 8, 8});
  const auto step = [&] { model.forward(x).sum().backward(); };
  step();
  model.zero_grad();
  const auto plain = tidemark::measure(step);
  model.zero_grad();
  MemoryRecorder recorder(model);
  const auto recorded = tidemark::measure(step);
  EXPECT_EQ(recorded.peak, plain.peak);
  EXPECT_EQ(recorded.held, plain.held);
  EXPECT_EQ(recorded.allocated, plain.allocated);
  EXPECT_EQ(recorded.allocations, plain.allocations);
}

TEST_F(MemoryRecorderTest, KnowsTheStateOfEveryOptimizer) {
  const auto state_of =
      [](const std::function<std::unique_ptr<torch::optim::Optimizer>(std::vector<torch::Tensor>)>&
             make,
         bool closure) {
        const auto parameter = torch::ones({256}, torch::requires_grad());
        const auto optimizer = make({parameter});
        MemoryRecorder recorder(MemoryRecorderOptions().optimizer(optimizer));
        const auto loss = [&] {
          optimizer->zero_grad();
          auto value = parameter.square().sum();
          value.backward();
          return value;
        };
        loss();
        if (closure) {
          optimizer->step(loss);
        } else {
          optimizer->step();
        }
        const MemoryReport report = recorder.report();
        EXPECT_EQ(report.at_end[Category::kParameters], 1024);
        return report.at_end[Category::kOptimizerState];
      };
  using Parameters = std::vector<torch::Tensor>;
  EXPECT_EQ(state_of(
                [](Parameters parameters) {
                  return std::make_unique<torch::optim::SGD>(parameters,
                                                             torch::optim::SGDOptions(0.1));
                },
                false),
            0);
  EXPECT_EQ(state_of(
                [](Parameters parameters) {
                  return std::make_unique<torch::optim::SGD>(
                      parameters, torch::optim::SGDOptions(0.1).momentum(0.9));
                },
                false),
            1024);
  EXPECT_EQ(state_of(
                [](Parameters parameters) {
                  return std::make_unique<torch::optim::Adam>(
                      parameters, torch::optim::AdamOptions(0.1).amsgrad(true));
                },
                false),
            3 * 1024);
  EXPECT_EQ(state_of(
                [](Parameters parameters) {
                  return std::make_unique<torch::optim::AdamW>(parameters,
                                                               torch::optim::AdamWOptions(0.1));
                },
                false),
            2 * 1024);
  EXPECT_EQ(state_of(
                [](Parameters parameters) {
                  return std::make_unique<torch::optim::RMSprop>(
                      parameters, torch::optim::RMSpropOptions(0.1).momentum(0.9).centered(true));
                },
                false),
            3 * 1024);
  EXPECT_EQ(state_of(
                [](Parameters parameters) {
                  return std::make_unique<torch::optim::Adagrad>(parameters,
                                                                 torch::optim::AdagradOptions(0.1));
                },
                false),
            1024);
  // d, prev_flat_grad, and a pair for each of its iterations but the first
  EXPECT_GE(state_of(
                [](Parameters parameters) {
                  return std::make_unique<torch::optim::LBFGS>(
                      parameters, torch::optim::LBFGSOptions(0.1).max_iter(3));
                },
                true),
            2 * 1024);
}

// Its state can't be saved.
struct OddState final : torch::optim::OptimizerCloneableParamState<OddState> {
  torch::Tensor velocity = torch::zeros({256});
};
class OddOptimizer final : public torch::optim::Optimizer {
 public:
  explicit OddOptimizer(std::vector<torch::Tensor> parameters)
      : Optimizer(std::move(parameters), std::make_unique<torch::optim::SGDOptions>(0.1)) {}
  torch::Tensor step(LossClosure /*closure*/ = nullptr) override {
    for (auto& group : param_groups_) {
      for (auto& parameter : group.params()) {
        state_[parameter.unsafeGetTensorImpl()] = std::make_unique<OddState>();
      }
    }
    return {};
  }
};

TEST_F(MemoryRecorderTest, PassesOverStateThatCannotBeSaved) {
  const auto parameter = torch::ones({256}, torch::requires_grad());
  OddOptimizer optimizer({parameter});
  MemoryRecorder recorder(MemoryRecorderOptions().optimizer(optimizer));
  optimizer.step();
  const MemoryReport report = recorder.report();
  EXPECT_EQ(report.at_end[Category::kOptimizerState], 0);
  EXPECT_EQ(report.at_end[Category::kOther], report.at_begin[Category::kOther] + 1024);
}

TEST_F(MemoryRecorderTest, KnowsParametersThatAreReplacedDuringTheStep) {
  // as Gaussian splatting does when it splits
  auto positions = torch::ones({100, 3}, torch::requires_grad());
  auto adam = std::make_unique<torch::optim::Adam>(std::vector<torch::Tensor>{positions},
                                                   torch::optim::AdamOptions(0.1));
  MemoryRecorder recorder(MemoryRecorderOptions().optimizer(*adam));
  positions.square().sum().backward();
  adam->step();
  const auto more = torch::cat({positions.detach(), positions.detach()}).requires_grad_();
  adam->param_groups()[0].params()[0] = more;
  positions = torch::Tensor();
  const MemoryReport report = recorder.report();
  EXPECT_EQ(report.at_begin[Category::kParameters], 1200);
  EXPECT_EQ(report.at_end[Category::kParameters], 2400);
  // of the old parameter, whose entry Adam keeps
  EXPECT_EQ(report.at_end[Category::kOptimizerState], 2400);
}

TEST_F(MemoryRecorderTest, CountsWhatOtherThreadsAllocate) {
  MemoryRecorder recorder;
  torch::Tensor of_thread;
  std::thread([&] { of_thread = torch::zeros({1000}); }).join();
  const MemoryReport report = recorder.report();
  EXPECT_EQ(report.at_end[Category::kOther], report.at_begin[Category::kOther] + 4000);
}

TEST_F(MemoryRecorderTest, SeesCastsOfAutocast) {
  Mlp model;
  const auto x = torch::ones({16, 4});
  MemoryRecorder recorder(model);
  {
    const tidemark::AmpScope amp(torch::kCPU);
    model.forward(x).sum().backward();
  }
  const MemoryReport report = recorder.report();
  // second.weight in bfloat16; first's is not kept for backward, as x needs no gradient
  EXPECT_EQ(std::count_if(report.blocks.begin(), report.blocks.end(),
                          [&](const MemoryBlock& block) {
                            return block.category == Category::kActivations &&
                                   block.bytes == 8 * 2 * 2;
                          }),
            1);
}

TEST_F(MemoryRecorderTest, GetsAlongWithAWatchAndWithRegions) {
  ConvNet model;
  const auto x = torch::randn({2, 1, 8, 8, 8});
  const tidemark::NumericsWatch watch(model);
  MemoryRecorder recorder(model);
  tidemark::checkpoint([&model](const torch::Tensor& input) { return model.forward(input); }, x)
      .sum()
      .backward();
  watch.expect_finite();
  const MemoryReport report = recorder.report();
  EXPECT_GT(module_named(report, "conv").rerun, 0);
  for (const auto& op : report.ops) {
    EXPECT_NE(op.name, "aten::aminmax") << "an op of the watch";
  }
}

TEST_F(MemoryRecorderTest, KnowsSparseGradients) {
  torch::nn::Embedding embedding(torch::nn::EmbeddingOptions(10, 4).sparse(true));
  const auto rows = torch::tensor({1, 2});
  MemoryRecorder recorder(*embedding);
  embedding(rows).sum().backward();
  const MemoryReport report = recorder.report();
  EXPECT_EQ(report.at_end[Category::kGradients], 2 * 8 + 2 * 4 * 4);  // indices and values
}

TEST_F(MemoryRecorderTest, TellsTheUpdateApartWhateverComesBeforeIt) {
  Mlp model;
  const auto x = torch::ones({16, 4});
  torch::optim::Adam adam(model.parameters(), torch::optim::AdamOptions(1e-3));
  const auto ops_of = [&](const std::function<void(const torch::Tensor&)>& between) {
    MemoryRecorder recorder(model);
    for (int step = 0; step < 2; ++step) {
      adam.zero_grad();
      const auto loss = model.forward(x).sum();
      loss.backward();
      between(loss);
      adam.step();
    }
    const MemoryReport report = recorder.report();
    EXPECT_EQ(report.at_end[Category::kInputs], static_cast<int64_t>(x.nbytes()));
    return std::count_if(report.ops.begin(), report.ops.end(), [](const tidemark::StepOp& op) {
      return op.phase == StepPhase::kUpdate && op.name == "aten::addcdiv_";
    });
  };
  EXPECT_EQ(ops_of([](const torch::Tensor&) {}), 4);
  EXPECT_EQ(ops_of([](const torch::Tensor& loss) { static_cast<void>(loss.item<float>()); }), 4);
  EXPECT_EQ(ops_of([](const torch::Tensor& loss) { static_cast<void>(loss.detach()); }), 4);
  EXPECT_EQ(ops_of([&](const torch::Tensor&) {
              torch::nn::utils::clip_grad_norm_(model.parameters(), 1.0);
            }),
            4);
}

TEST_F(MemoryRecorderTest, KnowsParametersWithoutAModel) {
  Mlp model;
  const auto x = torch::ones({16, 4});
  MemoryRecorder recorder;
  model.forward(x).sum().backward();
  const MemoryReport report = recorder.report();
  EXPECT_EQ(report.at_begin[Category::kParameters], (4 * 8 + 8 * 2) * 4);
  EXPECT_EQ(report.at_begin[Category::kInputs], 16 * 4 * 4);
  EXPECT_EQ(report.most[Category::kActivations], 16 * 8 * 4);
}

TEST_F(MemoryRecorderTest, KnowsABatchThatAnotherThreadMakes) {
  Mlp model;
  MemoryRecorder recorder(model);
  torch::Tensor x;
  std::thread([&] { x = torch::ones({16, 4}); }).join();
  model.forward(x).sum().backward();
  const MemoryReport report = recorder.report();
  EXPECT_EQ(report.most[Category::kInputs], 16 * 4 * 4);
  EXPECT_EQ(report.most[Category::kActivations], 16 * 8 * 4);
}

TEST_F(MemoryRecorderTest, DoesNotTakeWhatIsScatteredIntoZerosForInput) {
  Mlp model;
  const auto x = torch::ones({16, 4});
  const auto where = torch::arange(16);
  MemoryRecorder recorder(model);
  auto grid = torch::zeros({1000, 8});
  grid = grid.index_add_(0, where, model.first(x));
  torch::tanh(grid).sum().backward();
  const MemoryReport report = recorder.report();
  EXPECT_EQ(report.most[Category::kInputs], static_cast<int64_t>(x.nbytes() + where.nbytes()));
  EXPECT_GE(report.most[Category::kActivations], 1000 * 8 * 4);  // the result of tanh
}

TEST_F(MemoryRecorderTest, LeavesOutMemoryThatIsNotLibTorchs) {
  Mlp model;
  std::vector<float> mine(16 * 4, 1.0F);
  const MemoryScope scope;
  MemoryRecorder recorder(model);
  model.forward(torch::from_blob(mine.data(), {16, 4})).sum().backward();
  const int64_t peak = scope.peak();
  const MemoryReport report = recorder.report();
  EXPECT_EQ(report.peak, scope.baseline() + peak);
  EXPECT_EQ(report.at_begin.total(), scope.baseline());
  EXPECT_EQ(report.at_begin[Category::kInputs], 0);
}

TEST_F(MemoryRecorderTest, CountsADoubleBackwardAsAScopeDoes) {
  Mlp model;
  const auto x = torch::ones({16, 4}).requires_grad_();
  const auto step = [&] {
    const auto y = torch::tanh(model.forward(x)).sum();
    const auto gradient = torch::autograd::grad({y}, {x}, {}, true, true)[0];
    (gradient.norm() - 1).square().backward();
  };
  step();
  model.zero_grad();
  const auto plain = tidemark::measure(step);
  model.zero_grad();
  MemoryRecorder recorder(model);
  step();
  const MemoryReport report = recorder.report();
  EXPECT_EQ(report.peak, report.at_begin.total() + plain.peak);
  EXPECT_EQ(report.held, plain.held);
}

TEST_F(MemoryRecorderTest, DoesNotRecordItsOwnReports) {
  Mlp model;
  const auto x = torch::ones({16, 4});
  MemoryRecorder recorder(model);
  model.forward(x).sum().backward();
  const MemoryReport first = recorder.report();
  const MemoryReport second = recorder.report();
  EXPECT_EQ(first.ops.size(), second.ops.size());
  EXPECT_EQ(first.allocations, second.allocations);
  EXPECT_EQ(first.blocks.size(), second.blocks.size());
}

TEST_F(MemoryRecorderTest, EndsWellWhenTheStepThrows) {
  Mlp model;
  const auto x = torch::ones({16, 4});
  for (int i = 0; i < 2; ++i) {
    EXPECT_THROW(
        {
          MemoryRecorder recorder(model);
          const auto y = model.forward(x);
          throw std::runtime_error("as a step may");
        },
        std::runtime_error);
  }
  MemoryRecorder recorder(model);
  model.forward(x).sum().backward();
  EXPECT_EQ(recorder.report().held, 16 * 4 * 4 + 16 * 8 * 4);
}

TEST_F(MemoryRecorderTest, ReportsAsOftenAsAsked) {
  Mlp model;
  const auto x = torch::ones({16, 4});
  MemoryRecorder recorder(model);
  const auto y = model.forward(x);
  const MemoryReport forward = recorder.report();
  y.sum().backward();
  const MemoryReport step = recorder.report();
  EXPECT_EQ(forward.at_end[Category::kActivations], 16 * 8 * 4);
  EXPECT_EQ(forward.at_end[Category::kGradients], 0);
  EXPECT_EQ(step.at_end[Category::kActivations], 0);
  EXPECT_EQ(step.at_end[Category::kGradients], (4 * 8 + 8 * 2) * 4);
  EXPECT_EQ(forward.held, step.held);
}

TEST_F(MemoryRecorderTest, SaysHowManyEventsItLost) {
  Mlp model;
  const auto x = torch::ones({16, 4});
  MemoryRecorder recorder(model, MemoryRecorderOptions().max_events(20));
  model.forward(x).sum().backward();
  const MemoryReport report = recorder.report();
  EXPECT_GT(report.lost_events, 0);
  EXPECT_EQ(report.at_peak.total(), report.peak);
  EXPECT_TRUE(report.advice.empty());
  EXPECT_TRUE(report.lints.empty());
}

TEST_F(MemoryRecorderTest, RefusesASecondOneOnItsThread) {
  const MemoryRecorder recorder;
  EXPECT_THAT(*thrown_text([] { const MemoryRecorder second; }),
              testing::HasSubstr("has a MemoryRecorder already"));
}

TEST_F(MemoryRecorderTest, RefusesWhatItCannotDo) {
  EXPECT_THAT(
      *thrown_text([] { const MemoryRecorder recorder(MemoryRecorderOptions().max_events(0)); }),
      testing::HasSubstr("max_events is 0"));
  const at::RecordFunctionGuard off(false);
  EXPECT_THAT(*thrown_text([] { const MemoryRecorder recorder; }),
              testing::HasSubstr("RecordFunction is switched off"));
}

}  // namespace
