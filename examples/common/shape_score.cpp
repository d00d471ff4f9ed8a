#include "common/shape_score.h"

#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <vector>

namespace examples {

namespace {

// How far each voxel of a cube is from the nearest one that is set, squared, along one axis after
// the other: Felzenszwalb, Huttenlocher, Distance Transforms of Sampled Functions, 2012. As most
// voxels are near to some, looking from each to both sides is fast enough.
void spread_along(int64_t stride, int64_t size, std::vector<int64_t>& squares) {
  std::vector<int64_t> line(static_cast<size_t>(size));
  for (int64_t first = 0; first < size * size * size; ++first) {
    if (first / stride % size != 0) {
      continue;
    }
    for (int64_t i = 0; i < size; ++i) {
      line[static_cast<size_t>(i)] = squares[static_cast<size_t>(first + i * stride)];
    }
    for (int64_t i = 0; i < size; ++i) {
      int64_t least = line[static_cast<size_t>(i)];
      for (int64_t away = 1; away < size && away * away < least; ++away) {
        const int64_t before = i >= away ? line[static_cast<size_t>(i - away)] : least;
        const int64_t behind = i + away < size ? line[static_cast<size_t>(i + away)] : least;
        least = std::min(least, std::min(before, behind) + away * away);
      }
      squares[static_cast<size_t>(first + i * stride)] = least;
    }
  }
}

// The distances to a shape, [size^3].
torch::Tensor distance_to(const torch::Tensor& set, int64_t size) {
  const auto is_set = set.accessor<bool, 1>();
  std::vector<int64_t> squares(static_cast<size_t>(set.numel()));
  for (int64_t i = 0; i < set.numel(); ++i) {
    squares[static_cast<size_t>(i)] = is_set[i] ? 0 : 3 * size * size;
  }
  for (const int64_t stride : {int64_t{1}, size, size * size}) {
    spread_along(stride, size, squares);
  }
  return torch::tensor(squares, torch::kInt64).to(torch::kFloat).sqrt();
}

// Shapes as they are, and the distances to them, a row each.
struct Rows {
  torch::Tensor set;
  torch::Tensor distance;
  torch::Tensor counts;
};

Rows rows_of(const torch::Tensor& shapes) {
  TORCH_CHECK(shapes.dim() == 4 && shapes.size(0) > 0 && shapes.size(1) == shapes.size(2) &&
                  shapes.size(2) == shapes.size(3),
              "voxel shapes must be [shapes, size, size, size], not ", shapes.sizes());
  const torch::Tensor set = (shapes.cpu().to(torch::kFloat) > 0.5).flatten(1);
  std::vector<torch::Tensor> distances;
  for (const torch::Tensor& one : set.unbind()) {
    distances.push_back(distance_to(one, shapes.size(-1)));
  }
  const torch::Tensor rows = set.to(torch::kFloat);
  return {rows, torch::stack(distances), rows.sum(1)};
}

}  // namespace

torch::Tensor shape_distances(const torch::Tensor& a, const torch::Tensor& b) {
  const torch::NoGradGuard no_grad;
  const Rows of_a = rows_of(a);
  const Rows of_b = rows_of(b);
  TORCH_CHECK(of_a.set.size(1) == of_b.set.size(1), "shapes of ", a.sizes(), " and ", b.sizes(),
              " can't be compared");
  const double diagonal = std::sqrt(3.0) * static_cast<double>(a.size(-1));
  const torch::Tensor from_a = of_a.set.mm(of_b.distance.t()) / of_a.counts.unsqueeze(1);
  const torch::Tensor from_b = of_a.distance.mm(of_b.set.t()) / of_b.counts.unsqueeze(0);
  const torch::Tensor apart = ((from_a + from_b) / 2).nan_to_num(diagonal);
  const torch::Tensor both_empty = (of_a.counts.unsqueeze(1) + of_b.counts.unsqueeze(0)) == 0;
  return apart.masked_fill(both_empty, 0);
}

ShapeScore score_distances(const torch::Tensor& distances) {
  const torch::Tensor nearest = distances.argmin(1);
  ShapeScore score;
  score.coverage = static_cast<double>(std::get<0>(torch::_unique(nearest)).numel()) /
                   static_cast<double>(distances.size(1));
  score.minimum_matching_distance = distances.amin(0).mean().item<double>();
  return score;
}

ShapeScore score_shapes(const torch::Tensor& generated, const torch::Tensor& held_out) {
  return score_distances(shape_distances(generated, held_out));
}

}  // namespace examples
