#pragma once

// The networks of the comparison, with tidemark. networks.py has the same ones under the same
// names.

#include <tidemark/tidemark.h>
#include <torch/torch.h>

#include <cmath>
#include <cstdint>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

namespace compared {

namespace F = torch::nn::functional;
using torch::Tensor;

/// A network that runs plain or checkpointed.
struct Network : torch::nn::Module {
  virtual Tensor forward(const Tensor& x, bool checkpointed) = 0;
};

inline torch::nn::Conv3d conv(int64_t inputs, int64_t outputs, int64_t kernel = 3) {
  return torch::nn::Conv3d(torch::nn::Conv3dOptions(inputs, outputs, kernel).padding(kernel / 2));
}

inline torch::nn::GroupNorm norm(int64_t channels) { return torch::nn::GroupNorm(4, channels); }

struct ResBlockImpl : torch::nn::Module {
  explicit ResBlockImpl(int64_t channels)
      : conv1(register_module("conv1", conv(channels, channels))),
        norm1(register_module("norm1", norm(channels))),
        conv2(register_module("conv2", conv(channels, channels))),
        norm2(register_module("norm2", norm(channels))) {}

  Tensor forward(const Tensor& x) {
    auto y = torch::relu(norm1(conv1(x)));
    return torch::relu(x + norm2(conv2(y)));
  }

  torch::nn::Conv3d conv1;
  torch::nn::GroupNorm norm1;
  torch::nn::Conv3d conv2;
  torch::nn::GroupNorm norm2;
};
TORCH_MODULE(ResBlock);

struct VoxelNet : Network {
  static constexpr int64_t kSegments = 3;

  VoxelNet() {
    register_module("stem", stem);
    for (int i = 0; i < 9; ++i) {
      const ResBlock block(16);
      blocks->push_back(block);
      plain_blocks->push_back(block);
    }
    register_module("blocks", blocks);
    register_module("head", head);
  }

  Tensor forward(const Tensor& x, bool checkpointed) override {
    auto y = stem(x);
    y = checkpointed ? blocks->forward(y) : plain_blocks->forward(y);
    return head(y);
  }

  torch::nn::Conv3d stem = conv(1, 16);
  tidemark::CheckpointedSequential blocks{
      tidemark::CheckpointedSequentialOptions().segments(kSegments)};
  torch::nn::Sequential plain_blocks;  // the same blocks
  torch::nn::Conv3d head = conv(16, 4, 1);
};

struct StageImpl : torch::nn::Module {
  StageImpl(int64_t inputs, int64_t outputs)
      : conv1(register_module("conv1", conv(inputs, outputs))),
        norm1(register_module("norm1", norm(outputs))),
        conv2(register_module("conv2", conv(outputs, outputs))),
        norm2(register_module("norm2", norm(outputs))) {}

  Tensor forward(const Tensor& x) {
    auto y = torch::relu(norm1(conv1(x)));
    return torch::relu(norm2(conv2(y)));
  }

  torch::nn::Conv3d conv1;
  torch::nn::GroupNorm norm1;
  torch::nn::Conv3d conv2;
  torch::nn::GroupNorm norm2;
};
TORCH_MODULE(Stage);

struct UNet : Network {
  UNet() {
    register_module("down1", down1);
    register_module("down2", down2);
    register_module("bottom", bottom);
    register_module("up2", up2);
    register_module("up1", up1);
    register_module("head", head);
  }

  Tensor forward(const Tensor& x, bool checkpointed) override {
    const auto run = [&](Stage& stage, const Tensor& input) {
      return checkpointed ? tidemark::checkpoint(stage, input) : stage(input);
    };
    const auto twice = [](const Tensor& small) {
      return F::interpolate(small,
                            F::InterpolateFuncOptions().scale_factor(std::vector<double>(3, 2.0)));
    };
    const auto skip1 = run(down1, x);
    const auto skip2 = run(down2, torch::max_pool3d(skip1, 2));
    auto y = run(bottom, torch::max_pool3d(skip2, 2));
    y = run(up2, torch::cat({twice(y), skip2}, 1));
    y = run(up1, torch::cat({twice(y), skip1}, 1));
    return head(y);
  }

  Stage down1{1, 8}, down2{8, 16}, bottom{16, 32}, up2{48, 16}, up1{24, 8};
  torch::nn::Conv3d head = conv(8, 4, 1);
};

struct NerfMlp : Network {
  static constexpr int64_t kChunk = 8192;

  NerfMlp() {
    for (int64_t i = 0; i < 8; ++i) {
      mlp->push_back(torch::nn::Linear(i == 0 ? 63 : 128, 128));
      mlp->push_back(torch::nn::ReLU());
    }
    mlp->push_back(torch::nn::Linear(128, 4));
    register_module("mlp", mlp);
  }

  Tensor forward(const Tensor& x, bool checkpointed) override {
    return checkpointed ? tidemark::checkpoint_chunks(kChunk, mlp, x) : mlp->forward(x);
  }

  torch::nn::Sequential mlp;
};

struct AttentionBlockImpl : torch::nn::Module {
  AttentionBlockImpl(int64_t width, int64_t heads)
      : heads(heads),
        norm1(register_module("norm1", torch::nn::LayerNorm(std::vector<int64_t>{width}))),
        qkv(register_module("qkv", torch::nn::Linear(width, 3 * width))),
        out(register_module("out", torch::nn::Linear(width, width))),
        norm2(register_module("norm2", torch::nn::LayerNorm(std::vector<int64_t>{width}))),
        fc1(register_module("fc1", torch::nn::Linear(width, 4 * width))),
        fc2(register_module("fc2", torch::nn::Linear(4 * width, width))) {}

  // Statement by statement, so that temporaries die when they do in Python.
  Tensor forward(const Tensor& x) {
    const auto batch = x.size(0), tokens = x.size(1), width = x.size(2);
    const auto parts = linear(qkv, norm1(x))
                           .view({batch, tokens, 3, heads, width / heads})
                           .permute({2, 0, 3, 1, 4})
                           .unbind(0);
    auto weights = parts[0].matmul(parts[1].transpose(-2, -1));
    weights = weights * std::pow(static_cast<double>(width / heads), -0.5);
    weights = torch::softmax(weights, -1);
    const auto y = weights.matmul(parts[2]).transpose(1, 2).reshape({batch, tokens, width});
    const auto sum = x + linear(out, y);
    auto hidden = norm2(sum);
    hidden = linear(fc1, hidden);
    hidden = F::gelu(hidden);
    hidden = linear(fc2, hidden);
    return sum + hidden;
  }

  // Python's; torch::nn::Linear adds the bias in another way for more than two dimensions.
  static Tensor linear(const torch::nn::Linear& layer, const Tensor& x) {
    return torch::linear(x, layer->weight, layer->bias);
  }

  int64_t heads;
  torch::nn::LayerNorm norm1;
  torch::nn::Linear qkv, out;
  torch::nn::LayerNorm norm2;
  torch::nn::Linear fc1, fc2;
};
TORCH_MODULE(AttentionBlock);

struct Attention : Network {
  Attention() {
    for (int i = 0; i < 4; ++i) {
      blocks->push_back(AttentionBlock(64, 4));
    }
    register_module("blocks", blocks);
  }

  Tensor forward(const Tensor& x, bool checkpointed) override {
    auto y = x;
    for (const auto& module : *blocks) {
      const auto block = std::dynamic_pointer_cast<AttentionBlockImpl>(module);
      y = checkpointed ? tidemark::checkpoint(block, y) : block->forward(y);
    }
    return y;
  }

  torch::nn::ModuleList blocks;
};

inline std::shared_ptr<Network> make(const std::string& name) {
  if (name == "voxel net") {
    return std::make_shared<VoxelNet>();
  }
  if (name == "U-Net") {
    return std::make_shared<UNet>();
  }
  if (name == "NeRF MLP") {
    return std::make_shared<NerfMlp>();
  }
  TORCH_CHECK(name == "attention", "there is no network ", name);
  return std::make_shared<Attention>();
}

}  // namespace compared
