#pragma once

// What of a GradAccumulator outlives the process.

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>
#include <c10/util/Exception.h>
#include <torch/serialize/input-archive.h>
#include <torch/serialize/output-archive.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace tidemark::detail {

struct GradAccumulatorState {
  int64_t windows = 0;
  int64_t dropped = 0;
  int64_t micro_batch = 0;  // the rows that memory was found to suffice for; 0: never ran out

  // Of the open window.
  int64_t micro_steps = 0;
  int64_t window_dropped = 0;
  double total = 0;
  double reference = 0;
  std::vector<at::Tensor> gradients;   // one per parameter, undefined where there is none
  std::vector<at::Tensor> statistics;  // running ones to put back at its end
  at::Tensor loss_sum;
  at::Tensor scale;
};

/// Writes entries with names, tensors and lists of tensors included.
class StateWriter {
 public:
  explicit StateWriter(torch::serialize::OutputArchive& archive) : archive_(archive) {}

  void operator()(const std::string& key, int64_t value) { archive_.write(key, value); }
  void operator()(const std::string& key, double value) { archive_.write(key, value); }
  void operator()(const std::string& key, const at::Tensor& value) {
    if (value.defined()) {
      archive_.write(key, c10::IValue(value.detach()));
    }
  }
  void operator()(const std::string& key, const std::vector<at::Tensor>& values) {
    (*this)(key, static_cast<int64_t>(values.size()));
    for (size_t i = 0; i < values.size(); ++i) {
      (*this)(key + "_" + std::to_string(i), values[i]);
    }
  }

 private:
  torch::serialize::OutputArchive& archive_;
};

/// Reads what StateWriter wrote, and refuses all else.
class StateReader {
 public:
  explicit StateReader(torch::serialize::InputArchive& archive) : archive_(archive) {}

  void operator()(const std::string& key, int64_t& value) {
    const auto entry = read(key);
    check(entry.isInt(), key, entry, "Int");
    value = entry.toInt();
    TORCH_CHECK(value >= 0, "tidemark: GradAccumulator: the archive's entry '", key, "' is ", value,
                "; it can't be negative: a GradAccumulator did not write it.");
  }
  void operator()(const std::string& key, double& value) {
    const auto entry = read(key);
    check(entry.isDouble(), key, entry, "Double");
    value = entry.toDouble();
    TORCH_CHECK(std::isfinite(value) && value >= 0, "tidemark: GradAccumulator: the archive's ",
                "entry '", key, "' is ", value,
                "; it has to be finite and not negative: a GradAccumulator did not write it.");
  }
  void operator()(const std::string& key, at::Tensor& value) {
    c10::IValue entry;
    if (archive_.try_read(key, entry)) {
      check(entry.isTensor(), key, entry, "Tensor");
      value = entry.toTensor();
    }
  }
  void operator()(const std::string& key, std::vector<at::Tensor>& values) {
    int64_t size = 0;
    (*this)(key, size);
    for (int64_t i = 0; i < size; ++i) {
      (*this)(key + "_" + std::to_string(i), values.emplace_back());
    }
  }

 private:
  [[nodiscard]] c10::IValue read(const std::string& key) {
    c10::IValue value;
    TORCH_CHECK(archive_.try_read(key, value), "tidemark: GradAccumulator: the archive has no ",
                "entry '", key,
                "': it is not, or not all of, what torch::save(accumulator, ...) or "
                "accumulator.save() wrote.");
    return value;
  }

  static void check(bool fits, const std::string& key, const c10::IValue& entry, const char* kind) {
    TORCH_CHECK(fits, "tidemark: GradAccumulator: the archive's entry '", key, "' is a ",
                entry.tagKind(), ", not a ", kind, ": a GradAccumulator did not write it.");
  }

  torch::serialize::InputArchive& archive_;
};

/// Passes every entry of a state to a reader or writer.
template <class Archive, class State>
void visit_state(Archive&& archive, State& state) {
  archive("windows", state.windows);
  archive("dropped", state.dropped);
  archive("micro_batch", state.micro_batch);
  archive("micro_steps", state.micro_steps);
  archive("window_dropped", state.window_dropped);
  archive("total", state.total);
  archive("reference", state.reference);
  archive("gradients", state.gradients);
  archive("statistics", state.statistics);
  archive("loss_sum", state.loss_sum);
  archive("scale", state.scale);
}

inline void write_state(torch::serialize::OutputArchive& archive,
                        const GradAccumulatorState& state) {
  StateWriter writer(archive);
  writer("grad_accumulator_version", int64_t{1});
  visit_state(writer, state);
}

inline GradAccumulatorState read_accumulator_state(torch::serialize::InputArchive& archive) {
  StateReader reader(archive);
  int64_t version = 0;
  reader("grad_accumulator_version", version);
  TORCH_CHECK(
      version == 1, "tidemark: GradAccumulator: the archive is of version ", version,
      ", this tidemark reads version 1. Save between windows, with the tidemark that wrote ",
      "it, and begin with a new GradAccumulator.");
  GradAccumulatorState state;
  visit_state(reader, state);
  return state;
}

/// Refuses a state that these parameters and running statistics can't go on from.
inline void check_state(const GradAccumulatorState& state,
                        const std::vector<at::Tensor>& parameters,
                        const std::vector<at::Tensor>& statistics) {
  if (state.micro_steps == 0) {
    return;
  }
  TORCH_CHECK(state.gradients.size() == parameters.size(),
              "tidemark: GradAccumulator: the archive has the gradients of ",
              state.gradients.size(), " parameters, but there are ", parameters.size(),
              ". Load it with the model and optimizers that it was saved with.");
  for (size_t i = 0; i < parameters.size(); ++i) {
    const auto& gradient = state.gradients[i];
    TORCH_CHECK(!gradient.defined() || (gradient.sizes() == parameters[i].sizes() &&
                                        c10::isFloatingType(gradient.scalar_type()) ==
                                            c10::isFloatingType(parameters[i].scalar_type())),
                "tidemark: GradAccumulator: the archive's gradient ", i, " is of shape ",
                gradient.sizes(), " and dtype ", gradient.dtype(), ", but the parameter is of ",
                parameters[i].sizes(), " and ", parameters[i].dtype(),
                ". Load it with the model and optimizers that it was saved with.");
  }
  TORCH_CHECK(std::equal(statistics.begin(), statistics.end(), state.statistics.begin(),
                         state.statistics.end(),
                         [](const at::Tensor& now, const at::Tensor& saved) {
                           return saved.defined() && saved.sizes() == now.sizes();
                         }),
              "tidemark: GradAccumulator: the archive has ", state.statistics.size(),
              " running statistics, which do not fit the ", statistics.size(),
              " of the model's BatchNorm modules. Load it with the model and the batch_norm() that "
              "it was saved with.");
  TORCH_CHECK((state.total > 0) == (state.reference > 0) &&
                  (state.total > 0) == state.loss_sum.defined() &&
                  (!state.loss_sum.defined() || state.loss_sum.numel() == 1) &&
                  (!state.scale.defined() || state.scale.numel() == 1),
              "tidemark: GradAccumulator: the archive's entries contradict each other: weights of ",
              state.total, " in all, relative to ", state.reference,
              ", with or without a sum of losses. A GradAccumulator did not write it.");
}

}  // namespace tidemark::detail
