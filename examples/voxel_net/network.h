#pragma once

// The voxel residual network.

#include <tidemark/checkpointed_sequential.h>
#include <torch/torch.h>

namespace voxel_net {

/// Conv3d - BatchNorm3d - ReLU - Conv3d - BatchNorm3d, plus the input, then ReLU. Keeps the shape.
struct ResidualBlockImpl : torch::nn::Module {
  explicit ResidualBlockImpl(int64_t channels)
      : conv1(convolution(channels)),
        norm1(channels),
        conv2(convolution(channels)),
        norm2(channels) {
    register_module("conv1", conv1);
    register_module("norm1", norm1);
    register_module("conv2", conv2);
    register_module("norm2", norm2);
  }

  torch::Tensor forward(const torch::Tensor& x) {
    torch::Tensor y = norm1(conv1(x)).relu_();
    return norm2(conv2(y)).add_(x).relu_();
  }

  torch::nn::Conv3d conv1;
  torch::nn::BatchNorm3d norm1;
  torch::nn::Conv3d conv2;
  torch::nn::BatchNorm3d norm2;

 private:
  static torch::nn::Conv3dOptions convolution(int64_t channels) {
    return torch::nn::Conv3dOptions(channels, channels, 3).padding(1).bias(false);
  }
};
TORCH_MODULE(ResidualBlock);

/// Scores of `classes` classes for each voxel: [batch, 1, depth, height, width] becomes
/// [batch, classes, depth, height, width].
struct VoxelNetImpl : torch::nn::Module {
  VoxelNetImpl(int64_t channels, int64_t n_blocks, int64_t classes,
               tidemark::CheckpointedSequentialOptions checkpointing)
      : stem(torch::nn::Conv3dOptions(1, channels, 3).padding(1)),
        blocks(checkpointing),
        head(torch::nn::Conv3dOptions(channels, classes, 1)) {
    for (int64_t i = 0; i < n_blocks; ++i) {
      blocks->push_back(ResidualBlock(channels));
    }
    register_module("stem", stem);
    register_module("blocks", blocks);
    register_module("head", head);
  }

  torch::Tensor forward(const torch::Tensor& x) { return head(blocks(stem(x))); }

  torch::nn::Conv3d stem;
  tidemark::CheckpointedSequential blocks;  // was torch::nn::Sequential
  torch::nn::Conv3d head;
};
TORCH_MODULE(VoxelNet);

}  // namespace voxel_net
