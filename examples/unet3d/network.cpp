#include "unet3d/network.h"

namespace unet3d {

namespace {

template <class M>
using Plain = M;

}  // namespace

std::shared_ptr<UNet3d> make_unet3d(int64_t channels, int64_t levels, int64_t classes,
                                    bool checkpointed) {
  if (checkpointed) {
    return std::make_shared<StagedUNet3d<tidemark::Checkpointed>>(channels, levels, classes);
  }
  return std::make_shared<StagedUNet3d<Plain>>(channels, levels, classes);
}

}  // namespace unet3d
