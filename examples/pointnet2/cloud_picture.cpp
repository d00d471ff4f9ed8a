#include "pointnet2/cloud_picture.h"

#include <torch/torch.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "common/image.h"

namespace pointnet2 {

namespace {

using examples::Colour;
using examples::Image;

constexpr Colour kPaper{252, 252, 250};
constexpr Colour kInk{40, 40, 44};
constexpr int kGap = 8;
constexpr int kTitle = 22;
constexpr int kNote = 16;

Colour colour_of(int64_t index) {
  constexpr std::array<Colour, 10> kColours{{{0, 114, 178},
                                             {213, 94, 0},
                                             {0, 158, 115},
                                             {204, 90, 160},
                                             {230, 170, 0},
                                             {110, 75, 50},
                                             {90, 180, 40},
                                             {60, 190, 230},
                                             {95, 60, 170},
                                             {130, 130, 130}}};
  const auto count = static_cast<int64_t>(kColours.size());
  const double strength = index < count ? 1 : 0.55;
  return blend(kPaper, kColours[static_cast<size_t>(index % count)], strength);
}

// What is seen of a cloud, in units of a cell's width.
struct View {
  torch::Tensor points;  // columns to the right, rows down, and how near from 0 to 1
  float height = 0;
};

View view_of(const torch::Tensor& xyz) {
  constexpr double kTurn = 0.6;   // from the front to the right
  constexpr double kTilt = 0.45;  // from above
  const torch::Tensor x = xyz.select(1, 0);
  const torch::Tensor y = xyz.select(1, 1);
  const torch::Tensor z = xyz.select(1, 2);
  const torch::Tensor across = std::cos(kTurn) * x - std::sin(kTurn) * z;
  const torch::Tensor towards = std::sin(kTurn) * x + std::cos(kTurn) * z;
  const torch::Tensor down = std::sin(kTilt) * towards - std::cos(kTilt) * y;
  const torch::Tensor near = std::cos(kTilt) * towards + std::sin(kTilt) * y;
  const torch::Tensor seen = torch::stack({across, down, near}, 1);
  const torch::Tensor extent = (seen.amax(0) - seen.amin(0)).clamp_min(1e-6);
  const torch::Tensor size = extent.slice(0, 0, 2).max();
  torch::Tensor points = (seen - seen.amin(0)) / torch::stack({size, size, extent[2]});
  points.select(1, 0).add_((1 - extent[0] / size) / 2);  // in the middle of the cell
  return {points.contiguous(), (extent[1] / size).item<float>()};
}

// From back to front, so that what is nearer covers what is behind it.
void draw_cloud(Image& image, int left, int bottom, int size, const CloudCell& cell) {
  const View view = view_of(cell.xyz.cpu().to(torch::kFloat));
  const torch::Tensor& seen = view.points;
  const int top = bottom - static_cast<int>(view.height * static_cast<float>(size));
  const torch::Tensor order = seen.select(1, 2).argsort();
  const torch::Tensor classes = cell.classes.cpu().contiguous();
  const auto places = seen.accessor<float, 2>();
  const auto indices = order.accessor<int64_t, 1>();
  const auto of_class = classes.accessor<int64_t, 1>();
  const int dot = size >= 200 ? 3 : 2;
  for (int64_t i = 0; i < order.size(0); ++i) {
    const int64_t point = indices[i];
    const int x = left + static_cast<int>(places[point][0] * static_cast<float>(size - dot));
    const int y = top + static_cast<int>(places[point][1] * static_cast<float>(size - dot));
    image.fill(x, y, dot, dot,
               blend(kPaper, colour_of(of_class[point]), 0.45 + 0.55 * places[point][2]));
  }
}

}  // namespace

void draw_clouds(const std::string& path, const std::vector<CloudRow>& rows, int size,
                 const std::vector<std::string>& class_names) {
  size_t columns = 1;
  for (const CloudRow& row : rows) {
    columns = std::max(columns, row.cells.size());
  }
  const int width = std::max(static_cast<int>(columns) * (size + kGap) + kGap, 480);
  // the legend, in as many lines as it takes
  struct Entry {
    int x, line;
  };
  std::vector<Entry> legend;
  int x = kGap;
  int line = 0;
  for (const std::string& name : class_names) {
    const int entry_width = 18 + Image::text_width(name) + 2 * kGap;
    if (x + entry_width > width && x > kGap) {
      x = kGap;
      ++line;
    }
    legend.push_back({x, line});
    x += entry_width;
  }
  std::vector<int> heights;  // of the clouds of each row
  int height = kGap + (line + 1) * kTitle + kGap;
  for (const CloudRow& row : rows) {
    float highest = 0;
    for (const CloudCell& cell : row.cells) {
      highest = std::max(highest, view_of(cell.xyz.cpu().to(torch::kFloat)).height);
    }
    heights.push_back(static_cast<int>(highest * static_cast<float>(size)));
    height += kTitle + heights.back() + kNote + kGap;
  }
  Image image(width, height, kPaper);
  int top = kGap;
  for (size_t r = 0; r < rows.size(); ++r) {
    const CloudRow& row = rows[r];
    image.write(kGap, top, row.title, colour_of(row.title_class));
    const int bottom = top + kTitle + heights[r];
    for (size_t i = 0; i < row.cells.size(); ++i) {
      const int left = kGap + static_cast<int>(i) * (size + kGap);
      draw_cloud(image, left, bottom, size, row.cells[i]);
      image.write(left, bottom + 4, row.cells[i].note, kInk, 1);
    }
    top = bottom + kNote + kGap;
  }
  for (size_t i = 0; i < legend.size(); ++i) {
    const int y = top + legend[i].line * kTitle;
    image.fill(legend[i].x, y + 1, 12, 12, colour_of(static_cast<int64_t>(i)));
    image.write(legend[i].x + 18, y, class_names[i], kInk);
  }
  image.save_png(path);
}

}  // namespace pointnet2
