#pragma once

// What the network is taught by.

#include <torch/types.h>

#include <vector>

namespace unet3d {

/// Cross-entropy plus one minus the mean of the classes' soft Dice scores, both of each patch by
/// itself and then averaged: so the losses of small batches add up to that of a big one, which a
/// Dice score over the whole batch doesn't. Voxels of examples::kNoClass don't count.
/// Dice loss: Milletari, Navab, Ahmadi, V-Net, 2016.
torch::Tensor segmentation_loss(const torch::Tensor& scores, const torch::Tensor& labels);

/// The weighted mean of the losses of all resolutions, each with half the weight of the one above
/// it. Labels are [batch, depth, height, width], scores as UNet3d returns them.
torch::Tensor deep_supervision_loss(const std::vector<torch::Tensor>& scores,
                                    const torch::Tensor& labels);

}  // namespace unet3d
