// What a checkpointed region costs beside the plain call, forward and backward.

#include <benchmark/benchmark.h>
#include <tidemark/checkpoint.h>
#include <tidemark/detail/saved_tensor_hooks.h>
#include <torch/torch.h>

namespace {

using torch::Tensor;

Tensor chain(Tensor x, int64_t ops) {
  for (int64_t i = 0; i < ops; ++i) {
    x = x.sin();
  }
  return x;
}

// A tensor that is no leaf, so that the region has something to compute again.
Tensor input() { return torch::ones({8}).requires_grad_() * 1; }

void differentiate(const Tensor& y, const Tensor& x) {
  benchmark::DoNotOptimize(torch::autograd::grad({y.sum()}, {x}));
}

// One saved tensor, before and after the facade is installed. First, since it stays.
void BM_SaveOneTensor(benchmark::State& state) {
  torch::set_num_threads(1);
  if (state.range(0) != 0) {
    tidemark::detail::EngineLink::ensure();
  }
  const Tensor x = torch::ones({8}).requires_grad_();
  for (auto _ : state) {
    benchmark::DoNotOptimize(x.sin());
  }
}
BENCHMARK(BM_SaveOneTensor)->ArgName("facade")->Arg(0)->Arg(1);

// The plain call and one more forward: what a re-run can't do without.
void BM_PlainAndOneMoreForward(benchmark::State& state) {
  torch::set_num_threads(1);
  const Tensor x = input();
  for (auto _ : state) {
    differentiate(chain(x, state.range(0)), x);
    benchmark::DoNotOptimize(chain(x, state.range(0)));
  }
}
BENCHMARK(BM_PlainAndOneMoreForward)->Arg(1)->Arg(11)->Arg(51);

void BM_Plain(benchmark::State& state) {
  torch::set_num_threads(1);
  const Tensor x = input();
  for (auto _ : state) {
    differentiate(chain(x, state.range(0)), x);
  }
}
BENCHMARK(BM_Plain)->Arg(1)->Arg(11)->Arg(51);

void BM_Region(benchmark::State& state) {
  torch::set_num_threads(1);
  const Tensor x = input();
  const int64_t ops = state.range(0);
  for (auto _ : state) {
    differentiate(tidemark::checkpoint([ops](Tensor t) { return chain(std::move(t), ops); }, x), x);
  }
}
BENCHMARK(BM_Region)->Arg(1)->Arg(11)->Arg(51);

void BM_UnobservedRegion(benchmark::State& state) {
  torch::set_num_threads(1);
  const Tensor x = input();
  const int64_t ops = state.range(0);
  for (auto _ : state) {
    differentiate(tidemark::checkpoint(
                      tidemark::CheckpointOptions().observe(false),
                      [ops](Tensor t) { return chain(std::move(t), ops); }, x),
                  x);
  }
}
BENCHMARK(BM_UnobservedRegion)->Arg(1)->Arg(11)->Arg(51);

}  // namespace
