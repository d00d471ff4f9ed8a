#include "common/sliding_window.h"

#include <torch/torch.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <iomanip>
#include <limits>
#include <sstream>

#include "common/progress.h"

namespace examples {

namespace {

// Where tiles of `patch` voxels begin that overlap by half and cover `wanted` of `size` voxels.
std::vector<int64_t> tile_starts(Slices wanted, int64_t size, int64_t patch) {
  const int64_t first =
      wanted.count() < patch ? wanted.begin - (patch - wanted.count()) / 2 : wanted.begin;
  const int64_t last = std::max(first, wanted.end - patch);
  std::vector<int64_t> starts;
  for (int64_t start = first; start < last; start += std::max<int64_t>(patch / 2, 1)) {
    starts.push_back(start);
  }
  starts.push_back(last);
  for (int64_t& start : starts) {
    start = std::clamp<int64_t>(start, 0, size - patch);
  }
  return starts;
}

}  // namespace

torch::Tensor predict_slices(const std::function<torch::Tensor(const torch::Tensor&)>& likelihood,
                             const Dataset& data, Slices slices, const torch::Tensor& weight,
                             int64_t batch) {
  const torch::NoGradGuard no_grad;
  const int64_t patch = weight.size(0);
  const int64_t rows = data.scan.size(1);
  const int64_t columns = data.scan.size(2);
  std::vector<std::array<int64_t, 3>> tiles;
  for (const int64_t z : tile_starts(slices, data.scan.size(0), patch)) {
    for (const int64_t y : tile_starts({0, rows}, rows, patch)) {
      for (const int64_t x : tile_starts({0, columns}, columns, patch)) {
        tiles.push_back({z, y, x});
      }
    }
  }

  torch::Tensor sum = torch::zeros({data.classes(), slices.count(), rows, columns});
  const auto count = static_cast<int64_t>(tiles.size());
  Progress progress("  predict", count);
  for (int64_t begin = 0; begin < count; begin += batch) {
    const int64_t end = std::min(begin + batch, count);
    std::vector<torch::Tensor> scans;
    for (int64_t i = begin; i < end; ++i) {
      const auto [z, y, x] = tiles[static_cast<size_t>(i)];
      scans.push_back(data.scan.slice(0, z, z + patch)
                          .slice(1, y, y + patch)
                          .slice(2, x, x + patch)
                          .unsqueeze(0));
    }
    const torch::Tensor result = likelihood(torch::stack(scans)).cpu() * weight;
    for (int64_t i = begin; i < end; ++i) {
      const auto [z, y, x] = tiles[static_cast<size_t>(i)];
      const int64_t from = std::max(z, slices.begin);  // the part of the tile that is wanted
      const int64_t to = std::min(z + patch, slices.end);
      sum.slice(1, from - slices.begin, to - slices.begin)
          .slice(2, y, y + patch)
          .slice(3, x, x + patch) += result[i - begin].slice(1, from - z, to - z);
    }
    progress.update(end);
  }
  return sum.argmax(0);
}

torch::Tensor gaussian_weight(int64_t edge) {
  const double deviation = static_cast<double>(edge) / 8;
  const torch::Tensor from_middle =
      torch::arange(edge, torch::kFloat) - static_cast<double>(edge - 1) / 2;
  const torch::Tensor line = (-0.5 * (from_middle / deviation).square()).exp();
  return line.view({-1, 1, 1}) * line.view({-1, 1}) * line;
}

std::vector<double> dice_per_class(const torch::Tensor& prediction, const torch::Tensor& truth,
                                   int64_t classes) {
  const torch::Tensor counts = truth.ne(kNoClass);
  std::vector<double> scores;
  for (int64_t i = 0; i < classes; ++i) {
    const torch::Tensor guessed = prediction.eq(i).logical_and(counts);
    const torch::Tensor labelled = truth.eq(i);
    const auto both = guessed.logical_and(labelled).sum().item<double>();
    const double sizes = guessed.sum().item<double>() + labelled.sum().item<double>();
    scores.push_back(sizes > 0 ? 2 * both / sizes : std::numeric_limits<double>::quiet_NaN());
  }
  return scores;
}

std::string describe_scores(const Dataset& data, const std::vector<double>& scores) {
  std::ostringstream text;
  text << std::fixed << std::setprecision(3);
  const char* separator = "";
  for (size_t i = 0; i < scores.size(); ++i) {
    if (!std::isnan(scores[i])) {
      text << separator << data.class_names[i] << " " << scores[i];
      separator = ", ";
    }
  }
  return text.str();
}

}  // namespace examples
