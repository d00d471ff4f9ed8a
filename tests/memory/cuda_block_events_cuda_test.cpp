#include <c10/cuda/CUDAStream.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <tidemark/detail/block_observer.h>
#include <tidemark/detail/memory_meter.h>
#include <tidemark/memory/bytes.h>
#include <tidemark/memory/cuda_block_events.h>
#include <tidemark/memory/memory_scope.h>
#include <torch/torch.h>

#include <algorithm>
#include <cstdint>
#include <thread>

#include "../support/thrown_text.h"

namespace {

using namespace tidemark::literals;
using tidemark::MemoryScope;
using tidemark::tests::thrown_text;
using torch::Tensor;

/// Live and peak bytes of CUDA devices as an observer sees them, while it lives.
class CudaBooks final : public tidemark::detail::BlockObserver {
 public:
  CudaBooks() { tidemark::detail::ProcessMeter::get().add_observer(*this); }
  CudaBooks(const CudaBooks&) = delete;
  CudaBooks& operator=(const CudaBooks&) = delete;
  ~CudaBooks() override { tidemark::detail::ProcessMeter::get().remove_observer(*this); }

  void allocated(c10::Device device, const void*, int64_t bytes) noexcept override {
    if (device.is_cuda()) {
      live += bytes;
      peak = std::max(peak, live);
      ++blocks;
    }
  }
  void freed(c10::Device device, const void*, int64_t bytes) noexcept override {
    if (device.is_cuda()) {
      live -= bytes;
    }
  }

  int64_t live = 0;
  int64_t peak = 0;
  int blocks = 0;
};

TEST(CudaBlockEventsWithoutADevice, AreRefused) {
  if (torch::cuda::is_available()) {
    GTEST_SKIP() << "there is a CUDA device";
  }
  EXPECT_TRUE(thrown_text([] { tidemark::watch_cuda_memory(); }).has_value());
}

class CudaBlockEvents : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!torch::cuda::is_available()) {
      GTEST_SKIP() << "no CUDA device, or a LibTorch without CUDA";
    }
    tidemark::watch_cuda_memory();
  }

  static Tensor bytes(int64_t count) {
    return torch::empty({count}, torch::dtype(torch::kUInt8).device(torch::kCUDA));
  }
};

TEST_F(CudaBlockEvents, ShowTheBytesThatWereRequested) {
  const CudaBooks books;
  auto a = bytes(1000);
  bytes(8_MiB + 1);
  EXPECT_EQ(books.live, 1000);
  EXPECT_EQ(books.peak, 1000 + 8_MiB + 1);
  EXPECT_EQ(books.blocks, 2);
  a.reset();
  EXPECT_EQ(books.live, 0);
}

TEST_F(CudaBlockEvents, AreTheSameWhenWatchedTwice) {
  tidemark::watch_cuda_memory();
  const CudaBooks books;
  const auto a = bytes(1000);
  EXPECT_EQ(books.live, 1000);
}

TEST_F(CudaBlockEvents, AgreeWithAScopeInATrainingStep) {
  torch::nn::Sequential net(torch::nn::Conv3d(torch::nn::Conv3dOptions(2, 4, 3).padding(1)),
                            torch::nn::BatchNorm3d(4), torch::nn::ReLU());
  net->to(torch::kCUDA);
  const auto x = torch::randn({2, 2, 8, 8, 8}, torch::kCUDA);
  const CudaBooks books;
  const MemoryScope scope(torch::kCUDA);
  net->forward(x).square().mean().backward();
  EXPECT_EQ(books.live, scope.current());
  EXPECT_EQ(books.peak, scope.peak());
  EXPECT_EQ(books.blocks, scope.allocations());
}

TEST_F(CudaBlockEvents, OfOtherThreadsAreShown) {
  const CudaBooks books;
  Tensor block;
  std::thread([&] { block = bytes(1_MiB); }).join();
  EXPECT_EQ(books.live, 1_MiB);
}

TEST_F(CudaBlockEvents, BlockThatAnotherStreamUsesGoesWhenThatIsDone) {
  const CudaBooks books;
  const MemoryScope scope(torch::kCUDA);
  const auto other = c10::cuda::getStreamFromPool();
  auto block = bytes(1_MiB);
  block.record_stream(other);
  block.reset();
  EXPECT_EQ(books.live, scope.current());
  torch::cuda::synchronize();
  bytes(8_MiB);  // looks for blocks that have become free
  EXPECT_EQ(books.live, 0);
  EXPECT_EQ(scope.current(), 0);
}

}  // namespace
