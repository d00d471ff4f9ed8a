#include <gtest/gtest.h>
#include <tidemark/detail/vector.h>

#include <cstdint>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>
#include <utility>

namespace {

using tidemark::detail::Vector;

// Counts those alive; a copy fails once so many copies were made.
struct Counted {
  explicit Counted(int number) : number(number) { ++alive; }
  Counted(const Counted& other) : number(other.number) {
    if (copies_left-- == 0) {
      throw std::runtime_error("no more copies");
    }
    ++alive;
  }
  Counted(Counted&& other) noexcept : number(std::exchange(other.number, -1)) { ++alive; }
  Counted& operator=(const Counted&) = delete;
  Counted& operator=(Counted&& other) noexcept {
    EXPECT_NE(this, &other) << "moved to itself";
    number = std::exchange(other.number, -1);
    return *this;
  }
  ~Counted() { --alive; }
  bool operator==(const Counted& other) const { return number == other.number; }

  int number;
  static inline int alive = 0;
  static inline int copies_left = 0;
};

class VectorTest : public testing::Test {
 protected:
  VectorTest() { Counted::copies_left = 1000; }
  ~VectorTest() override { EXPECT_EQ(Counted::alive, 0); }

  static Vector<Counted> counted(int count) {
    Vector<Counted> result;
    for (int i = 0; i < count; ++i) {
      result.push_back(Counted(i));
    }
    return result;
  }

  static std::string text(const Vector<Counted>& vector) {
    std::string result;
    for (const Counted& element : vector) {
      result += std::to_string(element.number) + " ";
    }
    return result;
  }
};

TEST_F(VectorTest, KeepsWhatIsPushedWhileItGrows) {
  const auto vector = counted(9);
  EXPECT_EQ(text(vector), "0 1 2 3 4 5 6 7 8 ");
  EXPECT_EQ(vector.size(), 9);
  EXPECT_EQ(vector.front().number, 0);
  EXPECT_EQ(vector.back().number, 8);
  EXPECT_EQ(Counted::alive, 9);
}

TEST_F(VectorTest, PushesOneOfItsOwnElements) {
  Vector<std::string> vector;
  vector.push_back("a string that is too long to lie within its object");
  for (int i = 0; i < 20; ++i) {
    vector.push_back(vector.front());
  }
  for (const std::string& element : vector) {
    EXPECT_EQ(element, "a string that is too long to lie within its object");
  }
}

TEST_F(VectorTest, HoldsWhatCanOnlyBeMoved) {
  Vector<std::unique_ptr<int>> vector;
  for (int i = 0; i < 5; ++i) {
    vector.push_back(std::make_unique<int>(i));
  }
  const auto moved = std::move(vector);
  ASSERT_EQ(moved.size(), 5);
  EXPECT_EQ(*moved[4], 4);
  EXPECT_TRUE(vector.empty());  // NOLINT(bugprone-use-after-move): empty, as a std::vector is
}

TEST_F(VectorTest, CopiesAreIndependent) {
  auto vector = counted(3);
  auto copy = vector;
  copy[1].number = 7;
  EXPECT_EQ(text(vector), "0 1 2 ");
  EXPECT_EQ(text(copy), "0 7 2 ");
  vector = copy;
  EXPECT_EQ(text(vector), "0 7 2 ");
  Vector<Counted>& itself = vector;
  vector = itself;
  EXPECT_EQ(text(vector), "0 7 2 ");
  vector = std::move(itself);
  EXPECT_EQ(text(vector), "0 7 2 ");
}

TEST_F(VectorTest, FreesWhatItHasCopiedWhenACopyFails) {
  auto vector = counted(4);
  Vector<Counted> target = counted(2);
  Counted::copies_left = 2;
  EXPECT_THROW(Vector<Counted>{vector}, std::runtime_error);
  Counted::copies_left = 2;
  EXPECT_THROW(target = vector, std::runtime_error);
  EXPECT_EQ(text(target), "0 1 ");
  EXPECT_EQ(text(vector), "0 1 2 3 ");
  EXPECT_EQ(Counted::alive, 6);
}

TEST_F(VectorTest, LetsACopyFailInWhatHasOne) {
  struct Owner {
    Vector<Counted> elements;
  };
  const Owner owner{counted(2)};
  Owner target{counted(1)};
  Counted::copies_left = 1;
  EXPECT_THROW(target = owner, std::runtime_error);
  EXPECT_EQ(text(target.elements), "0 ");
}

TEST_F(VectorTest, KeepsItsElementsWhenThereIsNoMemoryForMore) {
  auto vector = counted(4);
  EXPECT_THROW(vector.reserve(SIZE_MAX), std::bad_alloc);  // more bytes than can be said
  EXPECT_EQ(text(vector), "0 1 2 3 ");
}

TEST_F(VectorTest, ErasesAnyOfItsElements) {
  auto vector = counted(6);
  vector.erase(vector.begin() + 1);
  EXPECT_EQ(text(vector), "0 2 3 4 5 ");
  vector.erase(vector.begin() + 1, vector.begin() + 3);
  EXPECT_EQ(text(vector), "0 4 5 ");
  vector.erase(vector.begin() + 1, vector.begin() + 1);
  EXPECT_EQ(text(vector), "0 4 5 ");
  vector.erase(vector.end() - 1);
  EXPECT_EQ(text(vector), "0 4 ");
  vector.erase(vector.begin(), vector.end());
  EXPECT_TRUE(vector.empty());
}

TEST_F(VectorTest, ResizesWithNewElementsOrWithoutTheLastOnes) {
  Vector<int> vector(3);
  vector[2] = 5;
  vector.resize(5);
  EXPECT_EQ(vector[2], 5);
  EXPECT_EQ(vector[4], 0);
  vector.resize(1);
  EXPECT_EQ(vector.size(), 1);
  EXPECT_EQ(vector[0], 0);
}

TEST_F(VectorTest, StaysWhereItIsWhileThereIsRoom) {
  Vector<int> vector;
  vector.reserve(100);
  const int* const begin = vector.begin();
  vector.resize(100);
  EXPECT_EQ(vector.begin(), begin);
  vector.clear();
  vector.push_back(1);
  EXPECT_EQ(vector.begin(), begin);
}

TEST_F(VectorTest, MovesLinearlyWhenRoomIsMadeForOneMoreEachTime) {
  Vector<int> vector;
  int moves = 0;
  for (int i = 0; i < 1000; ++i) {
    const int* const before = vector.begin();
    vector.reserve(vector.size() + 1);
    moves += vector.begin() != before ? static_cast<int>(vector.size()) : 0;
    vector.push_back(i);
  }
  EXPECT_LT(moves, 2000);
}

TEST_F(VectorTest, EqualsWhatHasTheSameElements) {
  EXPECT_TRUE(counted(3) == counted(3));
  EXPECT_TRUE(Vector<int>() == Vector<int>());
  EXPECT_FALSE(counted(3) == counted(4));
  EXPECT_FALSE(counted(4) == counted(3));
  auto other = counted(3);
  other.back().number = 7;
  EXPECT_FALSE(counted(3) == other);
}

#ifndef NDEBUG
TEST(VectorDeathTest, ChecksIndicesInADebugBuild) {
  Vector<int> vector(2);
  EXPECT_DEATH(static_cast<void>(vector[2]), "index < size");
  EXPECT_DEATH(vector.erase(vector.begin() + 2), "last <= end_");
}
#endif

}  // namespace
