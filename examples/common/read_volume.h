#pragma once

// Volumes from files.

#include <torch/types.h>

#include <string>

namespace examples {

/// The three-dimensional tensor in a file, [slices, rows, columns], of the type that it was stored
/// with:
/// - .pt: one tensor, written by torch::save in C++ or by torch.save in Python;
/// - .nii, .nii.gz: NIfTI-1, if the program was built with the nifti C library. NIfTI's third axis
///   are the slices. An intensity scale in the header is applied.
/// Throws std::runtime_error that names the file.
torch::Tensor read_volume(const std::string& path);

}  // namespace examples
