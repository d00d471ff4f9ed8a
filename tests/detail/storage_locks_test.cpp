#include <gmock/gmock.h>
#include <tidemark/detail/storage_locks.h>
#include <tidemark/detail/vector.h>
#include <torch/torch.h>

#include <atomic>
#include <initializer_list>
#include <optional>
#include <thread>
#include <vector>

#include "../support/threads.h"

namespace {

using tidemark::detail::StorageLocks;
using Storages = tidemark::detail::Vector<const c10::StorageImpl*>;

Storages storages_of(std::initializer_list<torch::Tensor> tensors) {
  Storages storages;
  for (const torch::Tensor& tensor : tensors) {
    storages.push_back(tensor.storage().unsafeGetStorageImpl());
  }
  return storages;
}

TEST(StorageLocks, KeepOtherThreadsOut) {
  const auto buffer = torch::zeros({1});
  int64_t counter = 0;  // plain: a data race if two threads were in
  tidemark::tests::on_threads(8, [&](int) {
    for (int i = 0; i < 1000; ++i) {
      const StorageLocks locks(storages_of({buffer}));
      ++counter;
    }
  });
  EXPECT_EQ(counter, 8000);
}

TEST(StorageLocks, NeverWaitForThreadsThatHoldOtherStorages) {
  std::vector<torch::Tensor> buffers;
  for (int i = 0; i < 1000; ++i) {
    buffers.push_back(torch::zeros({1}));
  }
  const StorageLocks first(storages_of({buffers[0]}));
  std::thread([&] {
    for (int i = 1; i < 1000; ++i) {
      const StorageLocks other(storages_of({buffers[i]}));
    }
  }).join();
}

TEST(StorageLocks, OfOverlappingSetsInAnyOrderNeverWaitForEver) {
  const auto a = torch::zeros({1});
  const auto b = torch::zeros({1});
  int64_t counter = 0;
  tidemark::tests::on_threads(2, [&](int thread) {
    for (int i = 0; i < 2000; ++i) {
      const StorageLocks locks(thread == 0 ? storages_of({a, b}) : storages_of({b, a}));
      ++counter;
    }
  });
  EXPECT_EQ(counter, 4000);
}

TEST(StorageLocks, MayBeTakenAgainByTheThreadThatHoldsThem) {
  const auto buffer = torch::zeros({1});
  std::optional<StorageLocks> outer(std::in_place, storages_of({buffer}));
  { const StorageLocks twice_in_one(storages_of({buffer, buffer})); }
  std::atomic<bool> entered = false;
  std::thread other([&] {
    const StorageLocks locks(storages_of({buffer}));
    entered = true;
  });
  EXPECT_FALSE(entered);  // the inner ones' end has not let go of it
  outer.reset();
  other.join();
  EXPECT_TRUE(entered);
}

}  // namespace
