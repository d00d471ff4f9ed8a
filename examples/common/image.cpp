#include "common/image.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "common/pixel_font.h"

#ifdef TIDEMARK_EXAMPLES_PNG
#include <png.h>
#endif

namespace examples {

Colour blend(Colour under, Colour over, double strength) {
  const auto mix = [strength](uint8_t a, uint8_t b) {
    return static_cast<uint8_t>(std::lround(a + (b - a) * std::clamp(strength, 0.0, 1.0)));
  };
  return {mix(under.red, over.red), mix(under.green, over.green), mix(under.blue, over.blue)};
}

Image::Image(int width, int height, Colour background)
    : width_(width),
      height_(height),
      pixels_(static_cast<size_t>(width) * static_cast<size_t>(height) * 3) {
  fill(0, 0, width, height, background);
}

void Image::set(int x, int y, Colour colour) {
  if (x < 0 || y < 0 || x >= width_ || y >= height_) {
    return;
  }
  uint8_t* pixel =
      &pixels_[(static_cast<size_t>(y) * static_cast<size_t>(width_) + static_cast<size_t>(x)) * 3];
  pixel[0] = colour.red;
  pixel[1] = colour.green;
  pixel[2] = colour.blue;
}

void Image::fill(int x, int y, int width, int height, Colour colour) {
  for (int row = y; row < y + height; ++row) {
    for (int column = x; column < x + width; ++column) {
      set(column, row, colour);
    }
  }
}

void Image::write(int x, int y, const std::string& text, Colour colour, int scale) {
  for (const char letter : text) {
    const char* dots = pixel_glyph(letter);
    for (int row = 0; row < kGlyphHeight; ++row) {
      for (int column = 0; column < kGlyphWidth; ++column) {
        if (dots[row * kGlyphWidth + column] == '#') {
          fill(x + column * scale, y + row * scale, scale, scale, colour);
        }
      }
    }
    x += (kGlyphWidth + 1) * scale;
  }
}

int Image::text_width(const std::string& text, int scale) {
  return text.empty() ? 0 : (static_cast<int>(text.size()) * (kGlyphWidth + 1) - 1) * scale;
}

#ifdef TIDEMARK_EXAMPLES_PNG

bool Image::can_save() { return true; }

void Image::save_png(const std::string& path) const {
  png_image png{};
  png.version = PNG_IMAGE_VERSION;
  png.width = static_cast<png_uint_32>(width_);
  png.height = static_cast<png_uint_32>(height_);
  png.format = PNG_FORMAT_RGB;
  if (png_image_write_to_file(&png, path.c_str(), 0, pixels_.data(), 0, nullptr) == 0) {
    throw std::runtime_error("can't write " + path + ": " + png.message);
  }
}

#else

bool Image::can_save() { return false; }

void Image::save_png(const std::string& path) const {
  throw std::runtime_error("can't write " + path + ": this program was built without libpng");
}

#endif

}  // namespace examples
