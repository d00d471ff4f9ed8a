#pragma once

// A training on disk: a run that resumes from it goes on as if it had never stopped.

#include <torch/serialize/archive.h>
#include <torch/types.h>

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace examples {

/// What a file holds: the settings of the run as text, the parts that are added here, the state of
/// LibTorch's CPU generator, and the losses so far. Keeps references to the parts.
class TrainingState {
 public:
  /// `settings` are what must be the same for a run to go on, in words that the user can compare:
  /// "channels 16, seed 1".
  TrainingState(std::string settings, std::vector<double>& losses)
      : settings_(std::move(settings)), losses_(losses) {}

  /// Adds a part, in the order in which they are loaded: a module, an optimizer, a GradScaler, or
  /// whatever else has save(OutputArchive&) and load(InputArchive&).
  template <class Part>
  TrainingState& add(std::string name, Part& part) {
    parts_.push_back({std::move(name),
                      [&part](torch::serialize::OutputArchive& archive) { part.save(archive); },
                      [&part](torch::serialize::InputArchive& archive) { part.load(archive); }});
    return *this;
  }

  /// Throws c10::Error if the file can't be written.
  void save(const std::string& path) const;

  /// Throws std::runtime_error for a file that save() didn't write, and UsageError for one of other
  /// settings or one that has `steps` losses or more; then nothing has changed.
  void resume(const std::string& path, int64_t steps, torch::Device device);

 private:
  struct Part {
    std::string name;
    std::function<void(torch::serialize::OutputArchive&)> save;
    std::function<void(torch::serialize::InputArchive&)> load;
  };

  std::string settings_;
  std::vector<double>& losses_;
  std::vector<Part> parts_;
};

/// The mean of the ten numbers before place `end`, or of as many as there are.
double mean_of_ten(const std::vector<double>& losses, size_t end);

}  // namespace examples
