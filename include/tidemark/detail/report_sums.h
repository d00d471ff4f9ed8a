#pragma once

// Adds up the blocks of a step to a MemoryReport.

#include <tidemark/detail/block_categories.h>
#include <tidemark/detail/op_modules.h>
#include <tidemark/detail/step_history.h>
#include <tidemark/detail/step_recording.h>
#include <tidemark/memory/memory_report.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace tidemark::detail {

/// The modules that a step knows, parents first, with the numbers of those around each.
class ModuleTable {
 public:
  explicit ModuleTable(const torch::nn::Module* model) {
    add("");
    if (model != nullptr) {
      for (const auto& item : model->named_modules("", /*include_self=*/false)) {
        add(item.key());
      }
    }
  }

  /// The number of a module, which is new if no model has it.
  std::size_t number(const std::string& name) {
    const auto found = numbers_.find(name);
    return found != numbers_.end() ? found->second : add(name);
  }

  [[nodiscard]] bool knows(const std::string& name) const { return numbers_.count(name) != 0; }

  /// The number itself, and those of the modules around it up to the model.
  [[nodiscard]] const std::vector<std::size_t>& chain(std::size_t number) const {
    return chains_[number];
  }
  [[nodiscard]] const std::vector<std::string>& names() const { return names_; }

 private:
  std::size_t add(const std::string& name) {
    std::vector<std::size_t> chain;
    if (!name.empty()) {
      const auto dot = name.rfind('.');
      chain = chains_[number(dot == std::string::npos ? "" : name.substr(0, dot))];
    }
    const std::size_t number = names_.size();
    chain.insert(chain.begin(), number);
    names_.push_back(name);
    chains_.push_back(std::move(chain));
    numbers_.emplace(name, number);
    return number;
  }

  std::vector<std::string> names_;
  std::vector<std::vector<std::size_t>> chains_;
  std::unordered_map<std::string, std::size_t> numbers_;
};

/// The numbers of a report, without advice and lints.
class ReportSums {
 public:
  ReportSums(const StepRecord& record, const StepHistory& history,
             const BlockCategories& categories, const OpModules& op_modules, ModuleTable& modules)
      : record_(record), history_(history), modules_(modules) {
    add_ops(op_modules);
    add_blocks(categories);
    sum_up();
    add_refusal();
    add_modules();
  }

  MemoryReport report;

 private:
  using Phase = StepPhase;

  void add_ops(const OpModules& op_modules) {
    report.ops.reserve(record_.ops.size());
    for (std::size_t i = 0; i < record_.ops.size(); ++i) {
      const RecordedOp& op = record_.ops[i];
      StepOp& added = report.ops.emplace_back();
      added.name = op.name;
      added.phase = op.phase;
      added.module = modules_.number(op_modules.module(i));
      added.begin_ns = op.begin_ns;
      added.end_ns = op.end_ns != 0 ? op.end_ns : record_.ended_ns;
      added.thread = op.thread;
    }
  }

  void add_blocks(const BlockCategories& categories) {
    report.blocks.reserve(history_.blocks.size());
    for (std::size_t i = 0; i < history_.blocks.size(); ++i) {
      const BlockLife& life = history_.blocks[i];
      MemoryBlock& block = report.blocks.emplace_back();
      block.address = life.address;
      block.bytes = life.bytes;
      block.category = categories[i];
      block.name = life.name;
      block.born = life.born_point;
      block.died = life.died_point;
      if (life.op != StepEvent::kNoOp) {
        block.op = static_cast<std::size_t>(life.op);
        block.phase = report.ops[*block.op].phase;
        block.module = report.ops[*block.op].module;
      }
      if (!life.name.empty()) {
        block.module = modules_.number(owner_of(life.name));
      }
    }
    report.times_ns = history_.point_ns;
  }

  // The module whose parameter or buffer a name begins with: "a.b" for "a.b.weight.grad".
  [[nodiscard]] std::string owner_of(const std::string& name) const {
    std::string owner = name;
    while (!owner.empty()) {
      const auto dot = owner.rfind('.');
      owner.resize(dot == std::string::npos ? 0 : dot);
      if (modules_.knows(owner)) {
        break;
      }
    }
    return owner;
  }

  // Calls `visit(block, sign)` for each birth and death, in their order; those from before first.
  template <class Visit>
  void replay(Visit&& visit) const {
    std::vector<std::pair<std::size_t, int>> at_point(history_.point_ns.size(), {0, 0});
    for (std::size_t i = 0; i < report.blocks.size(); ++i) {
      const MemoryBlock& block = report.blocks[i];
      if (block.born == MemoryBlock::kBefore) {
        visit(i, 1);
      } else {
        at_point[static_cast<std::size_t>(block.born)] = {i, 1};
      }
      if (block.died != MemoryBlock::kAlive) {
        at_point[static_cast<std::size_t>(block.died)] = {i, -1};
      }
    }
    for (const auto& [block, sign] : at_point) {
      if (sign != 0) {
        visit(block, sign);
      }
    }
  }

  void sum_up() {
    CategoryBytes live;
    int64_t total = 0;
    const auto at_begin = [&] {
      report.at_begin = live;
      report.most = live;
      report.peak = total;
      report.at_peak = live;
      report.peak_point = MemoryBlock::kBefore;
    };
    bool begun = false;
    replay([&](std::size_t index, int sign) {
      const MemoryBlock& block = report.blocks[index];
      if (!begun && !(sign > 0 && block.born == MemoryBlock::kBefore)) {
        begun = true;
        at_begin();
      }
      int64_t& of_category = live[block.category];
      of_category += sign * block.bytes;
      total += sign * block.bytes;
      if (!begun) {
        return;
      }
      report.most[block.category] = std::max(report.most[block.category], of_category);
      if (sign > 0) {
        report.allocated += block.bytes;
        ++report.allocations;
      }
      if (total > report.peak) {
        report.peak = total;
        report.at_peak = live;
        report.peak_point = block.born;
        report.peak_op = block.op;
      }
    });
    if (!begun) {
      at_begin();
    }
    report.at_end = live;
    report.held = history_.most_held;
    report.lost_events = record_.lost_events;
    report.seconds = static_cast<double>(record_.ended_ns) / 1e9;
  }

  void add_refusal() {
    if (!history_.refusal.has_value()) {
      return;
    }
    RefusedMemory& refused = report.refused.emplace();
    refused.bytes = history_.refusal->bytes;
    if (history_.refusal->op != StepEvent::kNoOp) {
      refused.op = static_cast<std::size_t>(history_.refusal->op);
    }
    const int64_t point = history_.refusal->point;
    for (const MemoryBlock& block : report.blocks) {
      if (block.born < point && block.died >= point) {
        refused.live[block.category] += block.bytes;
      }
    }
  }

  void add_modules() {
    std::vector<ModuleMemory> all(modules_.names().size());
    add_bytes(all);
    add_work(all);
    keep_those_that_did_something(all);
  }

  void add_bytes(std::vector<ModuleMemory>& all) {
    std::vector<CategoryBytes> live(all.size());
    std::vector<int64_t> rerun(all.size());
    for (const MemoryBlock& block : report.blocks) {
      if (block.born <= report.peak_point && block.died > report.peak_point) {
        for (const std::size_t module : modules_.chain(block.module)) {
          all[module].at_peak[block.category] += block.bytes;
        }
      }
    }
    replay([&](std::size_t index, int sign) {
      const MemoryBlock& block = report.blocks[index];
      for (const std::size_t module : modules_.chain(block.module)) {
        int64_t& bytes = live[module][block.category];
        bytes += sign * block.bytes;
        all[module].most[block.category] = std::max(all[module].most[block.category], bytes);
        if (block.phase == Phase::kRerun) {
          rerun[module] += sign * block.bytes;
          all[module].rerun = std::max(all[module].rerun, rerun[module]);
        }
      }
    });
  }

  void add_work(std::vector<ModuleMemory>& all) {
    std::vector<int64_t> inner_ns(report.ops.size());  // of the re-runs in a node
    std::vector<int64_t> workspace(report.ops.size());
    std::vector<int64_t> most_workspace(report.ops.size());
    replay([&](std::size_t index, int sign) {
      const MemoryBlock& block = report.blocks[index];
      if (block.category == MemoryCategory::kWorkspace && block.op.has_value()) {
        workspace[*block.op] += sign * block.bytes;
        most_workspace[*block.op] = std::max(most_workspace[*block.op], workspace[*block.op]);
      }
    });
    for (std::size_t i = 0; i < report.ops.size(); ++i) {
      if (record_.ops[i].outer != StepEvent::kNoOp) {
        inner_ns[static_cast<std::size_t>(record_.ops[i].outer)] +=
            report.ops[i].end_ns - report.ops[i].begin_ns;
      }
    }
    for (std::size_t i = 0; i < report.ops.size(); ++i) {
      const StepOp& op = report.ops[i];
      const double seconds = static_cast<double>(op.end_ns - op.begin_ns - inner_ns[i]) / 1e9;
      report.phase_seconds[static_cast<std::size_t>(op.phase)] += seconds;
      for (const std::size_t number : modules_.chain(op.module)) {
        ModuleMemory& module = all[number];
        switch (op.phase) {
          case Phase::kForward:
            module.forward_seconds += seconds;
            module.forward_workspace = std::max(module.forward_workspace, most_workspace[i]);
            break;
          case Phase::kBackward:
            module.backward_seconds += seconds;
            module.backward_workspace = std::max(module.backward_workspace, most_workspace[i]);
            break;
          case Phase::kRerun:
            module.rerun_seconds += seconds;
            break;
          case Phase::kUpdate:
            break;
        }
      }
    }
  }

  // Renumbers the modules: in the order of the model, without those that have nothing.
  void keep_those_that_did_something(std::vector<ModuleMemory>& all) {
    std::vector<bool> used(all.size());
    used[0] = true;
    const auto use = [&](std::size_t number) {
      for (const std::size_t module : modules_.chain(number)) {
        used[module] = true;
      }
    };
    for (const StepOp& op : report.ops) {
      use(op.module);
    }
    for (const MemoryBlock& block : report.blocks) {
      use(block.module);
    }
    std::vector<std::size_t> order;
    for (std::size_t i = 0; i < all.size(); ++i) {
      if (used[i]) {
        order.push_back(i);
      }
    }
    // A module that no model has follows those that are in the same module.
    std::map<std::size_t, std::vector<std::size_t>> children;
    for (const std::size_t i : order) {
      if (i != 0) {
        children[modules_.chain(i)[1]].push_back(i);
      }
    }
    std::vector<std::size_t> number_of(all.size());
    std::vector<std::size_t> open{0};
    while (!open.empty()) {
      const std::size_t next = open.back();
      open.pop_back();
      number_of[next] = report.modules.size();
      all[next].name = modules_.names()[next];
      all[next].depth = modules_.chain(next).size() - 1;
      report.modules.push_back(all[next]);
      const auto inside = children.find(next);
      if (inside != children.end()) {
        open.insert(open.end(), inside->second.rbegin(), inside->second.rend());
      }
    }
    for (StepOp& op : report.ops) {
      op.module = number_of[op.module];
    }
    for (MemoryBlock& block : report.blocks) {
      block.module = number_of[block.module];
    }
  }

  const StepRecord& record_;
  const StepHistory& history_;
  ModuleTable& modules_;
};

}  // namespace tidemark::detail
