#include "pointnet2/neighbours.h"

#include <ATen/Parallel.h>
#include <torch/torch.h>

#include <algorithm>
#include <array>
#include <limits>
#include <vector>

namespace pointnet2 {

namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

float squared_distance(const float* a, const float* b) {
  const float x = a[0] - b[0];
  const float y = a[1] - b[1];
  const float z = a[2] - b[2];
  return x * x + y * y + z * z;
}

// Coordinates where loops can reach them.
torch::Tensor to_host(const torch::Tensor& xyz) {
  TORCH_CHECK(xyz.dim() == 3 && xyz.size(2) == 3 && xyz.scalar_type() == torch::kFloat,
              "clouds are float [batch, points, 3], these are ", xyz.scalar_type(), " ",
              xyz.sizes());
  return xyz.detach().cpu().contiguous();
}

template <class Function>
void for_each_cloud(int64_t clouds, const Function& function) {
  at::parallel_for(0, clouds, 1, [&](int64_t begin, int64_t end) {
    for (int64_t cloud = begin; cloud < end; ++cloud) {
      function(cloud);
    }
  });
}

void sample_cloud(const float* xyz, int64_t points, int64_t count, int64_t* chosen) {
  std::vector<float> distance(static_cast<size_t>(points), kInfinity);
  int64_t next = 0;
  for (int64_t i = 0; i < count; ++i) {
    chosen[i] = next;
    const float* last = xyz + 3 * next;
    float farthest = -1;
    for (int64_t p = 0; p < points; ++p) {
      float& nearest = distance[static_cast<size_t>(p)];
      nearest = std::min(nearest, squared_distance(xyz + 3 * p, last));
      if (nearest > farthest) {
        farthest = nearest;
        next = p;
      }
    }
  }
}

void query_cloud(const float* xyz, int64_t points, const int64_t* centres, int64_t centre_count,
                 float squared_radius, int64_t count, int64_t* found) {
  for (int64_t i = 0; i < centre_count; ++i, found += count) {
    const float* centre = xyz + 3 * centres[i];
    int64_t filled = 0;
    for (int64_t p = 0; p < points && filled < count; ++p) {
      if (squared_distance(xyz + 3 * p, centre) < squared_radius) {
        found[filled++] = p;
      }
    }
    std::fill(found + filled, found + count, filled > 0 ? found[0] : centres[i]);
  }
}

void find_three(const float* point, const float* coarse, int64_t points, int64_t* indices,
                float* weights) {
  std::array<float, 3> distance{kInfinity, kInfinity, kInfinity};
  std::array<int64_t, 3> index{};
  for (int64_t p = 0; p < points; ++p) {
    const float here = squared_distance(coarse + 3 * p, point);
    size_t place = 3;
    while (place > 0 && here < distance[place - 1]) {
      --place;
    }
    for (size_t i = 2; i > place && i < 3; --i) {
      distance[i] = distance[i - 1];
      index[i] = index[i - 1];
    }
    if (place < 3) {
      distance[place] = here;
      index[place] = p;
    }
  }
  float sum = 0;
  for (size_t i = 0; i < 3; ++i) {
    if (distance[i] == kInfinity) {
      index[i] = index[i - 1];  // with a weight of 0
    }
    weights[i] = 1 / (distance[i] + 1e-8F);
    sum += weights[i];
    indices[i] = index[i];
  }
  for (size_t i = 0; i < 3; ++i) {
    weights[i] /= sum;
  }
}

}  // namespace

torch::Tensor farthest_points(const torch::Tensor& xyz, int64_t count) {
  const torch::Tensor host = to_host(xyz);
  const int64_t points = host.size(1);
  TORCH_CHECK(count >= 1 && count <= points, count, " points can't be chosen out of ", points);
  torch::Tensor chosen = torch::empty({host.size(0), count}, torch::kInt64);
  const float* coordinates = host.const_data_ptr<float>();
  auto* indices = chosen.data_ptr<int64_t>();
  for_each_cloud(host.size(0), [=](int64_t cloud) {
    sample_cloud(coordinates + 3 * points * cloud, points, count, indices + count * cloud);
  });
  return chosen.to(xyz.device());
}

torch::Tensor ball_query(const torch::Tensor& xyz, const torch::Tensor& centres, double radius,
                         int64_t count) {
  const torch::Tensor host = to_host(xyz);
  const torch::Tensor host_centres = centres.cpu().contiguous();
  const int64_t points = host.size(1);
  const int64_t centre_count = host_centres.size(1);
  torch::Tensor neighbours = torch::empty({host.size(0), centre_count, count}, torch::kInt64);
  const auto squared_radius = static_cast<float>(radius * radius);
  const float* coordinates = host.const_data_ptr<float>();
  const auto* centre = host_centres.const_data_ptr<int64_t>();
  auto* indices = neighbours.data_ptr<int64_t>();
  for_each_cloud(host.size(0), [=](int64_t cloud) {
    query_cloud(coordinates + 3 * points * cloud, points, centre + centre_count * cloud,
                centre_count, squared_radius, count, indices + centre_count * count * cloud);
  });
  return neighbours.to(xyz.device());
}

Nearest three_nearest(const torch::Tensor& xyz, const torch::Tensor& coarse) {
  const torch::Tensor host = to_host(xyz);
  const torch::Tensor host_coarse = to_host(coarse);
  const int64_t points = host.size(1);
  const int64_t coarse_points = host_coarse.size(1);
  TORCH_CHECK(coarse_points >= 1, "there is no point to be the nearest");
  torch::Tensor indices = torch::empty({host.size(0), points, 3}, torch::kInt64);
  torch::Tensor weights = torch::empty({host.size(0), points, 3});
  const float* from = host.const_data_ptr<float>();
  const float* to = host_coarse.const_data_ptr<float>();
  auto* index = indices.data_ptr<int64_t>();
  auto* weight = weights.data_ptr<float>();
  for_each_cloud(host.size(0), [=](int64_t cloud) {
    for (int64_t p = points * cloud; p < points * (cloud + 1); ++p) {
      find_three(from + 3 * p, to + 3 * coarse_points * cloud, coarse_points, index + 3 * p,
                 weight + 3 * p);
    }
  });
  return {indices.to(xyz.device()), weights.to(xyz.device())};
}

torch::Tensor take_rows(const torch::Tensor& rows, const torch::Tensor& indices) {
  const torch::Tensor first =
      torch::arange(rows.size(0), indices.options()).mul_(rows.size(1)).unsqueeze(1);
  const torch::Tensor taken =
      rows.flatten(0, 1).index_select(0, (indices.flatten(1) + first).flatten());
  std::vector<int64_t> sizes = indices.sizes().vec();
  sizes.push_back(rows.size(2));
  return taken.view(sizes);
}

}  // namespace pointnet2
