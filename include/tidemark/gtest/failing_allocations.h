#pragma once

/// \file
/// Tests a program's error paths: a step runs again and again, and each time another one of its
/// allocations fails.

#include <c10/util/Exception.h>
#include <tidemark/detail/failed_backward.h>
#include <tidemark/detail/out_of_memory.h>
#include <tidemark/gtest/memory_cap.h>

#include <cstdint>
#include <exception>
#include <optional>
#include <ostream>
#include <string>
#include <type_traits>

namespace tidemark {

namespace gtest {

/// What became of a run in which one allocation failed.
struct FailedAllocation {
  int64_t number = 0;        ///< which allocation of the run it was, counted from 1
  std::exception_ptr error;  ///< what the step threw; null if it threw nothing

  /// Whether the step threw nothing: it caught the error and went on, with a result that may be
  /// incomplete, or tried again.
  [[nodiscard]] bool swallowed() const { return error == nullptr; }

  /// What the error says, without a backtrace; empty if there is none.
  [[nodiscard]] std::string what() const { return ask(&detail::text_of, std::string()); }

  /// Whether the step threw an error from which its caller learns that memory ran out.
  [[nodiscard]] bool is_out_of_memory() const { return ask(&detail::is_out_of_memory, false); }

 private:
  template <class Result>
  [[nodiscard]] Result ask(Result (*question)(const std::exception&), Result otherwise) const {
    try {
      if (error != nullptr) {
        std::rethrow_exception(error);
      }
    } catch (const std::exception& exception) {
      return question(exception);
    } catch (...) {
    }
    return otherwise;
  }
};

/// "when allocation 3 failed, the step threw ...", to be added to a message.
inline std::ostream& operator<<(std::ostream& out, const FailedAllocation& failure) {
  out << "when allocation " << failure.number << " failed, the step ";
  if (failure.swallowed()) {
    return out << "threw nothing";
  }
  const std::string text = failure.what();
  return out << "threw " << (text.empty() ? "something without a text" : text);
}

}  // namespace gtest

namespace detail {

/// Runs `step` with its allocation `number` failing; nothing if it does not make so many.
template <class Step>
std::optional<gtest::FailedAllocation> run_failing(int64_t number, Step& step) {
  gtest::FailedAllocation failure{number, nullptr};
  {
    const auto cap = gtest::MemoryCap::failing(number);
    try {
      static_cast<void>(step());
    } catch (...) {
      if (cap.refused() == 0) {
        throw;
      }
      failure.error = std::current_exception();
    }
    if (cap.refused() == 0) {
      return std::nullopt;
    }
  }
  if (!failure.swallowed()) {
    drop_failed_backward();
  }
  return failure;
}

}  // namespace detail

namespace gtest {

/// Runs `step` with its first allocation failing, then with its second one, and so on, until a run
/// reaches its end without meeting the failing one. Returns how many runs failed one, which is how
/// many allocations a step makes. After each of these `visit` is called with a FailedAllocation,
/// to look at the error and at what it has left; memory is plentiful then. A visitor may return
/// whether to go on.
///
///     const tidemark::MemoryScope memory;
///     tidemark::gtest::for_each_failing_allocation(
///         [&] { train_step(model, optimizer, batch); },
///         [&](const tidemark::gtest::FailedAllocation& failure) {
///           EXPECT_TRUE(failure.is_out_of_memory()) << failure;
///           optimizer.zero_grad();
///           EXPECT_THAT(memory, tidemark::gtest::ReturnsToBaseline()) << failure;
///           return !::testing::Test::HasFailure();  // one report is enough
///         });
///
/// The step has to be able to run after a failed one, and a run costs as much as the step: take a
/// small model. What the engine keeps of a failed backward pass is dropped before `visit`. CPU
/// memory only, see MemoryCap; with several threads allocating, which block fails may differ from
/// run to run.
///
/// An exception of a run in which no allocation was refused passes on, and so does one of `visit`.
/// Throws if the step still meets the failing allocation after `most_runs` runs.
template <class Step, class Visit>
int64_t for_each_failing_allocation(Step&& step, Visit&& visit, int64_t most_runs = 10'000) {
  static_assert(std::is_invocable_v<Step&>,
                "tidemark: for_each_failing_allocation() takes a step without arguments.");
  static_assert(std::is_invocable_v<Visit&, const FailedAllocation&>,
                "tidemark: for_each_failing_allocation() takes a visitor of FailedAllocation.");
  for (int64_t number = 1; number <= most_runs; ++number) {
    const std::optional<FailedAllocation> failure = detail::run_failing(number, step);
    if (!failure.has_value()) {
      return number - 1;
    }
    if constexpr (std::is_void_v<std::invoke_result_t<Visit&, const FailedAllocation&>>) {
      visit(*failure);
    } else if (!visit(*failure)) {
      return number;
    }
  }
  TORCH_CHECK(false, "tidemark: for_each_failing_allocation: after ", most_runs,
              " runs the step still makes enough allocations for one to fail. Take a smaller step, "
              "one that does not allocate more each time, or allow for more runs.");
}

}  // namespace gtest

}  // namespace tidemark
