// The report's peak against what the operating system saw of the process.

#include <gtest/gtest.h>
#include <tidemark/memory/bytes.h>
#include <tidemark/memory/memory_recorder.h>
#include <tidemark/memory/memory_stats.h>
#include <torch/torch.h>

#include <cstdint>

#include "../support/own_process.h"

namespace {

using namespace tidemark::literals;

// What malloc rounds up and keeps, and what kernels take past LibTorch's allocator (oneDNN).
constexpr int64_t kSlack = 64_MiB;

TEST(MemoryReportPeak, IsWhatTheProcessNeededAtMost) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "a sanitizer keeps what is freed";
#endif
  tidemark::tests::expect_in_own_process([] {
    tidemark::install_memory_meter();
    torch::nn::Linear first(1024, 2048);
    torch::nn::Linear second(2048, 1024);
    torch::nn::Sequential model(first, torch::nn::ReLU(), second);
    const auto x = torch::randn({16, 1024});
    model->forward(x).sum().backward();  // libraries allocate what they keep
    model->zero_grad();
    const auto before = tidemark::memory_stats();
    if (!before.resident_peak.has_value()) {
      GTEST_SKIP() << "this system does not tell";
    }
    tidemark::MemoryRecorder recorder(*model);
    model->forward(torch::randn({16 * 1024, 1024})).square().sum().backward();
    const auto report = recorder.report();
    const auto after = tidemark::memory_stats();
    // three activations of 64 or 128 MiB and more than one gradient of them
    EXPECT_GT(report.peak, 400_MiB);
    const int64_t by_system = *after.resident_peak - *before.resident_peak;
    const int64_t by_report = report.peak - report.at_begin.total();
    EXPECT_NEAR(static_cast<double>(by_system), static_cast<double>(by_report),
                static_cast<double>(kSlack));
  });
}

}  // namespace
