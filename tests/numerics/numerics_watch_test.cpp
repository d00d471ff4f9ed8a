// Where NaN and inf first appear, and what is no reason for an alarm.

#include <ATen/SequenceNumber.h>
#include <ATen/ThreadLocalState.h>
#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <tidemark/amp_scope.h>
#include <tidemark/checkpoint.h>
#include <tidemark/numerics_watch.h>
#include <tidemark/remember.h>
#include <torch/library.h>
#include <torch/torch.h>

#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "../support/thrown_text.h"

namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;
using tidemark::checkpoint;
using tidemark::CheckpointOptions;
using tidemark::Nonfinite;
using tidemark::NumericsWatch;
using tidemark::NumericsWatchOptions;
using tidemark::tests::thrown_text;
using torch::Tensor;
namespace nn = torch::nn;
using Kind = Nonfinite::Kind;
using Phase = Nonfinite::Phase;

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

/// A layer that returns its input, so that tests know what goes where.
struct SameImpl : nn::LinearImpl {
  explicit SameImpl(int64_t width) : nn::LinearImpl(width, width) {
    const torch::NoGradGuard no_grad;
    weight.copy_(torch::eye(width));
    bias.zero_();
  }
};
TORCH_MODULE(Same);

using Middle = std::function<Tensor(const Tensor&)>;

struct InnerImpl : nn::Module {
  InnerImpl() {
    register_module("fc1", fc1);
    register_module("fc2", fc2);
  }
  Tensor forward(const Tensor& x) { return fc2(middle(fc1(x))); }
  Same fc1{2};
  Same fc2{2};
  Middle middle = [](const Tensor& x) { return x; };
};
TORCH_MODULE(Inner);

struct BlockImpl : nn::Module {
  BlockImpl() { register_module("inner", inner); }
  Tensor forward(const Tensor& x) { return inner(x); }
  Inner inner;
};
TORCH_MODULE(Block);

/// stem, block.inner.fc1, what the test puts in the middle, block.inner.fc2, head.
struct NetImpl : nn::Module {
  explicit NetImpl(Middle middle = {}) {
    register_module("stem", stem);
    register_module("block", block);
    register_module("head", head);
    if (middle) {
      block->inner->middle = std::move(middle);
    }
  }
  Tensor forward(const Tensor& x) { return head(block(stem(x))); }
  Same stem{2};
  Block block;
  Same head{2};
};
TORCH_MODULE(Net);

Tensor zeros() { return torch::zeros({2, 2}); }
Tensor ones() { return torch::ones({2, 2}); }

/// 2 x 2, or a row, filled from outside of any op.
Tensor from_outside(std::vector<float> values) {
  auto* kept = new std::vector<float>(std::move(values));
  const auto count = static_cast<int64_t>(kept->size());
  return torch::from_blob(kept->data(),
                          count == 4 ? std::vector<int64_t>{2, 2} : std::vector<int64_t>{count},
                          [kept](void*) { delete kept; });
}

std::string text_of(const Nonfinite& found) {
  std::ostringstream out;
  out << found;
  return std::move(out).str();
}

/// What a watch without a model finds in `work`.
std::optional<Nonfinite> found_in(const std::function<void()>& work,
                                  const NumericsWatchOptions& options = {}) {
  const NumericsWatch watch(options);
  work();
  return watch.first();
}

void expect_finite(const std::function<void()>& work, const NumericsWatchOptions& options = {}) {
  const auto found = found_in(work, options);
  EXPECT_FALSE(found.has_value()) << *found;
}

void expect_found(const std::function<void()>& work, Kind kind, const std::string& op) {
  const auto found = found_in(work);
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->kind, kind) << *found;
  EXPECT_EQ(found->op, op) << *found;
  EXPECT_EQ(found->came_in, "") << *found;
}

// ---- Where

TEST(NumericsWatch, NamesTheModuleOfAnOpWithoutParameters) {
  Net net([](const Tensor& x) { return x.log(); });
  const NumericsWatch watch(*net);
  EXPECT_EQ(watch.first(), std::nullopt);
  net(torch::tensor({{0., 1.}, {1., 1.}}, torch::kFloat));
  const auto found = watch.first();
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->kind, Kind::kInf);
  EXPECT_EQ(found->phase, Phase::kForward);
  EXPECT_EQ(found->op, "aten::log");
  EXPECT_EQ(found->module, "block.inner");
  EXPECT_EQ(found->previous, "block.inner.fc1");
  EXPECT_EQ(found->next, "block.inner.fc2");
  EXPECT_EQ(found->node, "");
  EXPECT_EQ(found->forward_op, "");
  EXPECT_EQ(found->result, "output 0");
  EXPECT_EQ(found->dtype, torch::kFloat);
  EXPECT_THAT(found->shape, ElementsAre(2, 2));
  EXPECT_TRUE(found->device.is_cpu());
  EXPECT_EQ(found->nan_count, 0);
  EXPECT_EQ(found->inf_count, 1);
  EXPECT_EQ(found->numel, 4);
  EXPECT_EQ(found->came_in, "");
  EXPECT_EQ(thrown_text([&] { watch.expect_finite(); }),
            "tidemark: inf first appeared in aten::log in the forward, in module 'block.inner', "
            "after 'block.inner.fc1', before 'block.inner.fc2': output 0 (Float [2, 2] on cpu) has "
            "0 NaN and 1 inf in 4 values");
}

TEST(NumericsWatch, ExpectFiniteThrowsNothingWhereAllIsFinite) {
  Net net([](const Tensor& x) { return x.exp(); });
  const NumericsWatch watch(*net);
  net(ones()).sum().backward();
  EXPECT_NO_THROW(watch.expect_finite());
}

TEST(NumericsWatch, NamesTheModuleWhoseParametersAnOpReads) {
  Net net;
  {
    const torch::NoGradGuard no_grad;
    net->block->inner->fc1->weight.mul_(3e38);
  }
  const NumericsWatch watch(*net);
  net(10 * ones());  // 3e39 is more than a float holds
  const auto found = watch.first();
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->op, "aten::addmm");
  EXPECT_EQ(found->module, "block.inner.fc1");
  EXPECT_EQ(found->previous, "");
  EXPECT_EQ(found->next, "");
  EXPECT_EQ(found->inf_count, 4);
}

TEST(NumericsWatch, SeesHalfPrecisionOverflowInLinearAndConvolution) {
  for (const auto dtype : {torch::kHalf, torch::kBFloat16}) {
    Net net;
    {
      const torch::NoGradGuard no_grad;
      net->stem->weight.mul_(300);
    }
    net->to(dtype);
    nn::Conv2d conv(nn::Conv2dOptions(1, 1, 1).bias(false));
    conv->to(dtype);
    {
      const torch::NoGradGuard no_grad;
      conv->weight.fill_(300);
    }
    const NumericsWatch watch(*net);
    const NumericsWatch conv_watch(*conv);
    conv(torch::full({1, 1, 1, 1}, 300, dtype));
    net(torch::full({2, 2}, 300, dtype));
    const auto found = watch.first();
    const auto conv_found = conv_watch.first();
    ASSERT_EQ(found.has_value(), dtype == torch::kHalf);  // 300 * 300 > 65504
    ASSERT_EQ(conv_found.has_value(), dtype == torch::kHalf);
    if (found.has_value()) {
      EXPECT_EQ(found->op, "aten::conv2d");
      EXPECT_EQ(found->module, "");
      EXPECT_EQ(conv_found->op, "aten::conv2d");
      EXPECT_EQ(conv_found->dtype, torch::kHalf);
      EXPECT_EQ(conv_found->module, "");
    }
  }
}

TEST(NumericsWatch, AnOpBeforeOrAfterTheModelHasOneNeighbour) {
  Net net;
  {
    const NumericsWatch watch(*net);
    net((zeros() / zeros()).nan_to_num());
    const auto found = watch.first();
    ASSERT_TRUE(found.has_value());
    EXPECT_EQ(found->module, "");
    EXPECT_EQ(found->previous, "");
    EXPECT_EQ(found->next, "stem");
  }
  const NumericsWatch watch(*net);
  const Tensor loss = net(ones() + zeros().requires_grad_()).sum().sub(4).log();
  auto found = watch.first();
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->op, "aten::log");
  EXPECT_EQ(found->previous, "head");
  EXPECT_EQ(found->next, "");
  loss.backward();
  net(ones());  // of another iteration
  found = watch.first();
  EXPECT_EQ(found->module, "");
  EXPECT_EQ(found->next, "");
}

TEST(NumericsWatch, AModuleThatBackwardReadsIsNoNeighbour) {
  Net net;
  const NumericsWatch watch(*net);
  const Tensor y = net(ones());
  y.detach().sub(1).log();
  y.backward(ones());  // first reads the weight of the head
  const auto found = watch.first();
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->previous, "head");
  EXPECT_EQ(found->next, "");
  EXPECT_EQ(found->module, "");
}

TEST(NumericsWatch, TheFirstModuleAfterTheOpIsTheNeighbour) {
  Net net([](const Tensor& x) { return x.log().exp().abs(); });
  const NumericsWatch watch(*net);
  net(zeros());
  net(zeros());
  const auto found = watch.first();
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->op, "aten::log");
  EXPECT_EQ(found->next, "block.inner.fc2");
}

TEST(NumericsWatch, KnowsParametersThatWereReplaced) {
  Net net;
  const NumericsWatch watch(*net);
  net->head->weight.set_data(3e38 * torch::eye(2));
  net->head->bias.set_data(torch::zeros({2}));
  net(10 * ones());
  const auto found = watch.first();
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->module, "head");
}

TEST(NumericsWatch, KnowsInTheNextIterationWhatWasRegisteredInThisOne) {
  Net net;
  Tensor pose = torch::zeros({2}).requires_grad_();
  const NumericsWatch watch(*net);
  const Tensor loss = (net(ones()) + pose).sum();
  net->head->register_parameter("pose", pose);
  loss.backward();
  pose / 0;
  const auto found = watch.first();
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->op, "aten::div");
  EXPECT_EQ(found->module, "head");
}

TEST(NumericsWatch, ARangeOfTheUsersIsNoOp) {
  Net net([](const Tensor& x) { return x.log(); });
  const NumericsWatch watch(*net);
  {
    RECORD_USER_SCOPE("forward");
    const auto in_a_range = [&] {
      RECORD_FUNCTION("my_range", std::vector<c10::IValue>());
      net(zeros());
    };
    in_a_range();
  }
  const auto found = watch.first();
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->op, "aten::log");
  EXPECT_EQ(found->module, "block.inner");
}

TEST(NumericsWatch, NamesTheOutputThatIsBad) {
  // The mean of {inf, 1} - but inf came in; its variance is not finite for the first time.
  const Tensor x = from_outside({3e38F, -3e38F, 3e38F, -3e38F});
  const auto found = found_in([&] { torch::var_mean(x); });
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->op, "aten::var_mean");
  EXPECT_EQ(found->result, "output 0");
  const auto second = found_in([&] { torch::frexp(x), torch::aminmax(x / x), x.split(2); });
  EXPECT_FALSE(second.has_value());
  const auto late = found_in([&] { torch::slogdet(zeros()); });  // sign 0, log of 0
  ASSERT_TRUE(late.has_value());
  EXPECT_EQ(late->result, "output 1");
  EXPECT_EQ(late->inf_count, 1);
  EXPECT_THAT(text_of(*late), HasSubstr("0 NaN and 1 inf in 1 value"));
}

// ---- What is an origin

TEST(NumericsWatch, DivisionByZeroIsAnOrigin) {
  expect_found([] { ones() / zeros(); }, Kind::kInf, "aten::div");
  expect_found([] { zeros() / zeros(); }, Kind::kNan, "aten::div");
  expect_found([] { 1 / zeros(); }, Kind::kInf, "aten::div_");
  expect_found([] { ones() / 0; }, Kind::kInf, "aten::div");
  expect_found([] { torch::ones({2}, torch::kLong) / 0; }, Kind::kInf, "aten::div");
  expect_found([] { -ones() / zeros(); }, Kind::kInf, "aten::div");
}

TEST(NumericsWatch, CountsNanAndInf) {
  const Tensor x = from_outside({0, 0, 1, -1, 5, 5, 5});
  const auto found = found_in([&] { x / torch::tensor({0, 0, 0, 0, 1, 1, 1}); });
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->kind, Kind::kNan);
  EXPECT_EQ(found->nan_count, 2);
  EXPECT_EQ(found->inf_count, 2);
  EXPECT_EQ(found->numel, 7);
}

TEST(NumericsWatch, LooksAtEveryFloatingDtype) {
  for (const auto dtype :
       {torch::kHalf, torch::kBFloat16, torch::kFloat, torch::kDouble, torch::kComplexFloat}) {
    const Tensor zero = torch::zeros({1000}, dtype);
    Tensor one = zero.clone();
    one[777] = 1;
    const auto nan = found_in([&] { zero / zero; });
    ASSERT_TRUE(nan.has_value()) << dtype;
    EXPECT_EQ(nan->kind, Kind::kNan) << dtype;
    EXPECT_EQ(nan->nan_count, 1000) << dtype;
    EXPECT_EQ(nan->dtype, dtype);
    if (dtype != torch::kComplexFloat) {
      const auto inf = found_in([&] { one.log(); });
      ASSERT_TRUE(inf.has_value()) << dtype;
      EXPECT_EQ(inf->kind, Kind::kInf) << dtype;
      EXPECT_EQ(inf->inf_count, 999) << dtype;
    }
  }
  // One value among many, at each end, and the conjugate of a complex one.
  for (const int64_t place : {0, 500, 999}) {
    const Tensor x = torch::zeros({1000}).index_fill(0, torch::tensor({place}), -1);
    const auto found = found_in([&] { x.sqrt(); });
    ASSERT_TRUE(found.has_value()) << place;
    EXPECT_EQ(found->nan_count, 1);
    for (const double sign : {1., -1.}) {
      const Tensor zero_in_ones =
          torch::full({1000}, sign).index_fill(0, torch::tensor({place}), 0);
      const auto inf = found_in([&] { zero_in_ones.reciprocal(); });
      ASSERT_TRUE(inf.has_value()) << place;
      EXPECT_EQ(inf->inf_count, 1);
    }
  }
  expect_found([] { torch::zeros({2}, torch::kComplexDouble).conj().reciprocal(); }, Kind::kNan,
               "aten::reciprocal");
}

TEST(NumericsWatch, LooksAtTheValuesOfSparseTensors) {
  const Tensor x = from_outside({0, -1, 0, 4}).to_sparse();
  const auto found = found_in([&] { x.sqrt(); });
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->kind, Kind::kNan);
  EXPECT_EQ(found->nan_count, 1);
  EXPECT_EQ(found->numel, 2);
  EXPECT_THAT(found->shape, ElementsAre(2, 2));
  const Tensor csr = from_outside({0, -1, 0, 4}).to_sparse_csr();
  expect_found([&] { csr.sqrt(); }, Kind::kNan, "aten::sqrt");
}

TEST(NumericsWatch, NanOfInfIsAnOriginOfNan) {
  const Tensor inf = from_outside({kInf, 1, 1, 1});
  expect_found([&] { inf - inf; }, Kind::kNan, "aten::sub");
}

TEST(NumericsWatch, LooksAtWhatAnOpWritesInPlace) {
  expect_found([] { ones().div_(zeros()); }, Kind::kInf, "aten::div_");
  expect_found([] { zeros().div_(zeros()); }, Kind::kNan, "aten::div_");
  expect_found([] { ones().select(0, 1).div_(0); }, Kind::kInf, "aten::div_");
  expect_found(
      [] {
        Tensor out = zeros();
        torch::div_out(out, ones(), zeros());
      },
      Kind::kInf, "aten::div");
  expect_found(
      [] {
        Tensor in_and_out = zeros();
        torch::log_out(in_and_out, in_and_out);
      },
      Kind::kInf, "aten::log");
  Tensor held_inf = torch::full({2, 2}, kInf);
  expect_found([&] { torch::div_out(held_inf, ones(), zeros()); }, Kind::kInf, "aten::div");
  Tensor held_nan = torch::full({2, 2}, kNan);
  expect_found([&] { torch::sqrt_out(held_nan, -ones()); }, Kind::kNan, "aten::sqrt");
  const Tensor x = zeros();
  const Tensor y = ones();
  const auto found = found_in([&] {
    at::_foreach_add_({x, y}, 1);
    at::_foreach_log_({x, y});
    at::_foreach_sub_({x, y}, 1);
    at::_foreach_log_({x, y});  // x - 1 is -1, y - 1 is -1
  });
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->op, "aten::_foreach_log_");
  EXPECT_EQ(found->result, "argument 0");
  EXPECT_EQ(found->kind, Kind::kNan);
}

TEST(NumericsWatch, AnOpInPlaceIsNoOriginOfWhatWasThere) {
  Tensor inf = from_outside({kInf, 1, 1, 1});
  expect_finite([&] { inf.mul_(2); });
  expect_finite([&] { torch::mul_out(inf, inf, torch::tensor(2)); });
}

// ---- What comes in

TEST(NumericsWatch, NanInTheDataCameInFromOutside) {
  Net net;
  const Tensor x = from_outside({1, kNan, 1, 1});
  const NumericsWatch watch(*net);
  net(x.view({2, 2}));
  const auto found = watch.first();
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->kind, Kind::kNan);
  EXPECT_EQ(found->op, "aten::addmm");
  EXPECT_EQ(found->module, "stem");
  EXPECT_EQ(found->came_in, "argument 1, Float [2, 2] on cpu, which no watched op wrote NaN to");
  EXPECT_THAT(text_of(*found), StartsWith("NaN came in from outside with argument 1, Float [2, 2]"
                                          " on cpu, which no watched op wrote NaN to, into "
                                          "aten::addmm in the forward, in module 'stem': "));
}

TEST(NumericsWatch, NanInAParameterIsNamed) {
  Net net;
  net->block->inner->fc2->bias.data()[1] = kNan;
  const NumericsWatch watch(*net);
  net(ones());
  const auto found = watch.first();
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->module, "block.inner.fc2");
  EXPECT_EQ(found->came_in, "argument 0, the parameter 'block.inner.fc2.bias' (Float [2] on cpu)");
}

TEST(NumericsWatch, NanInABufferIsNamed) {
  nn::Sequential net(nn::BatchNorm1d(2), nn::ReLU());
  net->eval();
  net[0]->as<nn::BatchNorm1d>()->running_mean[0] = kNan;
  const NumericsWatch watch(*net);
  net->forward(ones());
  const auto found = watch.first();
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->module, "0");
  EXPECT_THAT(found->came_in, HasSubstr("the buffer '0.running_mean' (Float [2] on cpu)"));
}

TEST(NumericsWatch, NanThatIsWrittenByPointerCameInFromOutside) {
  const auto into_zeros = found_in([] {
    const Tensor x = zeros();
    x.data_ptr<float>()[1] = kNan;
    x + 1;
  });
  ASSERT_TRUE(into_zeros.has_value());
  EXPECT_EQ(into_zeros->op, "aten::add");
  EXPECT_EQ(into_zeros->came_in,
            "argument 0, Float [2, 2] on cpu, which no watched op wrote NaN to");
  const auto into_fresh_memory = found_in([] {
    const Tensor x = torch::empty({2, 2});
    x.fill_(0);
    const Tensor y = torch::empty_like(x);
    y.data_ptr<float>()[1] = kNan;
    x + y.to(torch::kDouble);
  });
  ASSERT_TRUE(into_fresh_memory.has_value());
  EXPECT_EQ(into_fresh_memory->op, "aten::add");
  EXPECT_EQ(into_fresh_memory->came_in,
            "argument 1, Double [2, 2] on cpu in memory that no op had filled");
}

TEST(NumericsWatch, NanThatAnOpInPlaceFindsCameInFromOutside) {
  const Tensor x = from_outside({1, kNan, 1, 1});
  const auto found = found_in([&] { x.mul_(2); });
  ASSERT_TRUE(found.has_value());
  EXPECT_THAT(found->came_in, StartsWith("argument 0, "));
  expect_finite([&] {
    x.zero_();
    x.add_(1);
  });
}

TEST(NumericsWatch, ResultsOfRememberCameInFromOutside) {
  const auto found = found_in([] { tidemark::remember([] { return zeros() / zeros(); }) + 1; });
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->op, "aten::add");
  EXPECT_NE(found->came_in, "");
}

// ---- What is no reason for an alarm

TEST(NumericsWatch, AttentionMasksAreNoAlarm) {
  const Tensor q = torch::rand({1, 2, 4, 8}).requires_grad_();
  const Tensor causal = torch::ones({4, 4}, torch::kBool).tril();
  const Tensor from_before = torch::zeros({4, 4}).masked_fill(causal.logical_not(), -kInf);
  expect_finite([&] {
    const Tensor scores = q.matmul(q.transpose(-2, -1));
    scores.masked_fill(causal.logical_not(), -kInf)
        .softmax(-1)
        .matmul(q)
        .sum()
        .backward({}, /*retain_graph=*/true);
    (scores + from_before).softmax(-1).matmul(q).sum().backward();
    const Tensor mask = torch::full({4, 4}, -kInf).triu(1);
    (q.matmul(q.transpose(-2, -1)) + mask).log_softmax(-1).exp().sum().backward();
    at::scaled_dot_product_attention(q, q, q, causal).sum().backward();
    at::scaled_dot_product_attention(q, q, q, mask).sum().backward();
    at::scaled_dot_product_attention(q, q, q, {}, 0.0, true).sum().backward();
    nn::MultiheadAttention attention(8, 2);
    const Tensor tokens = q[0].transpose(0, 1).reshape({4, 2, 8});
    std::get<0>(attention->forward(tokens, tokens, tokens, {}, true, from_before)).sum().backward();
  });
}

TEST(NumericsWatch, AFullyMaskedRowIsNanOfSoftmax) {
  const Tensor mask = torch::tensor({{true, true}, {false, false}});
  Net net([&](const Tensor& x) { return x.masked_fill(mask, -kInf).softmax(-1); });
  const NumericsWatch watch(*net);
  net(ones());
  const auto found = watch.first();
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->kind, Kind::kNan);
  EXPECT_EQ(found->op, "aten::softmax");
  EXPECT_EQ(found->module, "block.inner");
  EXPECT_EQ(found->nan_count, 2);
  EXPECT_EQ(found->came_in, "");
}

TEST(NumericsWatch, OpsThatAreToldToMakeInfOrNanAreNoOrigin) {
  expect_finite([] {
    torch::full({2}, kInf) + 1;
    zeros().fill_(kNan) + 1;
    zeros() * kNan;
    torch::tensor({1.F, kInf, kNan}) + 1;
    torch::scalar_tensor(-kInf) + 1;
    torch::constant_pad_nd(zeros(), {1, 1}, -kInf) + 1;
    zeros().masked_fill(zeros() == 0, kNan).add_(1).mul(2);
    const Tensor in_part = torch::full({2, 2}, kNan);
    in_part[0].zero_();
    in_part + 1;
    torch::full({2}, c10::complex<double>(0, kInf)) + 1;
    torch::stack({zeros(), torch::full({2, 2}, kNan)}).sum();
  });
  // Finite scalars do not excuse it.
  expect_found([] { torch::full({2}, 3e38) * 10; }, Kind::kInf, "aten::mul");
}

TEST(NumericsWatch, FreshMemoryIsNoAlarm) {
  const auto fresh = [] {
    const Tensor x = torch::empty({2, 2});
    std::fill_n(x.data_ptr<float>(), 4, kNan);  // as if it had been there before
    return x;
  };
  expect_finite([&] {
    const Tensor filled = fresh();
    filled.select(0, 0).copy_(torch::ones({2}));
    filled[1].zero_();
    filled + 1;
    const Tensor half_filled = fresh();
    half_filled[0].zero_();
    half_filled.clone();
    const Tensor by_index = fresh();
    by_index.index_put_({torch::tensor({0})}, torch::ones({2}));
    by_index.index_copy_(0, torch::tensor({1}), torch::ones({1, 2}));
    by_index + 1;
    const Tensor copied = fresh().clone().to(torch::kDouble).t().contiguous();
    copied.fill_(0);
    copied + 1;
    const Tensor grown = torch::zeros({1});
    grown.resize_({4});
    std::fill_n(grown.data_ptr<float>(), 4, kNan);
    grown.copy_(torch::ones({4}));
    grown + 1;
    torch::where(zeros() == 0, ones(), fresh()) + 1;
    fresh().copy_(ones()) + 1;
    Tensor out = fresh();
    torch::add_out(out, ones(), ones());
    out + 1;
    std::fill_n(ones().new_empty({4}).data_ptr<float>(), 4, kNan);
  });
}

TEST(NumericsWatch, MemoryThatWasFilledIsNoLongerFresh) {
  const auto found = found_in([] {
    const Tensor x = torch::empty({2, 2});
    x.zero_();
    x.data_ptr<float>()[0] = kNan;
    x.clone();
  });
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->op, "aten::clone");
}

TEST(NumericsWatch, MemoryOfATensorThatIsGoneIsNotTakenForIt) {
  for (int i = 0; i < 20; ++i) {
    const NumericsWatch watch;
    std::vector<Tensor> gone;
    for (int j = 0; j < 50; ++j) {
      gone.push_back(torch::full({2, 2}, kNan));
    }
    gone.clear();
    std::vector<Tensor> new_ones;  // likely where the others were
    for (int j = 0; j < 50; ++j) {
      new_ones.push_back(from_outside({1, kNan, 1, 1}));
    }
    new_ones[i] + 1;
    const auto found = watch.first();
    ASSERT_TRUE(found.has_value());
    EXPECT_NE(found->came_in, "");
  }
}

TEST(NumericsWatch, KnowsWhatMemoryHoldsHoweverMuchThereIs) {
  const NumericsWatch watch;
  const Tensor kept = torch::full({2, 2}, kNan);
  for (int i = 0; i < 5000; ++i) {
    zeros();
  }
  kept + 1;
  EXPECT_NO_THROW(watch.expect_finite());
}

TEST(NumericsWatch, ACleanTrainingIsNoAlarm) {
  for (const bool regions : {false, true}) {
    torch::manual_seed(1);
    nn::Sequential body(
        nn::Conv3d(nn::Conv3dOptions(1, 4, 3).padding(1).bias(false)), nn::BatchNorm3d(4),
        nn::ReLU(), nn::MaxPool3d(2), nn::Conv3d(nn::Conv3dOptions(4, 8, 3).padding(1)),
        nn::BatchNorm3d(nn::BatchNorm3dOptions(8).affine(false)), nn::LeakyReLU(), nn::Dropout(0.2),
        nn::ConvTranspose3d(nn::ConvTranspose3dOptions(8, 4, 2).stride(2)), nn::InstanceNorm3d(4),
        nn::GroupNorm(2, 4));
    nn::Sequential head(nn::AdaptiveAvgPool3d(1), nn::Flatten(), nn::Linear(4, 3));
    struct Model : nn::Module {
      Model(nn::Sequential body, nn::Sequential head) {
        register_module("body", std::move(body));
        register_module("head", std::move(head));
      }
    };
    const auto net = std::make_shared<Model>(body, head);
    torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(0.01).momentum(0.9));
    torch::optim::Adam adam(net->parameters(), torch::optim::AdamOptions(1e-3).amsgrad(true));
    const NumericsWatch watch(*net);
    for (int step = 0; step < 3; ++step) {
      const Tensor x = torch::rand({2, 1, 8, 8, 8});
      Tensor loss;
      {
        const tidemark::AmpScope amp(torch::kCPU, torch::kBFloat16);
        const Tensor features = regions ? checkpoint(body, x) : body->forward(x);
        const Tensor y = head->forward(features);
        loss = nn::functional::cross_entropy(y.to(torch::kFloat), torch::tensor({0, 2}));
      }
      sgd.zero_grad();
      loss.backward();
      torch::nn::utils::clip_grad_norm_(net->parameters(), 1.0);
      sgd.step();
      adam.step();
    }
    net->eval();
    head->forward(body->forward(torch::rand({2, 1, 8, 8, 8})));
    EXPECT_NO_THROW(watch.expect_finite()) << regions;
  }
}

TEST(NumericsWatch, RecurrentNetsAndEmbeddingsAreNoAlarm) {
  nn::Embedding embedding(nn::EmbeddingOptions(5, 4).sparse(true));
  nn::LSTM lstm(nn::LSTMOptions(4, 4).num_layers(2).bidirectional(true));
  nn::GRU gru(8, 4);
  const NumericsWatch watch;
  const Tensor x = embedding(torch::tensor({{0, 1}, {2, 4}}));
  std::get<0>(gru(std::get<0>(lstm(x)))).norm().backward();
  EXPECT_NO_THROW(watch.expect_finite());
}

// ---- Backward

TEST(NumericsWatch, NamesTheNodeAndItsForward) {
  Net net([](const Tensor& x) { return x.sqrt(); });
  const Tensor x = torch::tensor({{0., 1.}, {1., 1.}}, torch::kFloat).requires_grad_();
  const NumericsWatch watch(*net);
  const Tensor loss = net(x).sum();
  EXPECT_EQ(watch.first(), std::nullopt);
  loss.backward();
  const auto found = watch.first();  // 1 / (2 * 0)
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->kind, Kind::kInf);
  EXPECT_EQ(found->phase, Phase::kBackward);
  EXPECT_EQ(found->op, "aten::div");
  EXPECT_EQ(found->node, "SqrtBackward0");
  EXPECT_EQ(found->forward_op, "aten::sqrt");
  EXPECT_EQ(found->module, "block.inner");
  EXPECT_EQ(found->previous, "block.inner.fc1");
  EXPECT_EQ(found->next, "block.inner.fc2");
  EXPECT_EQ(found->inf_count, 1);
  EXPECT_THAT(text_of(*found),
              StartsWith("inf first appeared in aten::div in backward, node SqrtBackward0 of "
                         "aten::sqrt, in module 'block.inner', after "));
}

TEST(NumericsWatch, NamesNanOfAGradient) {
  Net net([](const Tensor& x) { return x.sqrt() * 0; });
  const Tensor x = zeros().requires_grad_();
  const NumericsWatch watch(*net);
  net(x).sum().backward();
  const auto found = watch.first();  // 0 / (2 * 0)
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->kind, Kind::kNan);
  EXPECT_EQ(found->node, "SqrtBackward0");
  EXPECT_EQ(found->forward_op, "aten::sqrt");
  EXPECT_EQ(found->module, "block.inner");
  EXPECT_EQ(found->nan_count, 4);
}

TEST(NumericsWatch, NamesTheModuleOfANodeInsideALayer) {
  Net net;
  {
    const torch::NoGradGuard no_grad;
    net->block->inner->fc1->weight.mul_(1e-30);
    net->block->inner->fc2->weight.mul_(1e30);
    net->head->weight.mul_(1e10);
  }
  const NumericsWatch watch(*net);
  net(ones().requires_grad_()).sum().backward();  // 1 * 1e10 * 1e30
  const auto found = watch.first();
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->node, "AddmmBackward0");
  EXPECT_EQ(found->forward_op, "aten::addmm");
  EXPECT_EQ(found->module, "block.inner.fc2");
}

TEST(NumericsWatch, AGradientThatIsHandedInCameInFromOutside) {
  const Tensor x = ones().requires_grad_();
  const Tensor gradient = from_outside({1, kNan, 1, 1});
  const auto found = found_in([&] { x.mul(x).backward(gradient); });
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->phase, Phase::kBackward);
  EXPECT_EQ(found->node, "MulBackward0");
  EXPECT_EQ(found->forward_op, "aten::mul");
  EXPECT_NE(found->came_in, "");
}

TEST(NumericsWatch, AGraphOfBeforeHasNoKnownForward) {
  Net net([](const Tensor& x) { return x.sqrt(); });
  const Tensor loss = net(zeros().requires_grad_()).sum();
  const NumericsWatch watch(*net);
  loss.backward();
  const auto found = watch.first();
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->node, "SqrtBackward0");
  EXPECT_EQ(found->forward_op, "");
  EXPECT_EQ(found->module, "");
}

TEST(NumericsWatch, NamesTheModuleInABackwardOfABackward) {
  Net net([](const Tensor& x) { return x.pow(1.5); });
  const Tensor x = zeros().requires_grad_();
  const NumericsWatch watch(*net);
  const Tensor loss = net(x).sum();
  const auto gradient = torch::autograd::grad({loss}, {x}, {}, true, true)[0];
  EXPECT_EQ(watch.first(), std::nullopt);  // 1.5 * 0 ^ 0.5
  gradient.sum().backward();               // 0.75 * 0 ^ -0.5
  const auto found = watch.first();
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->kind, Kind::kInf);
  EXPECT_EQ(found->phase, Phase::kBackward);
  EXPECT_EQ(found->node, "PowBackward0");
  EXPECT_EQ(found->forward_op, "aten::pow");
  EXPECT_EQ(found->module, "block.inner");
}

struct DividesInBackward : torch::autograd::Function<DividesInBackward> {
  static Tensor forward(torch::autograd::AutogradContext*, const Tensor& x) { return x * 2; }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*,
                                                 torch::autograd::variable_list gradients) {
    return {gradients[0] / 0};
  }
};

TEST(NumericsWatch, NamesTheModuleAroundACustomFunction) {
  Net net([](const Tensor& x) { return DividesInBackward::apply(x); });
  const NumericsWatch watch(*net);
  net(ones().requires_grad_()).sum().backward();
  const auto found = watch.first();
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->op, "aten::div");
  EXPECT_THAT(found->node, HasSubstr("DividesInBackward"));
  EXPECT_EQ(found->forward_op, "");
  EXPECT_EQ(found->module, "block.inner");
  EXPECT_EQ(found->previous, "block.inner.fc1");
  EXPECT_EQ(found->next, "block.inner.fc2");
}

TEST(NumericsWatch, SeesTheSumOfTheGradientsOfOneTensor) {
  const Tensor x = torch::ones({2}, torch::kHalf).requires_grad_();
  const NumericsWatch watch;
  const Tensor y = x * 1;
  (y * 40000 + y * 20000 + y * -40000).to(torch::kFloat).sum().backward();  // 40000 + 20000 - 40000
  EXPECT_EQ(watch.first(), std::nullopt);
  const Tensor z = x * 1;
  torch::stack({z * 40000, z * -40000, z * 40000, z * 40000}).to(torch::kFloat).sum().backward();
  const auto found = watch.first();
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->kind, Kind::kInf);
  EXPECT_EQ(found->phase, Phase::kBackward);
  EXPECT_THAT(found->op, StartsWith("aten::add"));
  EXPECT_EQ(found->node, "");
}

TEST(NumericsWatch, SeesHooksOfBackward) {
  Net net([](const Tensor& x) {
    x.register_hook([](const Tensor& gradient) { return gradient / 0; });
    return x.exp();
  });
  const NumericsWatch watch(*net);
  net(ones()).sum().backward();
  const auto found = watch.first();
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->phase, Phase::kBackward);
  EXPECT_EQ(found->op, "aten::div");
}

TEST(NumericsWatch, NamesModulesUnderAutocast) {
  for (const bool in_backward : {false, true}) {
    Net net([&](const Tensor& x) { return in_backward ? x.sqrt() : x.log(); });
    const NumericsWatch watch(*net);
    Tensor loss;
    {
      const tidemark::AmpScope amp(torch::kCPU, torch::kBFloat16);
      loss = net(zeros().requires_grad_()).sum();
    }
    loss.backward();
    const auto found = watch.first();
    ASSERT_TRUE(found.has_value());
    EXPECT_EQ(found->dtype, torch::kBFloat16);
    EXPECT_EQ(found->forward_op, in_backward ? "aten::sqrt" : "");
    EXPECT_EQ(found->module, "block.inner");
  }
  Net net;
  {
    const torch::NoGradGuard no_grad;
    net->block->inner->fc1->weight.mul_(1e-30);
    net->block->inner->fc2->weight.mul_(1e30);
    net->head->weight.mul_(1e10);
  }
  const NumericsWatch watch(*net);
  {
    const tidemark::AmpScope amp(torch::kCPU, torch::kBFloat16);
    net(ones().requires_grad_()).sum().backward();
  }
  const auto found = watch.first();
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->forward_op, "aten::addmm");
  EXPECT_EQ(found->module, "block.inner.fc2");
}

// ---- Regions

TEST(NumericsWatch, WatchesTheForwardOfARegion) {
  Net net([](const Tensor& x) { return x.log(); });
  const NumericsWatch watch(*net);
  checkpoint(net, zeros().requires_grad_());
  const auto found = watch.first();
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->phase, Phase::kForward);
  EXPECT_EQ(found->module, "block.inner");
}

TEST(NumericsWatch, WatchesTheRerunOfARegion) {
  Net net([](const Tensor& x) { return (x / (tidemark::recomputing() ? 0. : 1.)).exp(); });
  const NumericsWatch watch(*net);
  const Tensor y = checkpoint(CheckpointOptions().observe(false), net, ones().requires_grad_());
  EXPECT_EQ(watch.first(), std::nullopt);
  y.sum().backward();
  const auto found = watch.first();
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->phase, Phase::kRerun);
  EXPECT_EQ(found->op, "aten::div");
  EXPECT_EQ(found->node, "");
  EXPECT_EQ(found->module, "block.inner");
  EXPECT_EQ(found->previous, "block.inner.fc1");
  EXPECT_EQ(found->next, "block.inner.fc2");
  EXPECT_THAT(text_of(*found), HasSubstr(" in a region's re-run, "));
}

TEST(NumericsWatch, NamesTheNodeOfARegionsBackward) {
  Net net([](const Tensor& x) { return x.sqrt(); });
  const NumericsWatch watch(*net);
  checkpoint(net, zeros().requires_grad_()).sum().backward();
  const auto found = watch.first();
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->phase, Phase::kBackward);
  EXPECT_EQ(found->node, "SqrtBackward0");
  EXPECT_EQ(found->forward_op, "aten::sqrt");
  EXPECT_EQ(found->module, "block.inner");
}

TEST(NumericsWatch, ARegionMayBeWatchedInPart) {
  Net net([](const Tensor& x) { return x.exp().sin(); });
  const auto gradients = [&](bool watch_forward, bool watch_backward) {
    net->zero_grad();
    std::optional<NumericsWatch> watch;
    if (watch_forward) {
      watch.emplace(*net);
    }
    const Tensor loss = checkpoint(CheckpointOptions().verify(true), net, ones()).sum();
    watch.reset();
    if (watch_backward) {
      watch.emplace(*net);
    }
    loss.backward();
    return net->stem->weight.grad().clone();
  };
  const Tensor plain = gradients(false, false);
  EXPECT_TRUE(torch::equal(gradients(true, false), plain));
  EXPECT_TRUE(torch::equal(gradients(false, true), plain));
  EXPECT_TRUE(torch::equal(gradients(true, true), plain));
}

// ---- What must not change

/// Gradients, the output and a random number of a step with dropout, BatchNorm and a region.
std::vector<Tensor> step(const Tensor& x) {
  torch::manual_seed(3);
  nn::Sequential first(nn::Conv3d(1, 2, 3), nn::BatchNorm3d(2), nn::ReLU(), nn::Dropout(0.5));
  nn::Sequential region(nn::Conv3d(2, 2, 2), nn::BatchNorm3d(2), nn::Dropout(0.3));
  const tidemark::AmpScope amp(torch::kCPU, torch::kBFloat16);
  const Tensor y = checkpoint(region, first->forward(x));
  y.sigmoid_().to(torch::kFloat).square().sum().backward();
  std::vector<Tensor> made = {y, torch::rand({3})};
  for (const auto& module : {first, region}) {
    for (const Tensor& parameter : module->parameters()) {
      made.push_back(parameter.grad());
    }
    for (const Tensor& buffer : module->buffers()) {
      made.push_back(buffer);
    }
  }
  return made;
}

TEST(NumericsWatch, ChangesNoResultGradientOrRandomNumber) {
  const Tensor x = torch::rand({2, 1, 6, 6, 6});
  const auto plain = step(x);
  const NumericsWatch watch;
  const auto watched = step(x);
  EXPECT_NO_THROW(watch.expect_finite());
  ASSERT_EQ(plain.size(), watched.size());
  for (std::size_t i = 0; i < plain.size(); ++i) {
    EXPECT_TRUE(torch::equal(plain[i], watched[i])) << i;
  }
}

TEST(NumericsWatch, NobodySeesItsOps) {
  static int ops;
  ops = 0;
  const auto count =
      at::addThreadLocalCallback(at::RecordFunctionCallback([](const at::RecordFunction&) {
                                   ++ops;
                                   return std::unique_ptr<at::ObserverContext>();
                                 }).scopes({at::RecordScope::FUNCTION}));
  const Tensor x = ones().add_(1) / 2;
  const int without = std::exchange(ops, 0);
  {
    const NumericsWatch watch;
    const Tensor y = ones().add_(1) / 2;
  }
  at::removeCallback(count);
  EXPECT_EQ(ops, without);
  EXPECT_GT(ops, 0);
}

TEST(NumericsWatch, MakesNoNodes) {
  const Tensor x = torch::ones({2}, torch::kComplexFloat).requires_grad_();
  const auto nodes_of_a_step = [&] {
    const auto before = at::sequence_number::peek();
    (x + 1).exp().log_();
    return at::sequence_number::peek() - before;
  };
  const auto without = nodes_of_a_step();
  EXPECT_GE(without, 3);
  const NumericsWatch watch;
  EXPECT_EQ(nodes_of_a_step(), without);
}

TEST(NumericsWatch, RefusesToWatchWhereOpsAreNotRecorded) {
  const at::DisableRecordFunctionGuard off;
  EXPECT_THAT(thrown_text([] { const NumericsWatch watch; }).value_or(""),
              AllOf(HasSubstr("at::RecordFunction is switched off"),
                    HasSubstr("at::enableRecordFunction(true)")));
}

/// Has no memory left once it is told so.
class SpentAllocator final : public c10::Allocator {
 public:
  explicit SpentAllocator(c10::Allocator& real) : real_(real) {}
  c10::DataPtr allocate(size_t bytes) override {
    TORCH_CHECK(!spent, "no memory left");
    return real_.allocate(bytes);
  }
  c10::DeleterFnPtr raw_deleter() const override { return real_.raw_deleter(); }
  void copy_data(void* to, const void* from, std::size_t count) const override {
    real_.copy_data(to, from, count);
  }
  bool spent = false;

 private:
  c10::Allocator& real_;
};

TEST(NumericsWatch, ThrowsWhatWentWrongInLooking) {
  c10::Allocator& real = *c10::GetCPUAllocator();
  static SpentAllocator spent(real);
  const Tensor x = ones();
  const NumericsWatch watch;
  c10::SetCPUAllocator(&spent, 255);
  spent.spent = true;
  x.relu_();
  spent.spent = false;
  c10::SetCPUAllocator(&real, 255);
  EXPECT_THAT(thrown_text([&] { (void)watch.first(); }).value_or(""), HasSubstr("no memory left"));
  EXPECT_THAT(thrown_text([&] { watch.expect_finite(); }).value_or(""),
              HasSubstr("no memory left"));
}

TEST(NumericsWatch, AnOpThatThrowsIsNoOrigin) {
  expect_finite([] {
    EXPECT_THROW(ones().matmul(torch::ones({3, 3})), c10::Error);
    EXPECT_THROW(ones().div_(torch::zeros({3})), c10::Error);
    ones() + 1;
  });
}

// ---- Options

TEST(NumericsWatch, WithoutInfItReportsNanOnly) {
  const auto options = NumericsWatchOptions().inf(false);
  expect_finite([] { zeros().log().exp(); }, options);
  const auto found = found_in([] { zeros().log() * 0; }, options);
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->kind, Kind::kNan);
  EXPECT_EQ(found->op, "aten::mul");
}

TEST(NumericsWatch, WithoutBackwardGradientsAreLetThrough) {
  const auto options = NumericsWatchOptions().backward(false);
  const Tensor x = zeros().requires_grad_();
  expect_finite(
      [&] {
        (x.sqrt() * 0).sum().backward();
        EXPECT_TRUE(x.grad().isnan().all().item<bool>());
        torch::optim::SGD({x}, 0.1).step();
      },
      options);
}

// ---- Several watches and threads

TEST(NumericsWatch, WatchesNest) {
  const NumericsWatch outer;
  {
    const NumericsWatch inner;
    {
      const NumericsWatch innermost;
      ones() + 1;
      EXPECT_EQ(innermost.first(), std::nullopt);
    }
    ones() / 0;
    ASSERT_TRUE(inner.first().has_value());
    EXPECT_EQ(inner.first()->op, "aten::div");
    ASSERT_TRUE(outer.first().has_value());
    EXPECT_EQ(outer.first()->op, "aten::div");
  }
  const NumericsWatch next;
  zeros().log();
  ASSERT_TRUE(next.first().has_value());
  EXPECT_EQ(next.first()->op, "aten::log");
  EXPECT_EQ(outer.first()->op, "aten::div");
}

TEST(NumericsWatch, AnOuterWatchGoesOnAfterAnInnerOne) {
  const NumericsWatch outer;
  { const NumericsWatch inner; }
  ones() / 0;
  EXPECT_TRUE(outer.first().has_value());
}

std::optional<Nonfinite> found_inside;

Tensor watched_inside(const Tensor& x) {
  const NumericsWatch watch;
  Tensor y = (x / 0).log();
  found_inside = watch.first();
  return y;
}

void fail_half_way(Tensor x) {
  x.data_ptr<float>()[0] = kNan;
  TORCH_CHECK(false, "half way");
}

TORCH_LIBRARY(tidemark_numerics_test, library) {
  library.def("inside", &watched_inside);
  library.def("fail_half_way(Tensor(a!) x) -> ()", &fail_half_way);
}

TEST(NumericsWatch, OneInsideAnOpSeesTheOpsThatItCalls) {
  const NumericsWatch outer;
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("tidemark_numerics_test::inside", "")
                             .typed<Tensor(const Tensor&)>();
  op.call(ones());
  ASSERT_TRUE(found_inside.has_value());
  EXPECT_EQ(found_inside->op, "aten::div");
  ASSERT_TRUE(outer.first().has_value());
  EXPECT_EQ(outer.first()->op, "tidemark_numerics_test::inside");
}

TEST(NumericsWatch, WhatAnOpLeavesThatThrowsIsNoOrigin) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("tidemark_numerics_test::fail_half_way", "")
                             .typed<void(Tensor)>();
  expect_finite([] {
    const Tensor x = ones();
    EXPECT_THROW(op.call(x), c10::Error);
    x.zero_();
    x + 1;
  });
}

TEST(NumericsWatch, SeesNothingAfterItsEnd) {
  std::optional<at::ThreadLocalState> state;
  {
    const Net net;  // gone, too
    const NumericsWatch watch(*net);
    state.emplace();
  }
  const at::ThreadLocalStateGuard as_then(*state);
  ones() / 0;  // with the callback, but nobody to tell
  const NumericsWatch watch;
  ones() / 0;
  EXPECT_TRUE(watch.first().has_value());
}

TEST(NumericsWatch, TravelsWithTheStateOfItsThread) {
  Net net([](const Tensor& x) { return x.sqrt(); });
  const Tensor x = zeros().requires_grad_();
  const NumericsWatch watch(*net);
  std::thread([&] { ones() / 0; }).join();
  EXPECT_EQ(watch.first(), std::nullopt);
  Tensor loss;
  std::thread([&, state = at::ThreadLocalState()] {
    const at::ThreadLocalStateGuard as_there(state);
    loss = net(x).sum();
  }).join();
  EXPECT_EQ(watch.first(), std::nullopt);
  ones().add(1);
  loss.backward();  // its forward ran on the other thread
  const auto found = watch.first();
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->phase, Phase::kBackward);
  EXPECT_EQ(found->node, "SqrtBackward0");
  EXPECT_EQ(found->forward_op, "aten::sqrt");
  EXPECT_EQ(found->module, "block.inner");
}

TEST(NumericsWatch, FindsWhatAnotherThreadMakes) {
  Net net([](const Tensor& x) { return x.log(); });
  const NumericsWatch watch(*net);
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&, i, state = at::ThreadLocalState()] {
      const at::ThreadLocalStateGuard as_there(state);
      for (int j = 0; j < 20; ++j) {
        net(i == 2 && j == 10 ? zeros() : ones());
      }
    });
  }
  for (auto& thread : threads) {
    thread.join();
  }
  const auto found = watch.first();
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->op, "aten::log");
  EXPECT_EQ(found->module, "block.inner");
  EXPECT_EQ(found->next, "block.inner.fc2");
}

}  // namespace
