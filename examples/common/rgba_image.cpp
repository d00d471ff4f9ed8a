#include "common/rgba_image.h"

#include <stdexcept>

#ifdef TIDEMARK_EXAMPLES_PNG
#include <png.h>
#endif

namespace examples {

#ifdef TIDEMARK_EXAMPLES_PNG

namespace {

// Ends the reading, however it goes.
struct PngReader {
  png_image image{};

  PngReader() { image.version = PNG_IMAGE_VERSION; }
  PngReader(const PngReader&) = delete;
  PngReader& operator=(const PngReader&) = delete;
  ~PngReader() { png_image_free(&image); }
};

}  // namespace

bool knows_png() { return true; }

RgbaImage read_png(const std::string& path) {
  PngReader png;
  if (png_image_begin_read_from_file(&png.image, path.c_str()) == 0) {
    throw std::runtime_error(path + ": can't be read as PNG: " + png.image.message);
  }
  png.image.format = PNG_FORMAT_RGBA;
  RgbaImage image{static_cast<int>(png.image.width), static_cast<int>(png.image.height), {}};
  image.pixels.resize(PNG_IMAGE_SIZE(png.image));
  if (png_image_finish_read(&png.image, nullptr, image.pixels.data(), 0, nullptr) == 0) {
    throw std::runtime_error(path + ": can't be read as PNG: " + png.image.message);
  }
  return image;
}

void write_png(const std::string& path, const RgbaImage& image) {
  png_image png{};
  png.version = PNG_IMAGE_VERSION;
  png.width = static_cast<png_uint_32>(image.width);
  png.height = static_cast<png_uint_32>(image.height);
  png.format = PNG_FORMAT_RGBA;
  if (png_image_write_to_file(&png, path.c_str(), 0, image.pixels.data(), 0, nullptr) == 0) {
    throw std::runtime_error("can't write " + path + ": " + png.message);
  }
}

#else

namespace {

[[noreturn]] void refuse(const std::string& path) {
  throw std::runtime_error(path +
                           ": this program was built without libpng (Debian, Ubuntu: "
                           "libpng-dev), so it knows no PNG files");
}

}  // namespace

bool knows_png() { return false; }

RgbaImage read_png(const std::string& path) { refuse(path); }

void write_png(const std::string& path, const RgbaImage&) { refuse(path); }

#endif

}  // namespace examples
