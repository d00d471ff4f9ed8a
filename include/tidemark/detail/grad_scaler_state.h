#pragma once

// What of a GradScaler outlives the process.

#include <c10/util/Exception.h>
#include <torch/serialize/input-archive.h>
#include <torch/serialize/output-archive.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <string>

namespace tidemark {

/// The state of a GradScaler, with the entries of Python's GradScaler.state_dict().
struct GradScalerState {
  double scale = 0;             ///< A float32 value; 0 is none that can be loaded.
  double growth_factor = 0;     ///< What the scale is multiplied by when it grows; above 1.
  double backoff_factor = 0;    ///< What it is multiplied by after an inf or NaN; from 0 to 1.
  int64_t growth_interval = 0;  ///< Clean updates in a row that make the scale grow.
  int64_t growth_tracker = 0;   ///< Clean updates in a row since the scale last changed.
};

}  // namespace tidemark

namespace tidemark::detail {

/// Whether float32 holds both `scale` and its inverse.
inline bool is_scale(double scale) {
  const auto rounded = static_cast<float>(scale);
  return rounded >= std::numeric_limits<float>::min() && std::isfinite(rounded);
}

/// Refuses what no GradScaler can go on from; `source` says where the values are from.
inline void check_state(const GradScalerState& state, const std::string& source) {
  constexpr int64_t kMaxCount = std::numeric_limits<int32_t>::max();
  TORCH_CHECK(is_scale(state.scale), "tidemark: GradScaler: the scale ", source, " is ",
              state.scale, "; it has to be positive and, like its inverse, finite in float32.");
  TORCH_CHECK(
      state.growth_factor > 1 && std::isfinite(state.growth_factor),
      "tidemark: GradScaler: growth_factor ", source, " is ", state.growth_factor,
      "; it has to be finite and above 1. For a scale that stays set a growth_interval that "
      "is never reached.");
  TORCH_CHECK(state.backoff_factor > 0 && state.backoff_factor < 1,
              "tidemark: GradScaler: backoff_factor ", source, " is ", state.backoff_factor,
              "; it has to be between 0 and 1.");
  TORCH_CHECK(state.growth_interval >= 1 && state.growth_interval <= kMaxCount,
              "tidemark: GradScaler: growth_interval ", source, " is ", state.growth_interval,
              "; it has to be from 1 to ", kMaxCount, ".");
  TORCH_CHECK(state.growth_tracker >= 0 && state.growth_tracker <= kMaxCount,
              "tidemark: GradScaler: growth_tracker ", source, " is ", state.growth_tracker,
              "; it has to be from 0 to ", kMaxCount, ".");
}

inline constexpr const char* kArchiveVersionKey = "grad_scaler_version";
inline constexpr int64_t kArchiveVersion = 1;

inline void write_state(torch::serialize::OutputArchive& archive, const GradScalerState& state) {
  archive.write(kArchiveVersionKey, c10::IValue(kArchiveVersion));
  archive.write("scale", c10::IValue(state.scale));
  archive.write("growth_factor", c10::IValue(state.growth_factor));
  archive.write("backoff_factor", c10::IValue(state.backoff_factor));
  archive.write("growth_interval", c10::IValue(state.growth_interval));
  archive.write("growth_tracker", c10::IValue(state.growth_tracker));
}

inline c10::IValue read_entry(torch::serialize::InputArchive& archive, const char* key) {
  c10::IValue value;
  TORCH_CHECK(archive.try_read(key, value), "tidemark: GradScaler: the archive has no entry '", key,
              "': it is not, or not all of, what torch::save(scaler, ...) or scaler.save() wrote.");
  return value;
}

inline double read_double(torch::serialize::InputArchive& archive, const char* key) {
  const auto value = read_entry(archive, key);
  TORCH_CHECK(value.isDouble(), "tidemark: GradScaler: the archive's entry '", key, "' is a ",
              value.tagKind(), ", not a Double: a GradScaler did not write it.");
  return value.toDouble();
}

inline int64_t read_int(torch::serialize::InputArchive& archive, const char* key) {
  const auto value = read_entry(archive, key);
  TORCH_CHECK(value.isInt(), "tidemark: GradScaler: the archive's entry '", key, "' is a ",
              value.tagKind(), ", not an Int: a GradScaler did not write it.");
  return value.toInt();
}

inline GradScalerState read_state(torch::serialize::InputArchive& archive) {
  const auto version = read_int(archive, kArchiveVersionKey);
  TORCH_CHECK(version == kArchiveVersion, "tidemark: GradScaler: the archive is of version ",
              version, ", this tidemark reads version ", kArchiveVersion,
              ". Load it with the tidemark that "
              "wrote it, and carry the values over by state() and load_state().");
  GradScalerState state;
  state.scale = read_double(archive, "scale");
  state.growth_factor = read_double(archive, "growth_factor");
  state.backoff_factor = read_double(archive, "backoff_factor");
  state.growth_interval = read_int(archive, "growth_interval");
  state.growth_tracker = read_int(archive, "growth_tracker");
  return state;
}

}  // namespace tidemark::detail
