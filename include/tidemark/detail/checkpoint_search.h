#pragma once

// Which modules of a recorded step to checkpoint, so that its peak becomes low.

#include <tidemark/detail/block_flow.h>
#include <tidemark/detail/checkpoint_candidates.h>
#include <tidemark/detail/checkpoint_simulation.h>
#include <tidemark/detail/op_modules.h>
#include <tidemark/detail/step_recording.h>
#include <tidemark/memory/memory_report.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <deque>
#include <utility>
#include <vector>

namespace tidemark::detail {

/// Looks for a set of candidates whose simulated peak is low. Not the lowest for sure: sets are
/// grown one by one, each time by what lowers the peak most, from none and from all modules of one
/// depth; modules are replaced by those inside them while that helps; and what doesn't help is
/// taken out again.
class CheckpointSearch {
 public:
  using Set = std::vector<CheckpointCandidate>;

  CheckpointSearch(const torch::nn::Module* model, const std::deque<RecordedOp>& ops,
                   const BlockFlow& flow, const OpModules& op_modules,
                   const CheckpointSimulation& simulation)
      : simulation_(simulation),
        plain_(simulation.run({})),
        runs_left_(std::clamp<int64_t>(kMostWork / static_cast<int64_t>(simulation.cost() + 1),
                                       kFewestRuns, kMostRuns)),
        candidates_(
            CheckpointCandidates(model, ops, flow, op_modules, simulation, little()).all()) {
    for (const CheckpointCandidate& candidate : candidates_) {
      most_depth_ = std::max(most_depth_, candidate.depth());
    }
  }

  [[nodiscard]] const SimulatedStep& plain() const { return plain_; }

  /// The set, in the order in which its members save most per second.
  Set best() {
    Set best;
    Outcome least = outcome({});
    const auto consider = [&](Set set) {
      grow(set);
      refine(set);
      prune(set);
      const Outcome of_set = outcome(set);
      if (is_better(of_set, least)) {
        best = std::move(set);
        least = of_set;
      }
    };
    consider({});
    for (std::size_t depth = 1; depth <= most_depth_; ++depth) {
      consider(all_of_depth(depth));
    }
    return in_order(std::move(best));
  }

  /// What the step does with the first `count` members of a set.
  SimulatedStep step_with(const Set& set, std::size_t count) const {
    std::vector<RegionOps> regions;
    for (std::size_t i = 0; i < count; ++i) {
      regions.insert(regions.end(), set[i].regions.begin(), set[i].regions.end());
    }
    return simulation_.run(regions);
  }

 private:
  static constexpr int64_t kMostWork = 400'000'000;  // some seconds
  static constexpr int64_t kFewestRuns = 64;
  static constexpr int64_t kMostRuns = 4000;

  struct Outcome {
    SimulatedStep step;
    double seconds;
    std::size_t members;
  };

  Outcome outcome(const Set& set) {
    --runs_left_;
    double seconds = 0;
    for (const CheckpointCandidate& candidate : set) {
      seconds += candidate.seconds;
    }
    return {step_with(set, set.size()), seconds, set.size()};
  }

  // Differences of the peak below the first are none; below the second, not worth a re-run.
  [[nodiscard]] int64_t little() const { return plain_.peak / 200; }
  [[nodiscard]] int64_t not_worth_it() const { return plain_.peak / 50; }

  // Times vary: a small difference is none.
  static constexpr double kClearly = 1.25;

  [[nodiscard]] bool is_better(const Outcome& a, const Outcome& b) const {
    if (std::abs(a.step.peak - b.step.peak) > little()) {
      return a.step.peak < b.step.peak;
    }
    if (std::max(a.seconds, b.seconds) > kClearly * std::min(a.seconds, b.seconds)) {
      return a.seconds < b.seconds;
    }
    return a.members < b.members;
  }

  static bool fits(const CheckpointCandidate& candidate, const Set& set) {
    return std::none_of(set.begin(), set.end(), [&](const CheckpointCandidate& member) {
      return candidate.overlaps(member);
    });
  }

  [[nodiscard]] Set all_of_depth(std::size_t depth) const {
    Set set;
    for (const CheckpointCandidate& candidate : candidates_) {
      if (candidate.every == 0 && candidate.depth() == depth && fits(candidate, set)) {
        set.push_back(candidate);
      }
    }
    return set;
  }

  void grow(Set& set) {
    SimulatedStep least = outcome(set).step;
    while (runs_left_ > 0) {
      const CheckpointCandidate* best = nullptr;
      SimulatedStep of_best = least;
      for (const CheckpointCandidate& candidate : candidates_) {
        if (runs_left_ <= 0 || !fits(candidate, set)) {
          continue;
        }
        set.push_back(candidate);
        const SimulatedStep step = outcome(set).step;
        set.pop_back();
        if (std::make_pair(step.peak, step.held) < std::make_pair(of_best.peak, of_best.held)) {
          best = &candidate;
          of_best = step;
        }
      }
      if (best == nullptr) {
        return;
      }
      set.push_back(*best);
      least = of_best;
    }
  }

  // Replaces members by what is inside them, where that lowers the peak.
  void refine(Set& set) {
    bool changed = true;
    while (changed && runs_left_ > 0) {
      changed = false;
      for (std::size_t i = 0; i < set.size() && !changed; ++i) {
        Set finer = set;
        finer.erase(finer.begin() + static_cast<std::ptrdiff_t>(i));
        bool has_inner = false;
        for (const CheckpointCandidate& candidate : candidates_) {
          if (candidate.module != set[i].module && candidate.is_inside(set[i]) &&
              candidate.every == 0 && fits(candidate, finer)) {
            finer.push_back(candidate);
            has_inner = true;
          }
        }
        if (has_inner && outcome(finer).step.peak < outcome(set).step.peak - little()) {
          set = std::move(finer);
          changed = true;
        }
      }
    }
  }

  void prune(Set& set) {
    const int64_t peak = outcome(set).step.peak;
    std::stable_sort(set.begin(), set.end(),
                     [](const auto& a, const auto& b) { return a.seconds < b.seconds; });
    for (std::size_t i = set.size(); i-- > 0;) {
      Set without = set;
      without.erase(without.begin() + static_cast<std::ptrdiff_t>(i));
      if (outcome(without).step.peak <= peak + not_worth_it()) {
        set = std::move(without);
      }
    }
  }

  Set in_order(Set set) {
    if (static_cast<int64_t>(set.size() * set.size() / 2) > kMostRuns) {
      return set;
    }
    // what is about equally good stays in the order of the model
    std::stable_sort(set.begin(), set.end(), [](const auto& a, const auto& b) {
      return a.regions.front().first < b.regions.front().first;
    });
    Set ordered;
    int64_t peak = plain_.peak;
    while (!set.empty()) {
      std::size_t best = 0;
      double most = -1;
      int64_t of_best = peak;
      for (std::size_t i = 0; i < set.size(); ++i) {
        ordered.push_back(set[i]);
        const int64_t with = step_with(ordered, ordered.size()).peak;
        ordered.pop_back();
        const double worth =
            static_cast<double>(std::max<int64_t>(peak - with, 0)) / (set[i].seconds + 1e-9);
        if (most < 0 || worth > kClearly * most) {
          best = i;
          most = worth;
          of_best = with;
        }
      }
      ordered.push_back(std::move(set[best]));
      set.erase(set.begin() + static_cast<std::ptrdiff_t>(best));
      peak = of_best;
    }
    return ordered;
  }

  const CheckpointSimulation& simulation_;
  const SimulatedStep plain_;
  int64_t runs_left_;
  const std::vector<CheckpointCandidate> candidates_;
  std::size_t most_depth_ = 0;
};

}  // namespace tidemark::detail
