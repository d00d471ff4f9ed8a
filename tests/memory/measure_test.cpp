#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <tidemark/detail/engine_facade.h>
#include <tidemark/memory/bytes.h>
#include <tidemark/memory/measure.h>
#include <torch/torch.h>

#include <memory>
#include <sstream>
#include <stdexcept>
#include <string>

namespace {

using namespace tidemark::literals;
using tidemark::measure;
using tidemark::StepMemory;
using torch::Tensor;

Tensor bytes(int64_t count) { return torch::empty({count}, torch::kUInt8); }

TEST(Measure, TellsPeakLeftoverAndAllocations) {
  Tensor kept;
  const auto step = measure([&] {
    bytes(4_MiB);
    kept = bytes(1_MiB);
    bytes(2_MiB);
  });
  EXPECT_EQ(step.peak, 4_MiB);
  EXPECT_EQ(step.leftover, 1_MiB);
  EXPECT_EQ(step.allocated, 7_MiB);
  EXPECT_EQ(step.allocations, 3);
  EXPECT_EQ(step.held, 0);
  EXPECT_EQ(measure([&] { kept.reset(); }).leftover, -1_MiB);
}

TEST(Measure, HeldIsWhatTheGraphHoldsBetweenForwardAndBackward) {
  auto w = torch::randn({1000}, torch::requires_grad());
  auto x = torch::randn({1000});
  const auto step = measure([&] { (w * x).exp().sum().backward(); });
  EXPECT_EQ(step.held, 8000);
  EXPECT_EQ(step.leftover, 4000);  // the gradient
  EXPECT_EQ(measure([&] { (w * x).exp().sum().backward(); }).leftover, 0);
}

TEST(Measure, WhatTheStepReturnsIsDroppedFirst) {
  const auto step = measure([] { return bytes(1_MiB); });
  EXPECT_EQ(step.leftover, 0);
  EXPECT_EQ(step.peak, 1_MiB);
}

TEST(Measure, RunsAnyCallableOnce) {
  int runs = 0;
  auto counter = std::make_unique<int*>(&runs);
  static_cast<void>(measure([counter = std::move(counter)]() mutable { ++**counter; }));
  EXPECT_EQ(runs, 1);
  struct {
    void operator()() const { ++*runs; }
    int* runs;
  } const callable{&runs};
  static_cast<void>(measure(callable));
  EXPECT_EQ(runs, 2);
}

TEST(Measure, StepsNestWithoutDisturbingEachOther) {
  auto w = torch::randn({1000}, torch::requires_grad());
  StepMemory inner;
  const auto outer = measure([&] {
    bytes(1_MiB);
    inner = measure([&] { (w * torch::randn({1000})).sum().backward(); });
  });
  EXPECT_EQ(inner.held, 4000);
  EXPECT_EQ(outer.held, 4000);
  EXPECT_EQ(outer.peak, 1_MiB);
  EXPECT_LT(inner.peak, 20'000);
}

TEST(Measure, ExceptionPassesAndLeavesNothingOpen) {
  auto w = torch::randn({1000}, torch::requires_grad());
  const tidemark::MemoryScope memory;
  try {
    static_cast<void>(measure([&] {
      auto y = (w * torch::randn({1000})).exp();
      throw std::runtime_error("step failed");
    }));
    FAIL() << "no exception";
  } catch (const std::runtime_error& error) {
    EXPECT_STREQ(error.what(), "step failed");
  }
  EXPECT_EQ(tidemark::detail::EngineLink::innermost_maker(), nullptr);
  EXPECT_EQ(memory.current(), 0);
  EXPECT_EQ(measure([] { bytes(10); }).peak, 10);
}

TEST(Measure, DeviceWithoutStatisticsIsRefusedBeforeTheStepRuns) {
  bool ran = false;
  EXPECT_THROW(static_cast<void>(measure([&] { ran = true; }, c10::kMeta)), c10::Error);
  EXPECT_FALSE(ran);
}

TEST(Measure, PrintsBytesAndReadableUnits) {
  const StepMemory step{12_MiB, 1536, -7, 3_GiB, 1};
  std::ostringstream out;
  out << step;
  EXPECT_EQ(out.str(),
            "peak 12.0 MiB (12582912 bytes), held 1.5 KiB (1536 bytes), leftover -7 bytes, "
            "allocated 3.0 GiB (3221225472 bytes) in 1 block");
  EXPECT_EQ(::testing::PrintToString(step), out.str());
}

}  // namespace
