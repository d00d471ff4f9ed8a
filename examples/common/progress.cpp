#include "common/progress.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <utility>

namespace examples {

namespace {

bool is_terminal(std::FILE* out) {
  const char* term = std::getenv("TERM");
  return isatty(fileno(out)) != 0 && term != nullptr && std::strcmp(term, "dumb") != 0;
}

int terminal_columns(std::FILE* out) {
  winsize size{};
  const bool known = ioctl(fileno(out), TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
  return known ? size.ws_col : 80;
}

}  // namespace

Progress::Progress(std::string label, int64_t total, std::FILE* out)
    : label_(std::move(label)), total_(total), out_(out), terminal_(is_terminal(out)) {}

Progress::~Progress() {
  if (line_open_) {
    std::fputc('\n', out_);
    std::fflush(out_);
  }
}

void Progress::update(int64_t done, const std::string& note) {
  if (first_ < 0) {
    first_ = done - 1;
    tenths_shown_ = first_ * 10 / total_;
  }
  const auto now = Clock::now();
  if (terminal_) {
    if (done == total_ || now - drawn_ >= std::chrono::milliseconds(100)) {
      drawn_ = now;
      draw_bar(done, note);
    }
    return;
  }
  const int64_t tenths = done * 10 / total_;
  if (done == total_ || (tenths > tenths_shown_ && now - drawn_ >= std::chrono::seconds(2))) {
    tenths_shown_ = tenths;
    drawn_ = now;
    const auto width = static_cast<int>(std::to_string(total_).size());
    std::fprintf(out_, "%s %*lld/%lld%s%s  %s\n", label_.c_str(), width,
                 static_cast<long long>(done), static_cast<long long>(total_),
                 note.empty() ? "" : "  ", note.c_str(), remaining(done).c_str());
    std::fflush(out_);
  }
}

void Progress::draw_bar(int64_t done, const std::string& note) {
  const std::string count = " " + std::to_string(done) + "/" + std::to_string(total_);
  std::string tail = count + "  " + note + (note.empty() ? "" : "  ") + remaining(done);
  const int columns = terminal_columns(out_) - 1;  // a full last column would wrap
  const int cells = std::clamp(columns - static_cast<int>(label_.size() + tail.size()) - 3, 0, 40);
  const auto filled = static_cast<int>(cells * done / total_);
  std::string line = label_ + " [" + std::string(static_cast<size_t>(filled), '#') +
                     std::string(static_cast<size_t>(cells - filled), '.') + "]" + tail;
  line.resize(std::min(line.size(), static_cast<size_t>(std::max(columns, 1))));
  std::fprintf(out_, "\r\033[K%s", line.c_str());
  std::fflush(out_);
  line_open_ = true;
}

std::string Progress::remaining(int64_t done) const {
  const double spent = std::chrono::duration<double>(Clock::now() - start_).count();
  const auto rounds = static_cast<double>(std::max<int64_t>(done - first_, 1));
  const bool over = done >= total_;
  const auto seconds = static_cast<int64_t>(
      over ? spent : spent / rounds * static_cast<double>(total_ - done) + 0.5);
  char text[48];
  std::snprintf(text, sizeof(text), over ? "%lld:%02lld" : "%lld:%02lld left",
                static_cast<long long>(seconds / 60), static_cast<long long>(seconds % 60));
  return text;
}

}  // namespace examples
