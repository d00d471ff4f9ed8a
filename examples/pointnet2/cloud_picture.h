#pragma once

// Point clouds as a picture.

#include <torch/types.h>

#include <string>
#include <vector>

namespace pointnet2 {

struct CloudCell {
  torch::Tensor xyz;      ///< [points, 3]; y is up
  torch::Tensor classes;  ///< int64 [points]: their colours
  std::string note;       ///< written below; none if empty
};

struct CloudRow {
  std::string title;        ///< written above it
  int64_t title_class = 0;  ///< its colour
  std::vector<CloudCell> cells;
};

/// Draws rows of clouds as PNG, seen from the front, the right and above, each scaled to fit into a
/// square of `size` pixels; what is further away is paler. Below there is a legend. Throws
/// std::runtime_error if the file can't be written.
void draw_clouds(const std::string& path, const std::vector<CloudRow>& rows, int size,
                 const std::vector<std::string>& class_names);

}  // namespace pointnet2
