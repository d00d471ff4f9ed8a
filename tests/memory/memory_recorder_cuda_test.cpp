// A report of CUDA memory against the statistics of its allocator.

#include <gtest/gtest.h>
#include <tidemark/memory/cuda_block_events.h>
#include <tidemark/memory/memory_recorder.h>
#include <tidemark/memory/memory_scope.h>
#include <torch/torch.h>

#include <cstdint>

namespace {

using Category = tidemark::MemoryCategory;

TEST(MemoryRecorderCuda, AgreesWithTheStatisticsOfTheAllocator) {
  if (!torch::cuda::is_available()) {
    GTEST_SKIP() << "needs a CUDA device";
  }
  tidemark::watch_cuda_memory();
  const torch::Device device(torch::kCUDA, 0);
  torch::nn::Linear model(torch::nn::LinearOptions(256, 256).bias(false));
  model->to(device);
  const auto x = torch::randn({1024, 256}, device);
  const auto step = [&] { torch::tanh(model(x)).sum().backward(); };
  step();  // workspaces of cuBLAS stay
  model->zero_grad();

  const tidemark::MemoryScope scope(device);
  tidemark::MemoryRecorder recorder(*model);
  step();
  const int64_t peak = scope.peak();
  const int64_t left = scope.current();
  const auto report = recorder.report();
  EXPECT_EQ(report.device, device);
  EXPECT_EQ(report.at_begin.total(), scope.baseline());
  EXPECT_EQ(report.peak, scope.baseline() + peak);
  EXPECT_EQ(report.at_end.total(), scope.baseline() + left);
  EXPECT_EQ(report.at_end[Category::kGradients], 256 * 256 * 4);
  EXPECT_EQ(report.most[Category::kActivations], 1024 * 256 * 4);
  EXPECT_TRUE(report.reserved.has_value());
}

}  // namespace
