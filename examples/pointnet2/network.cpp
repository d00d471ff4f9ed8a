#include "pointnet2/network.h"

namespace pointnet2 {

SharedMlpImpl::SharedMlpImpl(int64_t in, const std::vector<int64_t>& widths) {
  for (const int64_t width : widths) {
    linears.emplace_back(torch::nn::LinearOptions(in, width).bias(false));
    norms.emplace_back(width);
    const std::string number = std::to_string(linears.size());
    register_module("linear" + number, linears.back());
    register_module("norm" + number, norms.back());
    in = width;
  }
}

torch::Tensor SharedMlpImpl::forward(const torch::Tensor& x) {
  std::vector<int64_t> sizes = x.sizes().vec();
  torch::Tensor rows = x.flatten(0, -2);
  for (size_t i = 0; i < linears.size(); ++i) {
    rows = norms[i](linears[i](rows));
    torch::relu_(rows);
  }
  sizes.back() = rows.size(1);
  return rows.view(sizes);
}

std::vector<Level> levels_of(const NetworkOptions& options) {
  const int64_t count = options.segments ? 3 : 2;
  std::vector<Level> levels;
  int64_t centres = options.points / (options.segments ? 8 : 4);
  int64_t width = options.channels;
  double radius = options.radius;
  int64_t in = 1;
  for (int64_t i = 0; i < count; ++i) {
    levels.push_back(
        {centres, (i == 0 ? 1 : 2) * options.neighbours, radius, in, {width, width, 2 * width}});
    in = 2 * width;
    centres /= 4;
    width *= 2;
    radius *= 2;
  }
  return levels;
}

std::vector<std::vector<int64_t>> widths_behind(const NetworkOptions& options) {
  const int64_t c = options.channels;
  if (!options.segments) {
    return {{4 * c, 8 * c}};
  }
  return {{2 * c, 2 * c}, {4 * c, 2 * c}, {4 * c, 4 * c}};
}

namespace {

template <class M>
using Plain = M;

template <template <class> class Stage>
std::shared_ptr<PointNet2> make(const NetworkOptions& options) {
  if (options.segments) {
    return std::make_shared<Segmenter<Stage>>(options);
  }
  return std::make_shared<Classifier<Stage>>(options);
}

}  // namespace

std::shared_ptr<PointNet2> make_pointnet2(const NetworkOptions& options, bool checkpointed) {
  return checkpointed ? make<tidemark::Checkpointed>(options) : make<Plain>(options);
}

}  // namespace pointnet2
