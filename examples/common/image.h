#pragma once

// A picture in memory, with just enough to compose figures, written as PNG.

#include <cstdint>
#include <string>
#include <vector>

namespace examples {

struct Colour {
  uint8_t red = 0;
  uint8_t green = 0;
  uint8_t blue = 0;
};

/// `strength` of `over` (0 to 1) on top of `under`.
Colour blend(Colour under, Colour over, double strength);

/// 8-bit RGB pixels, rows from top to bottom. Whatever is drawn outside is cut off.
class Image {
 public:
  Image(int width, int height, Colour background);

  [[nodiscard]] int width() const { return width_; }
  [[nodiscard]] int height() const { return height_; }

  void set(int x, int y, Colour colour);
  void fill(int x, int y, int width, int height, Colour colour);

  /// Draws `text` with its upper left corner at (x, y), one letter `6 * scale` wide and `7 * scale`
  /// high. The font has capitals, digits and some punctuation; small letters become capitals.
  void write(int x, int y, const std::string& text, Colour colour, int scale = 2);

  /// The width of `text` in pixels.
  [[nodiscard]] static int text_width(const std::string& text, int scale = 2);

  /// Whether this program was built with libpng.
  [[nodiscard]] static bool can_save();

  /// Throws std::runtime_error if the file can't be written, or if libpng is missing.
  void save_png(const std::string& path) const;

 private:
  int width_;
  int height_;
  std::vector<uint8_t> pixels_;
};

}  // namespace examples
