#pragma once

// A U-Net of residual and attention blocks that is told the time step, after Ho, Jain, Abbeel,
// Denoising Diffusion Probabilistic Models, 2020, for volumes and for planes.

#include <tidemark/checkpointed.h>
#include <torch/torch.h>

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "voxel_diffusion/shape_code.h"

namespace voxel_diffusion {

struct NetworkOptions {
  int64_t in_channels = 1;
  bool planar = false;    ///< samples have a depth of 1, and convolutions don't reach along it
  int64_t fold = 2;       ///< places along each edge that are folded into channels at first
  int64_t channels = 16;  ///< a multiple of 8; twice as many at half the resolution, and so on
  double dropout = 0.1;

  /// The number of resolutions: from that of the folded sample down to an edge of 4.
  [[nodiscard]] int64_t levels() const;

  /// Places of a sample at a level, of which 0 is the finest.
  [[nodiscard]] int64_t places(int64_t level) const;

  /// Whether blocks of a level are followed by attention: at up to 512 places.
  [[nodiscard]] bool is_attended(int64_t level) const { return places(level) <= 512; }
};

/// Vectors for time steps: half of the values are sines, half cosines of the time step, with
/// wavelengths from 2 pi to 2 pi 10000. Int64 [batch] to float [batch, width]; the width is even.
/// Vaswani et al., Attention Is All You Need, 2017.
torch::Tensor embed_times(const torch::Tensor& times, int64_t width);

/// Moves blocks of `edges` voxels into channels: [batch, channels, depth, height, width] to
/// [batch, channels * block, depth / edge, ...]. Nothing is lost; unfold() is the way back.
torch::Tensor fold(const torch::Tensor& x, const std::array<int64_t, 3>& edges);
torch::Tensor unfold(const torch::Tensor& x, const std::array<int64_t, 3>& edges);

/// GroupNorm - SiLU - Conv3d, twice, added to the input. The time step scales and shifts what the
/// second GroupNorm returns.
struct ResidualBlockImpl : torch::nn::Module {
  ResidualBlockImpl(int64_t in, int64_t out, int64_t embedding, const NetworkOptions& options);

  torch::Tensor forward(const torch::Tensor& x, const torch::Tensor& embedding);

  torch::nn::GroupNorm norm1;
  torch::nn::Conv3d conv1;
  torch::nn::Linear scale_and_shift;
  torch::nn::GroupNorm norm2;
  torch::nn::Dropout dropout;
  torch::nn::Conv3d conv2;
  torch::nn::Conv3d skip{nullptr};  ///< where the number of channels changes
};
TORCH_MODULE(ResidualBlock);

/// Each place looks at all others, with one head. The softmax of all pairs is there as a tensor: of
/// 8^3 places in 16 shapes 16 MiB, which without a checkpoint is held for backward.
/// (torch::scaled_dot_product_attention doesn't keep it. Where the score of a pair is changed or
/// dropped by one's own code, as many models do, it can't be used.)
struct AttentionBlockImpl : torch::nn::Module {
  explicit AttentionBlockImpl(int64_t channels);

  torch::Tensor forward(const torch::Tensor& x);

  torch::nn::GroupNorm norm;
  torch::nn::Linear query_key_value;
  torch::nn::Linear out;
};
TORCH_MODULE(AttentionBlock);

/// Predicts samples without noise, as log-odds of 1 against -1 (see to_clean()), from those with
/// it: float [batch, in_channels, depth, height, width] and the time step of each, int64 [batch],
/// to float of the same shape. Height and width are kSize, and so is the depth if it isn't planar.
struct Denoiser : torch::nn::Module {
  virtual torch::Tensor forward(torch::Tensor noisy, const torch::Tensor& times) = 0;
};

/// The network of blocks that are kept as they are, or tidemark::Checkpointed: parameters, their
/// names and saved files are the same.
template <template <class> class Residual, template <class> class Attention>
struct BlockDenoiser : Denoiser {
  explicit BlockDenoiser(const NetworkOptions& options);

  torch::Tensor forward(torch::Tensor noisy, const torch::Tensor& times) override;

  /// The blocks of one resolution on the way down or up.
  struct Stage {
    Residual<ResidualBlock> residual;  // Checkpointed<ResidualBlock>, was ResidualBlock
    std::optional<Attention<AttentionBlock>> attention;  // likewise

    torch::Tensor operator()(torch::Tensor x, const torch::Tensor& embedding) {
      x = residual(x, embedding);
      return attention.has_value() ? (*attention)(x) : x;
    }
  };

  std::array<int64_t, 3> edges;
  torch::nn::Sequential time_embedding;
  torch::nn::Conv3d stem;
  std::vector<Stage> down;
  std::vector<torch::nn::Conv3d> halve;
  Residual<ResidualBlock> middle;
  std::vector<torch::nn::Conv3d> after_doubling;
  std::vector<Stage> up;
  torch::nn::GroupNorm head_norm;
  torch::nn::Conv3d head;
};

/// Which blocks are regions of their own.
enum class Regions { kNone, kAttention, kAll };

std::shared_ptr<Denoiser> make_denoiser(const NetworkOptions& options, Regions regions);

}  // namespace voxel_diffusion
