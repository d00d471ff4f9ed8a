#include <gmock/gmock.h>
#include <tidemark/gtest/memory_cap.h>
#include <tidemark/memory/bytes.h>
#include <torch/torch.h>

#include <cstdint>
#include <limits>
#include <thread>

#include "../support/thrown_text.h"

namespace {

using namespace tidemark::literals;
using testing::AllOf;
using testing::HasSubstr;
using testing::Optional;
using tidemark::gtest::MemoryCap;
using tidemark::tests::thrown_text;

torch::Tensor bytes(int64_t count) { return torch::empty({count}, torch::kByte); }

TEST(MemoryCap, RefusesTheFirstByteAboveIt) {
  const MemoryCap cap(1_KiB);
  const torch::Tensor half = bytes(512);
  const torch::Tensor other_half = bytes(512);
  EXPECT_THROW(bytes(1), c10::OutOfMemoryError);
  EXPECT_EQ(cap.refused(), 1);
}

TEST(MemoryCap, LeavesRoomAgainWhenSomethingIsFreed) {
  const MemoryCap cap(1_KiB);
  torch::Tensor all = bytes(1_KiB);
  EXPECT_THROW(bytes(512), c10::OutOfMemoryError);
  all.reset();
  EXPECT_NO_THROW(bytes(1_KiB));
}

TEST(MemoryCap, CountsFromWhatIsLive) {
  tidemark::install_memory_meter();
  const torch::Tensor before = bytes(1_MiB);
  const MemoryCap cap(1_KiB);
  EXPECT_NO_THROW(bytes(1_KiB));
}

TEST(MemoryCap, OfNoBytesRefusesEveryAllocationOfAnOpAndNothingBehindItsEnd) {
  const torch::Tensor x = torch::ones({4});
  {
    const MemoryCap cap(0);
    EXPECT_THROW(x + 1, c10::OutOfMemoryError);
    EXPECT_NO_THROW(x.relu_());
    EXPECT_NO_THROW(torch::empty({0}));
  }
  EXPECT_NO_THROW(x + 1);
}

TEST(MemoryCap, OfMoreBytesThanThereAreIsNone) {
  const torch::Tensor live = bytes(1);
  const MemoryCap cap(std::numeric_limits<int64_t>::max() - 1);
  EXPECT_NO_THROW(bytes(1_MiB));
}

TEST(MemoryCap, FailsOneChosenAllocation) {
  const auto cap = MemoryCap::failing(2);
  EXPECT_NO_THROW(bytes(1));
  EXPECT_THROW(bytes(1), c10::OutOfMemoryError);
  EXPECT_NO_THROW(bytes(1));
  EXPECT_EQ(cap.refused(), 1);
}

TEST(MemoryCap, HoldsForAllThreads) {
  const MemoryCap cap(0);
  std::thread([] { EXPECT_THROW(bytes(1), c10::OutOfMemoryError); }).join();
}

TEST(MemoryCap, SaysWhatWasAskedForAndWhere) {
  const MemoryCap cap(1_KiB);
  EXPECT_THAT(thrown_text([] { bytes(1_MiB); }),
              Optional(AllOf(HasSubstr("1048576 bytes"), HasSubstr("The cap is at"))));
}

TEST(MemoryCap, RefusesNonsense) {
  EXPECT_THAT(thrown_text([] { const MemoryCap cap(-1); }), Optional(HasSubstr("-1 bytes")));
  EXPECT_THAT(thrown_text([] { const auto cap = MemoryCap::failing(0); }),
              Optional(HasSubstr("counted from 1")));
  const MemoryCap first(1_KiB);
  EXPECT_THAT(thrown_text([] { const MemoryCap second(1_KiB); }),
              Optional(HasSubstr("one at a time")));
}

}  // namespace
