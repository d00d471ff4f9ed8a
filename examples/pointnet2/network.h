#pragma once

// PointNet++ for the class of an object, and for the class of each point of a scene.
// Qi, Yi, Su, Guibas, PointNet++: Deep Hierarchical Feature Learning on Point Sets in a Metric
// Space, 2017.

#include <tidemark/checkpointed.h>
#include <tidemark/memory/module_scope.h>
#include <tidemark/remember.h>
#include <torch/torch.h>

#include <cstdint>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "pointnet2/neighbours.h"

namespace pointnet2 {

/// Linear - BatchNorm - ReLU for each of the widths, of every row: [..., in] to [..., last width].
struct SharedMlpImpl : torch::nn::Module {
  SharedMlpImpl(int64_t in, const std::vector<int64_t>& widths);

  torch::Tensor forward(const torch::Tensor& x);

  std::vector<torch::nn::Linear> linears;
  std::vector<torch::nn::BatchNorm1d> norms;
};
TORCH_MODULE(SharedMlp);

/// What a SetAbstraction is made of.
struct Level {
  int64_t centres = 0;
  int64_t neighbours = 0;  ///< of each centre
  double radius = 0;       ///< within which they are
  int64_t in = 0;          ///< width of the features it gets
  std::vector<int64_t> widths;
};

/// A cloud becomes a smaller one, of centres that know of their neighbourhoods: coordinates [batch,
/// points, 3] and features [batch, points, in] to [batch, centres, 3] and [batch, centres, last
/// width].
struct SetAbstractionImpl : torch::nn::Module {
  explicit SetAbstractionImpl(Level level)
      : level(std::move(level)), mlp(3 + this->level.in, this->level.widths) {
    register_module("mlp", mlp);
  }

  std::pair<torch::Tensor, torch::Tensor> forward(const torch::Tensor& xyz,
                                                  const torch::Tensor& features) {
    const auto [centre_xyz, grouped] = group(xyz, features);
    return {centre_xyz, std::get<0>(mlp(grouped).max(2))};
  }

  /// The centres' coordinates, and of each neighbour of theirs its offset and features.
  [[nodiscard]] std::pair<torch::Tensor, torch::Tensor> group(const torch::Tensor& xyz,
                                                              const torch::Tensor& features) const {
    const tidemark::ModuleScope scope("ball_query");  // has no parameters to know it by
    // in no need of a gradient, slow, and past LibTorch's ops: once is enough
    const auto [centres, neighbours] = tidemark::remember([&] {
      const torch::Tensor chosen = farthest_points(xyz, level.centres);
      return std::pair(chosen, ball_query(xyz, chosen, level.radius, level.neighbours));
    });
    const torch::Tensor centre_xyz = take_rows(xyz, centres);
    const torch::Tensor offsets =
        (take_rows(xyz, neighbours) - centre_xyz.unsqueeze(2)) / level.radius;
    return {centre_xyz, torch::cat({offsets, take_rows(features, neighbours)}, -1)};
  }

  Level level;
  SharedMlp mlp;
};
TORCH_MODULE(SetAbstraction);

/// A whole cloud becomes one row of features: [batch, points, 3] and [batch, points, in] to [batch,
/// last width].
struct GlobalAbstractionImpl : torch::nn::Module {
  GlobalAbstractionImpl(int64_t in, const std::vector<int64_t>& widths) : mlp(3 + in, widths) {
    register_module("mlp", mlp);
  }

  torch::Tensor forward(const torch::Tensor& xyz, const torch::Tensor& features) {
    return std::get<0>(mlp(torch::cat({xyz, features}, -1)).max(1));
  }

  SharedMlp mlp;
};
TORCH_MODULE(GlobalAbstraction);

/// The way back: what the points of a coarse cloud know, for the points of the finer one that it
/// came from. Features [batch, points, in] and [batch, coarse points, coarse in] to [batch, points,
/// last width].
struct FeaturePropagationImpl : torch::nn::Module {
  FeaturePropagationImpl(int64_t in, int64_t coarse_in, const std::vector<int64_t>& widths)
      : mlp(in + coarse_in, widths) {
    register_module("mlp", mlp);
  }

  torch::Tensor forward(const torch::Tensor& xyz, const torch::Tensor& coarse_xyz,
                        const torch::Tensor& features, const torch::Tensor& coarse_features) {
    return mlp(torch::cat({features, interpolate(xyz, coarse_xyz, coarse_features)}, -1));
  }

  /// Features between those of the coarse points.
  [[nodiscard]] static torch::Tensor interpolate(const torch::Tensor& xyz,
                                                 const torch::Tensor& coarse_xyz,
                                                 const torch::Tensor& coarse_features) {
    const tidemark::ModuleScope scope("interpolation");
    const Nearest nearest = tidemark::remember([&] { return three_nearest(xyz, coarse_xyz); });
    return (take_rows(coarse_features, nearest.indices) * nearest.weights.unsqueeze(-1)).sum(2);
  }

  SharedMlp mlp;
};
TORCH_MODULE(FeaturePropagation);

/// Hidden layer, dropout and scores.
struct HeadImpl : torch::nn::Module {
  HeadImpl(int64_t in, int64_t hidden, int64_t classes)
      : mlp(in, std::vector<int64_t>{hidden}), dropout(0.4), scores(hidden, classes) {
    register_module("mlp", mlp);
    register_module("dropout", dropout);
    register_module("scores", scores);
  }

  torch::Tensor forward(const torch::Tensor& x) {
    return scores(dropout(mlp(x))).to(torch::kFloat);
  }

  SharedMlp mlp;
  torch::nn::Dropout dropout;
  torch::nn::Linear scores;
};
TORCH_MODULE(Head);

struct NetworkOptions {
  bool segments = false;  ///< scores for each point of a cloud, instead of for the cloud
  int64_t points = 512;   ///< of a cloud
  int64_t channels = 32;  ///< width of the first layer
  int64_t neighbours = 16;
  double radius = 0.2;  ///< of the first level's neighbourhoods
  int64_t classes = 9;
};

/// The levels of a network, finest first: each with a quarter of the centres, twice the radius and
/// twice the width of the one before.
std::vector<Level> levels_of(const NetworkOptions& options);

/// The widths of the layers that follow the levels: of the global abstraction, or of the feature
/// propagation to each level, finest first.
std::vector<std::vector<int64_t>> widths_behind(const NetworkOptions& options);

/// Coordinates, float [batch, points, 3], to scores, float [batch, classes] or [batch, points,
/// classes]. y is up.
struct PointNet2 : torch::nn::Module {
  virtual torch::Tensor forward(const torch::Tensor& xyz) = 0;
};

/// A network with each stage checkpointed, or none.
std::shared_ptr<PointNet2> make_pointnet2(const NetworkOptions& options, bool checkpointed);

/// The networks of stages that are kept as they are, or tidemark::Checkpointed: parameters, their
/// names and saved files are the same.
template <template <class> class Stage>
struct Classifier : PointNet2 {
  explicit Classifier(const NetworkOptions& options)
      : whole(levels_of(options).back().widths.back(), widths_behind(options)[0]),
        head(widths_behind(options)[0].back(), 4 * options.channels, options.classes) {
    for (const Level& level : levels_of(options)) {
      abstractions.emplace_back(level);
      register_module("abstraction" + std::to_string(abstractions.size()), abstractions.back());
    }
    register_module("whole", whole);
    register_module("head", head);
  }

  torch::Tensor forward(const torch::Tensor& cloud) override {
    torch::Tensor xyz = cloud;
    torch::Tensor features = cloud.narrow(-1, 1, 1);  // height
    for (Stage<SetAbstraction>& abstraction : abstractions) {
      std::tie(xyz, features) = abstraction(xyz, features);
    }
    return head(whole(xyz, features));
  }

  std::vector<Stage<SetAbstraction>> abstractions;  // Checkpointed<SetAbstraction>, or as it is
  Stage<GlobalAbstraction> whole;
  Head head;
};

template <template <class> class Stage>
struct Segmenter : PointNet2 {
  explicit Segmenter(const NetworkOptions& options)
      : head(widths_behind(options)[0].back(), 2 * options.channels, options.classes) {
    const std::vector<Level> levels = levels_of(options);
    const auto back = widths_behind(options);
    for (size_t i = 0; i < levels.size(); ++i) {
      const int64_t coarse = i + 1 < levels.size() ? back[i + 1].back() : levels[i].widths.back();
      abstractions.emplace_back(levels[i]);
      propagations.emplace_back(levels[i].in, coarse, back[i]);
      register_module("abstraction" + std::to_string(i + 1), abstractions.back());
      register_module("propagation" + std::to_string(i + 1), propagations.back());
    }
    register_module("head", head);
  }

  torch::Tensor forward(const torch::Tensor& cloud) override {
    std::vector<torch::Tensor> xyz{cloud};
    std::vector<torch::Tensor> features{cloud.narrow(-1, 1, 1)};  // height
    for (Stage<SetAbstraction>& abstraction : abstractions) {
      auto [centres, abstract] = abstraction(xyz.back(), features.back());
      xyz.push_back(centres);
      features.push_back(abstract);
    }
    torch::Tensor result = features.back();
    for (size_t i = propagations.size(); i-- > 0;) {
      result = propagations[i](xyz[i], xyz[i + 1], features[i], result);
    }
    return head(result);
  }

  std::vector<Stage<SetAbstraction>> abstractions;
  std::vector<Stage<FeaturePropagation>> propagations;
  Head head;
};

}  // namespace pointnet2
