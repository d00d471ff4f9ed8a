#include "common/shape_picture.h"

#include <torch/torch.h>

#include <algorithm>

#include "common/image.h"

namespace examples {

namespace {

constexpr Colour kPaper{250, 250, 248};
constexpr Colour kInk{40, 40, 44};
constexpr Colour kTop{236, 200, 148};
constexpr Colour kFront{204, 142, 84};
constexpr Colour kSide{146, 92, 56};
constexpr int kGap = 10;
constexpr int kTitle = 30;

// A voxel is this many pixels high, twice as wide, and its top is as high again.
constexpr int kVoxel = 2;

// One shape with its upper left corner at (left, top). From back to front, so that what is nearer
// covers what is behind it; x points to the lower right, z to the lower left, y up.
void draw_shape(Image& image, int left, int top, const torch::Tensor& voxels) {
  const torch::Tensor set = (voxels.cpu().to(torch::kFloat) > 0.5).contiguous();
  const auto is_set = set.accessor<bool, 3>();
  const auto size = static_cast<int>(set.size(0));
  for (int x = 0; x < size; ++x) {
    for (int z = 0; z < size; ++z) {
      for (int y = 0; y < size; ++y) {
        if (!is_set[x][y][z]) {
          continue;
        }
        // darker towards the floor and the back
        const double light = 0.7 + 0.2 * y / size + 0.1 * (x + z) / (2 * size);
        const auto shade = [light](Colour colour) { return blend({30, 24, 30}, colour, light); };
        const int u = left + (size + x - z - 1) * kVoxel;
        const int v = top + (x + z) * kVoxel / 2 + (size - 1 - y) * kVoxel;
        image.fill(u, v + kVoxel / 2, kVoxel, 2 * kVoxel - kVoxel / 2, shade(kFront));
        image.fill(u + kVoxel, v + kVoxel / 2, kVoxel, 2 * kVoxel - kVoxel / 2, shade(kSide));
        image.fill(u, v, 2 * kVoxel, kVoxel, shade(kTop));
      }
    }
  }
}

}  // namespace

void draw_shapes(const std::string& path, const std::vector<ShapeRow>& rows) {
  int64_t columns = 1;
  int64_t size = 1;
  int height = kGap;
  const auto title_height = [](const ShapeRow& row) { return row.title.empty() ? 0 : kTitle; };
  for (const ShapeRow& row : rows) {
    columns = std::max(columns, row.voxels.size(0));
    size = std::max(size, row.voxels.size(-1));
  }
  const int cell = 2 * kVoxel * static_cast<int>(size) + kVoxel;
  for (const ShapeRow& row : rows) {
    height += title_height(row) + cell + kGap;
  }
  Image image(static_cast<int>(columns) * (cell + kGap) + kGap, height, kPaper);
  int top = kGap;
  for (const ShapeRow& row : rows) {
    image.write(kGap, top, row.title, kInk);
    top += title_height(row);
    for (int64_t i = 0; i < row.voxels.size(0); ++i) {
      draw_shape(image, kGap + static_cast<int>(i) * (cell + kGap), top, row.voxels[i]);
    }
    top += cell + kGap;
  }
  image.save_png(path);
}

}  // namespace examples
