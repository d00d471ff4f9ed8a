#pragma once

// How good predictions are, on objects that training has not seen.

#include <torch/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include "pointnet2/clouds.h"
#include "pointnet2/network.h"
#include "pointnet2/options.h"

namespace pointnet2 {

/// How often each class was taken for which: int64 [classes, classes], truth by prediction.
torch::Tensor confusion(const torch::Tensor& truth, const torch::Tensor& predicted,
                        int64_t classes);

/// The share that is right.
double accuracy(const torch::Tensor& confusion);

/// Of each class, what is right as a share of what is or was taken for it (intersection over
/// union); NaN for a class that is neither there nor predicted.
std::vector<double> class_ious(const torch::Tensor& confusion);

/// The mean of those that are numbers; 0 if none is.
double mean_of_numbers(const std::vector<double>& values);

/// Clouds with a class predicted for each, or for each point, as int64 like their labels.
struct Prediction {
  Clouds clouds;
  torch::Tensor predicted;
};

/// Predicts the held-out clouds in eval(), in full precision. Of objects, --votes clouds each vote
/// with their probabilities, and the first of these clouds are returned.
Prediction predict_held_out(PointNet2& net, const Dataset& data, const Options& options);

/// Scenes where the class of each point is the most frequent one at its height, in scenes of
/// training objects. What a network that looks at single points could reach.
Prediction predict_by_height(const Dataset& data, const Options& options);

/// Prints accuracy and IoUs. Returns the score: the accuracy for objects, the mean IoU of the
/// object classes, without the floor, for scenes.
double print_scores(const Prediction& prediction, const Dataset& data, const Options& options);

}  // namespace pointnet2
