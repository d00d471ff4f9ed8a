#pragma once

// A line chart as SVG.

#include <string>
#include <vector>

namespace examples {

/// One line: points in the order in which they are joined. Points that aren't finite are left out.
struct ChartLine {
  std::string name;    ///< for the legend
  std::string colour;  ///< as SVG spells it, such as "#0072b2"
  double width = 2;    ///< in pixels
  std::vector<double> x;
  std::vector<double> y;
};

struct LineChart {
  std::string title;
  std::string x_label;
  std::string y_label;
  std::vector<ChartLine> lines;

  /// The whole picture, 800 x 480. The y axis starts at 0 where no value is negative.
  [[nodiscard]] std::string to_svg() const;

  /// Throws std::runtime_error if the file can't be written.
  void save_svg(const std::string& path) const;
};

/// Round numbers (1, 2 or 5 times a power of ten) that cover `low` to `high` with about `count`
/// steps; the first is at most `low`, the last at least `high`.
std::vector<double> round_ticks(double low, double high, int count);

}  // namespace examples
