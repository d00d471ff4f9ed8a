#pragma once

// The events of a training step, put together to the lives of blocks.

#include <c10/core/Device.h>
#include <tidemark/detail/step_events.h>
#include <tidemark/detail/step_recording.h>
#include <tidemark/memory/memory_report.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace tidemark::detail {

/// A block of memory. Times are indices of events; what is over after the last one is at kNever.
struct BlockLife {
  static constexpr int64_t kNever = std::numeric_limits<int64_t>::max();

  struct Hold {  // by a saved tensor
    int32_t op;  // that saved it
    int64_t begin;
    int64_t end = kNever;
  };
  struct Read {
    int32_t op;
    int64_t at;
    bool requires_grad;
  };

  uint64_t address = 0;
  int64_t bytes = 0;
  int32_t op = StepEvent::kNoOp;  // that allocated it
  int64_t born = -1;              // -1: before
  int64_t died = kNever;
  int64_t born_point = MemoryBlock::kBefore;
  int64_t died_point = MemoryBlock::kAlive;
  std::optional<MemoryCategory> known;
  std::string name;
  bool is_cast = false;  // autocast's, of a parameter
  std::vector<Hold> holds;
  std::vector<Read> reads;
  std::vector<int32_t> written_by;  // ops

  [[nodiscard]] bool was_there_before() const { return born < 0; }
  [[nodiscard]] bool is_alive_at(int64_t event) const { return born <= event && event < died; }
};

/// When an op ran, in events.
struct OpSpan {
  int64_t begin = 0;
  int64_t end = BlockLife::kNever;
};

struct StepHistory {
  explicit StepHistory(const StepRecord& record) : spans(record.ops.size()) {
    for (const StepEvent& event : record.events) {
      take(event, record.names);
      ++now_;
    }
    add_what_was_there_before(record.live_before);
  }

  std::vector<BlockLife> blocks;
  std::vector<OpSpan> spans;      // of each op
  std::vector<int64_t> point_ns;  // of each allocation and free
  int64_t most_held = 0;          // by saved tensors at one time

  struct Refusal {
    int64_t bytes;
    int32_t op;
    int64_t point;  // the next one
    int64_t event;
  };
  std::optional<Refusal> refusal;  // the last one

  [[nodiscard]] int64_t events() const { return now_; }

 private:
  using Kind = StepEvent::Kind;

  void take(const StepEvent& event, const std::vector<std::string>& names) {
    switch (event.kind) {
      case Kind::kAllocated:
        born(event);
        break;
      case Kind::kFreed:
        died(event);
        break;
      case Kind::kGone:
        gone(event);
        break;
      case Kind::kRefused:
        refusal = {event.bytes, event.op, static_cast<int64_t>(point_ns.size()), now_};
        break;
      case Kind::kOpBegan:
        spans[index(event.op)].begin = now_;
        break;
      case Kind::kOpEnded:
        spans[index(event.op)].end = now_;
        cast_in_.erase(event.op);
        break;
      case Kind::kRead:
        block_at(event).reads.push_back({event.op, now_, event.number != 0});
        break;
      case Kind::kWritten:
        block_at(event).written_by.push_back(event.op);
        break;
      case Kind::kHeld:
        held(event);
        break;
      case Kind::kReleased:
        released(event.number);
        break;
      case Kind::kKnown: {
        BlockLife& block = block_at(event);
        if (!block.known.has_value() || event.category < *block.known) {
          block.known = event.category;
          block.name = names[static_cast<std::size_t>(event.number)];
        }
        break;
      }
      case Kind::kCast:
        ++cast_in_[event.op];
        break;
    }
  }

  static std::size_t index(int64_t number) { return static_cast<std::size_t>(number); }

  void born(const StepEvent& event) {
    const auto before = live_.find(event.address);
    if (before != live_.end()) {  // given back unseen
      end(blocks[before->second], event.number);
    }
    BlockLife block;
    block.address = event.address;
    block.bytes = event.bytes;
    block.op = event.op;
    block.born = now_;
    block.born_point = static_cast<int64_t>(point_ns.size());
    const auto cast = cast_in_.find(event.op);
    if (cast != cast_in_.end() && cast->second > 0) {
      block.is_cast = true;
      --cast->second;
    }
    live_[event.address] = blocks.size();
    blocks.push_back(std::move(block));
    point_ns.push_back(event.number);
  }

  void died(const StepEvent& event) {
    end(block_at(event), event.number);
    live_.erase(event.address);
  }

  // A block from before the meter goes unseen; by now it is gone.
  void gone(const StepEvent& event) {
    const auto found = live_.find(event.address);
    if (found != live_.end() && blocks[found->second].was_there_before()) {
      died(event);
    }
  }

  void end(BlockLife& block, int64_t ns) {
    const auto open = open_holds_.find(static_cast<std::size_t>(&block - blocks.data()));
    if (open != open_holds_.end()) {  // the storage was emptied or replaced
      held_ -= open->second > 0 ? block.bytes : 0;
      open_holds_.erase(open);
    }
    block.died = now_;
    block.died_point = static_cast<int64_t>(point_ns.size());
    point_ns.push_back(ns);
  }

  // What is met without having been allocated was there before.
  BlockLife& block_at(const StepEvent& event) {
    const auto [found, first] = live_.emplace(event.address, blocks.size());
    if (first) {
      BlockLife block;
      block.address = event.address;
      block.bytes = event.bytes;
      blocks.push_back(std::move(block));
    }
    return blocks[found->second];
  }

  void held(const StepEvent& event) {
    BlockLife& block = block_at(event);
    const auto number = static_cast<std::size_t>(&block - blocks.data());
    holds_[event.number] = {number, block.holds.size()};
    block.holds.push_back({event.op, now_});
    if (open_holds_[number]++ == 0) {
      held_ += block.bytes;
      most_held = std::max(most_held, held_);
    }
  }

  void released(int64_t number) {
    const auto found = holds_.find(number);
    if (found == holds_.end()) {
      return;  // saved elsewhere, or in no memory of the device
    }
    const auto [block, hold] = found->second;
    blocks[block].holds[hold].end = now_;
    const auto open = open_holds_.find(block);
    if (open != open_holds_.end() && --open->second == 0) {
      held_ -= blocks[block].bytes;
    }
    holds_.erase(found);
  }

  void add_what_was_there_before(int64_t live_before) {
    for (const BlockLife& block : blocks) {
      live_before -= block.was_there_before() ? block.bytes : 0;
    }
    if (live_before > 0) {
      BlockLife rest;
      rest.bytes = live_before;
      blocks.push_back(std::move(rest));
    }
    std::stable_partition(blocks.begin(), blocks.end(),
                          [](const BlockLife& block) { return block.was_there_before(); });
  }

  int64_t now_ = 0;
  int64_t held_ = 0;
  std::unordered_map<uint64_t, std::size_t> live_;  // by address
  std::unordered_map<int64_t, std::pair<std::size_t, std::size_t>> holds_;
  std::unordered_map<std::size_t, int64_t> open_holds_;
  std::unordered_map<int32_t, int64_t> cast_in_;  // casts of a running op that allocate yet
};

}  // namespace tidemark::detail
