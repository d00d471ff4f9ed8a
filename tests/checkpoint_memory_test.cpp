// What running out of memory in the middle of a step leaves behind: nothing.

#include <gtest/gtest.h>
#include <tidemark/checkpoint.h>
#include <tidemark/detail/op_pause.h>
#include <tidemark/gtest/memory_cap.h>
#include <tidemark/memory/memory_scope.h>
#include <torch/torch.h>

#include <memory>
#include <string>
#include <vector>

namespace {

using tidemark::checkpoint;
using torch::Tensor;
namespace nn = torch::nn;

struct NetImpl : nn::Module {
  NetImpl() {
    register_module("conv", conv);
    register_module("norm", norm);
    register_module("last", last);
  }
  Tensor forward(const Tensor& x) {
    const Tensor y = checkpoint(
        [this](const Tensor& t) {
          const Tensor inner = checkpoint(
              [this](const Tensor& u) { return torch::dropout(norm(conv(u)).relu(), 0.5, true); },
              t.sin());
          return inner.exp();
        },
        x);
    return last(y);
  }
  nn::Conv3d conv{nn::Conv3dOptions(2, 3, 3).padding(1)};
  nn::BatchNorm3d norm{3};
  nn::Conv3d last{nn::Conv3dOptions(3, 1, 1)};
};
TORCH_MODULE(Net);

class OutOfMemory : public testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    torch::manual_seed(0);
    net_ = Net();
    x_ = torch::randn({1, 2, 4, 4, 4});
    for (const Tensor& buffer : net_->buffers()) {
      buffers_.push_back(buffer.clone());
    }
  }

  void start_anew() {
    net_->zero_grad();
    const torch::NoGradGuard no_grad;
    for (std::size_t i = 0; i < buffers_.size(); ++i) {
      net_->buffers()[i].copy_(buffers_[i]);
    }
    torch::manual_seed(1);
  }

  // A step, and what it leaves: gradients, buffers, random numbers.
  std::vector<Tensor> step() {
    Tensor loss;
    {
      at::autocast::set_autocast_enabled(at::kCPU, GetParam());
      const auto end = std::shared_ptr<void>(nullptr, [](void*) {
        at::autocast::clear_cache();
        at::autocast::set_autocast_enabled(at::kCPU, false);
      });
      loss = net_(x_).to(torch::kFloat).sum();
    }
    forward_is_over_ = true;
    buffers_of_forward_ = clones(net_->buffers());
    loss.backward();
    std::vector<Tensor> left = clones(net_->buffers());
    for (const Tensor& parameter : net_->parameters()) {
      left.push_back(parameter.grad().clone());
    }
    left.push_back(torch::rand({4}));
    return left;
  }

  static std::vector<Tensor> clones(const std::vector<Tensor>& tensors) {
    std::vector<Tensor> result;
    for (const Tensor& tensor : tensors) {
      result.push_back(tensor.clone());
    }
    return result;
  }

  static void expect_equal(const std::vector<Tensor>& a, const std::vector<Tensor>& b) {
    ASSERT_EQ(a.size(), b.size());
    for (std::size_t i = 0; i < a.size(); ++i) {
      EXPECT_TRUE(torch::equal(a[i], b[i])) << i;
    }
  }

  Net net_{nullptr};
  Tensor x_;
  std::vector<Tensor> buffers_;
  bool forward_is_over_ = false;
  std::vector<Tensor> buffers_of_forward_;
};

TEST_P(OutOfMemory, AtAnyAllocationOfAStepLeavesNothingAndTheRetryIsUndisturbed) {
  start_anew();
  const std::vector<Tensor> expected = step();
  bool failed = true;
  bool in_forward = false;
  bool in_backward = false;
  for (int64_t k = 1; failed; ++k) {
    SCOPED_TRACE("allocation " + std::to_string(k));
    start_anew();
    buffers_of_forward_.clear();
    forward_is_over_ = false;
    failed = false;
    const tidemark::MemoryScope memory;
    {
      const auto cap = tidemark::gtest::MemoryCap::failing(k);
      try {
        step();
      } catch (const c10::OutOfMemoryError&) {
        failed = true;
      }
      ASSERT_EQ(cap.refused(), failed ? 1 : 0) << "the error was lost";
    }
    EXPECT_EQ(tidemark::detail::EngineLink::innermost_maker(), nullptr);
    EXPECT_FALSE(tidemark::detail::OpPause::active());
    EXPECT_FALSE(at::autocast::is_autocast_enabled(at::kCPU));
    if (failed && forward_is_over_ && !buffers_of_forward_.empty()) {
      in_backward = true;
      expect_equal(clones(net_->buffers()), buffers_of_forward_);
    }
    in_forward = in_forward || (failed && !forward_is_over_);
    buffers_of_forward_.clear();
    start_anew();
    // The engine keeps what a failed pass has left in its queue until the next pass.
    torch::ones({}).requires_grad_().exp().backward();
    EXPECT_EQ(memory.current(), 0) << "bytes leaked";
    expect_equal(step(), expected);
  }
  EXPECT_TRUE(in_forward);
  EXPECT_TRUE(in_backward);
}

INSTANTIATE_TEST_SUITE_P(Autocast, OutOfMemory, testing::Bool());

}  // namespace
