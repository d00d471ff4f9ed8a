// What the memory meter costs: a block from LibTorch's allocator with and without it, and a saved
// tensor with and without a HeldBytesScope.

#include <benchmark/benchmark.h>
#include <c10/core/CPUAllocator.h>
#include <tidemark/memory/held_bytes_scope.h>
#include <tidemark/memory/memory_scope.h>
#include <torch/torch.h>

namespace {

void allocate_and_free(benchmark::State& state, c10::Allocator* allocator) {
  for (auto _ : state) {
    auto block = allocator->allocate(256);
    benchmark::DoNotOptimize(block.get());
  }
}

void plain_block(benchmark::State& state) {
  allocate_and_free(state, c10::GetDefaultCPUAllocator());
}
BENCHMARK(plain_block)->ThreadRange(1, 8)->UseRealTime();

void metered_block(benchmark::State& state) {
  tidemark::install_memory_meter();
  allocate_and_free(state, c10::GetCPUAllocator());
}
BENCHMARK(metered_block)->ThreadRange(1, 8)->UseRealTime();

void metered_block_under_nested_scopes(benchmark::State& state) {
  const tidemark::MemoryScope scopes[8];
  allocate_and_free(state, c10::GetCPUAllocator());
}
BENCHMARK(metered_block_under_nested_scopes);

void open_and_read_a_scope(benchmark::State& state) {
  for (auto _ : state) {
    const tidemark::MemoryScope scope;
    benchmark::DoNotOptimize(scope.peak());
  }
}
BENCHMARK(open_and_read_a_scope);

void save_a_tensor(benchmark::State& state) {
  auto w = torch::randn({16}, torch::requires_grad());
  auto x = torch::randn({16});
  for (auto _ : state) {
    auto y = w * x;
    benchmark::DoNotOptimize(y);
  }
}

void saved_tensor(benchmark::State& state) { save_a_tensor(state); }
BENCHMARK(saved_tensor);

void saved_tensor_that_is_counted(benchmark::State& state) {
  const tidemark::HeldBytesScope held;
  save_a_tensor(state);
}
BENCHMARK(saved_tensor_that_is_counted);

}  // namespace
