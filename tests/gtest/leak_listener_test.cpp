#include <gmock/gmock.h>
#include <gtest/gtest-spi.h>
#include <gtest/gtest.h>
#include <tidemark/gtest/leak_listener.h>
#include <tidemark/memory/bytes.h>
#include <torch/torch.h>
#include <unistd.h>

#include <array>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "../support/thrown_text.h"

namespace {

using namespace tidemark::literals;
using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::Optional;
using tidemark::MemoryLeakOptions;
using tidemark::gtest::allow_leak;
using tidemark::gtest::MemoryLeakListener;
using tidemark::tests::thrown_text;

torch::Tensor bytes(int64_t count) { return torch::empty({count}, torch::kByte); }

const ::testing::TestInfo& this_test() {
  return *::testing::UnitTest::GetInstance()->current_test_info();
}

TEST(MemoryLeakListener, FindsAPlantedLeakAndSaysWhatToDo) {
  MemoryLeakListener listener;
  listener.OnTestStart(this_test());
  const auto leak = bytes(8_MiB);
  EXPECT_NONFATAL_FAILURE(listener.OnTestEnd(this_test()),
                          "MemoryLeakListener.FindsAPlantedLeakAndSaysWhatToDo leaves 8.0 MiB "
                          "(8388608 bytes) of cpu memory behind, in 1 block of 8.0 MiB; 0 bytes "
                          "are allowed.");
  listener.OnTestStart(this_test());
  const auto another = bytes(8_MiB);
  EXPECT_NONFATAL_FAILURE(listener.OnTestEnd(this_test()),
                          "tidemark::gtest::allow_leak(8388608) in the test");
}

TEST(MemoryLeakListener, NamesTheLargestBlocks) {
  const auto older = bytes(16_MiB);
  MemoryLeakListener listener;
  listener.OnTestStart(this_test());
  std::vector<torch::Tensor> leak;
  bytes(32_MiB);
  for (const int64_t size : {3, 1, 7, 2, 5, 6, 4}) {
    leak.push_back(bytes(size));
  }
  EXPECT_NONFATAL_FAILURE(listener.OnTestEnd(this_test()),
                          "leaves 28 bytes of cpu memory behind, in 7 blocks of 7 bytes, 6 bytes, "
                          "5 bytes, 4 bytes, 3 bytes, ...;");
}

TEST(MemoryLeakListener, PassesATestThatFreesWhatItAllocates) {
  MemoryLeakListener listener;
  listener.OnTestStart(this_test());
  bytes(8_MiB);
  listener.OnTestEnd(this_test());
}

TEST(MemoryLeakListener, PassesATestThatFreesOlderBlocks) {
  auto older = bytes(1_KiB);
  MemoryLeakListener listener;
  listener.OnTestStart(this_test());
  older.reset();
  listener.OnTestEnd(this_test());
}

TEST(MemoryLeakListener, AllowsWhatItIsToldAndNotAByteMore) {
  MemoryLeakListener listener(MemoryLeakOptions().allow(1_KiB));
  listener.OnTestStart(this_test());
  const auto allowed = bytes(1_KiB);
  listener.OnTestEnd(this_test());
  listener.OnTestStart(this_test());
  const auto leak = bytes(1_KiB + 1);
  EXPECT_NONFATAL_FAILURE(listener.OnTestEnd(this_test()), "1.0 KiB (1024 bytes) are allowed");
}

TEST(MemoryLeakListener, ATestAllowsItselfALeakOfSomeBytes) {
  MemoryLeakListener listener;
  listener.OnTestStart(this_test());
  allow_leak(1_KiB);
  const auto allowed = bytes(1_KiB);
  listener.OnTestEnd(this_test());
  listener.OnTestStart(this_test());
  const auto leak = bytes(1_KiB + 1);
  EXPECT_NONFATAL_FAILURE(listener.OnTestEnd(this_test()), "1.0 KiB (1024 bytes) are allowed");
}

TEST(MemoryLeakListener, ATestAllowsItselfAnyLeak) {
  MemoryLeakListener listener;
  listener.OnTestStart(this_test());
  allow_leak();
  const auto kept = bytes(8_MiB);
  listener.OnTestEnd(this_test());
}

struct FailsInBackward : torch::autograd::Function<FailsInBackward> {
  static torch::Tensor forward(torch::autograd::AutogradContext* /*context*/,
                               const torch::Tensor& x) {
    return x.clone();
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* /*context*/,
                                                 torch::autograd::variable_list /*grads*/) {
    throw std::runtime_error("planted");
  }
};

TEST(MemoryLeakListener, DoesNotBlameATestForWhatTheEngineKeepsOfAFailedBackward) {
  MemoryLeakListener listener;
  const tidemark::MemoryScope memory;
  listener.OnTestStart(this_test());
  {
    const auto x = torch::ones({1000}, torch::requires_grad());
    const auto loss = FailsInBackward::apply(x * 2).sum() + (x * 3).exp().sum();
    EXPECT_THROW(loss.backward(), std::runtime_error);
  }
  EXPECT_GT(memory.current(), 0) << "LibTorch keeps nothing any more: the listener need not care";
  listener.OnTestEnd(this_test());
  EXPECT_EQ(memory.current(), 0);
}

TEST(MemoryLeakListener, RefusesNonsense) {
  EXPECT_THAT(thrown_text([] { MemoryLeakListener(MemoryLeakOptions().allow(-1)); }),
              Optional(AllOf(HasSubstr("-1 bytes"), HasSubstr("give 0 or more"))));
  EXPECT_THAT(thrown_text([] { MemoryLeakListener(MemoryLeakOptions().devices({c10::kMeta})); }),
              Optional(HasSubstr("meta")));
  EXPECT_THAT(thrown_text([] { allow_leak(-1); }), Optional(HasSubstr("-1 bytes")));
}

// The tests below are run in a process of their own, with the listener installed.

std::vector<torch::Tensor>& kept() {
  static std::vector<torch::Tensor> tensors;
  return tensors;
}

class DISABLED_Leaking : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { kept().push_back(bytes(1_MiB)); }
  torch::Tensor member_ = bytes(1_MiB);
};

TEST_F(DISABLED_Leaking, FixtureOnly) {}
TEST_F(DISABLED_Leaking, EightMiB) { kept().push_back(bytes(8_MiB)); }
TEST_F(DISABLED_Leaking, AllowedToItself) {
  allow_leak();
  kept().push_back(bytes(4_MiB));
}
TEST_F(DISABLED_Leaking, FailedAnyway) {
  kept().push_back(bytes(2_MiB));
  FAIL() << "planted";
}
TEST_F(DISABLED_Leaking, Skipped) {
  kept().push_back(bytes(2_MiB));
  GTEST_SKIP() << "planted";
}
TEST_F(DISABLED_Leaking, ConvolutionStepFromScratch) {
  torch::nn::Conv3d convolution(torch::nn::Conv3dOptions(2, 8, 3));
  torch::optim::Adam optimizer(convolution->parameters());
  convolution->forward(torch::randn({1, 2, 8, 8, 8})).sum().backward();
  optimizer.step();
}

constexpr const char* kListen = "TIDEMARK_TEST_FAIL_ON_LEAKS";

const bool g_listening = [] {
  const bool listens = std::getenv(kListen) != nullptr;
  if (listens) {
    tidemark::gtest::fail_on_leaks();
  }
  return listens;
}();

TEST(FailOnLeaks, FailsExactlyTheTestsThatLeak) {
  ASSERT_FALSE(g_listening);
  std::array<char, 4096> self{};
  ASSERT_GT(readlink("/proc/self/exe", self.data(), self.size() - 1), 0);
  const std::string command = std::string(kListen) + "=1 '" + self.data() +
                              "' --gtest_filter='DISABLED_Leaking.*' "
                              "--gtest_also_run_disabled_tests --gtest_color=no 2>&1";
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> pipe(popen(command.c_str(), "r"), pclose);
  ASSERT_NE(pipe, nullptr);
  std::string output;
  std::array<char, 4096> buffer{};
  while (std::fgets(buffer.data(), static_cast<int>(buffer.size()), pipe.get()) != nullptr) {
    output += buffer.data();
  }
  EXPECT_THAT(output, AllOf(HasSubstr("[       OK ] DISABLED_Leaking.FixtureOnly"),
                            HasSubstr("[       OK ] DISABLED_Leaking.AllowedToItself"),
                            HasSubstr("[       OK ] DISABLED_Leaking.ConvolutionStepFromScratch"),
                            HasSubstr("[  SKIPPED ] DISABLED_Leaking.Skipped"),
                            HasSubstr("[  FAILED  ] DISABLED_Leaking.FailedAnyway"),
                            HasSubstr("[  FAILED  ] DISABLED_Leaking.EightMiB"),
                            HasSubstr(" 2 FAILED TESTS")));
  EXPECT_THAT(output, HasSubstr("DISABLED_Leaking.EightMiB leaves 8.0 MiB (8388608 bytes)"));
  EXPECT_THAT(output, ContainsRegex("leak_listener_test.cpp:[0-9]+: Failure"));
  EXPECT_THAT(output, Not(HasSubstr("FailedAnyway leaves")));
}

}  // namespace
