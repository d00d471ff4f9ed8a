#pragma once

// Which parts of a recorded forward could be checkpointed: modules, and segments of Sequentials.

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
  int64_t every = 0;               // modules in each segment; 0: one region
  std::vector<RegionOps> regions;  // in their order
  double seconds = 0;              // of running the regions once more

  [[nodiscard]] std::size_t depth() const {
    return 1 + static_cast<std::size_t>(std::count(module.begin(), module.end(), '.'));
  }
  [[nodiscard]] bool is_inside(const CheckpointCandidate& other) const {
    return std::all_of(regions.begin(), regions.end(), [&](const RegionOps& region) {
      return std::any_of(other.regions.begin(), other.regions.end(), [&](const RegionOps& around) {
        return region.first >= around.first && region.last <= around.last;
      });
    });
  }
  [[nodiscard]] bool overlaps(const CheckpointCandidate& other) const {
    return std::any_of(regions.begin(), regions.end(), [&](const RegionOps& region) {
      return std::any_of(other.regions.begin(), other.regions.end(), [&](const RegionOps& also) {
        return region.first <= also.last && also.first <= region.last;
      });
    });
  }
};

/// All candidates of a step that could save more than `little` bytes.
class CheckpointCandidates {
 public:
  CheckpointCandidates(const torch::nn::Module* model, const std::deque<RecordedOp>& ops,
                       const BlockFlow& flow, const OpModules& op_modules,
                       const CheckpointSimulation& simulation, int64_t little)
      : ops_(ops), flow_(flow), simulation_(simulation), little_(little) {
    find_calls(op_modules);
    std::map<std::string, const torch::nn::Module*> modules;
    if (model != nullptr) {
      modules.emplace("", model);
      for (const auto& item : model->named_modules("", /*include_self=*/false)) {
        modules.emplace(item.key(), item.value().get());
      }
    }
    for (const auto& [name, calls] : calls_) {
      const auto module = modules.find(name);
      if (module != modules.end()) {  // a ModuleScope's can't be wrapped
        add({name, 0, may_end_otherwise(*module->second) ? extended(calls) : calls, 0});
      }
    }
    for (const auto& [name, module] : modules) {
      if (is_sequential(*module)) {
        add_segments(name, *module);
      }
    }
  }

  [[nodiscard]] const std::vector<CheckpointCandidate>& all() const { return candidates_; }

 private:
  static constexpr std::size_t kMostSegmentings = 3;  // of one Sequential

  // A call is a run of ops of the module, with no backward in between; the op that began it, of the
  // same module, begins the next one.
  void find_calls(const OpModules& op_modules) {
    std::map<uint64_t, std::optional<std::size_t>> previous_of_thread;
    for (std::size_t i = 0; i < ops_.size(); ++i) {
      auto& previous = previous_of_thread[ops_[i].thread];
      if (ops_[i].phase == StepPhase::kBackward) {
        previous.reset();
      }
      if (ops_[i].phase != StepPhase::kForward || !ops_[i].grad_mode) {
        continue;
      }
      std::string module = op_modules.module(i);
      while (!module.empty()) {
        std::vector<RegionOps>& calls = calls_[module];
        const bool goes_on =
            previous.has_value() && !calls.empty() && calls.back().last == *previous;
        if (goes_on && begins_like(calls.back(), i)) {
          end_with_named_op(calls.back());
          calls.push_back({i, i});
        } else if (goes_on) {
          calls.back().last = i;
        } else {
          calls.push_back({i, i});
        }
        const auto dot = module.rfind('.');
        module.resize(dot == std::string::npos ? 0 : dot);
      }
      previous = i;
    }
  }

  [[nodiscard]] bool begins_like(const RegionOps& call, std::size_t op) const {
    return ops_[op].module.has_value() && ops_[op].module == ops_[call.first].module &&
           ops_[op].name == ops_[call.first].name;
  }

  // What lies between two calls of a module is not known to be in it.
  void end_with_named_op(RegionOps& call) const {
    while (call.last > call.first &&
           (!ops_[call.last].module.has_value() || ops_[call.last].phase != StepPhase::kForward)) {
      --call.last;
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
    for (const RegionOps& region : candidate.regions) {
      droppable += simulation_.droppable(region);
      for (std::size_t op = region.first; op <= region.last; ++op) {
        candidate.seconds += static_cast<double>(ops_[op].end_ns - ops_[op].begin_ns) / 1e9;
      }
    }
    if (droppable > little_) {
      candidates_.push_back(std::move(candidate));
    }
  }

  // The ways in which CheckpointedSequentialOptions::every cuts a Sequential, in each of its calls.
  void add_segments(const std::string& name, const torch::nn::Module& sequential) {
    using Children = std::vector<std::optional<RegionOps>>;
    std::vector<Children> calls;
    const auto names = sequential.named_children().keys();
    for (std::size_t child = 0; child < names.size(); ++child) {
      const auto of_child = calls_.find(name.empty() ? names[child] : name + '.' + names[child]);
      if (of_child == calls_.end()) {
        continue;
      }
      calls.resize(std::max(calls.size(), of_child->second.size()), Children(names.size()));
      for (std::size_t call = 0; call < of_child->second.size(); ++call) {
        calls[call][child] = of_child->second[call];
      }
    }
    if (calls.empty()) {
      return;
    }
    constexpr std::size_t kMostWays = 64;
    std::vector<std::pair<int64_t, CheckpointCandidate>> segmentings;
    for (std::size_t every = 1; every < std::min(names.size(), kMostWays); ++every) {
      CheckpointCandidate candidate{name, static_cast<int64_t>(every), {}, 0};
      if (std::all_of(calls.begin(), calls.end(), [&](const Children& children) {
            return cut(children, every, candidate.regions);
          })) {
        segmentings.emplace_back(simulation_.run(candidate.regions).peak, std::move(candidate));
      }
    }
    std::stable_sort(segmentings.begin(), segmentings.end(),
                     [](const auto& a, const auto& b) { return a.first < b.first; });
    for (std::size_t i = 0; i < std::min(segmentings.size(), kMostSegmentings); ++i) {
      add(std::move(segmentings[i].second));
    }
  }

  // Adds the segments of one call but the last; false if it is not known where one begins.
  static bool cut(const std::vector<std::optional<RegionOps>>& children, std::size_t every,
                  std::vector<RegionOps>& regions) {
    // Those behind the last one that ran have not been reached, but for one without parameters.
    std::size_t ran = children.size();
    while (ran > 0 && !children[ran - 1].has_value()) {
      --ran;
    }
    const std::size_t reached = std::min(ran + 1, children.size());
    std::optional<std::size_t> begin = first_op(children, 0);
    for (std::size_t child = every; child < reached; child += every) {
      const auto next = first_op(children, child);
      if (!begin.has_value() || !next.has_value() || *next <= *begin) {
        return false;
      }
      regions.push_back({*begin, *next - 1});
      begin = next;
    }
    return begin.has_value();
  }

  // Where a child begins. One without parameters does so behind the one before it.
  static std::optional<std::size_t> first_op(const std::vector<std::optional<RegionOps>>& children,
                                             std::size_t child) {
    if (children[child].has_value()) {
      return children[child]->first;
    }
    if (child == 0) {
      return std::nullopt;
    }
    const bool alone = children[child - 1].has_value() &&
                       (child + 1 == children.size() || children[child + 1].has_value());
    return alone ? std::optional(children[child - 1]->last + 1) : std::nullopt;
  }

  const std::deque<RecordedOp>& ops_;
  const BlockFlow& flow_;
  const CheckpointSimulation& simulation_;
  const int64_t little_;
  std::map<std::string, std::vector<RegionOps>> calls_;
  std::vector<CheckpointCandidate> candidates_;
};

}  // namespace tidemark::detail
