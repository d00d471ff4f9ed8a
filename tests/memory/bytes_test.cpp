#include <gtest/gtest.h>
#include <tidemark/memory/bytes.h>

#include <cstdint>
#include <limits>

namespace {

using namespace tidemark::literals;
using tidemark::format_bytes;

static_assert(1_KiB == 1024);
static_assert(12_MiB == int64_t{12} * 1024 * 1024);
static_assert(3_GiB == int64_t{3} * 1024 * 1024 * 1024);
static_assert(0_GiB == 0);

TEST(Bytes, LiteralThatDoesNotFitIsRefused) {
  EXPECT_EQ(8589934591_GiB, int64_t{8589934591} << 30);
  EXPECT_THROW(static_cast<void>(8589934592_GiB), c10::Error);
}

TEST(Bytes, FormatsInTheLargestUnitThatFits) {
  EXPECT_EQ(format_bytes(0), "0 bytes");
  EXPECT_EQ(format_bytes(1), "1 byte");
  EXPECT_EQ(format_bytes(1023), "1023 bytes");
  EXPECT_EQ(format_bytes(1_KiB), "1.0 KiB");
  EXPECT_EQ(format_bytes(1536), "1.5 KiB");
  EXPECT_EQ(format_bytes(12_MiB), "12.0 MiB");
  EXPECT_EQ(format_bytes(5_GiB + 256_MiB), "5.3 GiB");
  EXPECT_EQ(format_bytes(2048_GiB), "2.0 TiB");
}

TEST(Bytes, FormatNeverShows1024OfAUnit) {
  EXPECT_EQ(format_bytes(1_MiB - 1), "1.0 MiB");
  EXPECT_EQ(format_bytes(1_GiB - 1), "1.0 GiB");
  EXPECT_EQ(format_bytes(1_MiB - 51), "1.0 MiB");
  EXPECT_EQ(format_bytes(1_MiB - 52), "1023.9 KiB");
}

TEST(Bytes, FormatsNegativeAndExtremeNumbers) {
  EXPECT_EQ(format_bytes(-1), "-1 byte");
  EXPECT_EQ(format_bytes(-1536), "-1.5 KiB");
  EXPECT_EQ(format_bytes(std::numeric_limits<int64_t>::max()), "8.0 EiB");
  EXPECT_EQ(format_bytes(std::numeric_limits<int64_t>::min()), "-8.0 EiB");
}

}  // namespace
