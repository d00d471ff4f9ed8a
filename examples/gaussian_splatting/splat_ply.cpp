#include "gaussian_splatting/splat_ply.h"

#include <torch/torch.h>

#include <fstream>
#include <stdexcept>

namespace gaussian_splatting {

namespace {

void declare(std::ofstream& out, const std::string& prefix, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    out << "property float " << prefix << i << "\n";
  }
}

}  // namespace

void write_splat_ply(const std::string& path, const Gaussians& gaussians) {
  const torch::NoGradGuard no_grad;
  const torch::Tensor rest = gaussians.sh_rest.transpose(1, 2).flatten(1);
  const torch::Tensor table =
      torch::cat({gaussians.means, torch::zeros_like(gaussians.means), gaussians.sh_dc.flatten(1),
                  rest, gaussians.opacities, gaussians.scales, gaussians.quaternions},
                 1)
          .cpu()
          .contiguous();

  std::ofstream out(path, std::ios::binary);
  out << "ply\nformat binary_little_endian 1.0\nelement vertex " << gaussians.count() << "\n";
  for (const char* name : {"x", "y", "z", "nx", "ny", "nz"}) {
    out << "property float " << name << "\n";
  }
  declare(out, "f_dc_", 3);
  declare(out, "f_rest_", rest.size(1));
  out << "property float opacity\n";
  declare(out, "scale_", 3);
  declare(out, "rot_", 4);
  out << "end_header\n";
  // as it is in memory: LibTorch runs on little-endian machines only
  out.write(static_cast<const char*>(table.data_ptr()),
            static_cast<std::streamsize>(table.nbytes()));
  out.close();
  if (!out) {
    throw std::runtime_error("can't write " + path);
  }
}

}  // namespace gaussian_splatting
