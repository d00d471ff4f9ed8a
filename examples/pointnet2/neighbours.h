#pragma once

// Which points lie near which: the sampling and searching of PointNet++.
//
// All of it runs on the CPU in loops over raw pointers, on several threads, and copies clouds from
// other devices. Nothing of that is an op of LibTorch, so a checkpointed region can't see that it
// runs, let alone that it repeats itself: inside one it belongs into tidemark::remember, which also
// saves its time. Coordinates are float32, also in mixed precision: 8 bits of a bfloat16 would make
// one place of many points.

#include <torch/types.h>

#include <cstdint>

namespace pointnet2 {

/// Farthest point sampling: the first point of each cloud, then always the one that is farthest
/// from all those before it. float [batch, points, 3] to indices, int64 [batch, count]. Throws
/// c10::Error if there are not that many points.
torch::Tensor farthest_points(const torch::Tensor& xyz, int64_t count);

/// The first `count` points of a cloud, in its order, that are nearer than `radius` to each of its
/// `centres`, which are indices, int64 [batch, centres]. Where there are fewer, the first is there
/// again. Returns int64 [batch, centres, count].
torch::Tensor ball_query(const torch::Tensor& xyz, const torch::Tensor& centres, double radius,
                         int64_t count);

/// Some points near each point of another cloud, and how much each counts.
struct Nearest {
  torch::Tensor indices;  ///< int64 [batch, points, 3]
  torch::Tensor weights;  ///< float [batch, points, 3], by inverse squared distance; their sum is 1
};

/// The three points of `coarse` that are nearest to each of `xyz`; of fewer, the last is repeated.
Nearest three_nearest(const torch::Tensor& xyz, const torch::Tensor& coarse);

/// The rows with given indices: [batch, points, channels] and int64 [batch, ...] to [batch, ...,
/// channels]. Differentiable.
torch::Tensor take_rows(const torch::Tensor& rows, const torch::Tensor& indices);

}  // namespace pointnet2
