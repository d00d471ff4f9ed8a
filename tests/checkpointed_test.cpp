#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <tidemark/checkpointed.h>
#include <tidemark/memory/held_bytes_scope.h>
#include <torch/torch.h>

#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "support/thrown_text.h"

namespace {

using testing::HasSubstr;
using tidemark::Checkpointed;
using tidemark::CheckpointedImpl;
using tidemark::CheckpointOptions;
using torch::Tensor;
namespace nn = torch::nn;

struct DecoderImpl : nn::Cloneable<DecoderImpl> {
  DecoderImpl(int64_t in, int64_t out) : in(in), out(out) { reset(); }
  void reset() override {
    linear = register_module("linear", nn::Linear(in, out));
    norm = register_module("norm", nn::BatchNorm1d(out));
    scale = register_parameter("scale", torch::full({1}, 0.5));
  }
  Tensor forward(Tensor x, double factor = 2) {
    ++runs;
    return norm(linear(x).tanh()) * scale * factor;
  }
  int64_t in, out;
  int runs = 0;
  nn::Linear linear{nullptr};
  nn::BatchNorm1d norm{nullptr};
  Tensor scale;
};
TORCH_MODULE(Decoder);

struct PairImpl : nn::Module {
  std::pair<Tensor, Tensor> forward(const Tensor& x) { return {x.sin(), x.exp()}; }
};
TORCH_MODULE(Pair);

struct OverloadedImpl : nn::Module {
  Tensor forward(Tensor x) { return x.sin().exp(); }
  Tensor forward(Tensor x, Tensor y) { return (x * y).sin().exp(); }
};
TORCH_MODULE(Overloaded);

struct NetImpl : nn::Module {
  NetImpl() { register_module("head", head); }
  Tensor forward(Tensor x) { return head->forward(x); }
  Checkpointed<Decoder> head{4, 2};
};
TORCH_MODULE(Net);

struct PlainNetImpl : nn::Module {
  PlainNetImpl() { register_module("head", head); }
  Tensor forward(Tensor x) { return head->forward(x); }
  Decoder head{4, 2};
};
TORCH_MODULE(PlainNet);

template <class From, class To>
void transfer(const From& from, To& to) {
  std::stringstream file;
  torch::save(from, file);
  torch::load(to, file);
}

std::vector<Tensor> train(nn::Module& module, const std::function<Tensor(Tensor)>& forward) {
  module.zero_grad();
  torch::manual_seed(3);
  const Tensor x = torch::randn({5, 4}).requires_grad_();
  forward(x * 1).square().sum().backward();
  std::vector<Tensor> result{x.grad()};
  for (const auto& parameter : module.parameters()) {
    result.push_back(parameter.grad());
  }
  for (const auto& buffer : module.buffers()) {
    result.push_back(buffer.clone());
  }
  return result;
}

TEST(Checkpointed, HasTheNamesAndFilesOfTheModule) {
  Net net;
  PlainNet plain;
  EXPECT_EQ(net->named_parameters().keys(), plain->named_parameters().keys());
  EXPECT_EQ(net->named_buffers().keys(), plain->named_buffers().keys());
  transfer(plain, net);
  EXPECT_TRUE(torch::equal(net->head->linear->weight, plain->head->linear->weight));
  {
    torch::NoGradGuard no_grad;
    net->head->scale.add_(1);
  }
  transfer(net, plain);
  EXPECT_TRUE(torch::equal(net->head->scale, plain->head->scale));
}

TEST(Checkpointed, TrainsAsTheModuleDoesBitForBit) {
  Net net;
  PlainNet plain;
  transfer(plain, net);
  for (int step = 0; step < 2; ++step) {
    const auto expected = train(*plain, [&](Tensor x) { return plain->forward(x); });
    const auto actual = train(*net, [&](Tensor x) { return net->forward(x); });
    ASSERT_EQ(actual.size(), expected.size());
    for (std::size_t i = 0; i < actual.size(); ++i) {
      EXPECT_TRUE(torch::equal(actual[i], expected[i])) << i;
    }
  }
  EXPECT_EQ(net->head->runs, 4);
  EXPECT_EQ(plain->head->runs, 2);
}

TEST(Checkpointed, IsCalledInEveryWayThatTheModuleIs) {
  const Tensor x = torch::randn({3, 4}).requires_grad_() * 1;
  Checkpointed<Decoder> decoder(4, 2);
  decoder->eval();
  EXPECT_TRUE(torch::equal(decoder->forward(x, 4.0), decoder->forward(x) * 2));
  EXPECT_TRUE(torch::equal(decoder(x), decoder->forward(x)));
  EXPECT_EQ(decoder->out, 2);

  Checkpointed<Pair> pair;
  EXPECT_TRUE(torch::equal(pair->forward(x).second, x.exp()));
  Checkpointed<Overloaded> overloaded;
  EXPECT_TRUE(torch::equal(overloaded->forward(x, x), (x * x).sin().exp()));
  EXPECT_TRUE(torch::equal(overloaded->forward(x), x.sin().exp()));
  Checkpointed<nn::Sequential> sequential(nn::Linear(4, 4), nn::Tanh());
  EXPECT_EQ(sequential->forward(x).sizes(), x.sizes());
  Checkpointed<nn::Sequential> named({{"first", nn::Linear(4, 4)}});
  EXPECT_EQ(named->named_parameters().keys().front(), "first.weight");
  Checkpointed<DecoderImpl> by_impl(4, 2);
  EXPECT_EQ(by_impl->in, 4);
  Checkpointed<Decoder> empty{nullptr};
  EXPECT_TRUE(empty.is_empty());
}

TEST(Checkpointed, HoldsItsInputAlone) {
  Checkpointed<nn::Sequential> model(nn::Linear(64, 64), nn::Tanh(), nn::Linear(64, 64),
                                     nn::Tanh());
  const Tensor x = torch::randn({128, 64});
  tidemark::HeldBytesScope held;
  const Tensor y = model->forward(x);
  EXPECT_EQ(held.current(), static_cast<int64_t>(x.nbytes()));
}

TEST(Checkpointed, IsCheckpointedInEvalToo) {
  Net net;
  net->eval();
  const Tensor x = torch::randn({3, 4}).requires_grad_();
  net->forward(x * 1).sum().backward();
  EXPECT_EQ(net->head->runs, 2);
  torch::NoGradGuard no_grad;
  net->forward(x);
  EXPECT_EQ(net->head->runs, 3);
}

TEST(Checkpointed, NestsInSequentialAndAnyModule) {
  const Tensor x = torch::randn({3, 4});
  nn::Sequential model(Checkpointed<nn::Linear>(4, 4), nn::ReLU(),
                       Checkpointed<Decoder>(CheckpointOptions().name("last"), 4, 2));
  // AnyModule asks for every argument.
  EXPECT_THAT(tidemark::tests::thrown_text([&] { model->forward(x); }).value_or(""),
              HasSubstr("2 argument"));
  nn::Sequential linears(Checkpointed<nn::Linear>(4, 4), nn::ReLU(),
                         Checkpointed<nn::Linear>(4, 2));
  EXPECT_EQ(linears->forward(x).size(1), 2);
  EXPECT_EQ(nn::AnyModule(Checkpointed<nn::Linear>(4, 2)).forward(x).size(1), 2);
  EXPECT_NE(linears->ptr(0)->as<nn::Linear>(), nullptr);
}

TEST(Checkpointed, CloneIsDeepAndOfTheSameType) {
  Checkpointed<Decoder> decoder(CheckpointOptions().name("head"), 4, 2);
  decoder->eval();
  const auto clone = std::dynamic_pointer_cast<CheckpointedImpl<DecoderImpl>>(decoder->clone());
  ASSERT_NE(clone, nullptr);
  EXPECT_EQ(clone->checkpoint_options().name(), "head");
  EXPECT_FALSE(clone->is_training());
  EXPECT_EQ(clone->named_parameters().keys(), decoder->named_parameters().keys());
  EXPECT_EQ(clone->named_buffers().keys(), decoder->named_buffers().keys());
  for (const auto& parameter : clone->named_parameters()) {
    const Tensor original = decoder->named_parameters()[parameter.key()];
    EXPECT_TRUE(torch::equal(parameter.value(), original));
    EXPECT_FALSE(parameter.value().is_alias_of(original));
  }
  EXPECT_TRUE(clone->linear->weight.is_same(clone->named_parameters()["linear.weight"]));

  Checkpointed<Pair> not_cloneable;
  EXPECT_THAT(tidemark::tests::thrown_text([&] { not_cloneable->clone(); }).value_or(""),
              HasSubstr("clone() has not been implemented"));
}

TEST(Checkpointed, FollowsToTrainAndEvalAndPrintsBothNames) {
  Net net;
  net->to(torch::kDouble);
  net->eval();
  EXPECT_FALSE(net->head->norm->is_training());
  EXPECT_EQ(net->forward(torch::ones({2, 4}, torch::kDouble)).dtype(), torch::kDouble);
  std::ostringstream out;
  out << net << Checkpointed<nn::Linear>(4, 2);
  EXPECT_THAT(out.str(), HasSubstr("tidemark::Checkpointed(torch::nn::Linear(in_features=4"));
  EXPECT_THAT(out.str(), HasSubstr("DecoderImpl"));
}

TEST(Checkpointed, KeepsTheModuleUntilBackwardWhenItIsShared) {
  const Tensor x = torch::randn({3, 4}).requires_grad_();
  Tensor y;
  {
    Checkpointed<Decoder> decoder(4, 2);
    y = decoder->forward(x * 1);
  }
  y.sum().backward();
  EXPECT_TRUE(x.grad().defined());
}

TEST(Checkpointed, RefusesBackwardOfAModuleOnTheStackThatIsGone) {
  const Tensor x = torch::randn({3, 4}).requires_grad_();
  Tensor y;
  {
    CheckpointedImpl<DecoderImpl> decoder(4, 2);
    y = decoder.forward(x * 1, 1.0);
  }
  EXPECT_THAT(tidemark::tests::thrown_text([&] { y.sum().backward(); }).value_or(""),
              HasSubstr("destroyed before backward"));
}

TEST(CheckpointOfModules, TakesHoldersPointersReferencesMembersAndAnyModule) {
  PlainNet net;
  net->eval();
  const Tensor x = torch::randn({3, 4}).requires_grad_();
  const Tensor h = x * 1;
  const Tensor expected = net->forward(h);
  const std::vector<Tensor> results = {
      tidemark::checkpoint(net, h),
      tidemark::checkpoint(net.ptr(), h),
      tidemark::checkpoint(*net, h),
      tidemark::checkpoint(&PlainNetImpl::forward, net.get(), h),
      tidemark::checkpoint(&PlainNetImpl::forward, net, h),
      tidemark::checkpoint(&PlainNetImpl::forward, net.ptr(), h),
      tidemark::checkpoint(nn::AnyModule(net), h),
      tidemark::checkpoint(CheckpointOptions().name("net"), net, h),
      tidemark::checkpoint(nn::Sequential(net), h),
      tidemark::checkpoint_chunks(5, net, h),
  };
  for (const Tensor& result : results) {
    EXPECT_TRUE(torch::equal(result, expected));
    x.mutable_grad().reset();
    net->zero_grad();
    result.sum().backward({}, /*retain_graph=*/true);
    EXPECT_TRUE(x.grad().defined());
  }
  const auto pair = tidemark::checkpoint<std::pair<Tensor, Tensor>>(nn::AnyModule(Pair()), h);
  EXPECT_TRUE(torch::equal(pair.first, h.sin()));
}

}  // namespace
