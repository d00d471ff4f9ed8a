#pragma once

// An op as at::RecordFunction shows it to a callback: what goes in, and what it wrote or drew.

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <ATen/record_function.h>
#include <tidemark/detail/fingerprint.h>
#include <tidemark/detail/op_info.h>
#include <tidemark/detail/op_log.h>
#include <tidemark/detail/rng_state.h>

#include <cstddef>
#include <cstdint>
#include <string>

namespace tidemark::detail {

// RecordFunction::inputs() asserts in a translation unit without NDEBUG, as the released library
// never sets the flag that it looks at. An explicit instantiation may name a private member.
template <auto member>
struct PrivateInputs {
  friend c10::ArrayRef<const c10::IValue> inputs_of(const at::RecordFunction& op) {
    return op.*member;
  }
};
/// What the op was called with; in a start callback only.
c10::ArrayRef<const c10::IValue> inputs_of(const at::RecordFunction& op);
template struct PrivateInputs<&at::RecordFunction::inputs_>;

/// Calls `visit` with the tensor, or each one of the list, that an argument or a result is.
template <class Visit>
void for_each_tensor_in(const c10::IValue& value, Visit&& visit) {
  if (value.isTensor()) {
    visit(value.toTensor());
  } else if (value.isList()) {
    for (const c10::IValue& element : value.toListRef()) {
      if (element.isTensor()) {
        visit(element.toTensor());
      }
    }
  }
}

/// Calls `visit(tensor, declared)` with what the op is going to write, as its schema declares or
/// as we know better.
template <class Visit>
void for_each_written(const OpInfo& info, c10::ArrayRef<const c10::IValue> inputs, Visit&& visit) {
  const auto each = [&](std::size_t index, bool declared) {
    if (index < inputs.size()) {
      for_each_tensor_in(inputs[index], [&](const at::Tensor& tensor) {
        if (tensor.defined() && tensor.has_storage()) {
          visit(tensor, declared);
        }
      });
    }
  };
  for (const std::size_t index : info.written) {
    each(index, true);
  }
  if (info.trains(inputs)) {
    for (const std::size_t index : info.statistics) {
      each(index, false);
    }
  }
}

/// Everything about an argument but the values of its tensors.
inline void add_to(Hash& hash, const c10::IValue& value) {
  if (value.isNone()) {
    hash.add(7);
  } else if (value.isTensor()) {
    const at::Tensor& tensor = value.toTensor();
    if (tensor.defined()) {
      hash.add(static_cast<uint64_t>(tensor.scalar_type()) + 1);
      for (const int64_t size : tensor.sizes()) {
        hash.add(static_cast<uint64_t>(size));
      }
    } else {
      hash.add(0);
    }
  } else if (value.isInt()) {
    hash.add(static_cast<uint64_t>(value.toInt()));
  } else if (value.isBool()) {
    hash.add(value.toBool() ? 3 : 5);
  } else if (value.isDouble()) {
    const double number = value.toDouble();
    hash.add_bytes(&number, sizeof(number));
  } else if (value.isComplexDouble()) {
    const c10::complex<double> number = value.toComplexDouble();
    hash.add_bytes(&number, sizeof(number));
  } else if (value.isString()) {
    const std::string& text = value.toStringRef();
    hash.add(text.size());
    hash.add_bytes(text.data(), text.size());
  } else if (value.isDevice()) {
    hash.add(static_cast<uint64_t>(value.toDevice().type()));
    hash.add(static_cast<uint64_t>(value.toDevice().index()));
  } else if (value.isList()) {
    const auto elements = value.toListRef();
    hash.add(elements.size());
    for (const c10::IValue& element : elements) {
      add_to(hash, element);
    }
  }
}

/// Which op it is, and with which sizes and scalars.
inline OpMark mark_of(const at::RecordFunction& op, c10::ArrayRef<const c10::IValue> inputs) {
  Hash arguments;
  for (const c10::IValue& input : inputs) {
    add_to(arguments, input);
  }
  return {op.name(), arguments.value(), 0};
}

/// What the op drew, if it did: a generator on the CPU has moved then. In an end callback only.
/// Allocates nothing.
inline Draw draw_of(const at::RecordFunction& op, uint64_t generator_before) {
  Draw draw;
  for (const c10::IValue& output : op.outputs()) {
    for_each_tensor_in(output, [&](const at::Tensor& tensor) {
      if (draw.op != nullptr || !tensor.defined()) {
        return;
      }
      draw = Draw{op.name(), tensor.device().type(), 0};
      if (tensor.is_cpu() && tensor.has_storage()) {
        Hash numbers;
        numbers.add(generator_before);
        numbers.add(CpuRngState::now().fingerprint());
        numbers.add(fingerprint_of_elements(tensor));
        draw.numbers = numbers.value();
      }
    });
  }
  if (draw.op != nullptr && draw.type == c10::kCPU &&
      CpuRngState::now().fingerprint() == generator_before) {
    return {};
  }
  return draw;
}

}  // namespace tidemark::detail
