#pragma once

/// \file
/// Fails the tests that leave tensors behind:
///
///     int main(int argc, char** argv) {
///       ::testing::InitGoogleTest(&argc, argv);
///       tidemark::gtest::fail_on_leaks();
///       return RUN_ALL_TESTS();
///     }

#include <c10/core/Device.h>
#include <c10/core/DeviceType.h>
#include <c10/util/Exception.h>
#include <gtest/gtest.h>
#include <tidemark/detail/failed_backward.h>
#include <tidemark/detail/meter_before_main.h>
#include <tidemark/detail/surviving_blocks.h>
#include <tidemark/memory/bytes.h>
#include <tidemark/memory/measure.h>
#include <tidemark/memory/memory_scope.h>
#include <torch/arg.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tidemark {

/// What a gtest::MemoryLeakListener looks at: `fail_on_leaks(MemoryLeakOptions().allow(4096))`.
struct MemoryLeakOptions {
  /// Bytes that each test may leave behind on each device.
  TORCH_ARG(int64_t, allow) = 0;

  /// Where to look; of LibTorch's devices those with memory statistics.
  TORCH_ARG(std::vector<c10::Device>, devices) = {c10::kCPU};
};

namespace detail {

inline constexpr const char* kAllowedLeak = "allowed_leak_bytes";

/// What allow_leak() has recorded in a test; 0 if it was not called.
inline int64_t allowed_leak(const ::testing::TestResult& result) {
  for (int i = 0; i < result.test_property_count(); ++i) {
    const ::testing::TestProperty& property = result.GetTestProperty(i);
    if (std::string_view(property.key()) == kAllowedLeak) {
      return std::stoll(property.value());
    }
  }
  return 0;
}

/// ", in 6 blocks of 8.0 MiB, 1.0 KiB, 8 bytes, ...": the largest ones; "" for none.
inline std::string describe_blocks(const std::vector<int64_t>& sizes) {
  constexpr size_t kMost = 5;
  std::string text;
  for (size_t i = 0; i < std::min(sizes.size(), kMost); ++i) {
    text += (i == 0 ? "" : ", ") + format_bytes(sizes[i]);
  }
  return sizes.empty() ? ""
                       : ", in " + std::to_string(sizes.size()) +
                             (sizes.size() == 1 ? " block of " : " blocks of ") + text +
                             (sizes.size() > kMost ? ", ..." : "");
}

}  // namespace detail

namespace gtest {

/// Lets the test that is running leave `bytes` behind on each device, or without an argument as
/// many as it likes. Called in the SetUp() of a fixture it holds for all of its tests. The last
/// call counts; reports show it as the property "allowed_leak_bytes". Throws for a negative number.
inline void allow_leak(int64_t bytes = std::numeric_limits<int64_t>::max()) {
  TORCH_CHECK(bytes >= 0, "tidemark: allow_leak got ", bytes, " bytes; give 0 or more.");
  ::testing::Test::RecordProperty(detail::kAllowedLeak, std::to_string(bytes));
}

/// Fails each test after which more bytes are live than before it, see MemoryScope for what these
/// are. Fixtures are made and destroyed in between; what SetUpTestSuite() and environments make
/// comes before, and does not count. Tests that failed or were skipped anyway are not judged.
///
/// What is made at first use and stays counts against the test that comes first: a static of the
/// tests' own, and on devices LibTorch's workspaces (cuBLAS, cuDNN). Use it once before
/// RUN_ALL_TESTS(), or allow for it. On the CPU no such block of LibTorch's is known.
///
/// What a failed backward pass had still to do stays with LibTorch until the next pass of the same
/// thread; the listener starts one before it judges. Threads that outlive a test and free or
/// allocate meanwhile make the result a matter of luck: join them.
///
/// Method: GoogleTest's sample10, which counts objects.
class MemoryLeakListener : public ::testing::EmptyTestEventListener {
 public:
  /// Throws for a negative allowance and for a device without memory statistics.
  explicit MemoryLeakListener(MemoryLeakOptions options = {}) : options_(std::move(options)) {
    TORCH_CHECK(options_.allow() >= 0, "tidemark: MemoryLeakListener: ", options_.allow(),
                " bytes are to be allowed; give 0 or more.");
    for (const c10::Device device : options_.devices()) {
      static_cast<void>(MemoryScope(device));
    }
  }

  /// Called by GoogleTest: what is live now is the test's baseline.
  void OnTestStart(const ::testing::TestInfo& /*test*/) override {
    scopes_.clear();
    for (const c10::Device device : options_.devices()) {
      scopes_.emplace_back(device);
    }
    blocks_.emplace();
  }

  /// Called by GoogleTest: fails the test if it passed and left more behind than is allowed.
  void OnTestEnd(const ::testing::TestInfo& test) override {
    if (test.result()->Passed()) {
      for (size_t i = 0; i < scopes_.size(); ++i) {
        judge(test, options_.devices()[i], scopes_[i]);
      }
    }
    blocks_.reset();
    scopes_.clear();
  }

 private:
  void judge(const ::testing::TestInfo& test, c10::Device device, const MemoryScope& scope) {
    const int64_t allowed = std::max(options_.allow(), detail::allowed_leak(*test.result()));
    if (scope.current() <= allowed) {
      return;
    }
    detail::drop_failed_backward();
    const int64_t leak = scope.current();
    if (leak > allowed) {
      blocks_->stop();
      ADD_FAILURE_AT(test.file(), test.line())
          << test.test_suite_name() << '.' << test.name() << " leaves "
          << detail::format_exactly(leak) << " of " << device << " memory behind"
          << detail::describe_blocks(blocks_->sizes(device)) << "; "
          << detail::format_exactly(allowed)
          << " are allowed.\nFind what outlives the test: a static or global, a cache, objects "
             "that own each other. What is meant to stay: make it in SetUpTestSuite(), or call "
             "tidemark::gtest::allow_leak("
          << leak << ") in the test.";
    }
  }

  MemoryLeakOptions options_;
  std::deque<MemoryScope> scopes_;  // a MemoryScope can't be moved
  std::optional<detail::SurvivingBlocks> blocks_;
};

/// Installs a MemoryLeakListener for the tests that follow, in main() before RUN_ALL_TESTS().
inline void fail_on_leaks(MemoryLeakOptions options = {}) {
  ::testing::UnitTest::GetInstance()->listeners().Append(
      new MemoryLeakListener(std::move(options)));
}

}  // namespace gtest

}  // namespace tidemark
