#pragma once

// The live bytes of a report over time, by category, as all its files draw them.

#include <c10/util/Exception.h>
#include <tidemark/detail/decimal.h>
#include <tidemark/memory/memory_report.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <limits>
#include <optional>
#include <string>
#include <vector>

namespace tidemark::detail {

/// When a point was; the begin of the recording for MemoryBlock::kBefore.
[[nodiscard]] inline int64_t time_of(const MemoryReport& report, int64_t point) {
  if (point < 0 || report.times_ns.empty()) {
    return 0;
  }
  const auto last = static_cast<int64_t>(report.times_ns.size()) - 1;
  return report.times_ns[static_cast<std::size_t>(std::min(point, last))];
}

/// The op that began last; null before the first.
[[nodiscard]] inline const StepOp* last_op(const MemoryReport& report, int64_t time_ns) {
  const auto later =
      std::upper_bound(report.ops.begin(), report.ops.end(), time_ns,
                       [](int64_t time, const StepOp& op) { return time < op.begin_ns; });
  return later == report.ops.begin() ? nullptr : &*std::prev(later);
}

/// The index of the op that began last, if it still runs.
[[nodiscard]] inline std::optional<std::size_t> op_at(const MemoryReport& report, int64_t time_ns) {
  const StepOp* op = last_op(report, time_ns);
  if (op == nullptr || op->end_ns < time_ns) {
    return std::nullopt;
  }
  return static_cast<std::size_t>(op - report.ops.data());
}

/// The phase of the op that began last.
[[nodiscard]] inline StepPhase phase_at(const MemoryReport& report, int64_t time_ns) {
  const StepOp* op = last_op(report, time_ns);
  return op == nullptr ? StepPhase::kForward : op->phase;
}

/// What is live from `time_ns` on.
struct TimelineRow {
  int64_t point = MemoryBlock::kBefore;
  int64_t time_ns = 0;
  CategoryBytes bytes;
  int64_t total = 0;
  StepPhase phase = StepPhase::kForward;
  std::optional<std::size_t> op;  ///< index in MemoryReport::ops, of what allocated or freed
  std::size_t module = 0;         ///< index in MemoryReport::modules
};

/// The rows, thinned, and how many there were.
struct MemoryTimeline {
  std::vector<TimelineRow> rows;
  std::size_t all_rows = 0;
};

class TimelineMaker {
 public:
  explicit TimelineMaker(const MemoryReport& report) : report_(report) {
    for (std::size_t i = 0; i < report.blocks.size(); ++i) {
      const MemoryBlock& block = report.blocks[i];
      if (block.bytes == 0) {
        continue;
      }
      if (block.born >= 0) {
        changes_.push_back({block.born, i, true});
      }
      if (block.died != MemoryBlock::kAlive) {
        changes_.push_back({block.died, i, false});
      }
    }
    std::stable_sort(changes_.begin(), changes_.end(),
                     [](const Change& a, const Change& b) { return a.point < b.point; });
  }

  [[nodiscard]] MemoryTimeline thinned(std::size_t max_rows) const {
    MemoryTimeline timeline;
    timeline.all_rows = changes_.size() + 1;
    const std::vector<std::size_t> kept = rows_to_keep(std::max(max_rows, kAlwaysKept));
    auto next = kept.begin();
    replay([&](std::size_t row, const CategoryBytes& bytes, int64_t total) {
      if (next != kept.end() && row == *next) {
        timeline.rows.push_back(row_of(row, bytes, total));
        ++next;
      }
    });
    return timeline;
  }

 private:
  // the first, the last, the largest, and the largest of each category
  static constexpr std::size_t kAlwaysKept = 3 + kMemoryCategories;

  struct Change {
    int64_t point;
    std::size_t block;
    bool is_birth;
  };

  /// The first row is the begin; row k + 1 is behind the k-th change.
  template <typename With>
  void replay(const With& with) const {
    CategoryBytes bytes = report_.at_begin;
    int64_t total = bytes.total();
    with(std::size_t{0}, bytes, total);
    for (std::size_t i = 0; i < changes_.size(); ++i) {
      const MemoryBlock& block = report_.blocks[changes_[i].block];
      const int64_t change = changes_[i].is_birth ? block.bytes : -block.bytes;
      bytes[block.category] += change;
      total += change;
      with(i + 1, bytes, total);
    }
  }

  [[nodiscard]] std::vector<std::size_t> rows_to_keep(std::size_t max_rows) const {
    const std::size_t rows = changes_.size() + 1;
    std::vector<std::size_t> kept;
    if (rows <= max_rows) {
      kept.resize(rows);
      for (std::size_t row = 0; row < rows; ++row) {
        kept[row] = row;
      }
      return kept;
    }
    const std::size_t spans = (max_rows - kAlwaysKept) / 2;
    std::vector<Extremes> of_span(spans);
    std::array<Extremes, kMemoryCategories> of_category;
    Extremes of_total;
    replay([&](std::size_t row, const CategoryBytes& bytes, int64_t total) {
      of_total.look_at(row, total);
      for (std::size_t category = 0; category < kMemoryCategories; ++category) {
        of_category[category].look_at(row, bytes.bytes[category]);
      }
      if (spans > 0) {
        of_span[row * spans / rows].look_at(row, total);
      }
    });
    kept = {0, rows - 1, of_total.most_at};
    for (const Extremes& category : of_category) {
      kept.push_back(category.most_at);
    }
    for (const Extremes& span : of_span) {
      kept.insert(kept.end(), {span.least_at, span.most_at});
    }
    std::sort(kept.begin(), kept.end());
    kept.erase(std::unique(kept.begin(), kept.end()), kept.end());
    return kept;
  }

  struct Extremes {
    int64_t least = std::numeric_limits<int64_t>::max();
    int64_t most = std::numeric_limits<int64_t>::min();
    std::size_t least_at = 0;
    std::size_t most_at = 0;

    void look_at(std::size_t row, int64_t bytes) {
      if (bytes < least) {
        least = bytes;
        least_at = row;
      }
      if (bytes > most) {
        most = bytes;
        most_at = row;
      }
    }
  };

  [[nodiscard]] TimelineRow row_of(std::size_t row, const CategoryBytes& bytes,
                                   int64_t total) const {
    TimelineRow made;
    made.bytes = bytes;
    made.total = total;
    if (row == 0) {
      return made;
    }
    const Change& change = changes_[row - 1];
    const MemoryBlock& block = report_.blocks[change.block];
    made.point = change.point;
    made.time_ns = time_of(report_, change.point);
    made.op = op_at(report_, made.time_ns);
    made.phase = phase_at(report_, made.time_ns);
    if (change.is_birth) {
      made.op = block.op;
      made.phase = block.phase;
      made.module = block.module;
    } else if (made.op) {
      made.module = report_.ops[*made.op].module;
    }
    return made;
  }

  const MemoryReport& report_;
  std::vector<Change> changes_;
};

/// The timeline of at most `max_rows` rows (but at least 12): one for each allocation or free. If
/// there are more, those of the begin, the end, the peak and the most of each category are kept,
/// and of as many equal spans of the others as fit the one with the most and the one with the
/// least.
[[nodiscard]] inline MemoryTimeline memory_timeline(const MemoryReport& report,
                                                    std::size_t max_rows) {
  return TimelineMaker(report).thinned(max_rows);
}

/// A time in which all ops are of one phase.
struct PhaseSpan {
  StepPhase phase = StepPhase::kForward;
  int64_t begin_ns = 0;
  int64_t end_ns = 0;
};

/// When a report ends: the last that is known of in it.
[[nodiscard]] inline int64_t end_of(const MemoryReport& report) {
  int64_t end = nanoseconds(report.seconds);
  if (!report.times_ns.empty()) {
    end = std::max(end, report.times_ns.back());
  }
  for (const StepOp& op : report.ops) {
    end = std::max(end, op.end_ns);
  }
  return end;
}

/// The phases one after the other, each until the next begins, the last until its last op ends.
[[nodiscard]] inline std::vector<PhaseSpan> phase_spans(const MemoryReport& report) {
  std::vector<PhaseSpan> spans;
  for (const StepOp& op : report.ops) {
    if (spans.empty() || spans.back().phase != op.phase) {
      if (!spans.empty()) {
        spans.back().end_ns = op.begin_ns;
      }
      spans.push_back({op.phase, op.begin_ns, op.end_ns});
    }
    spans.back().end_ns = std::max(spans.back().end_ns, op.end_ns);
  }
  return spans;
}

}  // namespace tidemark::detail
