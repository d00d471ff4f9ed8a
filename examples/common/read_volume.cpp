#include "common/read_volume.h"

#include <torch/torch.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <sstream>
#include <stdexcept>
#include <vector>

#ifdef TIDEMARK_EXAMPLES_NIFTI
#include <nifti1_io.h>
#endif

namespace examples {

namespace {

bool ends_with(const std::string& text, const std::string& end) {
  return text.size() >= end.size() && text.compare(text.size() - end.size(), end.size(), end) == 0;
}

[[noreturn]] void fail(const std::string& path, const std::string& why) {
  throw std::runtime_error(path + ": " + why);
}

torch::Tensor read_pt(const std::string& path) {
  torch::Tensor tensor;
  try {  // what C++ writes
    torch::load(tensor, path);
    return tensor;
  } catch (const std::exception&) {
  }
  try {  // what Python writes
    std::ifstream file(path, std::ios::binary);
    const std::vector<char> bytes{std::istreambuf_iterator<char>(file), {}};
    const torch::IValue value = torch::pickle_load(bytes);
    if (value.isTensor()) {
      return value.toTensor();
    }
  } catch (const std::exception&) {
  }
  fail(path, "isn't one tensor, as torch::save in C++ and torch.save in Python write it");
}

#ifdef TIDEMARK_EXAMPLES_NIFTI

torch::ScalarType scalar_type(const std::string& path, int datatype) {
  switch (datatype) {
    case NIFTI_TYPE_UINT8:
      return torch::kUInt8;
    case NIFTI_TYPE_INT8:
      return torch::kInt8;
    case NIFTI_TYPE_INT16:
      return torch::kInt16;
    case NIFTI_TYPE_UINT16:
      return torch::kUInt16;
    case NIFTI_TYPE_INT32:
      return torch::kInt32;
    case NIFTI_TYPE_UINT32:
      return torch::kUInt32;
    case NIFTI_TYPE_INT64:
      return torch::kInt64;
    case NIFTI_TYPE_FLOAT32:
      return torch::kFloat32;
    case NIFTI_TYPE_FLOAT64:
      return torch::kFloat64;
    default:
      fail(path, std::string("voxels of type ") + nifti_datatype_string(datatype) +
                     " aren't numbers that this program reads");
  }
}

// How many bytes the file has, unpacked.
int64_t unpacked_bytes(const std::string& path) {
  znzFile file = znzopen(path.c_str(), "rb", nifti_is_gzfile(path.c_str()));
  int64_t bytes = 0;
  if (!znz_isnull(file)) {
    std::vector<char> buffer(1 << 16);
    size_t got = buffer.size();
    while (got == buffer.size()) {
      got = znzread(buffer.data(), 1, buffer.size(), file);
      bytes += got <= buffer.size() ? static_cast<int64_t>(got) : 0;  // errors are -1
    }
    Xznzclose(&file);
  }
  return bytes;
}

torch::Tensor read_nifti(const std::string& path) {
  nifti_set_debug_level(0);  // it would print
  const std::unique_ptr<nifti_image, void (*)(nifti_image*)> image(
      nifti_image_read(path.c_str(), 1), nifti_image_free);
  if (image == nullptr || image->data == nullptr) {
    fail(path, "is no NIfTI file");
  }
  // the library fills up what is missing with zeros
  const int64_t bytes = image->iname_offset + static_cast<int64_t>(nifti_get_volsize(image.get()));
  if (unpacked_bytes(path) < bytes) {
    fail(path, "ends before its last voxel");
  }
  const int64_t voxels = static_cast<int64_t>(image->nx) * image->ny * image->nz;
  if (image->ndim < 3 || static_cast<int64_t>(image->nvox) != voxels) {
    fail(path, "has " + std::to_string(image->ndim) + " dimensions; give a volume of 3");
  }
  torch::Tensor volume = torch::from_blob(image->data, {image->nz, image->ny, image->nx},
                                          scalar_type(path, image->datatype))
                             .clone();
  const bool scaled = image->scl_slope != 0 && (image->scl_slope != 1 || image->scl_inter != 0);
  return scaled ? volume.to(torch::kFloat64) * image->scl_slope + image->scl_inter : volume;
}

#else

torch::Tensor read_nifti(const std::string& path) {
  fail(path,
       "this program was built without the nifti C library. Install it (libnifti-dev on Debian), "
       "configure and build again, or convert the file to .pt");
}

#endif

}  // namespace

torch::Tensor read_volume(const std::string& path) {
  if (!std::filesystem::is_regular_file(path)) {
    fail(path, "no such file");
  }
  torch::Tensor volume;
  if (ends_with(path, ".pt")) {
    volume = read_pt(path);
  } else if (ends_with(path, ".nii") || ends_with(path, ".nii.gz")) {
    volume = read_nifti(path);
  } else {
    fail(path, "unknown kind of file; .pt, .nii and .nii.gz are read");
  }
  if (!volume.defined() || volume.dim() != 3) {
    std::ostringstream sizes;
    sizes << (volume.defined() ? volume.sizes() : torch::IntArrayRef());
    fail(path, "holds a tensor of sizes " + sizes.str() +
                   "; a volume has 3 dimensions: slices, rows, columns");
  }
  if (volume.is_complex() || volume.layout() != torch::kStrided || volume.is_quantized()) {
    fail(path, "holds a tensor that is complex, sparse or quantized; give plain numbers");
  }
  return volume.cpu();
}

}  // namespace examples
