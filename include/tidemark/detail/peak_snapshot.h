#pragma once

#include <tidemark/detail/meter_link.h>
#include <tidemark/detail/peak_windows.h>

#include <vector>

namespace tidemark::detail {

/// The peaks of all open scopes of some windows.
class PeakSnapshot final : public PeakMarks {
 public:
  explicit PeakSnapshot(const std::vector<PeakWindows*>& all) {
    for (PeakWindows* windows : all) {
      windows->append_marks(marks_);
    }
  }

  void put_back() const override {
    for (const PeakMark& mark : marks_) {
      mark.windows->go_back_to(mark);
    }
  }

 private:
  std::vector<PeakMark> marks_;
};

}  // namespace tidemark::detail
