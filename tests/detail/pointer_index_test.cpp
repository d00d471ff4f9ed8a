#include <gtest/gtest.h>
#include <tidemark/detail/pointer_index.h>

#include <cstddef>
#include <cstdint>
#include <random>
#include <unordered_map>
#include <utility>

namespace {

using tidemark::detail::PointerIndex;

const void* pointer(std::uintptr_t address) {
  return reinterpret_cast<const void*>(address);  // NOLINT(performance-no-int-to-ptr)
}

TEST(PointerIndex, KnowsNothingAtFirst) {
  const int object = 0;
  EXPECT_EQ(PointerIndex().find(&object), nullptr);
}

TEST(PointerIndex, KeepsTheFirstIndexOfAnAddress) {
  const int objects[2] = {};
  PointerIndex index;
  EXPECT_TRUE(index.add(&objects[0], 5));
  EXPECT_FALSE(index.add(&objects[0], 6));
  ASSERT_NE(index.find(&objects[0]), nullptr);
  EXPECT_EQ(*index.find(&objects[0]), 5);
  EXPECT_EQ(index.find(&objects[1]), nullptr);
}

// Random addresses, neighbours, and those that differ in high bits alone, as a std::unordered_map
// has them.
TEST(PointerIndex, AgreesWithAMapForAllKindsOfAddresses) {
  std::mt19937_64 random(1);
  for (const int shift : {0, 4, 6, 12, 32, 48}) {
    PointerIndex index;
    std::unordered_map<const void*, std::size_t> map;
    for (std::size_t i = 0; i < 5000; ++i) {
      const void* address = pointer(static_cast<std::uintptr_t>(random() % 4000 + 1) << shift);
      EXPECT_EQ(index.add(address, i), map.try_emplace(address, i).second);
    }
    for (std::uintptr_t i = 1; i <= 4000; ++i) {
      const void* address = pointer(i << shift);
      const std::size_t* found = index.find(address);
      const auto wanted = map.find(address);
      ASSERT_EQ(found != nullptr, wanted != map.end());
      if (found != nullptr) {
        ASSERT_EQ(*found, wanted->second);
      }
    }
  }
}

TEST(PointerIndex, CopiesAndMovesWithItsAddresses) {
  const int objects[20] = {};
  PointerIndex index;
  for (std::size_t i = 0; i < 10; ++i) {
    index.add(&objects[i], i);
  }
  PointerIndex copy = index;
  copy.add(&objects[10], 10);
  EXPECT_EQ(index.find(&objects[10]), nullptr);
  const PointerIndex moved = std::move(copy);
  for (std::size_t i = 0; i <= 10; ++i) {
    ASSERT_NE(moved.find(&objects[i]), nullptr);
    EXPECT_EQ(*moved.find(&objects[i]), i);
  }
}

}  // namespace
