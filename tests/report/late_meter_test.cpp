// A recorder in a program whose tensors are older than the memory meter.

#include <gtest/gtest.h>
#include <tidemark/memory/memory_recorder.h>
#include <torch/torch.h>

#include <cstdint>

#include "../support/own_process.h"

namespace {

using Category = tidemark::MemoryCategory;

TEST(MemoryRecorderWithALateMeter, KnowsWhatHasANameAndWhenItIsGone) {
  tidemark::tests::expect_in_own_process([] {
    torch::nn::Linear model(torch::nn::LinearOptions(64, 64).bias(false));
    const auto x = torch::ones({8, 64});
    const auto unknown = torch::ones({1000});
    model(x).sum().backward();

    tidemark::MemoryRecorder recorder(*model);  // installs the meter
    model->zero_grad();
    model(x).sum().backward();
    const auto report = recorder.report();

    constexpr int64_t kWeight = 64 * 64 * 4;
    EXPECT_EQ(report.at_begin[Category::kParameters], kWeight);
    EXPECT_EQ(report.at_begin[Category::kGradients], kWeight);
    EXPECT_EQ(report.at_begin[Category::kInputs], 8 * 64 * 4);
    EXPECT_EQ(report.at_begin[Category::kOther], 0);
    EXPECT_EQ(report.at_end[Category::kGradients], kWeight);
    EXPECT_EQ(report.most[Category::kGradients], kWeight);
    EXPECT_EQ(report.at_end.total(), report.at_begin.total());
    int64_t at_end = 0;
    for (const auto& block : report.blocks) {
      at_end += block.died == tidemark::MemoryBlock::kAlive ? block.bytes : 0;
    }
    EXPECT_EQ(at_end, report.at_end.total());
  });
}

}  // namespace
