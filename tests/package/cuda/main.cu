// A user's CUDA source: a kernel, and every wrapper of tidemark beside it, since nvcc rewrites what
// the host compiler gets.
#include <tidemark/diagnostics.h>
#include <tidemark/memory.h>
#include <tidemark/tidemark.h>
#include <torch/torch.h>

#include <iostream>
#include <utility>

__global__ void twice(float* values, int count) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) values[i] *= 2;
}

struct Levels {
  at::Tensor fine, coarse;
};

bool is_finite(const torch::nn::Sequential& net) {
  for (const auto& parameter : net->parameters()) {
    if (!parameter.isfinite().all().item<bool>()) return false;
  }
  return true;
}

bool train() {
  tidemark::CheckpointedSequential blocks(torch::nn::Linear(4, 4), torch::nn::BatchNorm1d(4),
                                          torch::nn::Linear(4, 4));
  tidemark::Checkpointed<torch::nn::Linear> head(4, 1);
  torch::nn::Sequential net(blocks, head);
  torch::optim::SGD optimizer(net->parameters(), 0.1);
  tidemark::GradScaler scaler;
  tidemark::GradAccumulator accumulator(optimizer,
                                        tidemark::GradAccumulatorOptions(2)
                                            .module(net)
                                            .scaler(scaler)
                                            .batch_norm(tidemark::BatchNormPolicy::kFirstOnly)
                                            .clip_grad_norm(1.0));
  const auto step = [&](const at::Tensor& x) {
    const tidemark::AmpScope amp(at::kCPU);
    const auto levels = tidemark::checkpoint(
        [](const at::Tensor& t) {
          const auto order = tidemark::remember([&] { return t.argmax(0, true).expand_as(t); });
          return Levels{t.gather(0, order), t.mean(0, true)};
        },
        x);
    auto y = tidemark::checkpoint_chunks(
        4,
        [net](const std::pair<at::Tensor, at::Tensor>& pair) mutable {
          return net->forward(pair.first + pair.second);
        },
        std::make_pair(levels.fine, levels.coarse.expand_as(levels.fine)));
    return tidemark::amp_cast(at::kFloat, y).pow(2).mean();
  };
  const auto memory = tidemark::measure([&] {
    accumulator.accumulate(at::rand({8, 4}), step);
    accumulator.backward(step(at::rand({8, 4})), 8);
    accumulator.flush();
  });
  return memory.peak > 0 && accumulator.windows() == 2 && is_finite(net);
}

int main() {
  auto x = at::ones({2, 3}).requires_grad_();
  auto y = tidemark::checkpoint([](const at::Tensor& t) { return t * t; }, x);
  y.sum().backward();
  bool right = at::equal(x.grad(), at::full({2, 3}, 2.0)) && train();

  int devices = 0;
  if (cudaGetDeviceCount(&devices) == cudaSuccess && devices > 0) {
    auto values = at::ones({6}, at::device(at::kCUDA));
    twice<<<1, 6>>>(values.data_ptr<float>(), 6);
    right = right && at::equal(values.cpu(), at::full({6}, 2.0));
  }
  std::cout << "tidemark " TIDEMARK_VERSION_STRING " with nvcc, " << devices
            << " devices: " << (right ? "right" : "WRONG") << '\n';
  return right ? 0 : 1;
}
