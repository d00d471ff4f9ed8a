#include "common/view_picture.h"

#include <torch/torch.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "common/image.h"

namespace examples {

namespace {

constexpr Colour kPaper{24, 24, 28};
constexpr Colour kInk{235, 235, 235};
constexpr int kRows = 4;
constexpr int kGap = 14;
constexpr int kTitle = 30;

void draw_picture(Image& image, int left, int top, int zoom, const torch::Tensor& colours) {
  const torch::Tensor bytes = (colours * 255).round().clamp(0, 255).to(torch::kUInt8);
  const auto values = bytes.accessor<uint8_t, 3>();
  for (int64_t y = 0; y < bytes.size(0); ++y) {
    for (int64_t x = 0; x < bytes.size(1); ++x) {
      image.fill(left + static_cast<int>(x) * zoom, top + static_cast<int>(y) * zoom, zoom, zoom,
                 {values[y][x][0], values[y][x][1], values[y][x][2]});
    }
  }
}

}  // namespace

double psnr(const torch::Tensor& shown, const torch::Tensor& truth) {
  return -10 * std::log10(torch::mse_loss(shown, truth).item<double>());
}

void draw_views(const std::string& path, const torch::Tensor& truth, const torch::Tensor& shown) {
  const auto rows = static_cast<int>(std::min<int64_t>(kRows, truth.size(0)));
  const auto height = static_cast<int>(truth.size(1));
  const auto width = static_cast<int>(truth.size(2));
  const int zoom = std::max(1, 256 / std::max(height, width));
  const int cell_width = std::max(width * zoom, 150);
  const int cell_height = height * zoom;
  const std::array<const char*, 3> titles{"truth", "prediction", "4 X difference"};

  Image image(kGap + 3 * (cell_width + kGap), kTitle + rows * (cell_height + kGap), kPaper);
  for (int column = 0; column < 3; ++column) {
    const int left = kGap + column * (cell_width + kGap);
    const std::string title = titles[static_cast<size_t>(column)];
    image.write(left + (width * zoom - Image::text_width(title)) / 2, 9, title, kInk);
    for (int row = 0; row < rows; ++row) {
      const int64_t view = rows == 1 ? 0 : row * (truth.size(0) - 1) / (rows - 1);
      const std::array<torch::Tensor, 3> pictures{truth[view], shown[view],
                                                  4 * (truth[view] - shown[view]).abs()};
      draw_picture(image, left, kTitle + row * (cell_height + kGap), zoom,
                   pictures[static_cast<size_t>(column)]);
    }
  }
  image.save_png(path);
}

}  // namespace examples
