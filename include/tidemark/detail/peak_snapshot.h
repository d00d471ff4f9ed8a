#pragma once

#include <tidemark/detail/memory_meter.h>
#include <tidemark/detail/peak_windows.h>

#include <vector>

namespace tidemark::detail {

/// The peaks that all open MemoryScopes have seen when it was made, to go back to when what follows
/// is undone and done in another way. Switches no counting on.
class PeakSnapshot {
 public:
  PeakSnapshot() {
    for (PeakWindows* windows : ProcessMeter::get().all_windows()) {
      windows->append_marks(marks_);
    }
  }

  /// To be called when what is undone is freed: what is live counts.
  void put_back() const {
    for (const PeakMark& mark : marks_) {
      mark.windows->go_back_to(mark);
    }
  }

 private:
  std::vector<PeakMark> marks_;
};

}  // namespace tidemark::detail
