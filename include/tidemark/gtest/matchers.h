#pragma once

/// \file
/// GoogleMock matchers on what tidemark::measure() returns, for unit tests that fail when a change
/// eats the memory that was saved:
///
///     auto step = tidemark::measure([&] { model->forward(x).sum().backward(); });
///     EXPECT_THAT(step, tidemark::gtest::HoldsAtMost(12_MiB));
///
/// Assert relations (checkpointed against plain) or sums of tensor sizes rather than figures that
/// were once seen: those change with every LibTorch. Of several steps see growth.h.

#include <c10/util/Exception.h>
#include <gmock/gmock-matchers.h>
#include <tidemark/detail/meter_before_main.h>
#include <tidemark/memory/bytes.h>
#include <tidemark/memory/measure.h>
#include <tidemark/memory/memory_scope.h>

#include <cmath>
#include <cstdint>
#include <iomanip>
#include <locale>
#include <ostream>
#include <sstream>
#include <string>
#include <utility>

namespace tidemark {

namespace detail {

inline std::string format_percent(double fraction) {
  std::ostringstream out;
  out.imbue(std::locale::classic());
  out << std::fixed << std::setprecision(1) << 100 * fraction << " %";
  return std::move(out).str();
}

/// One of the figures of a StepMemory, and how to speak of it.
struct StepFigure {
  int64_t StepMemory::*value;
  const char* subject;
  const char* at_most;
  const char* more_than;
};

inline constexpr StepFigure kStepPeak{&StepMemory::peak, "whose peak is ", "peaks at no more than ",
                                      "peaks at more than "};
inline constexpr StepFigure kStepHeld{&StepMemory::held, "which holds ", "holds no more than ",
                                      "holds more than "};

/// A figure of a step against a number of bytes, which may be a fraction of a baseline's.
class FigureAtMost {
 public:
  FigureAtMost(StepFigure figure, int64_t limit) : figure_(figure), limit_(limit) {}

  FigureAtMost(StepFigure figure, double fraction, const StepMemory& baseline)
      : figure_(figure),
        limit_(std::llround(fraction * static_cast<double>(baseline.*(figure.value)))),
        baseline_(baseline.*(figure.value)) {}

  void DescribeTo(std::ostream* out) const { describe(figure_.at_most, *out); }
  void DescribeNegationTo(std::ostream* out) const { describe(figure_.more_than, *out); }

  bool MatchAndExplain(const StepMemory& step, ::testing::MatchResultListener* listener) const {
    const int64_t value = step.*(figure_.value);
    *listener << figure_.subject << format_exactly(value) << ", ";
    if (baseline_ != 0) {
      *listener << percent_of_baseline(value) << " of the baseline's, ";
    }
    if (value == limit_) {
      *listener << "exactly the limit";
    } else if (value > limit_) {
      *listener << format_exactly(value - limit_) << " above the limit";
    } else {
      *listener << format_exactly(limit_ - value) << " below the limit";
    }
    return value <= limit_;
  }

 private:
  void describe(const char* relation, std::ostream& out) const {
    out << relation << format_exactly(limit_);
    if (baseline_ != 0) {
      out << ", which is " << percent_of_baseline(limit_) << " of the baseline's "
          << format_exactly(baseline_);
    }
  }

  [[nodiscard]] std::string percent_of_baseline(int64_t bytes) const {
    return format_percent(static_cast<double>(bytes) / static_cast<double>(baseline_));
  }

  StepFigure figure_;
  int64_t limit_;
  int64_t baseline_ = 0;
};

class NothingLeftBehind {
 public:
  void DescribeTo(std::ostream* out) const { *out << "leaves no bytes behind"; }
  void DescribeNegationTo(std::ostream* out) const { *out << "leaves bytes behind"; }

  bool MatchAndExplain(const StepMemory& step, ::testing::MatchResultListener* listener) const {
    if (step.leftover > 0) {
      *listener << "which leaves " << format_exactly(step.leftover)
                << " behind (a first step leaves gradients and optimizer state: measure a later "
                   "one)";
    } else if (step.leftover < 0) {
      *listener << "which frees " << format_exactly(-step.leftover) << " more than it allocates";
    }
    return step.leftover <= 0;
  }
};

class NothingAllocated {
 public:
  void DescribeTo(std::ostream* out) const { *out << "allocates nothing"; }
  void DescribeNegationTo(std::ostream* out) const { *out << "allocates something"; }

  bool MatchAndExplain(const StepMemory& step, ::testing::MatchResultListener* listener) const {
    if (step.allocations != 0) {
      *listener << "which allocates " << step.allocations
                << (step.allocations == 1 ? " block of " : " blocks of together ")
                << format_exactly(step.allocated);
    }
    return step.allocations == 0;
  }
};

class AtBaseline {
 public:
  void DescribeTo(std::ostream* out) const { *out << "is back at its baseline"; }
  void DescribeNegationTo(std::ostream* out) const { *out << "is not at its baseline"; }

  bool MatchAndExplain(const MemoryScope& scope, ::testing::MatchResultListener* listener) const {
    const int64_t bytes = scope.current();
    if (bytes > 0) {
      *listener << "where " << format_exactly(bytes) << " more are live than at its opening";
    } else if (bytes < 0) {
      *listener << "where " << format_exactly(-bytes) << " fewer are live than at its opening";
    }
    return bytes == 0;
  }
};

inline void check_limit(const char* matcher, int64_t bytes) {
  TORCH_CHECK(bytes >= 0, "tidemark: ", matcher, ": the limit is ", bytes,
              " bytes, which no step can keep. Give 0 bytes or more.");
}

inline void check_fraction(const char* matcher, double fraction, const char* figure,
                           int64_t baseline) {
  TORCH_CHECK(fraction > 0 && fraction <= 1, "tidemark: ", matcher, ": the fraction is ", fraction,
              ", but must be above 0 and at most 1.");
  TORCH_CHECK(baseline > 0, "tidemark: ", matcher, ": the baseline ", figure, ' ', baseline,
              " bytes, so there is nothing to compare with. Measure the plain step first, on the "
              "same device.");
}

}  // namespace detail

/// How GoogleTest prints a scope.
inline void PrintTo(const MemoryScope& scope, std::ostream* out) {
  *out << "MemoryScope opened at " << detail::format_exactly(scope.baseline());
}

/// For tests with GoogleTest: what a step may do with memory, tests that leave nothing behind, and
/// memory that runs out on demand.
namespace gtest {

/// Matches a step whose peak is at most `bytes`. Throws for a negative number.
[[nodiscard]] inline auto PeaksAtMost(int64_t bytes) {
  detail::check_limit("PeaksAtMost", bytes);
  return ::testing::MakePolymorphicMatcher(detail::FigureAtMost(detail::kStepPeak, bytes));
}

/// Matches a step that holds at most `bytes` for backward. Throws for a negative number.
[[nodiscard]] inline auto HoldsAtMost(int64_t bytes) {
  detail::check_limit("HoldsAtMost", bytes);
  return ::testing::MakePolymorphicMatcher(detail::FigureAtMost(detail::kStepHeld, bytes));
}

/// Matches a step whose peak is at most `fraction` of that of `baseline`.
/// Throws where `fraction` is not in (0, 1], and where the baseline has no peak.
[[nodiscard]] inline auto PeaksAtMostFractionOf(double fraction, const StepMemory& baseline) {
  detail::check_fraction("PeaksAtMostFractionOf", fraction, "peaks at", baseline.peak);
  return ::testing::MakePolymorphicMatcher(
      detail::FigureAtMost(detail::kStepPeak, fraction, baseline));
}

/// Matches a step whose peak is lower than that of `baseline` by at least `fraction` of it.
/// Throws where `fraction` is not in (0, 1], and where the baseline has no peak.
[[nodiscard]] inline auto SavesAtLeast(double fraction, const StepMemory& baseline) {
  detail::check_fraction("SavesAtLeast", fraction, "peaks at", baseline.peak);
  return ::testing::MakePolymorphicMatcher(
      detail::FigureAtMost(detail::kStepPeak, 1 - fraction, baseline));
}

/// Matches a step that holds at most `fraction` of what `baseline` holds for backward.
/// Throws where `fraction` is not in (0, 1], and where the baseline holds nothing.
[[nodiscard]] inline auto HoldsAtMostFractionOf(double fraction, const StepMemory& baseline) {
  detail::check_fraction("HoldsAtMostFractionOf", fraction, "holds", baseline.held);
  return ::testing::MakePolymorphicMatcher(
      detail::FigureAtMost(detail::kStepHeld, fraction, baseline));
}

/// Matches a step after which no more is live than before.
[[nodiscard]] inline auto LeavesNothingBehind() {
  return ::testing::MakePolymorphicMatcher(detail::NothingLeftBehind());
}

/// Matches a step that allocates no block of memory, not even one that it frees again. Numbers
/// count, too: to LibTorch the 2 of x.mul_(2) is a tensor.
[[nodiscard]] inline auto AllocatesNothing() {
  return ::testing::MakePolymorphicMatcher(detail::NothingAllocated());
}

/// Matches a MemoryScope in which as many bytes are live as when it was opened:
///
///     const tidemark::MemoryScope memory;
///     EXPECT_THROW(train_step(bad_batch), std::runtime_error);
///     EXPECT_THAT(memory, tidemark::gtest::ReturnsToBaseline());
///
/// After a backward pass that threw, LibTorch keeps what the pass had still to do until the thread
/// starts its next one.
[[nodiscard]] inline auto ReturnsToBaseline() {
  return ::testing::MakePolymorphicMatcher(detail::AtBaseline());
}

}  // namespace gtest

}  // namespace tidemark
