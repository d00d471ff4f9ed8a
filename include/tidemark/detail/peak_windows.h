#pragma once

// Peaks of any number of open scopes from one counter whose peak can be reset.

#include <algorithm>
#include <cstdint>
#include <mutex>
#include <vector>

namespace tidemark::detail {

inline namespace process_v1 {

/// What an allocator counts, in bytes and blocks.
struct MemoryCounters {
  int64_t live = 0;
  int64_t peak = 0;  // of live, since it was last reset
  int64_t allocated = 0;
  int64_t allocations = 0;
  int64_t blocks = 0;  // that are live
  int64_t most_blocks = 0;

  void add(int64_t bytes) noexcept {
    live += bytes;
    peak = std::max(peak, live);
    allocated += bytes;
    ++allocations;
    ++blocks;
    most_blocks = std::max(most_blocks, blocks);
  }
  void subtract(int64_t bytes) noexcept {
    live -= bytes;
    --blocks;
  }
};

/// One open scope.
struct PeakWindow {
  MemoryCounters opened;
  MemoryCounters now;
  int64_t peak = 0;        // highest live bytes from opened to now
  bool disturbed = false;  // somebody else reset the counters in between
};

class PeakWindows;

/// The peak of a scope at one moment.
struct PeakMark {
  PeakWindows* windows;
  const PeakWindow* window;  // of these, for as long as it is open
  int64_t peak;
};

/// The open scopes of one device. Only an opening scope resets the peak, and folds it into all
/// scopes that are open first: no scope takes the peak from another, in whatever order they close,
/// and a block costs the same however many are open. Thread-safe.
class PeakWindows {
 public:
  PeakWindows() = default;
  PeakWindows(const PeakWindows&) = delete;
  PeakWindows& operator=(const PeakWindows&) = delete;
  virtual ~PeakWindows() = default;

  virtual void open(PeakWindow& window) {
    const std::lock_guard<std::mutex> lock(mutex_);
    open_.reserve(open_.size() + 1);
    fold(/*reset=*/true);
    last_.peak = last_.live;
    window = PeakWindow{last_, last_, last_.live, false};
    open_.push_back(&window);
  }

  virtual void close(PeakWindow& window) noexcept {
    const std::lock_guard<std::mutex> lock(mutex_);
    open_.erase(std::remove(open_.begin(), open_.end(), &window), open_.end());
  }

  /// The window as of now.
  virtual PeakWindow read(const PeakWindow& window) {
    const std::lock_guard<std::mutex> lock(mutex_);
    fold(/*reset=*/false);
    return window;
  }

  /// All that was counted so far, with the peak of all that time; from a reset by somebody else on.
  virtual MemoryCounters totals() {
    const std::lock_guard<std::mutex> lock(mutex_);
    fold(/*reset=*/false);
    MemoryCounters totals = last_;
    totals.peak = highest_;
    return totals;
  }

  /// The peaks as of now.
  virtual void append_marks(std::vector<PeakMark>& marks) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (open_.empty()) {
      return;
    }
    fold(/*reset=*/true);
    last_.peak = last_.live;
    for (const PeakWindow* window : open_) {
      marks.push_back({this, window, window->peak});
    }
  }

  /// Forgets what the scope of the mark has seen since, but for what is still live.
  virtual void go_back_to(const PeakMark& mark) {
    const std::lock_guard<std::mutex> lock(mutex_);
    fold(/*reset=*/true);
    last_.peak = last_.live;
    for (PeakWindow* window : open_) {
      if (window == mark.window) {
        window->peak = std::max(mark.peak, last_.live);
      }
    }
  }

 protected:
  /// Reads the counters and then, if asked, sets the peak to what is live, in one step.
  virtual MemoryCounters count(bool reset) = 0;

  [[nodiscard]] bool any_open() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return !open_.empty();
  }

 private:
  void fold(bool reset) {
    const MemoryCounters now = count(reset);
    const bool disturbed = now.peak < last_.peak || now.allocated < last_.allocated ||
                           now.allocations < last_.allocations;
    for (PeakWindow* window : open_) {
      window->now = now;
      window->peak = std::max(window->peak, now.peak);
      window->disturbed = window->disturbed || disturbed;
    }
    highest_ = disturbed ? now.peak : std::max(highest_, now.peak);
    last_ = now;
  }

  std::mutex mutex_;
  std::vector<PeakWindow*> open_;
  MemoryCounters last_;
  int64_t highest_ = 0;
};

}  // namespace process_v1

}  // namespace tidemark::detail
