#pragma once

/// \file
/// A MemoryReport as the file that PyTorch's memory viewer opens, https://pytorch.org/memory_viz.

#include <tidemark/detail/memory_timeline.h>
#include <tidemark/detail/pickle_writer.h>
#include <tidemark/detail/report_parts.h>
#include <tidemark/memory/memory_report.h>
#include <torch/arg.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace tidemark {

/// How much of a report goes into its snapshot:
/// `to_snapshot(report, MemoryReportSnapshotOptions().max_events(20'000))`.
struct MemoryReportSnapshotOptions {
  /// The most events, of which a block that is freed has three; the largest blocks are written. The
  /// viewer takes minutes over much more than the default.
  TORCH_ARG(std::size_t, max_events) = 150'000;
};

/// A pickle, and what is not in it.
struct MemorySnapshot {
  std::string pickle;              ///< the bytes of the file, to be written in binary mode
  std::size_t events = 0;          ///< in the pickle, of which a block that is freed has three
  std::size_t events_dropped = 0;  ///< past MemoryReportSnapshotOptions::max_events
  std::size_t blocks_dropped = 0;  ///< of which these events are
  int64_t bytes_dropped = 0;       ///< that these blocks have in sum
};

}  // namespace tidemark

namespace tidemark::detail {

class ReportSnapshot {
 public:
  ReportSnapshot(const MemoryReport& report, const MemoryReportSnapshotOptions& options)
      : report_(report) {
    choose_blocks(options.max_events());
  }

  [[nodiscard]] MemorySnapshot make() && {
    pickle_.begin_dict();
    pickle_.value("segments");
    segments();
    pickle_.value("device_traces");
    traces();
    pickle_.value("tidemark").begin_dict();
    pickle_.item("version", 1);
    pickle_.item("events", made_.events);
    pickle_.item("events_dropped", made_.events_dropped);
    pickle_.item("blocks_dropped", made_.blocks_dropped);
    pickle_.item("bytes_dropped", made_.bytes_dropped);
    pickle_.end_dict();
    pickle_.end_dict();
    made_.pickle = std::move(pickle_).take();
    return std::move(made_);
  }

 private:
  // Blocks that are further apart than that are shown as of two segments.
  static constexpr uint64_t kSegmentGap = uint64_t{2} << 20;

  // The viewer's numbers are doubles, which hold no more bits. No address has that many.
  static constexpr uint64_t kAddressMask = (uint64_t{1} << 53) - 1;

  [[nodiscard]] uint64_t address(std::size_t block) const {
    return report_.blocks[block].address & kAddressMask;
  }
  [[nodiscard]] uint64_t end_address(std::size_t block) const {
    return address(block) + static_cast<uint64_t>(report_.blocks[block].bytes);
  }
  [[nodiscard]] bool is_alive(std::size_t block) const {
    return report_.blocks[block].died == MemoryBlock::kAlive;
  }

  void choose_blocks(std::size_t max_events) {
    for (std::size_t i = 0; i < report_.blocks.size(); ++i) {
      if (report_.blocks[i].bytes > 0) {
        blocks_.push_back(i);
      }
    }
    std::stable_sort(blocks_.begin(), blocks_.end(), [this](std::size_t a, std::size_t b) {
      return report_.blocks[a].bytes > report_.blocks[b].bytes;
    });
    std::size_t kept = 0;
    for (const std::size_t block : blocks_) {
      const std::size_t events = is_alive(block) ? 1 : 3;
      if (made_.events_dropped == 0 && made_.events + events <= max_events) {
        made_.events += events;
        ++kept;
      } else {
        made_.events_dropped += events;
        made_.bytes_dropped += report_.blocks[block].bytes;
      }
    }
    made_.blocks_dropped = blocks_.size() - kept;
    blocks_.resize(kept);
  }

  [[nodiscard]] int64_t device_index() const {
    return report_.device.has_index() ? report_.device.index() : 0;
  }

  void segments() {
    std::sort(blocks_.begin(), blocks_.end(),
              [this](std::size_t a, std::size_t b) { return address(a) < address(b); });
    pickle_.begin_list();
    std::size_t first = 0;
    while (first < blocks_.size()) {
      uint64_t end = end_address(blocks_[first]);
      std::size_t last = first + 1;
      for (; last < blocks_.size() && address(blocks_[last]) <= end + kSegmentGap; ++last) {
        end = std::max(end, end_address(blocks_[last]));
      }
      segment(first, last, end);
      pickle_.append();
      first = last;
    }
  }

  /// What lies in one piece, from the first block there ever was to the end of the last.
  void segment(std::size_t first, std::size_t last, uint64_t end) {
    const uint64_t begin = address(blocks_[first]);
    uint64_t at = begin;
    int64_t live = 0;
    pickle_.begin_dict();
    pickle_.value("blocks").begin_list();
    for (std::size_t i = first; i < last; ++i) {
      const std::size_t block = blocks_[i];
      if (!is_alive(block) || address(block) < at) {  // of two in one place the first is shown
        continue;
      }
      gap(at, address(block));
      const int64_t bytes = report_.blocks[block].bytes;
      segment_block(address(block), bytes, bytes, "active_allocated", block);
      at = end_address(block);
      live += bytes;
    }
    gap(at, end);
    pickle_.item("device", device_index()).item("address", begin).item("total_size", end - begin);
    pickle_.item("allocated_size", live).item("active_size", live).item("requested_size", live);
    pickle_.item("stream", 0).item("segment_type", "large");
    pickle_.value("segment_pool_id").pair(0, 0);
    pickle_.value("is_expandable").value_of_bool(false);
    pickle_.value("frames").begin_list();
    pickle_.end_dict();
  }

  void gap(uint64_t begin, uint64_t end) {
    if (begin < end) {
      segment_block(begin, static_cast<int64_t>(end - begin), 0, "inactive", std::nullopt);
    }
  }

  void segment_block(uint64_t address, int64_t size, int64_t requested, const char* state,
                     const std::optional<std::size_t>& block) {
    pickle_.begin_dict();
    pickle_.item("address", address).item("size", size).item("requested_size", requested);
    pickle_.item("state", state).value("frames");
    if (block) {
      frames(report_.blocks[*block]);
    } else {
      pickle_.begin_list();
    }
    pickle_.end_dict();
    pickle_.append();
  }

  void traces() {
    pickle_.begin_list();
    for (int64_t i = 0; i < device_index(); ++i) {
      pickle_.begin_list().append();
    }
    pickle_.begin_list();
    marker();
    events();
    pickle_.append();
  }

  /// The viewer fails on categories of which none is "unknown". So the first event has it, and says
  /// what is left out.
  void marker() {
    begin_event("snapshot", 0, 0, 0);
    pickle_.begin_list();
    frame("tidemark", std::to_string(made_.events_dropped) + " events of " +
                          std::to_string(made_.blocks_dropped) + " small blocks left out");
    end_event(MemoryCategory::kOther);
  }

  void events() {
    struct Change {
      int64_t point;
      std::size_t block;
      bool is_birth;
    };
    std::vector<Change> changes;
    for (const std::size_t block : blocks_) {
      changes.push_back({report_.blocks[block].born, block, true});
      if (!is_alive(block)) {
        changes.push_back({report_.blocks[block].died, block, false});
      }
    }
    std::sort(changes.begin(), changes.end(), [](const Change& a, const Change& b) {
      return a.point != b.point ? a.point < b.point : a.block < b.block;
    });
    for (const Change& change : changes) {
      if (change.is_birth) {
        event("alloc", change.block, change.point);
      } else {
        event("free_requested", change.block, change.point);
        event("free_completed", change.block, change.point);
      }
    }
  }

  void event(const char* action, std::size_t block, int64_t point) {
    begin_event(action, address(block), report_.blocks[block].bytes, time_of(report_, point));
    frames(report_.blocks[block]);
    end_event(report_.blocks[block].category);
  }

  void begin_event(const char* action, uint64_t address, int64_t bytes, int64_t time_ns) {
    pickle_.begin_dict();
    pickle_.item("action", action).item("addr", address).item("size", bytes).item("stream", 0);
    pickle_.item("time_us", time_ns / 1000).value("frames");
  }
  void end_event(MemoryCategory category) {
    pickle_.item("category", category == MemoryCategory::kOther ? "unknown" : to_string(category));
    pickle_.end_dict();
    pickle_.append();
  }

  void frame(std::string_view filename, std::string_view name) {
    pickle_.begin_dict();
    pickle_.item("filename", filename).item("line", 0).item("name", name);
    pickle_.end_dict();
    pickle_.append();
  }

  /// What stands for a call stack: the block, the op in its module, the phase.
  void frames(const MemoryBlock& block) {
    const std::string module = module_name(report_, block.module);
    const std::string op = op_name(report_, block.op);
    const bool before = block.born == MemoryBlock::kBefore;
    const char* phase = before ? "before the recording" : to_string(block.phase);
    const std::string key = block.name + '\0' + op + '\0' + module + '\0' + phase;
    const auto found = frames_.find(key);
    if (found != frames_.end()) {
      pickle_.recall(found->second);
      return;
    }
    pickle_.begin_list();
    if (!block.name.empty()) {
      frame(module, block.name);
    }
    if (!op.empty()) {
      frame(module, op);
    }
    frame("step", phase);
    frames_.emplace(key, pickle_.memoize());
  }

  const MemoryReport& report_;
  PickleWriter pickle_;
  MemorySnapshot made_;
  std::vector<std::size_t> blocks_;
  std::unordered_map<std::string, uint32_t> frames_;
};

}  // namespace tidemark::detail

namespace tidemark {

/// The report in the format of `torch.cuda.memory._snapshot()`, to be dropped on
/// https://pytorch.org/memory_viz or given to `python -m torch.cuda._memory_viz`, of a CPU as well
/// as of other devices. The viewer colours blocks by their category and shows for each, in place of
/// a call stack, its name, what op made it in which module, and the phase.
///
/// Blocks from before the recording are allocated by the first events. Segments are made of what
/// lies close together, since the allocator's own are not known. The category "other" is called
/// "unknown", as the viewer wants it. Times are in microseconds since the recording began.
///
/// If there are more events than `max_events`, small blocks are left out; how many is in the result
/// and in the file: in the dict "tidemark" and in the first event.
[[nodiscard]] inline MemorySnapshot to_snapshot(const MemoryReport& report,
                                                const MemoryReportSnapshotOptions& options = {}) {
  return detail::ReportSnapshot(report, options).make();
}

}  // namespace tidemark
