#pragma once

// A 3D U-Net with deep supervision, after Cicek et al., 3D U-Net, 2016, and Isensee et al.,
// nnU-Net, 2021.

#include <tidemark/checkpointed.h>
#include <torch/torch.h>

#include <cstdint>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace unet3d {

/// Conv3d - BatchNorm3d - LeakyReLU, twice.
struct ConvBlockImpl : torch::nn::Module {
  ConvBlockImpl(int64_t in, int64_t out)
      : conv1(convolution(in, out)), norm1(out), conv2(convolution(out, out)), norm2(out) {
    register_module("conv1", conv1);
    register_module("norm1", norm1);
    register_module("conv2", conv2);
    register_module("norm2", norm2);
  }

  torch::Tensor forward(torch::Tensor x) {
    x = norm1(conv1(x));
    torch::leaky_relu_(x);
    x = norm2(conv2(x));
    return torch::leaky_relu_(x);
  }

  torch::nn::Conv3d conv1;
  torch::nn::BatchNorm3d norm1;
  torch::nn::Conv3d conv2;
  torch::nn::BatchNorm3d norm2;

 private:
  static torch::nn::Conv3dOptions convolution(int64_t in, int64_t out) {
    return torch::nn::Conv3dOptions(in, out, 3).padding(1).bias(false);
  }
};
TORCH_MODULE(ConvBlock);

/// One level on the way down: what the decoder of that level gets, and half of it for the next.
struct EncoderImpl : torch::nn::Module {
  EncoderImpl(int64_t in, int64_t out) : block(in, out) { register_module("block", block); }

  std::pair<torch::Tensor, torch::Tensor> forward(const torch::Tensor& x) {
    torch::Tensor skip = block(x);
    torch::Tensor half = torch::max_pool3d(skip, 2);
    return {skip, half};
  }

  ConvBlock block;
};
TORCH_MODULE(Encoder);

/// One level on the way up: features for the next one, and class scores of its own.
struct DecoderImpl : torch::nn::Module {
  DecoderImpl(int64_t below, int64_t out, int64_t classes)
      : up(torch::nn::ConvTranspose3dOptions(below, out, 2).stride(2)),
        block(2 * out, out),
        head(torch::nn::Conv3dOptions(out, classes, 1)) {
    register_module("up", up);
    register_module("block", block);
    register_module("head", head);
  }

  std::pair<torch::Tensor, torch::Tensor> forward(const torch::Tensor& below,
                                                  const torch::Tensor& skip) {
    torch::Tensor features = block(torch::cat({up(below), skip}, 1));
    torch::Tensor scores = head(features);
    return {features, scores};
  }

  torch::nn::ConvTranspose3d up;
  ConvBlock block;
  torch::nn::Conv3d head;
};
TORCH_MODULE(Decoder);

/// Scores of the classes for each voxel at full resolution, then at a half and so on: a scan
/// [batch, 1, depth, height, width] becomes [batch, classes, depth, height, width], [batch,
/// classes, depth / 2, ...]. The edges must be multiples of 2^(levels - 1).
struct UNet3d : torch::nn::Module {
  virtual std::vector<torch::Tensor> forward(torch::Tensor scan) = 0;
};

/// The network of stages that are kept as they are, or tidemark::Checkpointed: parameters, their
/// names and saved files are the same.
template <template <class> class Stage>
struct StagedUNet3d : UNet3d {
  StagedUNet3d(int64_t channels, int64_t levels, int64_t classes)
      : bottom(channels << (levels - 2), channels << (levels - 1)) {
    for (int64_t level = 0; level + 1 < levels; ++level) {
      const int64_t width = channels << level;
      encoders.emplace_back(level == 0 ? 1 : width / 2, width);
      decoders.emplace_back(2 * width, width, classes);
      register_module("encoder" + std::to_string(level + 1), encoders.back());
      register_module("decoder" + std::to_string(level + 1), decoders.back());
    }
    register_module("bottom", bottom);
  }

  std::vector<torch::Tensor> forward(torch::Tensor x) override {
    std::vector<torch::Tensor> skips;
    for (Stage<Encoder>& encoder : encoders) {
      auto [skip, half] = encoder(x);
      skips.push_back(skip);
      x = half;
    }
    x = bottom(x);
    std::vector<torch::Tensor> scores(decoders.size());
    for (size_t level = decoders.size(); level-- > 0;) {
      std::tie(x, scores[level]) = decoders[level](x, skips.back());
      skips.pop_back();
    }
    return scores;
  }

  std::vector<Stage<Encoder>> encoders;  // tidemark::Checkpointed<Encoder>, was Encoder
  Stage<ConvBlock> bottom;
  std::vector<Stage<Decoder>> decoders;
};

/// A network with each stage checkpointed, or none.
std::shared_ptr<UNet3d> make_unet3d(int64_t channels, int64_t levels, int64_t classes,
                                    bool checkpointed);

}  // namespace unet3d
