#pragma once

// The network under test: a small 3D U-Net. Yours goes here.

#include <tidemark/checkpoint.h>
#include <torch/torch.h>

/// Conv3d - InstanceNorm3d - LeakyReLU, twice.
struct ConvBlockImpl : torch::nn::Module {
  ConvBlockImpl(int64_t in, int64_t out)
      : conv1(torch::nn::Conv3dOptions(in, out, 3).padding(1)),
        norm1(out),
        conv2(torch::nn::Conv3dOptions(out, out, 3).padding(1)),
        norm2(out) {
    register_module("conv1", conv1);
    register_module("norm1", norm1);
    register_module("conv2", conv2);
    register_module("norm2", norm2);
  }

  torch::Tensor forward(const torch::Tensor& x) {
    const torch::Tensor y = torch::leaky_relu(norm1(conv1(x)));
    return torch::leaky_relu(norm2(conv2(y)));
  }

  torch::nn::Conv3d conv1;
  torch::nn::InstanceNorm3d norm1;
  torch::nn::Conv3d conv2;
  torch::nn::InstanceNorm3d norm2;
};
TORCH_MODULE(ConvBlock);

/// Three levels of `channels`, twice and four times as many. [batch, 1, depth, height, width]
/// becomes [batch, 2, depth, height, width]; the sides are multiples of 4.
struct UNetImpl : torch::nn::Module {
  UNetImpl(int64_t channels, bool checkpointed)
      : checkpointed(checkpointed),
        down1(1, channels),
        down2(channels, 2 * channels),
        bottom(2 * channels, 4 * channels),
        up2(6 * channels, 2 * channels),
        up1(3 * channels, channels),
        head(torch::nn::Conv3dOptions(channels, 2, 1)) {
    register_module("down1", down1);
    register_module("down2", down2);
    register_module("bottom", bottom);
    register_module("up2", up2);
    register_module("up1", up1);
    register_module("head", head);
  }

  torch::Tensor forward(const torch::Tensor& x) {
    const torch::Tensor fine = stage(down1, x);
    const torch::Tensor middle = stage(Down{down2}, fine);
    const torch::Tensor coarse = stage(Down{bottom}, middle);
    const torch::Tensor merged = stage(Up{up2}, coarse, middle);
    return head(stage(Up{up1}, merged, fine));
  }

  bool checkpointed;
  ConvBlock down1, down2, bottom, up2, up1;
  torch::nn::Conv3d head;

 private:
  struct Down {
    ConvBlock block;
    torch::Tensor operator()(const torch::Tensor& x) { return block(torch::max_pool3d(x, 2)); }
  };

  struct Up {
    ConvBlock block;
    torch::Tensor operator()(const torch::Tensor& x, const torch::Tensor& skip) {
      return block(torch::cat({torch::upsample_nearest3d(x, skip.sizes().slice(2)), skip}, 1));
    }
  };

  // The one line that checkpointing takes.
  template <class Stage, class... Inputs>
  torch::Tensor stage(Stage module, const Inputs&... inputs) {
    return checkpointed ? tidemark::checkpoint(module, inputs...) : module(inputs...);
  }
};
TORCH_MODULE(UNet);
