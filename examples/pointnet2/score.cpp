#include "pointnet2/score.h"

#include <ATen/CPUGeneratorImpl.h>
#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>

namespace pointnet2 {

namespace {

// Probabilities of clouds, in batches.
torch::Tensor probabilities(PointNet2& net, const torch::Tensor& xyz, const Options& options) {
  std::vector<torch::Tensor> parts;
  for (const torch::Tensor& part : xyz.split(options.batch)) {
    parts.push_back(net.forward(part.to(options.device)).softmax(-1).cpu());
  }
  return torch::cat(parts);
}

}  // namespace

torch::Tensor confusion(const torch::Tensor& truth, const torch::Tensor& predicted,
                        int64_t classes) {
  return torch::bincount(truth.flatten() * classes + predicted.flatten(), {}, classes * classes)
      .view({classes, classes});
}

double accuracy(const torch::Tensor& confusion) {
  return confusion.diagonal().sum().item<double>() / confusion.sum().item<double>();
}

std::vector<double> class_ious(const torch::Tensor& confusion) {
  const torch::Tensor right = confusion.diagonal();
  const torch::Tensor either = confusion.sum(0) + confusion.sum(1) - right;
  std::vector<double> ious;
  for (int64_t i = 0; i < confusion.size(0); ++i) {
    const auto count = either[i].item<double>();
    ious.push_back(count > 0 ? right[i].item<double>() / count
                             : std::numeric_limits<double>::quiet_NaN());
  }
  return ious;
}

double mean_of_numbers(const std::vector<double>& values) {
  double sum = 0;
  int64_t count = 0;
  for (const double value : values) {
    if (!std::isnan(value)) {
      sum += value;
      ++count;
    }
  }
  return count > 0 ? sum / static_cast<double>(count) : 0;
}

Prediction predict_held_out(PointNet2& net, const Dataset& data, const Options& options) {
  const torch::NoGradGuard no_grad;
  net.eval();
  Prediction result{draw_held_out_clouds(data, options, 0), {}};
  torch::Tensor votes = probabilities(net, result.clouds.xyz, options);
  for (int64_t vote = 1; vote < options.votes && !options.segments(); ++vote) {
    votes += probabilities(net, draw_held_out_clouds(data, options, vote).xyz, options);
  }
  result.predicted = votes.argmax(-1);
  net.train();
  return result;
}

Prediction predict_by_height(const Dataset& data, const Options& options) {
  constexpr int64_t kBins = 64;
  constexpr double kHighest = 1.3;
  const auto bins_of = [](const torch::Tensor& xyz) {
    return (xyz.select(-1, 1) * (kBins / kHighest)).to(torch::kInt64).clamp(0, kBins - 1).flatten();
  };
  const int64_t classes = data.object_classes() + 1;
  const torch::Tensor chosen =
      torch::arange(data.train.count() / kObjectsOfScene * kObjectsOfScene);
  const Random random = at::make_generator<at::CPUGeneratorImpl>(0);
  const Clouds learnt =
      draw_scenes(data.train, chosen, options.points, data.object_classes(), {}, random);
  const torch::Tensor most_frequent =
      torch::bincount(bins_of(learnt.xyz) * classes + learnt.labels.flatten(), {}, kBins * classes)
          .view({kBins, classes})
          .argmax(1);
  const Clouds clouds = draw_held_out_clouds(data, options, 0);
  return {clouds, most_frequent.index_select(0, bins_of(clouds.xyz)).view_as(clouds.labels)};
}

double print_scores(const Prediction& prediction, const Dataset& data, const Options& options) {
  const int64_t objects = data.object_classes();
  const int64_t classes = objects + (options.segments() ? 1 : 0);
  const torch::Tensor counts = confusion(prediction.clouds.labels, prediction.predicted, classes);
  if (!options.segments()) {
    for (int64_t i = 0; i < objects; ++i) {
      std::printf("  %-10s %2lld of %2lld", data.class_names[static_cast<size_t>(i)].c_str(),
                  static_cast<long long>(counts[i][i].item<int64_t>()),
                  static_cast<long long>(counts[i].sum().item<int64_t>()));
      std::printf("%s", i % 4 == 3 || i + 1 == objects ? "\n" : "   ");
    }
    return accuracy(counts);
  }
  std::vector<double> ious = class_ious(counts);
  std::printf("  IoU");
  for (int64_t i = 0; i < classes; ++i) {
    std::printf(" %s %.2f",
                i < objects ? data.class_names[static_cast<size_t>(i)].c_str() : "floor",
                ious[static_cast<size_t>(i)]);
  }
  ious.pop_back();
  // rows of the objects: a point of theirs that is taken for the floor is wrong
  const torch::Tensor of_objects = counts.slice(0, 0, objects);
  std::printf("\n  %.3f of the objects' points right, mean IoU of the object classes %.3f\n",
              of_objects.diagonal().sum().item<double>() / of_objects.sum().item<double>(),
              mean_of_numbers(ious));
  return mean_of_numbers(ious);
}

}  // namespace pointnet2
