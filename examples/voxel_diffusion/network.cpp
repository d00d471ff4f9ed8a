#include "voxel_diffusion/network.h"

#include <algorithm>
#include <cmath>

namespace voxel_diffusion {

namespace {

namespace nn = torch::nn;

constexpr int64_t kGroups = 8;

template <class M>
using Plain = M;

// Along the depth of planes there is nothing to look at.
nn::Conv3d convolution(int64_t in, int64_t out, bool planar, int64_t stride = 1) {
  return nn::Conv3d(nn::Conv3dOptions(in, out, {planar ? 1 : 3, 3, 3})
                        .stride({planar ? 1 : stride, stride, stride})
                        .padding({planar ? 0 : 1, 1, 1}));
}

nn::GroupNorm group_norm(int64_t channels) {
  return nn::GroupNorm(nn::GroupNormOptions(kGroups, channels));
}

// What is added to an input is small at first. Not zero, as is usual: nothing would be learnt in
// front of it in the first step, and nothing compared.
void make_small(const torch::Tensor& weight) {
  const torch::NoGradGuard no_grad;
  weight.mul_(0.1);
}

}  // namespace

int64_t NetworkOptions::levels() const {
  constexpr int64_t kSmallest = 4;
  int64_t result = 1;
  while (kSize / fold >> (result - 1) > kSmallest) {
    ++result;
  }
  return result;
}

int64_t NetworkOptions::places(int64_t level) const {
  const int64_t edge = kSize / fold >> level;
  return planar ? edge * edge : edge * edge * edge;
}

torch::Tensor embed_times(const torch::Tensor& times, int64_t width) {
  TORCH_CHECK(width % 2 == 0, "a time embedding of ", width, " values; they must be even");
  const torch::Tensor rates =
      torch::exp(torch::arange(width / 2, torch::kFloat) *
                 (-std::log(10000.0) / static_cast<double>(std::max<int64_t>(width / 2 - 1, 1))));
  const torch::Tensor angles = times.to(torch::kFloat).unsqueeze(1) * rates.to(times.device());
  return torch::cat({angles.sin(), angles.cos()}, 1);
}

torch::Tensor fold(const torch::Tensor& x, const std::array<int64_t, 3>& edges) {
  const auto [d, h, w] = edges;
  const torch::Tensor blocks =
      x.view({x.size(0), x.size(1), x.size(2) / d, d, x.size(3) / h, h, x.size(4) / w, w});
  return blocks.permute({0, 1, 3, 5, 7, 2, 4, 6})
      .reshape({x.size(0), x.size(1) * d * h * w, x.size(2) / d, x.size(3) / h, x.size(4) / w});
}

torch::Tensor unfold(const torch::Tensor& x, const std::array<int64_t, 3>& edges) {
  const auto [d, h, w] = edges;
  const int64_t channels = x.size(1) / (d * h * w);
  const torch::Tensor blocks =
      x.reshape({x.size(0), channels, d, h, w, x.size(2), x.size(3), x.size(4)});
  return blocks.permute({0, 1, 5, 2, 6, 3, 7, 4})
      .reshape({x.size(0), channels, x.size(2) * d, x.size(3) * h, x.size(4) * w});
}

ResidualBlockImpl::ResidualBlockImpl(int64_t in, int64_t out, int64_t embedding,
                                     const NetworkOptions& options)
    : norm1(group_norm(in)),
      conv1(convolution(in, out, options.planar)),
      scale_and_shift(embedding, 2 * out),
      norm2(group_norm(out)),
      dropout(options.dropout),
      conv2(convolution(out, out, options.planar)) {
  register_module("norm1", norm1);
  register_module("conv1", conv1);
  register_module("scale_and_shift", scale_and_shift);
  register_module("norm2", norm2);
  register_module("dropout", dropout);
  register_module("conv2", conv2);
  if (in != out) {
    skip = register_module("skip", nn::Conv3d(nn::Conv3dOptions(in, out, 1)));
  }
  make_small(conv2->weight);
}

torch::Tensor ResidualBlockImpl::forward(const torch::Tensor& x, const torch::Tensor& embedding) {
  torch::Tensor h = norm2(conv1(torch::silu(norm1(x))));
  const auto of_time = scale_and_shift(embedding).view({x.size(0), -1, 1, 1, 1}).chunk(2, 1);
  h = h * (1 + of_time[0]) + of_time[1];
  h = conv2(dropout(torch::silu(h)));
  return h + (skip.is_empty() ? x : skip(x));
}

AttentionBlockImpl::AttentionBlockImpl(int64_t channels)
    : norm(group_norm(channels)), query_key_value(channels, 3 * channels), out(channels, channels) {
  register_module("norm", norm);
  register_module("query_key_value", query_key_value);
  register_module("out", out);
  make_small(out->weight);
}

torch::Tensor AttentionBlockImpl::forward(const torch::Tensor& x) {
  const torch::Tensor places = norm(x).flatten(2).transpose(1, 2);
  const auto parts = query_key_value(places).chunk(3, -1);
  const torch::Tensor query = parts[0] / std::sqrt(static_cast<double>(x.size(1)));
  const torch::Tensor attention = torch::bmm(query, parts[1].transpose(1, 2)).softmax(-1);
  const torch::Tensor seen = out(torch::bmm(attention, parts[2]));
  return x + seen.transpose(1, 2).reshape(x.sizes());
}

template <template <class> class Residual, template <class> class Attention>
BlockDenoiser<Residual, Attention>::BlockDenoiser(const NetworkOptions& options)
    : edges{options.planar ? 1 : options.fold, options.fold, options.fold},
      time_embedding(nn::Linear(options.channels, 4 * options.channels), nn::SiLU(),
                     nn::Linear(4 * options.channels, 4 * options.channels), nn::SiLU()),
      stem(convolution(options.in_channels * edges[0] * edges[1] * edges[2], options.channels,
                       options.planar)),
      middle(options.channels << (options.levels() - 1), options.channels << (options.levels() - 1),
             4 * options.channels, options),
      head_norm(group_norm(options.channels)),
      head(convolution(options.channels, options.in_channels * edges[0] * edges[1] * edges[2],
                       options.planar)) {
  register_module("time_embedding", time_embedding);
  register_module("stem", stem);
  register_module("middle", middle);
  const auto stage = [&](const std::string& name, int64_t level, int64_t in) {
    const int64_t width = options.channels << level;
    Stage result{Residual<ResidualBlock>(in, width, 4 * options.channels, options), std::nullopt};
    register_module(name + "_residual", result.residual);
    if (options.is_attended(level)) {
      result.attention.emplace(width);
      register_module(name + "_attention", *result.attention);
    }
    return result;
  };
  for (int64_t level = 0; level < options.levels(); ++level) {
    const int64_t width = options.channels << level;
    const std::string number = std::to_string(level + 1);
    down.push_back(stage("down" + number, level, level == 0 ? width : width / 2));
    up.push_back(stage("up" + number, level, 2 * width));
    if (level + 1 < options.levels()) {
      halve.push_back(convolution(width, width, options.planar, 2));
      after_doubling.push_back(convolution(2 * width, width, options.planar));
      register_module("halve" + number, halve.back());
      register_module("after_doubling" + number, after_doubling.back());
    }
  }
  register_module("head_norm", head_norm);
  register_module("head", head);
  make_small(head->weight);
}

template <template <class> class Residual, template <class> class Attention>
torch::Tensor BlockDenoiser<Residual, Attention>::forward(torch::Tensor noisy,
                                                          const torch::Tensor& times) {
  const int64_t width = stem->options.out_channels();
  const torch::Tensor embedding =
      time_embedding->forward(embed_times(times, width).to(noisy.device()));
  torch::Tensor x = stem(fold(noisy, edges));
  std::vector<torch::Tensor> skips;
  for (size_t level = 0; level < down.size(); ++level) {
    x = down[level](x, embedding);
    skips.push_back(x);
    if (level < halve.size()) {
      x = halve[level](x);
    }
  }
  x = middle(x, embedding);
  for (size_t level = up.size(); level-- > 0;) {
    if (level < after_doubling.size()) {
      x = after_doubling[level](torch::upsample_nearest3d(x, skips[level].sizes().slice(2)));
    }
    x = up[level](torch::cat({x, skips[level]}, 1), embedding);
    skips.pop_back();
  }
  return unfold(head(torch::silu(head_norm(x))), edges).to(torch::kFloat);
}

std::shared_ptr<Denoiser> make_denoiser(const NetworkOptions& options, Regions regions) {
  switch (regions) {
    case Regions::kNone:
      return std::make_shared<BlockDenoiser<Plain, Plain>>(options);
    case Regions::kAttention:
      return std::make_shared<BlockDenoiser<Plain, tidemark::Checkpointed>>(options);
    case Regions::kAll:
      break;
  }
  return std::make_shared<BlockDenoiser<tidemark::Checkpointed, tidemark::Checkpointed>>(options);
}

}  // namespace voxel_diffusion
