#include <gtest/gtest.h>
#include <tidemark/detail/meter_link.h>
#include <tidemark/memory/bytes.h>
#include <tidemark/memory/memory_scope.h>
#include <torch/torch.h>

#include <memory>

namespace {

using namespace tidemark::literals;
using tidemark::MemoryScope;
using tidemark::detail::mark_peaks;

torch::Tensor bytes(int64_t count) { return torch::empty({count}, torch::kByte); }

TEST(PeakSnapshot, ForgetsWhatWasFreedSince) {
  const MemoryScope outer;
  bytes(1_KiB);
  const MemoryScope scope;
  const auto before = mark_peaks();
  bytes(1_MiB);
  EXPECT_EQ(scope.peak(), 1_MiB);
  before->put_back();
  EXPECT_EQ(scope.peak(), 0);
  EXPECT_EQ(outer.peak(), 1_KiB);
}

TEST(PeakSnapshot, KeepsWhatIsLiveAndWhatFollows) {
  const MemoryScope scope;
  const auto before = mark_peaks();
  const torch::Tensor kept = bytes(2_KiB);
  bytes(1_MiB);
  before->put_back();
  EXPECT_EQ(scope.peak(), 2_KiB);
  bytes(3_KiB);
  EXPECT_EQ(scope.peak(), 5_KiB);
}

TEST(PeakSnapshot, ConcernsNoScopeThatWasOpenedSinceAndNoneThatIsClosed) {
  auto closed = std::make_unique<MemoryScope>();
  const auto before = mark_peaks();
  const MemoryScope later;
  closed.reset();
  bytes(1_MiB);
  before->put_back();
  EXPECT_EQ(later.peak(), 1_MiB);
}

TEST(PeakSnapshot, LeavesTotalsAlone) {
  const MemoryScope scope;
  const auto before = mark_peaks();
  bytes(1_MiB);
  before->put_back();
  EXPECT_EQ(scope.allocated(), 1_MiB);
  EXPECT_EQ(scope.allocations(), 1);
}

}  // namespace
