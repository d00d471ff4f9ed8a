#pragma once

// The curve of a training.

#include <string>
#include <vector>

namespace examples {

/// Writes the loss of each step, and the mean of the last ten, as SVG. `loss` says what it is made
/// of. Throws std::runtime_error if the file can't be written.
void draw_losses(const std::string& path, const std::vector<double>& losses,
                 const std::string& loss);

}  // namespace examples
