#include "common/loss_chart.h"

#include <algorithm>

#include "common/line_chart.h"

namespace examples {

void draw_losses(const std::string& path, const std::vector<double>& losses,
                 const std::string& loss) {
  constexpr size_t kWindow = 10;
  ChartLine each{"each step", "#a9cbe3", 1.2, {}, {}};
  ChartLine mean{"mean of the last 10", "#0072b2", 2.6, {}, {}};
  double sum = 0;
  for (size_t i = 0; i < losses.size(); ++i) {
    sum += losses[i] - (i >= kWindow ? losses[i - kWindow] : 0);
    const auto step = static_cast<double>(i + 1);
    each.x.push_back(step);
    each.y.push_back(losses[i]);
    mean.x.push_back(step);
    mean.y.push_back(sum / static_cast<double>(std::min(i + 1, kWindow)));
  }
  LineChart{"Training loss", "step", loss, {each, mean}}.save_svg(path);
}

}  // namespace examples
