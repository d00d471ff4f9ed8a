#pragma once

// Pictures with transparency, from and to PNG files: textures, and views of an object.

#include <cstdint>
#include <string>
#include <vector>

namespace examples {

/// 8-bit red, green, blue and alpha, rows from top to bottom. Colours are not multiplied by alpha.
struct RgbaImage {
  int width = 0;
  int height = 0;
  std::vector<uint8_t> pixels;  ///< 4 * width * height

  /// The four channels of a pixel.
  [[nodiscard]] const uint8_t* at(int x, int y) const {
    return &pixels[4 *
                   (static_cast<size_t>(y) * static_cast<size_t>(width) + static_cast<size_t>(x))];
  }
};

/// Whether the program was built with libpng. Without it the next two throw.
bool knows_png();

/// Reads any kind of PNG file. Throws std::runtime_error, which names the file, if it is none.
RgbaImage read_png(const std::string& path);

/// Throws std::runtime_error if the file can't be written.
void write_png(const std::string& path, const RgbaImage& image);

}  // namespace examples
