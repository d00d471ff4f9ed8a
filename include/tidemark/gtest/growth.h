#pragma once

/// \file
/// GoogleMock matchers on what tidemark::measure_steps() and tidemark::measure_series() return:
/// that memory does not grow from step to step, and how it grows with the size of a model:
///
///     EXPECT_THAT(tidemark::measure_steps(5, train_step), tidemark::gtest::DoesNotGrow());
///     EXPECT_THAT(tidemark::measure_series({4, 16, 64}, make_chain_step),
///                 tidemark::gtest::GrowsLikeSqrt());

#include <c10/util/Exception.h>
#include <gmock/gmock-matchers.h>
#include <tidemark/detail/meter_before_main.h>
#include <tidemark/memory/measure.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <iomanip>
#include <locale>
#include <ostream>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

namespace tidemark {

namespace gtest {

/// By how much a fitted exponent may lie above the one that is asked for: sizes are whole numbers,
/// so that a chain of 8 is cut less evenly than one of 9.
inline constexpr double kGrowthTolerance = 0.1;

}  // namespace gtest

namespace detail {

inline std::string format_exponent(double exponent) {
  std::ostringstream out;
  out.imbue(std::locale::classic());
  out << std::fixed << std::setprecision(2) << exponent;
  return std::move(out).str();
}

class NoGrowth {
 public:
  explicit NoGrowth(int64_t warm_up) : warm_up_(static_cast<size_t>(warm_up)) {}

  void DescribeTo(std::ostream* out) const {
    *out << "leaves nothing behind in any step" << after_warm_up();
  }
  void DescribeNegationTo(std::ostream* out) const {
    *out << "leaves bytes behind in some step" << after_warm_up();
  }

  bool MatchAndExplain(const std::vector<StepMemory>& steps,
                       ::testing::MatchResultListener* listener) const {
    TORCH_CHECK(steps.size() > warm_up_, "tidemark: DoesNotGrow: there are ", steps.size(),
                " steps, and the first ", warm_up_,
                " are to warm up, so none is left to judge. Measure more steps.");
    int64_t growth = 0;
    size_t growing = 0;
    for (size_t i = warm_up_; i < steps.size(); ++i) {
      growth += steps[i].leftover;
      growing += steps[i].leftover > 0 ? 1 : 0;
    }
    if (growing > 0) {
      *listener << "which leaves bytes behind in " << growing << " of " << steps.size() - warm_up_
                << " steps" << after_warm_up() << ", in sum " << format_exactly(growth)
                << "; step by step:";
      for (size_t i = 0; i < steps.size(); ++i) {
        *listener << (i == 0 ? " " : ", ") << steps[i].leftover
                  << (i < warm_up_ ? " (warm-up)" : "");
      }
    }
    return growing == 0;
  }

 private:
  [[nodiscard]] std::string after_warm_up() const {
    switch (warm_up_) {
      case 0:
        return "";
      case 1:
        return " after the first";
      default:
        return " after the first " + std::to_string(warm_up_);
    }
  }

  size_t warm_up_;
};

/// The exponent p of the power law bytes = a * size^p that fits best: the least-squares slope of
/// log(bytes) over log(size).
inline double fit_exponent(const std::vector<SizedStep>& series, int64_t StepMemory::*figure) {
  const auto count = static_cast<double>(series.size());
  double mean_x = 0;
  double mean_y = 0;
  for (const SizedStep& step : series) {
    mean_x += std::log(static_cast<double>(step.size)) / count;
    mean_y += std::log(static_cast<double>(step.memory.*figure)) / count;
  }
  double covariance = 0;
  double variance = 0;
  for (const SizedStep& step : series) {
    const double x = std::log(static_cast<double>(step.size)) - mean_x;
    covariance += x * (std::log(static_cast<double>(step.memory.*figure)) - mean_y);
    variance += x * x;
  }
  return covariance / variance;
}

class PowerLaw {
 public:
  PowerLaw(double exponent, int64_t StepMemory::*figure)
      : exponent_(exponent),
        figure_(figure),
        name_(figure == &StepMemory::held ? "held bytes" : "peak bytes") {}

  void DescribeTo(std::ostream* out) const { describe("no faster", *out); }
  void DescribeNegationTo(std::ostream* out) const { describe("faster", *out); }

  bool MatchAndExplain(const std::vector<SizedStep>& series,
                       ::testing::MatchResultListener* listener) const {
    check(series);
    const double fitted = fit_exponent(series, figure_);
    *listener << "whose " << name_ << " fit size^" << format_exponent(fitted) << ":";
    for (const SizedStep& step : series) {
      *listener << (&step == &series.front() ? " " : ", ") << format_bytes(step.memory.*figure_)
                << " at " << step.size;
    }
    return fitted <= exponent_ + gtest::kGrowthTolerance;
  }

 private:
  void describe(const char* relation, std::ostream& out) const {
    out << "grows " << relation << " in " << name_ << " than size^" << format_exponent(exponent_)
        << " (a fitted exponent up to " << format_exponent(exponent_ + gtest::kGrowthTolerance)
        << " counts as that)";
  }

  void check(const std::vector<SizedStep>& series) const {
    std::set<int64_t> sizes;
    for (const SizedStep& step : series) {
      TORCH_CHECK(step.size >= 1, "tidemark: GrowsAtMostLike: one of the sizes is ", step.size,
                  ", but growth is told from sizes of 1 and above.");
      TORCH_CHECK(step.memory.*figure_ > 0, "tidemark: GrowsAtMostLike: at size ", step.size,
                  " the ", name_, " are ", step.memory.*figure_,
                  ", so there is no growth to tell. Does the step do its work, and on the device "
                  "that was measured?");
      sizes.insert(step.size);
    }
    TORCH_CHECK(sizes.size() >= 3, "tidemark: GrowsAtMostLike: the series has ", sizes.size(),
                " different sizes; give at least 3, the largest several times the smallest.");
  }

  double exponent_;
  int64_t StepMemory::*figure_;
  const char* name_;
};

}  // namespace detail

namespace gtest {

/// Matches the steps of measure_steps() if none leaves bytes behind after the first `warm_up` ones,
/// which allocate what stays: gradients, optimizer state, workspaces. So it finds kept losses, a
/// growing cache, graphs that hold tensors. It does not find `total = total + loss`, which keeps
/// graph nodes alone: those are no tensors. Throws if `warm_up` is negative, and where it meets no
/// more steps than that.
[[nodiscard]] inline auto DoesNotGrow(int64_t warm_up = 1) {
  TORCH_CHECK(warm_up >= 0, "tidemark: DoesNotGrow got ", warm_up,
              " steps to warm up; give 0 or more.");
  return ::testing::MakePolymorphicMatcher(detail::NoGrowth(warm_up));
}

/// Matches the series of measure_series() if `figure`, &StepMemory::held or &StepMemory::peak,
/// grows no faster than size^exponent: if the least-squares slope of log(bytes) over log(size) is
/// at most `exponent` + kGrowthTolerance. What does not grow at all, such as the input, lowers the
/// slope: choose sizes at which it is small, the largest several times the smallest.
///
/// Throws if `exponent` is negative or not finite and for another figure; and where it meets fewer
/// than three different sizes, or a step whose figure is 0.
[[nodiscard]] inline auto GrowsAtMostLike(double exponent,
                                          int64_t StepMemory::*figure = &StepMemory::held) {
  TORCH_CHECK(std::isfinite(exponent) && exponent >= 0,
              "tidemark: GrowsAtMostLike: the exponent is ", exponent, ", but must be 0 or more.");
  TORCH_CHECK(figure == &StepMemory::held || figure == &StepMemory::peak,
              "tidemark: GrowsAtMostLike speaks of &StepMemory::held or &StepMemory::peak only.");
  return ::testing::MakePolymorphicMatcher(detail::PowerLaw(exponent, figure));
}

/// GrowsAtMostLike(0.5): what checkpointing a chain of `size` equal blocks in segments promises.
/// Numbers of blocks that are squares (4, 16, 64) can be cut evenly.
///
/// Method: Chen et al., Training Deep Nets with Sublinear Memory Cost, 2016.
[[nodiscard]] inline auto GrowsLikeSqrt(int64_t StepMemory::*figure = &StepMemory::held) {
  return GrowsAtMostLike(0.5, figure);
}

}  // namespace gtest

}  // namespace tidemark
