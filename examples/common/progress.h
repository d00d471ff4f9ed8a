#pragma once

// How far a loop has come: a bar on a terminal, a line now and then in a log.

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <string>

namespace examples {

/// Shows the progress of `total` rounds on `out`. On a terminal one line is drawn over and over, at
/// most ten times a second; elsewhere a line is printed at every tenth of the way, at most one in
/// two seconds, and at the end.
class Progress {
 public:
  Progress(std::string label, int64_t total, std::FILE* out = stdout);
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  /// Leaves the terminal's line as it is and goes to the next one.
  ~Progress();

  /// To be called after each round. `note` is shown beside the numbers, such as "loss 0.31".
  void update(int64_t done, const std::string& note = "");

 private:
  using Clock = std::chrono::steady_clock;

  void draw_bar(int64_t done, const std::string& note);
  [[nodiscard]] std::string remaining(int64_t done) const;

  std::string label_;
  int64_t total_;
  std::FILE* out_;
  bool terminal_;
  bool line_open_ = false;
  int64_t first_ = -1;
  int64_t tenths_shown_ = 0;
  Clock::time_point start_ = Clock::now();
  Clock::time_point drawn_ = start_;
};

}  // namespace examples
