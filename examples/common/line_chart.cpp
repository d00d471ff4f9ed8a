#include "common/line_chart.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <limits>
#include <sstream>
#include <stdexcept>

namespace examples {

namespace {

constexpr double kWidth = 800;
constexpr double kHeight = 480;
constexpr double kLeft = 78;
constexpr double kRight = 24;
constexpr double kTop = 56;
constexpr double kBottom = 64;

// One axis: its ticks, and where values lie in the picture.
struct Axis {
  std::vector<double> ticks;
  double from;
  double to;

  [[nodiscard]] double place(double value) const {
    return from + (value - ticks.front()) / (ticks.back() - ticks.front()) * (to - from);
  }
};

std::string escaped(const std::string& text) {
  std::string result;
  for (const char letter : text) {
    switch (letter) {
      case '&':
        result += "&amp;";
        break;
      case '<':
        result += "&lt;";
        break;
      case '>':
        result += "&gt;";
        break;
      case '\'':  // attributes are quoted by it
        result += "&apos;";
        break;
      default:
        result += letter;
    }
  }
  return result;
}

std::string number(double value) {
  std::ostringstream out;
  out.precision(6);
  out << (std::abs(value) < 1e-12 ? 0.0 : value);
  return out.str();
}

std::string fixed(double value) {
  std::ostringstream out;
  out.precision(1);
  out << std::fixed << value;
  return out.str();
}

std::string text_at(double x, double y, const std::string& attributes, const std::string& text) {
  return "  <text x='" + fixed(x) + "' y='" + fixed(y) + "' " + attributes + ">" + escaped(text) +
         "</text>\n";
}

std::string segment(double x1, double y1, double x2, double y2, const std::string& attributes) {
  return "  <line x1='" + fixed(x1) + "' y1='" + fixed(y1) + "' x2='" + fixed(x2) + "' y2='" +
         fixed(y2) + "' " + attributes + "/>\n";
}

template <class Visit>
void for_each_point(const std::vector<ChartLine>& lines, Visit visit) {
  for (const ChartLine& line : lines) {
    for (size_t i = 0; i < std::min(line.x.size(), line.y.size()); ++i) {
      if (std::isfinite(line.x[i]) && std::isfinite(line.y[i])) {
        visit(line.x[i], line.y[i]);
      }
    }
  }
}

std::string grid(const Axis& x, const Axis& y) {
  std::string svg;
  for (const double tick : y.ticks) {
    svg += segment(x.from, y.place(tick), x.to, y.place(tick), "stroke='#e4e4e4'");
    svg += text_at(x.from - 9, y.place(tick) + 4.5, "text-anchor='end'", number(tick));
  }
  for (const double tick : x.ticks) {
    svg += segment(x.place(tick), y.from, x.place(tick), y.from + 6, "stroke='#333333'");
    svg += text_at(x.place(tick), y.from + 22, "text-anchor='middle'", number(tick));
  }
  svg += segment(x.from, y.from, x.to, y.from, "stroke='#333333'");
  svg += segment(x.from, y.from, x.from, y.to, "stroke='#333333'");
  return svg;
}

std::string legend(const std::vector<ChartLine>& lines) {
  std::string svg;
  double y = kTop + 18;
  for (const ChartLine& line : lines) {
    const double right = kWidth - kRight - 12;
    svg += segment(right - 28, y, right, y,
                   "stroke='" + escaped(line.colour) + "' stroke-width='" +
                       number(std::max(line.width, 2.0)) + "'");
    svg += text_at(right - 38, y + 4.5, "text-anchor='end'", line.name);
    y += 22;
  }
  return svg;
}

std::string polyline(const ChartLine& line, const Axis& x, const Axis& y) {
  std::string points;
  for_each_point({line}, [&](double px, double py) {
    points += (points.empty() ? "" : " ") + fixed(x.place(px)) + "," + fixed(y.place(py));
  });
  return "  <polyline fill='none' stroke-linejoin='round' stroke-linecap='round' stroke='" +
         escaped(line.colour) + "' stroke-width='" + number(line.width) + "' points='" + points +
         "'/>\n";
}

}  // namespace

std::vector<double> round_ticks(double low, double high, int count) {
  if (!(high > low)) {
    const double margin = low == 0 ? 1 : std::abs(low) / 2;
    low -= margin;
    high += margin;
  }
  const double wanted = (high - low) / std::max(count, 1);
  const double power = std::pow(10, std::floor(std::log10(wanted)));
  double step = 10 * power;
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (factor * power >= wanted * 0.999) {
      step = factor * power;
      break;
    }
  }
  std::vector<double> ticks;
  const double first = std::floor(low / step + 1e-9);
  const double last = std::ceil(high / step - 1e-9);
  for (double i = first; i <= last; ++i) {
    ticks.push_back(i * step);
  }
  return ticks;
}

std::string LineChart::to_svg() const {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  double min_x = kInfinity, max_x = -kInfinity, min_y = kInfinity, max_y = -kInfinity;
  for_each_point(lines, [&](double px, double py) {
    min_x = std::min(min_x, px);
    max_x = std::max(max_x, px);
    min_y = std::min(min_y, py);
    max_y = std::max(max_y, py);
  });
  if (min_x > max_x) {  // nothing to draw but the frame
    min_x = min_y = 0;
    max_x = max_y = 1;
  }
  const Axis x{round_ticks(min_x, max_x, 9), kLeft, kWidth - kRight};
  const Axis y{round_ticks(std::min(min_y, 0.0), max_y, 6), kHeight - kBottom, kTop};

  std::string svg =
      "<?xml version='1.0' encoding='UTF-8'?>\n"
      "<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 800 480' width='800' "
      "height='480' font-family='Helvetica, Arial, sans-serif' font-size='14' "
      "fill='#333333'>\n"
      "  <rect width='800' height='480' fill='#ffffff'/>\n";
  const double middle_x = (x.from + x.to) / 2;
  const double middle_y = (y.from + y.to) / 2;
  svg += text_at(middle_x, 32, "text-anchor='middle' font-size='19' font-weight='bold'", title);
  svg += grid(x, y);
  for (const ChartLine& line : lines) {
    svg += polyline(line, x, y);
  }
  svg += legend(lines);
  svg += text_at(middle_x, kHeight - 16, "text-anchor='middle'", x_label);
  svg +=
      text_at(24, middle_y,
              "text-anchor='middle' transform='rotate(-90 24 " + fixed(middle_y) + ")'", y_label);
  return svg + "</svg>\n";
}

void LineChart::save_svg(const std::string& path) const {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file << to_svg();
  file.close();
  if (!file) {
    throw std::runtime_error("can't write " + path);
  }
}

}  // namespace examples
