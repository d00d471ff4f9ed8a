#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <tidemark/checkpointed_sequential.h>
#include <tidemark/gtest/matchers.h>
#include <tidemark/memory/held_bytes_scope.h>
#include <tidemark/memory/measure.h>
#include <torch/torch.h>

#include <sstream>
#include <string>
#include <utility>
#include <vector>

namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using tidemark::CheckpointedSequential;
using tidemark::CheckpointedSequentialImpl;
using tidemark::CheckpointedSequentialOptions;
using tidemark::CheckpointOptions;
namespace nn = torch::nn;

// A layer that counts how often it runs.
struct LayerImpl : nn::Cloneable<LayerImpl> {
  explicit LayerImpl(int64_t features) : features(features) { reset(); }
  void reset() override { linear = register_module("linear", nn::Linear(features, features)); }
  torch::Tensor forward(torch::Tensor x) {
    ++runs;
    return linear(x).tanh();
  }
  int64_t features;
  int runs = 0;
  nn::Linear linear{nullptr};
};
TORCH_MODULE(Layer);

// Convolution, BatchNorm and in-place ReLU twice: it saves four tensors as large as its input,
// besides the input itself.
struct VoxelBlockImpl : nn::Module {
  explicit VoxelBlockImpl(int64_t channels) {
    for (int i = 0; i < 2; ++i) {
      body->push_back(nn::Conv3d(nn::Conv3dOptions(channels, channels, 3).padding(1).bias(false)));
      body->push_back(nn::BatchNorm3d(channels));
      body->push_back(nn::ReLU(nn::ReLUOptions().inplace(true)));
    }
    register_module("body", body);
  }
  torch::Tensor forward(torch::Tensor x) { return body->forward(x); }
  nn::Sequential body;
};
TORCH_MODULE(VoxelBlock);

struct TwoTensorsImpl : nn::Module {
  std::pair<torch::Tensor, torch::Tensor> forward(torch::Tensor x) { return {x, x}; }
};
TORCH_MODULE(TwoTensors);

nn::Sequential six_different_layers() {
  torch::manual_seed(0);
  return nn::Sequential(Layer(4), Layer(4), Layer(4), Layer(4), Layer(4), Layer(4));
}

template <class Model>
std::vector<torch::Tensor> gradients(Model& model, nn::Module& parameters) {
  parameters.zero_grad();
  torch::manual_seed(1);
  torch::Tensor x = torch::randn({3, 4}).requires_grad_();
  torch::Tensor y = model->forward(x);
  y.square().sum().backward();
  std::vector<torch::Tensor> result{y.detach(), x.grad()};
  for (const auto& parameter : parameters.parameters()) {
    result.push_back(parameter.grad().clone());
  }
  return result;
}

void expect_bit_equal(const std::vector<torch::Tensor>& a, const std::vector<torch::Tensor>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t i = 0; i < a.size(); ++i) {
    EXPECT_TRUE(torch::equal(a[i], b[i])) << "tensor " << i;
  }
}

template <class Fn>
std::string error_of(Fn&& fn) {
  try {
    fn();
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
  return "no error";
}

std::vector<std::size_t> ends_of(std::size_t modules, CheckpointedSequentialOptions options = {}) {
  CheckpointedSequential model(options);
  for (std::size_t i = 0; i < modules; ++i) {
    model->push_back(nn::Identity());
  }
  return model->segment_ends();
}

TEST(CheckpointedSequential, CutsIntoAboutSqrtSegmentsByDefault) {
  EXPECT_THAT(ends_of(1), ElementsAre(1));
  EXPECT_THAT(ends_of(2), ElementsAre(1, 2));
  EXPECT_THAT(ends_of(3), ElementsAre(2, 3));
  EXPECT_THAT(ends_of(4), ElementsAre(2, 4));
  EXPECT_THAT(ends_of(10), ElementsAre(3, 6, 8, 10));
  EXPECT_THAT(ends_of(16), ElementsAre(4, 8, 12, 16));
  EXPECT_EQ(ends_of(64).size(), 8u);
}

TEST(CheckpointedSequential, CutsAsAsked) {
  EXPECT_THAT(ends_of(7, CheckpointedSequentialOptions().segments(3)), ElementsAre(3, 5, 7));
  EXPECT_THAT(ends_of(7, CheckpointedSequentialOptions().segments(7)),
              ElementsAre(1, 2, 3, 4, 5, 6, 7));
  EXPECT_THAT(ends_of(7, CheckpointedSequentialOptions().segments(1)), ElementsAre(7));
  EXPECT_THAT(ends_of(7, CheckpointedSequentialOptions().every(3)), ElementsAre(3, 6, 7));
  EXPECT_THAT(ends_of(6, CheckpointedSequentialOptions().every(3)), ElementsAre(3, 6));
  EXPECT_THAT(ends_of(2, CheckpointedSequentialOptions().every(100)), ElementsAre(2));
}

TEST(CheckpointedSequential, SaysWhatIsWrongWithItsOptions) {
  const auto construct = [](CheckpointedSequentialOptions options) {
    return error_of([&] { CheckpointedSequential model(options); });
  };
  EXPECT_THAT(construct(CheckpointedSequentialOptions().segments(0)), HasSubstr("segments is 0"));
  EXPECT_THAT(construct(CheckpointedSequentialOptions().segments(-2)), HasSubstr("segments is -2"));
  EXPECT_THAT(construct(CheckpointedSequentialOptions().every(0)), HasSubstr("every is 0"));
  EXPECT_THAT(construct(CheckpointedSequentialOptions().every(2).segments(3)),
              AllOf(HasSubstr("segments (3)"), HasSubstr("every (2)")));
  EXPECT_THAT(error_of([] { ends_of(4, CheckpointedSequentialOptions().segments(5)); }),
              AllOf(HasSubstr("segments is 5"), HasSubstr("only 4 modules")));
  EXPECT_THAT(error_of([] { CheckpointedSequential()->forward(torch::ones({1})); }),
              HasSubstr("without modules"));
}

TEST(CheckpointedSequential, GradientsAreThoseOfSequentialForEveryNumberOfSegments) {
  nn::Sequential plain = six_different_layers();
  const auto expected = gradients(plain, *plain);
  for (bool last : {false, true}) {
    for (int64_t n = 1; n <= 6; ++n) {
      SCOPED_TRACE(n);
      CheckpointedSequential cut(plain,
                                 CheckpointedSequentialOptions().segments(n).checkpoint_last(last));
      expect_bit_equal(gradients(cut, *plain), expected);
      CheckpointedSequential stepped(
          plain, CheckpointedSequentialOptions().every(n).checkpoint_last(last));
      expect_bit_equal(gradients(stepped, *plain), expected);
    }
  }
  CheckpointedSequential by_default(plain);
  expect_bit_equal(gradients(by_default, *plain), expected);
}

TEST(CheckpointedSequential, RunsCheckpointedSegmentsTwiceAndTheLastOnce) {
  nn::Sequential plain = six_different_layers();
  const auto runs = [&](CheckpointedSequentialOptions options) {
    std::vector<int> counts;
    CheckpointedSequential model(plain, options);
    for (std::size_t i = 0; i < 6; ++i) {
      plain->at<LayerImpl>(i).runs = 0;
    }
    gradients(model, *plain);
    for (std::size_t i = 0; i < 6; ++i) {
      counts.push_back(plain->at<LayerImpl>(i).runs);
    }
    return counts;
  };
  EXPECT_THAT(runs(CheckpointedSequentialOptions().segments(3)), ElementsAre(2, 2, 2, 2, 1, 1));
  EXPECT_THAT(runs(CheckpointedSequentialOptions().segments(3).checkpoint_last(true)),
              ElementsAre(2, 2, 2, 2, 2, 2));
  EXPECT_THAT(runs(CheckpointedSequentialOptions().segments(1)), ElementsAre(1, 1, 1, 1, 1, 1));
}

TEST(CheckpointedSequential, IsPlainWithGradModeOff) {
  CheckpointedSequential model(six_different_layers(), CheckpointedSequentialOptions().every(1));
  torch::NoGradGuard no_grad;
  model->forward(torch::ones({1, 4}));
  EXPECT_EQ(model->at<LayerImpl>(0).runs, 1);
}

// Boundaries and the kept last segment, counted in tensors of the blocks' size: (s - 1) inputs of
// segments, and four tensors for each block of the last one.
TEST(CheckpointedSequential, HoldsTheBoundariesAndTheLastSegment) {
  const int64_t channels = 4;
  const int64_t tensor = channels * 12 * 12 * 12 * static_cast<int64_t>(sizeof(float));
  torch::Tensor x = torch::randn({1, channels, 12, 12, 12});
  for (int64_t root : {2, 4, 8}) {
    const int64_t blocks = root * root;
    CheckpointedSequential model;
    for (int64_t i = 0; i < blocks; ++i) {
      model->push_back(VoxelBlock(channels));
    }
    tidemark::HeldBytesScope held;
    torch::Tensor y = model->forward(x);
    const int64_t expected = (root - 1) * tensor + root * 4 * tensor;
    EXPECT_NEAR(static_cast<double>(held.current()), static_cast<double>(expected), 0.2 * expected)
        << blocks << " blocks";
  }
}

TEST(CheckpointedSequential, HasTheNamesAndFilesOfSequential) {
  nn::Sequential plain(nn::SequentialImpl({{"first", Layer(2)}, {"second", Layer(2)}}));
  CheckpointedSequential model({{"first", Layer(2)}, {"second", Layer(2)}});
  EXPECT_EQ(plain->named_parameters().keys(), model->named_parameters().keys());

  std::stringstream from_plain, from_model;
  torch::save(plain, from_plain);
  torch::load(model, from_plain);
  EXPECT_TRUE(torch::equal(plain->parameters()[0], model->parameters()[0]));
  {
    torch::NoGradGuard no_grad;
    model->parameters()[0].add_(1);
  }
  torch::save(model, from_model);
  torch::load(plain, from_model);
  EXPECT_TRUE(torch::equal(plain->parameters()[0], model->parameters()[0]));
}

TEST(CheckpointedSequential, IsMadeInEveryWayASequentialIs) {
  const auto two_segments = CheckpointedSequentialOptions().segments(2);
  CheckpointedSequential pushed;
  pushed->push_back("a", Layer(2));
  pushed->push_back(Layer(2));
  pushed->push_back(std::make_shared<LayerImpl>(2));
  pushed->push_back(LayerImpl(2));
  EXPECT_EQ(pushed->size(), 4u);

  CheckpointedSequential modules(Layer(2), std::make_shared<LayerImpl>(2), LayerImpl(2),
                                 nn::AnyModule(Layer(2)));
  EXPECT_EQ(modules->size(), 4u);
  CheckpointedSequential with_options(two_segments, Layer(2), Layer(2));
  EXPECT_EQ(with_options->checkpoint_options().segments(), 2);
  CheckpointedSequential options_only{two_segments};
  EXPECT_TRUE(options_only->is_empty());

  torch::OrderedDict<std::string, nn::AnyModule> dict;
  dict.insert("x", nn::AnyModule(Layer(2)));
  CheckpointedSequential from_dict(std::move(dict), two_segments);
  EXPECT_THAT(from_dict->named_children().keys(), ElementsAre("x"));
  CheckpointedSequential named({{"a", Layer(2)}, {"b", Layer(2)}}, two_segments);
  EXPECT_THAT(named->named_children().keys(), ElementsAre("a", "b"));

  nn::Sequential existing(Layer(2), Layer(2));
  CheckpointedSequential shared(existing, two_segments);
  EXPECT_EQ(shared->ptr(0), existing->ptr(0));
  CheckpointedSequential empty{nullptr};
  EXPECT_TRUE(empty.is_empty());
}

TEST(CheckpointedSequential, NestsInContainers) {
  nn::Sequential plain = six_different_layers();
  const auto expected = gradients(plain, *plain);
  CheckpointedSequential inner(CheckpointedSequentialOptions().checkpoint_last(true));
  CheckpointedSequential outer(CheckpointedSequentialOptions().checkpoint_last(true));
  nn::Sequential container;
  for (std::size_t i = 0; i < 3; ++i) {
    inner->push_back(plain->ptr<LayerImpl>(i));
  }
  outer->push_back(inner);
  outer->push_back(plain->ptr<LayerImpl>(3));
  container->push_back(outer);
  container->push_back(plain->ptr<LayerImpl>(4));
  container->push_back(plain->ptr<LayerImpl>(5));
  expect_bit_equal(gradients(container, *plain), expected);
}

TEST(CheckpointedSequential, CloneIsDeepAndOfTheSameType) {
  CheckpointedSequential model({{"a", Layer(2)}, {"b", Layer(2)}},
                               CheckpointedSequentialOptions().every(1));
  model->eval();
  auto clone = std::dynamic_pointer_cast<CheckpointedSequentialImpl>(model->clone());
  ASSERT_NE(clone, nullptr);
  EXPECT_EQ(clone->named_parameters().keys(), model->named_parameters().keys());
  EXPECT_THAT(clone->segment_ends(), ElementsAre(1, 2));
  EXPECT_FALSE(clone->is_training());
  EXPECT_FALSE(clone->ptr(0)->is_training());
  EXPECT_TRUE(torch::equal(clone->parameters()[0], model->parameters()[0]));
  {
    torch::NoGradGuard no_grad;
    clone->parameters()[0].add_(1);
  }
  EXPECT_FALSE(torch::equal(clone->parameters()[0], model->parameters()[0]));
}

TEST(CheckpointedSequential, FollowsToAndPrintsAsItself) {
  CheckpointedSequential model(Layer(4), Layer(4));
  model->to(torch::kDouble);
  EXPECT_EQ(model->forward(torch::ones({1, 4}, torch::kDouble)).dtype(), torch::kDouble);
  std::ostringstream out;
  out << model;
  EXPECT_THAT(out.str(), HasSubstr("tidemark::CheckpointedSequential("));
}

TEST(CheckpointedSequential, RerunsTheModulesThatItRan) {
  CheckpointedSequential model(CheckpointedSequentialOptions().checkpoint_last(true), Layer(4));
  torch::Tensor x = torch::ones({1, 4}).requires_grad_();
  torch::Tensor y = model->forward(x);
  model->push_back(Layer(4));
  y.sum().backward();
  EXPECT_EQ(model->at<LayerImpl>(0).runs, 2);
  EXPECT_EQ(model->at<LayerImpl>(1).runs, 0);
}

nn::Sequential with_in_place_relus() {
  torch::manual_seed(0);
  const auto relu = [] { return nn::ReLU(nn::ReLUOptions().inplace(true)); };
  const auto linear = [] { return nn::Linear(4, 4); };
  return nn::Sequential(linear(), relu(), linear(), relu(), linear(), relu());
}

TEST(CheckpointedSequential, NeverLosesTheInputOfASegmentToAnInPlaceModule) {
  nn::Sequential plain = with_in_place_relus();
  const auto expected = gradients(plain, *plain);
  for (bool last : {false, true}) {
    for (int64_t every = 1; every <= 6; ++every) {
      CheckpointedSequential model(
          plain, CheckpointedSequentialOptions().every(every).checkpoint_last(last));
      for (int step = 0; step < 3; ++step) {
        expect_bit_equal(gradients(model, *plain), expected);
      }
    }
  }
}

TEST(CheckpointedSequential, CutsBehindModulesThatOverwriteTheirInputOnceSeen) {
  nn::Sequential plain = with_in_place_relus();
  CheckpointedSequential model(plain,
                               CheckpointedSequentialOptions().every(1).checkpoint_last(true));
  torch::Tensor x = torch::randn({64, 4});
  const int64_t tensor = 64 * 4 * static_cast<int64_t>(sizeof(float));
  const auto held = [&] {
    tidemark::HeldBytesScope scope;
    torch::Tensor y = model->forward(x);
    return scope.current();
  };
  held();
  // Segments begin at the three layers; nothing but their inputs is held.
  EXPECT_EQ(held(), 3 * tensor);
}

TEST(CheckpointedSequential, LetsAFirstModuleOverwriteItsCallersTensor) {
  nn::Sequential plain(nn::ReLU(nn::ReLUOptions().inplace(true)), Layer(4));
  for (int64_t segments : {1, 2}) {
    CheckpointedSequential model(
        plain, CheckpointedSequentialOptions().segments(segments).checkpoint_last(true));
    for (int step = 0; step < 2; ++step) {
      torch::Tensor leaf = torch::randn({2, 4}).requires_grad_();
      torch::Tensor input = leaf * 1;
      model->forward(input).sum().backward();
      EXPECT_TRUE(torch::equal(input, leaf.detach().relu()));
      EXPECT_TRUE(leaf.grad().defined());
    }
  }
}

struct SumAndDifferenceImpl : nn::Module {
  std::pair<torch::Tensor, torch::Tensor> forward(torch::Tensor a, torch::Tensor b) {
    return {a + b, a - b};
  }
};
TORCH_MODULE(SumAndDifference);

struct ProductOfPairImpl : nn::Module {
  torch::Tensor forward(std::pair<torch::Tensor, torch::Tensor> x) { return x.first * x.second; }
};
TORCH_MODULE(ProductOfPair);

TEST(CheckpointedSequential, TakesSeveralValuesAndPassesOtherTypesBetweenSegments) {
  CheckpointedSequential model(CheckpointedSequentialOptions().every(1).checkpoint_last(true),
                               SumAndDifference(), ProductOfPair(), TwoTensors());
  torch::Tensor a = torch::randn({3}).requires_grad_();
  torch::Tensor b = torch::randn({3}).requires_grad_();
  using Pair = std::pair<torch::Tensor, torch::Tensor>;
  for (int step = 0; step < 2; ++step) {
    a.mutable_grad().reset();
    auto [first, second] = model->run<Pair>(a * 1, b * 1);
    (first + second).sum().backward();  // 2 (a + b) (a - b)
    EXPECT_TRUE(torch::allclose(a.grad(), 4 * a.detach()));
  }
  EXPECT_THAT(error_of([&] { model->run<int>(a * 1, b * 1); }), HasSubstr("int was asked for"));
}

struct ReluThenNormImpl : nn::Module {
  ReluThenNormImpl() { register_module("norm", norm); }
  torch::Tensor forward(torch::Tensor x) { return norm(x.relu_()); }
  nn::BatchNorm1d norm{4};
};
TORCH_MODULE(ReluThenNorm);

// In the first forward nobody knows yet that the module writes its input.
TEST(CheckpointedSequential, AFirstModuleThatOverwritesItsInputUpdatesItsBuffersOnce) {
  ReluThenNorm plain, first;
  CheckpointedSequential model(CheckpointedSequentialOptions().every(1).checkpoint_last(true),
                               first, Layer(4));
  for (int step = 1; step <= 3; ++step) {
    const torch::Tensor x = torch::randn({8, 4});
    plain->forward(x.clone());
    model->forward(x.clone().requires_grad_() * 1).sum().backward();
    EXPECT_EQ(first->norm->num_batches_tracked.item<int64_t>(), step);
    EXPECT_TRUE(torch::equal(first->norm->running_mean, plain->norm->running_mean));
    EXPECT_TRUE(torch::equal(first->norm->running_var, plain->norm->running_var));
  }
}

// Per block the plain step holds one tensor of 1 MiB (tanh's result, the next block's input): 16.
// Cut into four: 3 boundaries, 4 of the segment at work, and 2 gradients.
TEST(CheckpointedSequential, LowersThePeakOfAStepAndLeavesNothingBehind) {
  nn::Sequential plain;
  for (int i = 0; i < 16; ++i) {
    plain->push_back(Layer(256));
  }
  const auto step = [&](auto model, const torch::Tensor& x) {
    const auto once = [&] { model->forward(x).sum().backward(); };
    once();  // gradients stay
    return tidemark::measure(once);
  };
  const torch::Tensor x = torch::randn({1024, 256});
  const tidemark::StepMemory without = step(plain, x);
  const auto with =
      step(CheckpointedSequential(plain, CheckpointedSequentialOptions().segments(4)), x);
  EXPECT_THAT(with, tidemark::gtest::SavesAtLeast(0.4, without));
  EXPECT_THAT(with, tidemark::gtest::LeavesNothingBehind());
  // One region over the whole net saves nothing: its re-run holds all that the forward would have.
  const auto whole =
      step(CheckpointedSequential(
               plain, CheckpointedSequentialOptions().segments(1).checkpoint_last(true)),
           x);
  EXPECT_GE(whole.peak, without.peak * 9 / 10);
}

}  // namespace
