#include "voxel_gan/network.h"

#include <tidemark/checkpoint.h>

namespace voxel_gan {

namespace {

namespace nn = torch::nn;

// As in DCGAN, which the 3D-GAN takes over: transposed convolutions that double the edge, BatchNorm
// in between.
nn::Sequential make_generator(int64_t channels, int64_t latent) {
  const auto up = [](int64_t in, int64_t out) {
    return nn::ConvTranspose3d(
        nn::ConvTranspose3dOptions(in, out, 4).stride(2).padding(1).bias(false));
  };
  return nn::Sequential(
      nn::Unflatten(nn::UnflattenOptions(1, {latent, 1, 1, 1})),
      nn::ConvTranspose3d(nn::ConvTranspose3dOptions(latent, 4 * channels, 4).bias(false)),
      nn::BatchNorm3d(4 * channels), nn::ReLU(nn::ReLUOptions(true)),                        // 4^3
      up(4 * channels, 2 * channels),                                                        //
      nn::BatchNorm3d(2 * channels), nn::ReLU(nn::ReLUOptions(true)),                        // 8^3
      up(2 * channels, channels),                                                            //
      nn::BatchNorm3d(channels), nn::ReLU(nn::ReLUOptions(true)),                            // 16^3
      nn::ConvTranspose3d(nn::ConvTranspose3dOptions(channels, 1, 4).stride(2).padding(1)),  // 32^3
      nn::Sigmoid());
}

nn::Sequential make_discriminator(int64_t channels, bool layer_norm) {
  nn::Sequential layers;
  const auto down = [&](int64_t in, int64_t out, bool bias) {
    layers->push_back(nn::Conv3d(nn::Conv3dOptions(in, out, 4).stride(2).padding(1).bias(bias)));
  };
  const auto normalise = [&](int64_t width) {
    // over channels and voxels of each shape by itself: as one group
    if (layer_norm) {
      layers->push_back(nn::GroupNorm(nn::GroupNormOptions(1, width)));
    } else {
      layers->push_back(nn::BatchNorm3d(width));
    }
  };
  const auto activate = [&] {
    layers->push_back(nn::LeakyReLU(nn::LeakyReLUOptions().negative_slope(0.2).inplace(true)));
  };
  down(1, channels, true);  // 16^3
  activate();
  for (const int64_t width : {2 * channels, 4 * channels}) {  // 8^3, 4^3
    down(width / 2, width, false);
    normalise(width);
    activate();
  }
  layers->push_back(nn::Conv3d(nn::Conv3dOptions(4 * channels, 1, 4)));
  layers->push_back(nn::Flatten(nn::FlattenOptions().start_dim(0)));
  return layers;
}

// As DCGAN has them: N(0, 0.02).
void initialise(nn::Sequential& network) {
  const torch::NoGradGuard no_grad;
  for (const auto& item : network->named_parameters()) {
    if (item.value().dim() > 1) {
      item.value().normal_(0, 0.02);
    }
  }
}

}  // namespace

GanImpl::GanImpl(const GanOptions& options)
    : generator(make_generator(options.channels, options.latent)),
      discriminator(make_discriminator(options.channels, options.layer_norm)),
      average(make_generator(options.channels, options.latent)),
      checkpointed(options.checkpointed) {
  register_module("generator", generator);
  register_module("discriminator", discriminator);
  register_module("average", average);
  initialise(generator);
  initialise(discriminator);
  set_learning(*average, false);
  average->eval();
  update_average(0);
}

torch::Tensor GanImpl::generate(const torch::Tensor& latent) {
  const torch::Tensor voxels = checkpointed ? tidemark::checkpoint(generator, latent)  //
                                            : generator->forward(latent);
  return voxels.to(torch::kFloat);
}

torch::Tensor GanImpl::judge(const torch::Tensor& voxels) {
  const torch::Tensor scores =
      checkpointed ? tidemark::checkpoint(discriminator, voxels) : discriminator->forward(voxels);
  return scores.to(torch::kFloat);
}

torch::Tensor GanImpl::sample(const torch::Tensor& latent) {
  const torch::NoGradGuard no_grad;
  return average->forward(latent).to(torch::kFloat);
}

void GanImpl::update_average(double keep) {
  const torch::NoGradGuard no_grad;
  const auto move = [keep](const std::vector<torch::Tensor>& from,
                           const std::vector<torch::Tensor>& to) {
    for (size_t i = 0; i < from.size(); ++i) {
      if (from[i].is_floating_point()) {
        to[i].lerp_(from[i], 1 - keep);
      } else {
        to[i].copy_(from[i]);  // BatchNorm's number of batches
      }
    }
  };
  move(generator->parameters(), average->parameters());
  move(generator->buffers(), average->buffers());
}

void set_learning(torch::nn::Module& network, bool learning) {
  for (torch::Tensor& parameter : network.parameters()) {
    parameter.set_requires_grad(learning);
  }
}

}  // namespace voxel_gan
