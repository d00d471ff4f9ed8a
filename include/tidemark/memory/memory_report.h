#pragma once

/// \file
/// What one training step did with memory: every block with what it was for, and sums of them.

#include <c10/core/Device.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

namespace tidemark {

/// What a block of memory is for. Each block has one category for its whole life, the first of
/// these that is true.
enum class MemoryCategory {
  kParameters,  ///< of the model or the optimizer
  kGradients,   ///< what `.grad()` of a parameter was at the begin, after a backward, or at the end
  kOptimizerState,  ///< what the optimizer would save
  kBuffers,         ///< of the model
  kInputs,          ///< what the forward reads, and what is made from that without parameters
  kActivations,     ///< what the graph holds for backward, or a re-run makes for it
  kWorkspace,       ///< allocated and freed within one op or backward node
  kTemporaries,     ///< freed before the step is over
  kOther,           ///< all else: what the step leaves behind, what was there before
};

/// The number of categories: they are 0 to 8, to be cast from a counter.
inline constexpr std::size_t kMemoryCategories = 9;

/// A category in small letters, as reports show it: "optimizer state".
[[nodiscard]] inline const char* to_string(MemoryCategory category) {
  static constexpr std::array<const char*, kMemoryCategories> kNames{
      "parameters",  "gradients", "optimizer state", "buffers", "inputs",
      "activations", "workspace", "temporaries",     "other"};
  return kNames[static_cast<std::size_t>(category)];
}

/// Bytes of each category.
struct CategoryBytes {
  std::array<int64_t, kMemoryCategories> bytes{};  ///< in the order of MemoryCategory

  /// The bytes of one category, to read or to set.
  int64_t& operator[](MemoryCategory category) { return bytes[static_cast<std::size_t>(category)]; }
  /// The bytes of one category.
  int64_t operator[](MemoryCategory category) const {
    return bytes[static_cast<std::size_t>(category)];
  }
  /// The bytes of all categories together.
  [[nodiscard]] int64_t total() const {
    int64_t sum = 0;
    for (const int64_t of_category : bytes) {
      sum += of_category;
    }
    return sum;
  }
};

/// The part of a training step in which something happens.
enum class StepPhase {
  kForward,   ///< all that is none of the others
  kBackward,  ///< inside a backward pass
  kRerun,     ///< a checkpointed region that runs again
  kUpdate,    ///< without grad mode, behind a backward pass: the optimizer, usually
};

/// The number of phases: they are 0 to 3, to be cast from a counter.
inline constexpr std::size_t kStepPhases = 4;

/// A phase in small letters, as reports show it: "re-run".
[[nodiscard]] inline const char* to_string(StepPhase phase) {
  static constexpr std::array<const char*, kStepPhases> kNames{"forward", "backward", "re-run",
                                                               "update"};
  return kNames[static_cast<std::size_t>(phase)];
}

/// One outermost op of a forward, re-run or update, or one node of a backward pass.
struct StepOp {
  std::string name;                       ///< "aten::conv2d", or of a node "ConvolutionBackward0"
  StepPhase phase = StepPhase::kForward;  ///< in which it ran
  std::size_t module = 0;                 ///< index in MemoryReport::modules
  int64_t begin_ns = 0;                   ///< since the recording began
  int64_t end_ns = 0;                     ///< since the recording began; on the host, as begin_ns
  uint64_t thread = 0;                    ///< that ran it: at::RecordFunction's number of it
};

/// One block of memory. Blocks are born and die at points of one order: point k is the k-th
/// allocation or free of the recording, counted from 0.
struct MemoryBlock {
  static constexpr int64_t kBefore = -1;  ///< `born` of what was there before the recording
  /// `died` of what outlived the recording.
  static constexpr int64_t kAlive = std::numeric_limits<int64_t>::max();

  uint64_t address = 0;  ///< of its first byte; a later block may have the same
  int64_t bytes = 0;     ///< as requested
  MemoryCategory category = MemoryCategory::kOther;  ///< what it is for
  StepPhase phase = StepPhase::kForward;             ///< in which it was born; kForward if before
  std::size_t module = 0;         ///< index in MemoryReport::modules; 0 is the whole model
  std::optional<std::size_t> op;  ///< index in MemoryReport::ops, of what allocated it
  std::string name;               ///< "conv1.weight"; empty if it is not registered
  int64_t born = kBefore;         ///< point; kBefore if it was there when the recording began
  int64_t died = kAlive;          ///< point; kAlive if it was there when it ended
};

/// What belongs to a module and all modules inside it. In bytes, unless it says otherwise.
struct ModuleMemory {
  std::string name;                ///< "encoder.conv1"; "" is the whole model
  std::size_t depth = 0;           ///< 0: the whole model; 1: right below it
  CategoryBytes at_peak;           ///< at the peak of the step
  CategoryBytes most;              ///< the most of each category at one time
  int64_t forward_workspace = 0;   ///< the most that one of its ops had on top of what it made
  int64_t backward_workspace = 0;  ///< the same for its backward nodes
  int64_t rerun = 0;               ///< the most at one time of what re-runs have made
  double forward_seconds = 0;      ///< of its forward ops, by the clock of the host
  double backward_seconds = 0;     ///< of its backward nodes, without re-runs inside them
  double rerun_seconds = 0;        ///< of its ops in regions that run again
};

/// Something to do about the memory of the step, with what it is expected to bring.
struct MemoryAdvice {
  /// What there is to do.
  enum class Kind {
    kCheckpoint,            ///< run `modules` as checkpointed regions
    kCheckpointSequential,  ///< make the Sequential `modules[0]` a CheckpointedSequential of
                            ///< `every`
    kAccumulate,            ///< smaller micro-batches and a GradAccumulator
    kNotCheckpointing,      ///< what fills the memory is nothing that checkpointing could save
  };

  Kind kind = Kind::kCheckpoint;     ///< for programs what `text` is for people
  std::string text;                  ///< one or two sentences
  std::vector<std::string> modules;  ///< that it is about, named as in named_modules()
  int64_t every = 0;  ///< for kCheckpointSequential: CheckpointedSequentialOptions::every
  /// The peak of the step in bytes if this and the advice before it are followed.
  std::optional<int64_t> expected_peak;
  std::optional<int64_t> expected_held;  ///< the same of the bytes that graphs hold for backward
  std::optional<int64_t> saves;          ///< bytes of the peak, together with the advice before it
  double costs_seconds = 0;              ///< for the re-runs, together with the advice before it
};

/// Something in the step that wastes memory.
struct MemoryLint {
  std::string name;   ///< which kind it is: "out-of-place activation"
  std::string text;   ///< what was seen where, and the remedy
  int64_t bytes = 0;  ///< of what was seen; what the remedy saves may be less or more
};

/// The state of a device's allocator, where it tells. In bytes, named as in MemoryStats.
struct ReservedMemory {
  int64_t allocated = 0;       ///< of blocks in use, rounded up by the allocator
  int64_t reserved = 0;        ///< taken from the device, in use or cached
  int64_t inactive_split = 0;  ///< reserved and free, but part of a segment that is in use
};

/// An allocation that failed, and what was live then.
struct RefusedMemory {
  int64_t bytes = 0;              ///< that were asked for
  CategoryBytes live;             ///< what was live when it failed
  std::optional<std::size_t> op;  ///< index in MemoryReport::ops, of what asked
};

/// One training step in numbers, made by a MemoryRecorder. All bytes are those requested of the
/// allocator; they include what was there before the recording, as far as it is known.
struct MemoryReport {
  c10::Device device = c10::kCPU;  ///< whose memory this is about: one per report

  int64_t peak = 0;        ///< the most that was live at one time
  int64_t peak_point = 0;  ///< the point from which on it was; MemoryBlock::kBefore if at first
  CategoryBytes at_peak;   ///< adds up to `peak`
  CategoryBytes at_begin;  ///< what was there before the recording, as far as known
  CategoryBytes at_end;    ///< what was live at the end, the step's or older
  CategoryBytes most;      ///< the most of each category at one time
  std::optional<std::size_t> peak_op;  ///< index in `ops`, of what reached the peak
  int64_t held = 0;                    ///< the most that graphs held for backward at one time
  int64_t allocated = 0;               ///< all that was allocated
  int64_t allocations = 0;             ///< number of blocks that were allocated

  std::vector<ModuleMemory> modules;  ///< those that did something, parents first; [0] is the model
  std::vector<StepOp> ops;            ///< in the order of their begin
  std::vector<MemoryBlock> blocks;    ///< in the order of their birth
  std::vector<int64_t> times_ns;      ///< of each point, since the recording began
  int64_t lost_events = 0;            ///< past MemoryRecorderOptions::max_events, and not in here
  double seconds = 0;                 ///< of the recording
  std::array<double, kStepPhases> phase_seconds{};  ///< of the ops of each phase

  std::optional<ReservedMemory> reserved;  ///< at the end
  std::optional<RefusedMemory> refused;    ///< the last allocation that failed, if one did
  std::vector<MemoryAdvice> advice;  ///< what to do, each on top of those before; may be empty
  std::vector<MemoryLint> lints;     ///< what was seen to waste memory; empty if nothing
};

}  // namespace tidemark
