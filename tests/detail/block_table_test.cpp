#include <gtest/gtest.h>
#include <tidemark/detail/block_table.h>

#include <cstdint>
#include <random>
#include <unordered_map>
#include <vector>

#include "../support/threads.h"

namespace {

using tidemark::detail::Block;
using tidemark::detail::BlockTable;
using tidemark::tests::on_threads;

/// An address for each of 16 million numbers; what is there does not matter.
void* address_of(uint64_t number) {
  static std::vector<char> memory(16 << 20);
  return &memory.at(number);
}

TEST(BlockTable, FindsWhatAMapFindsInARandomHistory) {
  for (const uint64_t spacing : {1, 16, 64, 4096}) {
    BlockTable table;
    std::unordered_map<void*, int64_t> expected;
    std::mt19937 random(static_cast<unsigned>(spacing));
    for (int64_t step = 0; step < 100'000; ++step) {
      void* const address = address_of((1 + random() % 3000) * spacing);
      if (random() % 2 == 0) {
        const auto replaced = table.insert({address, step, nullptr});
        const auto [known, is_new] = expected.insert_or_assign(address, step);
        ASSERT_EQ(replaced.has_value(), !is_new);
      } else {
        const auto removed = table.remove(address);
        const auto known = expected.find(address);
        ASSERT_EQ(removed.has_value(), known != expected.end());
        if (removed) {
          ASSERT_EQ(removed->bytes, known->second);
          expected.erase(known);
        }
      }
    }
    for (const auto& [address, bytes] : expected) {
      const auto removed = table.remove(address);
      ASSERT_TRUE(removed.has_value());
      ASSERT_EQ(removed->bytes, bytes);
    }
  }
}

TEST(BlockTable, GivesBackTheBlockThatIsReplaced) {
  BlockTable table;
  EXPECT_FALSE(table.insert({address_of(64), 10, nullptr}));
  const auto replaced = table.insert({address_of(64), 20, nullptr});
  ASSERT_TRUE(replaced);
  EXPECT_EQ(replaced->bytes, 10);
  EXPECT_EQ(table.remove(address_of(64))->bytes, 20);
  EXPECT_FALSE(table.remove(address_of(64)));
}

TEST(BlockTable, KnowsNoNullAndNothingWhenEmpty) {
  BlockTable table;
  EXPECT_FALSE(table.remove(nullptr));
  EXPECT_FALSE(table.remove(address_of(64)));
  table.insert({address_of(64), 1, nullptr});
  EXPECT_FALSE(table.remove(nullptr));
}

TEST(BlockTable, KeepsApartTheBlocksOfEightThreads) {
  BlockTable table;
  on_threads(8, [&table](int t) {
    for (int round = 0; round < 20; ++round) {
      for (int64_t i = 1; i <= 500; ++i) {
        EXPECT_FALSE(table.insert({address_of((8 * i + t) * 64), i, nullptr}));
      }
      for (int64_t i = 1; i <= 500; ++i) {
        const auto removed = table.remove(address_of((8 * i + t) * 64));
        EXPECT_TRUE(removed && removed->bytes == i);
      }
    }
  });
}

}  // namespace
