#pragma once

// What one op takes and makes, looked through for NaN and inf.

#include <ATen/SequenceNumber.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <ATen/ops/aminmax.h>
#include <ATen/ops/isinf.h>
#include <ATen/ops/view_as_real.h>
#include <ATen/record_function.h>
#include <c10/core/StorageImpl.h>
#include <tidemark/detail/op_info.h>
#include <tidemark/detail/recorded_op.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace tidemark::detail {

/// Whether there is NaN, and inf.
struct BadValues {
  bool nan = false;
  bool inf = false;
};

/// The strided tensor of the values that `tensor` has, or stores; undefined if there are none that
/// could be NaN or inf.
inline at::Tensor values_to_look_at(const at::Tensor& tensor) {
  if (!tensor.defined() || tensor.is_nested() || tensor.is_meta()) {
    return {};
  }
  const auto dtype = tensor.scalar_type();
  const bool looked_at = dtype == at::kFloat || dtype == at::kDouble || dtype == at::kHalf ||
                         dtype == at::kBFloat16 || at::isComplexType(dtype);
  if (!looked_at) {
    return {};
  }
  at::Tensor values;
  switch (tensor.layout()) {
    case at::kStrided:
      values = tensor;
      break;
    case at::kSparse:
      values = tensor._values();
      break;
    case at::kSparseCsr:
    case at::kSparseCsc:
    case at::kSparseBsr:
    case at::kSparseBsc:
      values = tensor.values();
      break;
    default:
      return {};
  }
  return values.has_storage() && values.numel() != 0 ? values : at::Tensor();
}

/// One reduction over the values; waits for the device.
inline BadValues look_at(const at::Tensor& values) {
  const auto reals = values.is_complex() ? at::view_as_real(values.resolve_conj()) : values;
  const auto [lowest, highest] = at::aminmax(reals);  // either is NaN if any value is
  const auto low = lowest.item<double>();
  const auto high = highest.item<double>();
  if (std::isnan(low)) {
    return {true, at::isinf(reals).any().item<bool>()};
  }
  return {false, std::isinf(low) || std::isinf(high)};
}

/// Adds whether a scalar argument, or one of a list, is NaN or inf itself.
inline void add_scalars(BadValues& bad, const c10::IValue& value) {
  const auto add = [&](double number) {
    bad.nan = bad.nan || std::isnan(number);
    bad.inf = bad.inf || std::isinf(number);
  };
  if (value.isDouble()) {
    add(value.toDouble());
  } else if (value.isComplexDouble()) {
    add(value.toComplexDouble().real());
    add(value.toComplexDouble().imag());
  } else if (value.isList()) {
    for (const c10::IValue& element : value.toListRef()) {
      add_scalars(bad, element);
    }
  }
}

/// An outermost op while it runs, and what it made; for all watches of the thread.
class WatchedOp final : public at::ObserverContext {
 public:
  struct Input {
    at::Tensor tensor;
    at::Tensor values;                // undefined if there is nothing to look at
    const c10::StorageImpl* storage;  // of the values, when the op began
    std::size_t argument;
    bool written;
    std::optional<BadValues> bad;
  };
  struct Result {
    at::Tensor tensor;
    at::Tensor values;
    std::string name;
    bool looked_at = false;
    BadValues bad;
  };

  WatchedOp(const at::RecordFunction& op, const OpInfo& info)
      : overwrites(info.overwrites), first_node(at::sequence_number::peek()) {
    const auto arguments = inputs_of(op);
    for (std::size_t i = 0; i < arguments.size(); ++i) {
      add_scalars(scalars, arguments[i]);
      const bool written =
          std::find(info.written.begin(), info.written.end(), i) != info.written.end();
      for_each_tensor_in(arguments[i], [&](const at::Tensor& tensor) {
        if (tensor.defined()) {
          auto values = values_to_look_at(tensor);
          const auto* storage =
              values.defined() ? values.storage().unsafeGetStorageImpl() : nullptr;
          inputs.push_back({tensor, std::move(values), storage, i, written, std::nullopt});
        }
      });
    }
    // What is going to be overwritten has to be looked at now.
    for (Input& input : inputs) {
      const bool changes = std::any_of(inputs.begin(), inputs.end(), [&](const Input& other) {
        return other.written && other.storage == input.storage;
      });
      if (changes && is_source(input)) {
        look(input);
      }
    }
  }

  /// Whether the op's results may depend on the values.
  [[nodiscard]] bool is_source(const Input& input) const {
    return input.values.defined() && !(input.written && overwrites);
  }

  static BadValues look(Input& input) {
    if (!input.bad.has_value()) {
      input.bad = look_at(input.values);
    }
    return *input.bad;
  }

  /// Notes what the op made or wrote: a view of what went in is neither.
  void ended(const at::RecordFunction& op, bool look) {
    end_node = at::sequence_number::peek();
    std::size_t index = 0;
    for (const c10::IValue& output : op.outputs()) {
      for_each_tensor_in(output, [&](const at::Tensor& tensor) {
        add_result(tensor, "output " + std::to_string(index++), look);
      });
    }
    for (const Input& input : inputs) {
      if (input.written) {
        add_result(input.tensor, "argument " + std::to_string(input.argument), look);
      }
    }
  }

  const bool overwrites;
  const uint64_t first_node;  // sequence numbers of the nodes that it makes: from here ...
  uint64_t end_node = 0;      // ... to before this
  const int exceptions = std::uncaught_exceptions();
  BadValues scalars;
  std::vector<Input> inputs;
  std::vector<Result> results;

 private:
  void add_result(const at::Tensor& tensor, std::string name, bool look) {
    auto values = values_to_look_at(tensor);
    if (!values.defined()) {
      return;
    }
    const auto* storage = values.storage().unsafeGetStorageImpl();
    bool written = false;
    bool view = false;
    for (const Input& input : inputs) {
      written = written || (input.written && input.tensor.is_same(tensor));
      view = view || input.storage == storage;
    }
    const bool known = std::any_of(results.begin(), results.end(), [&](const Result& result) {
      return result.tensor.is_same(tensor);
    });
    if (known || (view && !written)) {
      return;
    }
    const BadValues bad = look ? look_at(values) : BadValues{};
    results.push_back({tensor, std::move(values), std::move(name), look, bad});
  }
};

}  // namespace tidemark::detail
