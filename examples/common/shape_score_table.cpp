#include "common/shape_score_table.h"

#include <ATen/CPUGeneratorImpl.h>
#include <torch/torch.h>

#include <cstdio>

#include "common/shape_score.h"

namespace examples {

namespace {

ShapeScore mean_score(const torch::Tensor& shapes, const torch::Tensor& held_out) {
  const int64_t count = held_out.size(0);
  const int64_t sets = shapes.size(0) / count;
  TORCH_CHECK(sets > 0, shapes.size(0), " shapes are too few to score; ", count, " are held out");
  const torch::Tensor distances = shape_distances(shapes.slice(0, 0, sets * count), held_out);
  ShapeScore sum;
  for (int64_t i = 0; i < sets; ++i) {
    const ShapeScore score = score_distances(distances.narrow(0, i * count, count));
    sum.coverage += score.coverage / static_cast<double>(sets);
    sum.minimum_matching_distance += score.minimum_matching_distance / static_cast<double>(sets);
  }
  return sum;
}

void print_row(const char* name, const ShapeScore& score) {
  std::printf("  %-34s %8.3f   %8.2f\n", name, score.coverage, score.minimum_matching_distance);
}

}  // namespace

torch::Tensor mean_shape(const torch::Tensor& shapes) {
  const torch::Tensor share = shapes.to(torch::kFloat).mean(0);
  const auto count = static_cast<int64_t>(share.sum().item<double>() + 0.5);
  torch::Tensor result = torch::zeros_like(share);
  result.view(-1).index_fill_(0, std::get<1>(share.view(-1).topk(count)), 1);
  return result;
}

bool print_shape_scores(const torch::Tensor& generated, const torch::Tensor& train,
                        const torch::Tensor& held_out, const ShapeGoal& goal) {
  at::Generator generator = at::make_generator<at::CPUGeneratorImpl>(0);
  const int64_t count = held_out.size(0);
  std::vector<int64_t> sizes = held_out.sizes().vec();
  const auto share = train.to(torch::kFloat).mean().item<double>();
  const torch::Tensor noise = torch::rand(sizes, generator, torch::kFloat) < share;
  const torch::Tensor mean = mean_shape(train).unsqueeze(0).expand(sizes);
  // from anywhere, so that sets have all classes in them
  const torch::Tensor order = torch::randperm(train.size(0), generator, torch::kInt64);
  const torch::Tensor real = train.index_select(0, order.slice(0, 0, 10 * count));

  std::printf("  %-34s %8s   %8s\n", "", "coverage", "distance");
  const ShapeScore of_mean = mean_score(mean, held_out);
  print_row("voxels at random", mean_score(noise, held_out));
  print_row("mean of the training shapes", of_mean);
  if (real.size(0) >= count) {
    print_row("training shapes themselves", mean_score(real, held_out));
  }
  const ShapeScore score = mean_score(generated, held_out);
  print_row("generated", score);
  const double most = goal.distance_of_mean * of_mean.minimum_matching_distance;
  const bool passed = score.coverage >= goal.coverage && score.minimum_matching_distance <= most;
  std::printf("  wanted: a coverage of at least %.3f and a distance of at most %.2f%s\n",
              goal.coverage, most, passed ? "" : ": FAILED");
  return passed;
}

}  // namespace examples
