#pragma once

// A labelled volume, split into slices to learn from and slices that training never sees.

#include <torch/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace examples {

/// Slices `begin` to `end` - 1.
struct Slices {
  int64_t begin = 0;
  int64_t end = 0;

  [[nodiscard]] int64_t count() const { return end - begin; }
};

/// The voxels of this class count neither for training nor for the score.
inline constexpr int64_t kNoClass = 255;

struct Dataset {
  torch::Tensor scan;    ///< float [slices, rows, columns], mean 0 and deviation 1 in the object
  torch::Tensor labels;  ///< int64 of the same shape: 0 (background) to classes - 1, or kNoClass
  std::vector<std::string> class_names;
  Slices held_out;               ///< in the middle
  std::vector<Slices> training;  ///< what is left below and above, without a margin
  int64_t first_slice = 0;       ///< number in the file of slice 0

  [[nodiscard]] int64_t classes() const { return static_cast<int64_t>(class_names.size()); }

  /// Takes a volume of any number type apart: crops it to what isn't background, normalises it,
  /// holds out an eighth of its slices. Throws std::runtime_error if they don't fit together.
  static Dataset from_volumes(const torch::Tensor& scan, const torch::Tensor& labels);

  /// From files, or the head scan that comes with the examples if both names are empty.
  static Dataset load(const std::string& volume, const std::string& labels);

  /// The same from "VOLUME,LABELS". Throws UsageError if that isn't two names.
  static Dataset load(const std::string& both);
};

struct Batch {
  torch::Tensor scan;    ///< [patches, 1, edge, edge, edge]
  torch::Tensor labels;  ///< [patches, edge, edge, edge]
};

/// Draws cubes at random from the training slices with LibTorch's default CPU generator: one half
/// around a voxel that isn't background, the other half anywhere.
class PatchSampler {
 public:
  /// Throws examples::UsageError if the patch is larger than what there is to learn from.
  PatchSampler(const Dataset& data, int64_t patch, int64_t batch);

  [[nodiscard]] Batch next() const;

 private:
  [[nodiscard]] torch::Tensor corner() const;

  torch::Tensor scan_;
  torch::Tensor labels_;
  int64_t patch_;
  int64_t batch_;
  torch::Tensor lowest_;   // [parts, 3]: the range of corners in each part of the training slices
  torch::Tensor highest_;  // [parts, 3], inclusive
  torch::Tensor corners_;  // [parts]: how many there are up to the end of each
  torch::Tensor object_;   // [voxels, 4]: part and position of what isn't background
};

}  // namespace examples
