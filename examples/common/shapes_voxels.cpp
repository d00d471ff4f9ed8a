#include "common/shapes_voxels.h"

#include <ATen/CPUGeneratorImpl.h>
#include <torch/torch.h>

#include <cmath>

#include "common/voxelise.h"

namespace examples {

namespace {

// Centred triangles, stretched and scaled back to a longest side of 1.
torch::Tensor stretched(const torch::Tensor& triangles, bool mirrored, at::Generator& generator) {
  const torch::Tensor random = torch::rand({3}, generator, torch::kFloat);
  torch::Tensor factors = ((2 * random - 1) * std::log(1.25)).exp();
  factors = factors / (factors * (triangles.amax({0, 1}) - triangles.amin({0, 1}))).max();
  if (mirrored) {
    factors[0].neg_();
  }
  return triangles * factors;
}

}  // namespace

VoxelShapes voxelise_shapes(const ShapeSet& set, int64_t size, int64_t variants, uint64_t seed) {
  at::Generator generator = at::make_generator<at::CPUGeneratorImpl>(seed);
  VoxelOptions options;
  options.size = size;
  std::vector<torch::Tensor> train, held_out;
  std::vector<int64_t> train_labels, held_out_labels;
  for (const Shape& shape : set.shapes) {
    (shape.held_out ? held_out : train).push_back(voxelise(shape.triangles, options));
    (shape.held_out ? held_out_labels : train_labels).push_back(shape.label);
    for (int64_t variant = 1; variant < variants && !shape.held_out; ++variant) {
      train.push_back(voxelise(stretched(shape.triangles, variant % 2 == 1, generator), options));
      train_labels.push_back(shape.label);
    }
  }
  TORCH_CHECK(!train.empty() && !held_out.empty(), "a set without shapes to train or test with");
  return {set.class_names, torch::stack(train), torch::tensor(train_labels), torch::stack(held_out),
          torch::tensor(held_out_labels)};
}

}  // namespace examples
