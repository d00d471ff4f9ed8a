// What the memory meter costs: a block from LibTorch's allocator with and without it, and a saved
// tensor with and without a HeldBytesScope. With several threads the column CPU is what a block
// costs its thread; the column Time is divided by their number.

#include <benchmark/benchmark.h>
#include <c10/core/CPUAllocator.h>
#include <tidemark/detail/block_observer.h>
#include <tidemark/detail/memory_meter.h>
#include <tidemark/memory/held_bytes_scope.h>
#include <tidemark/memory/memory_scope.h>
#include <torch/torch.h>

#include <cstdint>
#include <memory>

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

// Run before the others, which install the meter for good.
void block_without_a_meter(benchmark::State& state) {
  allocate_and_free(state, c10::GetCPUAllocator());
}
BENCHMARK(block_without_a_meter)->ThreadRange(1, 2)->UseRealTime();

void metered_block(benchmark::State& state) {
  tidemark::install_memory_meter();
  allocate_and_free(state, c10::GetCPUAllocator());
}
BENCHMARK(metered_block)->ThreadRange(1, 8)->UseRealTime();

/// An observer that does next to nothing.
class Counting final : public tidemark::detail::BlockObserver {
 public:
  Counting() { tidemark::detail::ProcessMeter::get().add_observer(*this); }
  Counting(const Counting&) = delete;
  Counting& operator=(const Counting&) = delete;
  ~Counting() override { tidemark::detail::ProcessMeter::get().remove_observer(*this); }

  void allocated(c10::Device, const void*, int64_t) noexcept override { ++calls_; }
  void freed(c10::Device, const void*, int64_t) noexcept override { ++calls_; }

 private:
  int64_t calls_ = 0;
};

void metered_block_with_an_observer(benchmark::State& state) {
  static std::unique_ptr<Counting> observer;
  if (state.thread_index() == 0) {
    observer = std::make_unique<Counting>();
  }
  allocate_and_free(state, c10::GetCPUAllocator());
  if (state.thread_index() == 0) {
    observer.reset();
  }
}
BENCHMARK(metered_block_with_an_observer)->ThreadRange(1, 2)->UseRealTime();

void metered_block_in_a_scope_of_its_thread(benchmark::State& state) {
  const tidemark::MemoryScope scope(tidemark::MemoryScope::Threads::kThis);
  allocate_and_free(state, c10::GetCPUAllocator());
}
BENCHMARK(metered_block_in_a_scope_of_its_thread)->ThreadRange(1, 2)->UseRealTime();

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
