#pragma once

// Which modules of a recorded step to checkpoint, so that its peak becomes low.

#include <tidemark/detail/block_flow.h>
#include <tidemark/detail/checkpoint_simulation.h>
#include <tidemark/detail/op_modules.h>
#include <tidemark/detail/step_recording.h>
#include <tidemark/memory/memory_report.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/container/sequential.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace tidemark::detail {

/// A module that could be checkpointed: as one region for each of its calls, or cut into segments.
struct CheckpointCandidate {
  std::string module;
  int64_t every = 0;  // modules in each segment; 0: one region
  std::vector<RegionOps> regions;
  RegionOps extent;    // of all its calls
  double seconds = 0;  // of running the regions once more

  [[nodiscard]] bool is_inside(const CheckpointCandidate& other) const {
    return extent.first >= other.extent.first && extent.last <= other.extent.last;
  }
  [[nodiscard]] bool overlaps(const CheckpointCandidate& other) const {
    return extent.first <= other.extent.last && other.extent.first <= extent.last;
  }
};

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
      : ops_(ops),
        flow_(flow),
        simulation_(simulation),
        plain_(simulation.run({})),
        runs_left_(std::clamp<int64_t>(kMostWork / static_cast<int64_t>(simulation.cost() + 1),
                                       kFewestRuns, kMostRuns)) {
    find_calls(op_modules);
    std::map<std::string, const torch::nn::Module*> modules;
    if (model != nullptr) {
      for (const auto& item : model->named_modules("", /*include_self=*/false)) {
        modules.emplace(item.key(), item.value().get());
      }
    }
    for (const auto& [name, calls] : calls_) {
      const auto module = modules.find(name);
      const bool known = module != modules.end();
      add({name, 0, known && may_end_otherwise(*module->second) ? extended(calls) : calls, {}, 0});
      if (known && is_sequential(*module->second)) {
        add_segments(name, *module->second);
      }
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
  static constexpr std::size_t kMostSegmentings = 3;  // of one Sequential

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

  static std::size_t depth_of(const std::string& module) {
    return 1 + static_cast<std::size_t>(std::count(module.begin(), module.end(), '.'));
  }

  // A call is a run of ops that all belong to the module.
  void find_calls(const OpModules& op_modules) {
    std::map<uint64_t, std::size_t> previous_of_thread;
    for (std::size_t i = 0; i < ops_.size(); ++i) {
      if (ops_[i].phase != StepPhase::kForward || !ops_[i].grad_mode) {
        continue;
      }
      const auto [previous, first] = previous_of_thread.emplace(ops_[i].thread, i);
      std::string module = op_modules.module(i);
      while (!module.empty()) {
        std::vector<RegionOps>& calls = calls_[module];
        if (!first && !calls.empty() && calls.back().last == previous->second) {
          calls.back().last = i;
        } else {
          calls.push_back({i, i});
        }
        const auto dot = module.rfind('.');
        module.resize(dot == std::string::npos ? 0 : dot);
      }
      previous->second = i;
    }
  }

  static bool is_sequential(const torch::nn::Module& module) {
    return dynamic_cast<const torch::nn::SequentialImpl*>(&module) != nullptr;
  }

  // Whether a module may end with ops that read no parameters, as an activation function. One
  // without children ends with its own op.
  static bool may_end_otherwise(const torch::nn::Module& module) {
    const auto children = module.children();
    if (children.empty()) {
      return false;
    }
    return !is_sequential(module) || children.back()->parameters().empty() ||
           may_end_otherwise(*children.back());
  }

  // With the ops behind each call that go on with what the module made, and make the like of it.
  [[nodiscard]] std::vector<RegionOps> extended(std::vector<RegionOps> calls) const {
    for (RegionOps& call : calls) {
      for (std::size_t next = call.last + 1; next < ops_.size() && goes_on(call, next); ++next) {
        call.last = next;
      }
    }
    return calls;
  }

  [[nodiscard]] bool goes_on(const RegionOps& call, std::size_t op) const {
    if (ops_[op].phase != StepPhase::kForward || ops_[op].module.has_value() ||
        ops_[op].thread != ops_[call.last].thread) {
      return false;
    }
    bool makes_the_like = flow_.made_by(op).empty();
    bool reads_inside = false;
    for (const std::size_t read : flow_.read_by(op)) {
      const bool inside = flow_.is_made_in(read, call.first, call.last);
      if (!inside && !flow_.is_read_in(read, call.first, call.last)) {
        return false;
      }
      reads_inside = reads_inside || inside;
      for (const std::size_t made : flow_.made_by(op)) {
        makes_the_like = makes_the_like || flow_.bytes(made) == flow_.bytes(read);
      }
    }
    return reads_inside && makes_the_like;
  }

  void add(CheckpointCandidate candidate) {
    int64_t droppable = 0;
    candidate.extent = {candidate.regions.front().first, candidate.regions.back().last};
    for (const RegionOps& region : candidate.regions) {
      droppable += simulation_.droppable(region);
      for (std::size_t op = region.first; op <= region.last; ++op) {
        candidate.seconds += static_cast<double>(ops_[op].end_ns - ops_[op].begin_ns) / 1e9;
      }
    }
    if (droppable > little()) {
      most_depth_ = std::max(most_depth_, depth_of(candidate.module));
      candidates_.push_back(std::move(candidate));
    }
  }

  // The ways in which CheckpointedSequentialOptions::every cuts a Sequential that runs once.
  void add_segments(const std::string& name, const torch::nn::Module& sequential) {
    const auto whole = calls_.find(name);
    if (whole == calls_.end() || whole->second.size() != 1) {
      return;
    }
    std::vector<std::optional<RegionOps>> children;
    for (const std::string& child : sequential.named_children().keys()) {
      const auto calls = calls_.find(name + '.' + child);
      if (calls == calls_.end()) {
        children.emplace_back();
      } else if (calls->second.size() == 1) {
        children.emplace_back(calls->second.front());
      } else {
        return;
      }
    }
    // Those behind the last one that ran have not been reached, but for one without parameters.
    std::size_t ran = children.size();
    while (ran > 0 && !children[ran - 1].has_value()) {
      --ran;
    }
    const std::size_t reached = std::min(ran + 1, children.size());
    std::vector<std::pair<int64_t, CheckpointCandidate>> segmentings;
    for (std::size_t every = 1; every < reached; ++every) {
      CheckpointCandidate candidate{name, static_cast<int64_t>(every), {}, {}, 0};
      std::size_t begin = whole->second.front().first;
      bool can_cut = true;
      for (std::size_t child = every; can_cut && child < reached; child += every) {
        const auto cut = first_op(children, child);
        can_cut = cut.has_value() && *cut > begin;
        if (can_cut) {
          candidate.regions.push_back({begin, *cut - 1});
          begin = *cut;
        }
      }
      if (can_cut) {
        --runs_left_;
        segmentings.emplace_back(simulation_.run(candidate.regions).peak, std::move(candidate));
      }
    }
    std::stable_sort(segmentings.begin(), segmentings.end(),
                     [](const auto& a, const auto& b) { return a.first < b.first; });
    for (std::size_t i = 0; i < std::min(segmentings.size(), kMostSegmentings); ++i) {
      add(std::move(segmentings[i].second));
    }
  }

  // Where a child begins. One without parameters does so behind the one before it.
  static std::optional<std::size_t> first_op(const std::vector<std::optional<RegionOps>>& children,
                                             std::size_t child) {
    if (children[child].has_value()) {
      return children[child]->first;
    }
    const bool alone = children[child - 1].has_value() &&
                       (child + 1 == children.size() || children[child + 1].has_value());
    return alone ? std::optional(children[child - 1]->last + 1) : std::nullopt;
  }

  static bool fits(const CheckpointCandidate& candidate, const Set& set) {
    return std::none_of(set.begin(), set.end(), [&](const CheckpointCandidate& member) {
      return candidate.overlaps(member);
    });
  }

  [[nodiscard]] Set all_of_depth(std::size_t depth) const {
    Set set;
    for (const CheckpointCandidate& candidate : candidates_) {
      if (candidate.every == 0 && depth_of(candidate.module) == depth && fits(candidate, set)) {
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
    // what is about equally good stays in the order of the model
    std::stable_sort(set.begin(), set.end(),
                     [](const auto& a, const auto& b) { return a.extent.first < b.extent.first; });
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

  const std::deque<RecordedOp>& ops_;
  const BlockFlow& flow_;
  const CheckpointSimulation& simulation_;
  const SimulatedStep plain_;
  int64_t runs_left_;
  std::map<std::string, std::vector<RegionOps>> calls_;
  std::vector<CheckpointCandidate> candidates_;
  std::size_t most_depth_ = 0;
};

}  // namespace tidemark::detail
