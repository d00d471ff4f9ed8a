#pragma once

// The letters that Image writes, 5 x 7 dots each.

namespace examples {

inline constexpr int kGlyphWidth = 5;
inline constexpr int kGlyphHeight = 7;

/// 35 characters, row by row, '#' where there is ink. Unknown letters are a box.
const char* pixel_glyph(char letter);

}  // namespace examples
