#include "common/slice_picture.h"

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
constexpr int kGutter = 74;  // for the numbers of the slices

// Okabe and Ito's colours, which the colour-blind can tell apart, in an order that suits tissues.
Colour class_colour(int64_t number) {
  constexpr std::array<Colour, 7> kColours{{{86, 180, 233},
                                            {230, 159, 0},
                                            {240, 228, 66},
                                            {0, 158, 115},
                                            {204, 121, 167},
                                            {213, 94, 0},
                                            {0, 114, 178}}};
  return kColours[static_cast<size_t>(number - 1) % kColours.size()];
}

// 0 to 255; the brightest half percent of the voxels is white.
torch::Tensor grey_levels(const torch::Tensor& scan) {
  const torch::Tensor sorted = std::get<0>(scan.flatten().sort());
  const auto black = sorted[0].item<double>();
  const auto white = sorted[(sorted.numel() - 1) * 199 / 200].item<double>();
  return ((scan - black) / std::max(white - black, 1e-6) * 255).clamp(0, 255).to(torch::kUInt8);
}

// One slice, `zoom` pixels per voxel, rows from bottom to top as NIfTI has them. `classes` may be
// undefined.
void draw_slice(Image& image, int left, int top, int zoom, const torch::Tensor& grey,
                const torch::Tensor& classes) {
  const auto levels = grey.accessor<uint8_t, 2>();
  for (int64_t y = 0; y < grey.size(0); ++y) {
    for (int64_t x = 0; x < grey.size(1); ++x) {
      const uint8_t level = levels[y][x];
      Colour colour{level, level, level};
      if (classes.defined()) {
        const auto number = classes.accessor<int64_t, 2>()[y][x];
        const bool coloured = number > 0 && number != kNoClass;
        colour = coloured ? blend(colour, class_colour(number), 0.8) : blend(colour, {}, 0.4);
      }
      image.fill(left + static_cast<int>(x) * zoom,
                 top + static_cast<int>(grey.size(0) - 1 - y) * zoom, zoom, zoom, colour);
    }
  }
}

void draw_legend(Image& image, int left, int y, const std::vector<std::string>& names) {
  for (size_t i = 1; i < names.size(); ++i) {
    image.fill(left, y, 14, 14, class_colour(static_cast<int64_t>(i)));
    image.write(left + 22, y, names[i], kInk);
    left += 22 + Image::text_width(names[i]) + 30;
  }
}

}  // namespace

void draw_slices(const std::string& path, const Dataset& data, const torch::Tensor& prediction) {
  const Slices held = data.held_out;
  const torch::Tensor grey = grey_levels(data.scan);
  const auto rows = static_cast<int>(std::min<int64_t>(kRows, held.count()));
  const auto height = static_cast<int>(grey.size(1));
  const auto width = static_cast<int>(grey.size(2));
  const int zoom = std::max(1, 300 / std::max(height, width));
  const int cell_width = std::max(width * zoom, 150);
  const int cell_height = height * zoom;

  Image image(kGutter + 3 * (cell_width + kGap), kTitle + rows * (cell_height + kGap) + kGap + 24,
              kPaper);
  for (int row = 0; row < rows; ++row) {
    const int64_t index = rows == 1 ? 0 : row * (held.count() - 1) / (rows - 1);
    const int64_t slice = held.begin + index;
    const std::array<torch::Tensor, 3> classes{torch::Tensor(), data.labels[slice],
                                               prediction[index]};
    const int top = kTitle + row * (cell_height + kGap);
    for (int column = 0; column < 3; ++column) {
      const int left = kGutter + column * (cell_width + kGap);
      draw_slice(image, left, top, zoom, grey[slice], classes[static_cast<size_t>(column)]);
    }
    const std::string number = std::to_string(data.first_slice + slice);
    image.write((kGutter - Image::text_width(number)) / 2, top + cell_height / 2 - 7, number, kInk);
  }
  image.write((kGutter - Image::text_width("slice")) / 2, 9, "slice", kInk);
  const std::array<const char*, 3> titles{"scan", "truth", "prediction"};
  for (int column = 0; column < 3; ++column) {
    const std::string title = titles[static_cast<size_t>(column)];
    const int left = kGutter + column * (cell_width + kGap);
    image.write(left + (width * zoom - Image::text_width(title)) / 2, 9, title, kInk);
  }
  draw_legend(image, kGutter, image.height() - 26, data.class_names);
  image.save_png(path);
}

}  // namespace examples
