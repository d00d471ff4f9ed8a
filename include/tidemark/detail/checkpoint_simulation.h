#pragma once

// What a recorded step would have done with memory, had parts of its forward been checkpointed.

#include <tidemark/detail/op_modules.h>
#include <tidemark/detail/step_history.h>
#include <tidemark/detail/step_recording.h>
#include <tidemark/memory/memory_report.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <utility>
#include <vector>

namespace tidemark::detail {

/// The ops of one call of a region, from the first to the last, both counted.
struct RegionOps {
  std::size_t first;
  std::size_t last;
};

/// Peak and held bytes of a step.
struct SimulatedStep {
  int64_t peak = 0;
  int64_t held = 0;
};

/// Plays a step again with regions. In it a block that a region makes and saves dies when the
/// region has read it for the last time; what a region reads of the outside lives until the last
/// node of the region has run; and before the first node of a region's backward its blocks come
/// once more, the saved ones until the node that saved them has run. Where the recording ended, or
/// memory ran out, before a region's backward, that is taken to follow then, with what was made
/// behind the region already freed.
///
/// Not exact where a local variable outlives its last use, or where the outcome of a region is
/// used in ways that the ops don't show.
class CheckpointSimulation {
 public:
  CheckpointSimulation(const std::deque<RecordedOp>& ops, const StepHistory& history,
                       const OpModules& op_modules)
      : history_(history), saves_(ops.size()), first_node_(ops.size(), BlockLife::kNever) {
    op_begins_.assign(static_cast<std::size_t>(history.events()) + 1, 0);
    for (std::size_t i = 0; i < ops.size(); ++i) {
      ++op_begins_[index(history.spans[i].begin)];
      if (const auto made_by = op_modules.forward_op(i)) {
        first_node_[*made_by] = std::min(first_node_[*made_by], history.spans[i].begin);
      }
    }
    for (std::size_t i = 1; i < op_begins_.size(); ++i) {
      op_begins_[i] += op_begins_[i - 1];
    }
    for (const BlockLife& block : history.blocks) {
      for (const BlockLife::Hold& hold : block.holds) {
        if (hold.op != StepEvent::kNoOp) {
          saves_[index(hold.op)] = std::max(saves_[index(hold.op)], hold.end);
        }
      }
    }
  }

  /// The step with these regions, which must not overlap; none is the step as it was.
  [[nodiscard]] SimulatedStep run(const std::vector<RegionOps>& regions) const {
    Run run(*this, regions);
    for (const BlockLife& block : history_.blocks) {
      run.add(block);
    }
    return run.result();
  }

  /// The bytes that the graph would no longer hold for what is made within.
  [[nodiscard]] int64_t droppable(const RegionOps& region) const {
    int64_t bytes = 0;
    const auto inside = [&](int32_t op) {
      return op != StepEvent::kNoOp && index(op) >= region.first && index(op) <= region.last;
    };
    for (const BlockLife& block : history_.blocks) {
      if (inside(block.op) && !block.holds.empty() && !block.known.has_value() &&
          std::all_of(block.holds.begin(), block.holds.end(),
                      [&](const BlockLife::Hold& hold) { return inside(hold.op); })) {
        bytes += block.bytes;
      }
    }
    return bytes;
  }

  /// How many steps of work one run is, for those who plan many.
  [[nodiscard]] std::size_t cost() const {
    return history_.blocks.size() + static_cast<std::size_t>(history_.events());
  }

 private:
  static std::size_t index(int64_t number) { return static_cast<std::size_t>(number); }

  class Run {
   public:
    Run(const CheckpointSimulation& step, const std::vector<RegionOps>& regions)
        : step_(step),
          live_(index(step.history_.events()) + 2),
          held_(live_.size()),
          region_of_(step.history_.spans.size(), kNone),
          regions_(regions.size()) {
      for (std::size_t r = 0; r < regions.size(); ++r) {
        Region& region = regions_[r];
        region.begin = step.history_.spans[regions[r].first].begin;
        region.end = step.history_.spans[regions[r].last].end;
        for (std::size_t op = regions[r].first; op <= regions[r].last; ++op) {
          region_of_[op] = static_cast<int32_t>(r);
          if (step.saves_[op] > 0) {
            region.released = std::max(region.released, step.saves_[op]);
            region.rerun = std::min(region.rerun, step.first_node_[op]);
          }
        }
      }
    }

    void add(const BlockLife& block) {
      const bool registered = block.known.has_value() && *block.known != MemoryCategory::kInputs;
      const bool used = !block.holds.empty() || !block.reads.empty();
      const int64_t died = registered || !used ? block.died : outer_death(block);
      live(block.bytes, block.born, died);
      if (!registered) {
        add_held(block);
        if (!block.holds.empty() && block.born < end() && died > end()) {
          held_at_end_.emplace_back(block.born, block.bytes);
        }
      }
      add_to_rerun(block);
    }

    [[nodiscard]] SimulatedStep result() {
      for (Region& region : regions_) {
        place(region);
      }
      SimulatedStep step;
      int64_t live = 0;
      int64_t held = 0;
      std::vector<std::pair<int64_t, int64_t>> reruns;
      for (const Region& region : regions_) {
        if (region.rerun != BlockLife::kNever) {
          reruns.emplace_back(region.rerun, region.rerun_peak);
        }
      }
      std::sort(reruns.begin(), reruns.end());
      auto next = reruns.begin();
      for (std::size_t time = 0; time < live_.size(); ++time) {
        // what a re-run leaves behind is in live_; on top of what was there before
        while (next != reruns.end() && index(next->first) + 1 == time) {
          step.peak = std::max(step.peak, live + next->second);
          ++next;
        }
        live += live_[time];
        held += held_[time];
        step.peak = std::max(step.peak, live);
        step.held = std::max(step.held, held);
        if (index(end()) + 1 == time) {
          step.peak = std::max(step.peak, peak_of_backward_to_come(live));
        }
      }
      return step;
    }

   private:
    static constexpr int32_t kNone = -1;

    struct Region {
      int64_t begin = 0;  // of its forward
      int64_t end = 0;
      int64_t released = 0;               // when its last saved tensor is; 0 if it saves nothing
      int64_t rerun = BlockLife::kNever;  // when it runs again, if backward got there
      // what comes and goes in it: when, bytes
      std::vector<std::pair<int64_t, int64_t>> forward;
      int64_t rerun_peak = 0;
    };

    [[nodiscard]] int32_t region_of(int32_t op) const {
      if (op == StepEvent::kNoOp) {
        return kNone;
      }
      const int32_t region = region_of_[index(op)];
      return region != kNone && regions_[index(region)].released > 0 ? region : kNone;
    }

    // Times from -1 (before) on; the cell of a time is one further.
    static void add_interval(std::vector<int64_t>& line, int64_t bytes, int64_t from, int64_t to) {
      line[index(from + 1)] += bytes;
      if (to != BlockLife::kNever) {
        line[index(to + 1)] -= bytes;
      }
    }
    void live(int64_t bytes, int64_t from, int64_t to) { add_interval(live_, bytes, from, to); }

    [[nodiscard]] int64_t end_of(int32_t op) const {
      return op != StepEvent::kNoOp ? step_.history_.spans[index(op)].end : -1;
    }

    // When the block dies that is not part of a re-run.
    [[nodiscard]] int64_t outer_death(const BlockLife& block) const {
      const int32_t home = region_of(block.op);
      int64_t last_hold = -1;
      int64_t needed = std::max(block.born + 1, std::min(end_of(block.op), block.died));
      bool in_region = home != kNone;
      for (const BlockLife::Hold& hold : block.holds) {
        last_hold = std::max(last_hold, hold.end);
        const int32_t region = region_of(hold.op);
        in_region = in_region || region != kNone;
        if (region == kNone) {
          needed = std::max(needed, hold.end);
        } else if (region != home) {
          needed = std::max(needed, regions_[index(region)].released);
        }
      }
      for (const BlockLife::Read& read : block.reads) {
        const int32_t region = region_of(read.op);
        in_region = in_region || region != kNone;
        if (region == kNone || region == home) {
          needed = std::max(needed, std::min(end_of(read.op), block.died));
        } else {
          needed = std::max(needed, regions_[index(region)].released);
        }
      }
      if (!in_region) {
        return block.died;
      }
      return died_of_release(block, last_hold) ? needed : std::max(needed, block.died);
    }

    // Whether it was the graph alone that held the block in the end.
    [[nodiscard]] bool died_of_release(const BlockLife& block, int64_t last_hold) const {
      return last_hold >= 0 && last_hold != BlockLife::kNever && block.died != BlockLife::kNever &&
             step_.op_begins_[index(block.died)] == step_.op_begins_[index(last_hold)];
    }

    void add_held(const BlockLife& block) {
      const int32_t home = region_of(block.op);
      int64_t from = BlockLife::kNever;
      int64_t to = -1;
      const auto holds = [&](int64_t begin, int64_t end) {
        from = std::min(from, begin);
        to = std::max(to, end);
      };
      for (const BlockLife::Hold& hold : block.holds) {
        const int32_t region = region_of(hold.op);
        if (region == kNone) {
          holds(hold.begin, hold.end);
        } else if (region != home) {
          holds(regions_[index(region)].begin, regions_[index(region)].released);
        }
      }
      for (const BlockLife::Read& read : block.reads) {
        const int32_t region = region_of(read.op);
        if (region != kNone && region != home) {
          holds(regions_[index(region)].begin, regions_[index(region)].released);
        }
      }
      if (from != BlockLife::kNever) {
        add_interval(held_, block.bytes, from, to);
      }
    }

    void add_to_rerun(const BlockLife& block) {
      const int32_t home = region_of(block.op);
      if (home == kNone) {
        return;
      }
      Region& region = regions_[index(home)];
      int64_t released = -1;
      for (const BlockLife::Hold& hold : block.holds) {
        if (region_of(hold.op) == home) {
          released = std::max(released, hold.end);
        }
      }
      region.forward.emplace_back(block.born, block.bytes);
      if (released >= 0) {
        if (region.rerun != BlockLife::kNever) {
          live(block.bytes, region.rerun, released);
        }
      } else {
        region.forward.emplace_back(std::min(block.died, region.end), -block.bytes);
      }
    }

    // When backward would have begun for those regions that it didn't get to.
    [[nodiscard]] int64_t end() const {
      const auto& refusal = step_.history_.refusal;
      return refusal.has_value() ? refusal->event : step_.history_.events() - 1;
    }

    [[nodiscard]] int64_t peak_of_backward_to_come(int64_t live) const {
      int64_t peak = 0;
      for (const Region& region : regions_) {
        if (region.released > 0 && region.rerun == BlockLife::kNever) {
          int64_t behind = 0;
          for (const auto& [born, bytes] : held_at_end_) {
            behind += born > region.end ? bytes : 0;
          }
          peak = std::max(peak, live - behind + region.rerun_peak);
        }
      }
      return peak;
    }

    static void place(Region& region) {
      std::sort(region.forward.begin(), region.forward.end());
      int64_t bytes = 0;
      for (const auto& [time, change] : region.forward) {
        bytes += change;
        region.rerun_peak = std::max(region.rerun_peak, bytes);
      }
    }

    const CheckpointSimulation& step_;
    std::vector<int64_t> live_;  // changes
    std::vector<int64_t> held_;
    std::vector<int32_t> region_of_;
    std::vector<Region> regions_;
    std::vector<std::pair<int64_t, int64_t>> held_at_end_;  // when born, bytes
  };

  const StepHistory& history_;
  std::vector<int64_t> saves_;       // by op: when the last tensor is released that it saves
  std::vector<int64_t> first_node_;  // by op: when the first node runs that it made
  std::vector<int64_t> op_begins_;   // how many ops have begun up to an event
};

}  // namespace tidemark::detail
