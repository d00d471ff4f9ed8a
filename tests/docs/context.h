#pragma once

// What the examples of the documentation take for granted: a model, an optimizer, a loader, and so
// on, under the names that they have there.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <tidemark/diagnostics.h>
#include <tidemark/gtest/failing_allocations.h>
#include <tidemark/gtest/growth.h>
#include <tidemark/gtest/leak_listener.h>
#include <tidemark/gtest/matchers.h>
#include <tidemark/gtest/memory_cap.h>
#include <tidemark/gtest/record.h>
#include <tidemark/memory.h>
#include <tidemark/tidemark.h>
#include <torch/torch.h>

#include <cstdint>
#include <iostream>
#include <memory>
#include <stdexcept>
#include <tuple>
#include <utility>
#include <vector>

namespace docs {

// The modules and functions of the examples.
namespace types {

using tidemark::literals::operator""_MiB;
using torch::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct ConvImpl : torch::nn::Conv3dImpl {
  ConvImpl(int64_t in, int64_t out) : Conv3dImpl(torch::nn::Conv3dOptions(in, out, 3).padding(1)) {}
};
TORCH_MODULE(Conv);

struct BlockImpl : ConvImpl {
  explicit BlockImpl(int64_t channels) : ConvImpl(channels, channels) {}
};
TORCH_MODULE(Block);

struct VoxelResBlockImpl : BlockImpl {
  using BlockImpl::BlockImpl;
};
TORCH_MODULE(VoxelResBlock);

struct DecoderImpl : ConvImpl {
  using ConvImpl::ConvImpl;
};
TORCH_MODULE(Decoder);

struct TanhBlockImpl : torch::nn::LinearImpl {
  TanhBlockImpl() : LinearImpl(8, 8) {}

  Tensor forward(const Tensor& x) { return LinearImpl::forward(x).tanh().mul(2).tanh(); }
};
TORCH_MODULE(TanhBlock);

struct Mlp {
  torch::nn::Linear linear{8, 8};

  Tensor operator()(const Tensor& points, const Tensor& directions = {}) const {
    const auto y = linear.get()->weight.mm(points.t()).t();
    return directions.defined() ? y * directions : y;
  }
};

struct OwnAdam {
  void step(const Tensor& grad_scale, const Tensor& found_inf) const {
    EXPECT_EQ(grad_scale.numel(), 1);
    EXPECT_EQ(found_inf.item<float>(), 0);
  }
};

struct BadBatch {};

inline Tensor my_kernel(const Tensor& points, const Tensor& weights) { return points.mm(weights); }
inline variable_list my_kernel_backward(const variable_list& grads) { return {grads[0], {}}; }
inline Tensor knn(const Tensor& points, int64_t k) {
  return std::get<1>(torch::cdist(points, points).topk(k, 1, /*largest=*/false));
}
inline Tensor dice(const Tensor& a, const Tensor& b) {
  return 1 - 2 * (a * b).sum() / (a * a + b * b).sum();
}

}  // namespace types

using torch::Tensor;
using Batch = torch::data::Example<>;

// The values of the examples, anew for each.
struct Context {
  torch::Device device = torch::kCPU;
  Tensor x = torch::randn({4, 8});
  Tensor target = torch::randn({4, 8});
  Tensor y = target;
  Tensor points = torch::randn({64, 8});
  Tensor directions = torch::randn({64, 8});
  int64_t k = 3;
  double scale = 0.5;

  torch::nn::Sequential model{torch::nn::Linear(8, 8), torch::nn::ReLU(), torch::nn::Linear(8, 8)};
  torch::nn::Linear encoder{8, 8}, backbone{8, 8}, head{8, 8}, net{8, 8}, a{8, 8}, b{8, 8};
  types::Mlp mlp;
  torch::nn::MSELoss criterion;
  torch::optim::SGD optimizer{model->parameters(), 0.01};
  torch::optim::SGD other{head->parameters(), 0.01};
  std::vector<torch::optim::Optimizer*> optimizers{&optimizer, &other};
  torch::optim::StepLR scheduler{optimizer, 10};
  types::OwnAdam adam;

  Batch batch{torch::randn({4, 8}), torch::randn({4, 8})};
  std::unique_ptr<std::vector<Batch>> loader =
      std::make_unique<std::vector<Batch>>(std::vector<Batch>(5, batch));
  types::BadBatch bad_batch;

  std::vector<Tensor> inputs{torch::randn({4, 8}).requires_grad_()};
  std::vector<Tensor> parameters = model->parameters();
  Tensor means = torch::ones({8, 3}).requires_grad_();
  Tensor mask = torch::ones({4, 8}, torch::kBool);
  Tensor loss = model->forward(inputs[0]).pow(2).mean();
  Tensor masked_loss = criterion(model->forward(x) * mask, target* mask);
  Tensor colour = criterion(model->forward(x), target);
  Tensor depth = criterion(head->forward(x), target);
  Tensor all_rays = torch::randn({8192, 8});
  std::vector<Tensor> colours;

  tidemark::GradScaler scaler;
  tidemark::GradAccumulatorOptions options{4};
  tidemark::GradAccumulator accumulator = tidemark::GradAccumulator(optimizer, options);

  Context() { scaler.scale(means.sum()).backward(); }

  Tensor render(const Tensor& rays) { return net->forward(rays); }

  struct TrainStep {
    Context& context;

    void operator()() const { (*this)(context.batch); }
    void operator()(const Batch& batch) const { (*this)(context.model, context.optimizer, batch); }
    void operator()(torch::nn::Sequential& model, torch::optim::Optimizer& optimizer,
                    const Batch& batch) const {
      optimizer.zero_grad();
      context.criterion(model->forward(batch.data), batch.target).backward();
      optimizer.step();
    }
    void operator()(types::BadBatch) const { throw std::runtime_error("a bad batch"); }
  };
  TrainStep train_step{*this};

  static tidemark::CheckpointedSequential make_chain(int64_t blocks) {
    tidemark::CheckpointedSequential chain;
    for (int64_t i = 0; i < blocks; ++i) {
      chain->push_back(types::TanhBlock());
    }
    return chain;
  }
  struct MakeChainStep {
    auto operator()(int64_t blocks) const {
      return [x = torch::randn({4096, 8}), chain = make_chain(blocks)]() mutable {
        chain->forward(x).sum().backward();
      };
    }
  };
  MakeChainStep make_chain_step;
};

}  // namespace docs

// The same as variables of a function, as they are in the examples. (clang-format would move the
// lines anew each time.)
// clang-format off
#define DOCS_VARIABLES(X) \
  X(device) X(x) X(target) X(y) X(points) X(directions) X(k) X(scale) X(model) X(encoder) \
  X(backbone) X(head) X(net) X(a) X(b) X(mlp) X(criterion) X(optimizer) X(optimizers) \
  X(scheduler) X(adam) X(batch) X(loader) X(bad_batch) X(inputs) X(parameters) X(means) X(mask) \
  X(loss) X(masked_loss) X(colour) X(depth) X(all_rays) X(colours) X(scaler) X(options) \
  X(accumulator) X(train_step) X(make_chain_step)
// clang-format on
#define DOCS_VARIABLE(name) [[maybe_unused]] auto& name = this->name;
