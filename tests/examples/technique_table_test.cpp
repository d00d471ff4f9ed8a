// The table of techniques that the examples print: what it measures, and that its checks fail.

#include "common/technique_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <tidemark/memory/bytes.h>
#include <torch/torch.h>

#include <cmath>
#include <string>
#include <utility>
#include <vector>

namespace examples {
namespace {

using namespace tidemark::literals;
using ::testing::HasSubstr;
using ::testing::Not;

Technique technique(const std::string& name, std::function<void()> step, size_t plain = 0) {
  Technique result;
  result.name = name;
  result.step = std::move(step);
  result.plain = plain;
  return result;
}

std::pair<bool, std::string> print(const std::vector<Technique>& techniques,
                                   const std::vector<Measured>& measured,
                                   torch::Device device = torch::kCPU) {
  ::testing::internal::CaptureStdout();
  const bool passed = print_techniques(techniques, measured, device);
  return {passed, ::testing::internal::GetCapturedStdout()};
}

// A weight of 3, and steps that make its gradient some factor.
class TechniqueTable : public ::testing::Test {
 protected:
  [[nodiscard]] std::function<void()> times(double factor) const {
    return [w = weight_, factor] { (w * factor).sum().backward(); };
  }

  std::vector<Measured> measure(const std::vector<Technique>& techniques) const {
    return measure_techniques({weight_}, {buffer_}, techniques, torch::kCPU, 2);
  }

  torch::Tensor weight_ = torch::full({3}, 3.0, torch::requires_grad());
  torch::Tensor buffer_ = torch::ones({2});
};

TEST_F(TechniqueTable, TheDifferenceIsThatOfGradientsFromThePlainRow) {
  const auto measured =
      measure({technique("plain", times(2)), technique("same", times(2)),
               technique("other", times(2.25)), technique("by itself", times(5), 3)});
  EXPECT_EQ(measured[0].difference, 0);
  EXPECT_EQ(measured[1].difference, 0);
  EXPECT_EQ(measured[2].difference, 0.25);
  EXPECT_EQ(measured[3].difference, 0);
}

TEST_F(TechniqueTable, AReferenceTakesThePlaceOfThePlainRow) {
  Technique row = technique("row", times(4));
  row.reference = times(7);
  EXPECT_EQ(measure({technique("plain", times(4)), row})[1].difference, 3);
}

TEST_F(TechniqueTable, EveryStepStartsFromTheSameBuffersAndSeedAndWithoutGradients) {
  const auto step = [this] {
    buffer_.mul_(2);
    (weight_ * torch::rand({}) * buffer_.sum()).sum().backward();
  };
  const auto measured = measure({technique("plain", step), technique("again", step)});
  EXPECT_EQ(measured[1].difference, 0);
  EXPECT_TRUE(buffer_.equal(torch::ones({2})));
  EXPECT_FALSE(weight_.grad().defined());
}

TEST_F(TechniqueTable, WhatOneStepWritesAndTheOtherDoesNotIsADifference) {
  const auto writes = [this] {
    buffer_.add_(0.5);
    times(1)();
  };
  const auto measured = measure(
      {technique("plain", times(1)), technique("writes", writes), technique("no gradient", [] {})});
  EXPECT_EQ(measured[1].difference, 0.5);
  EXPECT_TRUE(std::isinf(measured[2].difference));
}

TEST_F(TechniqueTable, PeakAndHeldBytesAreThoseOfTheStep) {
  // one MiB is saved for the backward of the square, and another one is live beside it
  const torch::Tensor big = torch::ones({256, 1024});
  const auto square = [this, big] {
    torch::Tensor x = big * weight_[0];
    (x * x).sum().backward();
  };
  const Measured measured = measure({technique("square", square)})[0];
  EXPECT_GE(measured.held, 1_MiB);
  EXPECT_GE(measured.peak, 2_MiB);
}

TEST(PrintTechniques, LimitsAreCheckedByTheByte) {
  std::vector<Technique> rows{technique("plain", nullptr), technique("cut", nullptr)};
  rows[1].most_peak = 2_MiB;
  rows[1].most_held = 1_MiB;
  std::vector<Measured> measured{{4_MiB, 3_MiB, 0.1, 0}, {2_MiB, 1_MiB, 0.1, 0}};
  EXPECT_TRUE(print(rows, measured).first);
  EXPECT_THAT(print(rows, measured).second, HasSubstr("at most"));
  ++measured[1].peak;
  EXPECT_THAT(print(rows, measured).second, HasSubstr("FAILED cut: peaks higher than it may"));
  EXPECT_TRUE(print(rows, measured, torch::kCUDA).first);
  ++measured[1].held;
  EXPECT_FALSE(print(rows, measured, torch::kCUDA).first);
}

TEST(PrintTechniques, ADifferenceMayBeAsLargeAsItsBound) {
  std::vector<Technique> rows{technique("plain", nullptr), technique("cut", nullptr)};
  rows[1].bound = 0.5;
  std::vector<Measured> measured{{1, 1, 0.1, 0}, {1, 1, 0.1, 0.5}};
  EXPECT_TRUE(print(rows, measured).first);
  EXPECT_THAT(print(rows, measured).second, Not(HasSubstr("at most")));
  for (const double wrong : {std::nextafter(0.5, 1.0), std::nan(""), HUGE_VAL}) {
    measured[1].difference = wrong;
    const auto [passed, text] = print(rows, measured);
    EXPECT_FALSE(passed) << wrong;
    EXPECT_THAT(text, HasSubstr("FAILED cut: changes gradients"));
  }
}

}  // namespace
}  // namespace examples
