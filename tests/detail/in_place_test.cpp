#include <gtest/gtest.h>
#include <tidemark/detail/in_place.h>

#include <cstdint>
#include <stdexcept>

namespace {

using tidemark::detail::InPlace;

struct Counted {
  explicit Counted(int& alive, bool fails = false) : alive_(alive) {
    if (fails) {
      throw std::runtime_error("no");
    }
    ++alive_;
  }
  Counted(const Counted&) = delete;
  Counted& operator=(const Counted&) = delete;
  ~Counted() { --alive_; }

  int& alive_;
};

TEST(InPlace, DestroysEachObjectThatItMadeOnce) {
  int alive = 0;
  {
    InPlace<Counted> room;
    EXPECT_FALSE(room.has_value());
    room.reset();
    room.emplace(alive);
    room.emplace(alive);
    EXPECT_TRUE(room.has_value());
    EXPECT_EQ(alive, 1);
    room.reset();
    EXPECT_EQ(alive, 0);
    room.emplace(alive);
  }
  EXPECT_EQ(alive, 0);
}

TEST(InPlace, IsEmptyWhenAConstructorThrows) {
  int alive = 0;
  InPlace<Counted> room;
  room.emplace(alive);
  EXPECT_THROW(room.emplace(alive, /*fails=*/true), std::runtime_error);
  EXPECT_FALSE(room.has_value());
  EXPECT_EQ(alive, 0);
}

struct alignas(64) Aligned {
  double values[8];
};

TEST(InPlace, MakesTheObjectWhereItsTypeMayLie) {
  struct {
    char before = 0;
    InPlace<Aligned> room;
  } both;
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(&both.room.emplace()) % alignof(Aligned), 0);
}

}  // namespace
