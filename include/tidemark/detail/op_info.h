#pragma once

// What an op's schema says of it, looked up once per thread and op.

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>
#include <ATen/record_function.h>
#include <tidemark/detail/generator_use.h>
#include <tidemark/detail/pointer_index.h>

#include <cstddef>
#include <deque>
#include <string>
#include <vector>

namespace tidemark::detail {

struct OpInfo {
  static constexpr std::size_t kNone = static_cast<std::size_t>(-1);

  /// Draws from a default generator when it is given none; not where it is told that it does not
  /// train, or that it drops nothing.
  bool draws = false;
  std::size_t dropout = kNone;
  /// Arguments that the op writes to.
  std::vector<std::size_t> written;
  /// Whether those get new values that do not depend on the old ones.
  bool overwrites = false;
  /// Running statistics that it updates although its schema does not say so; while the argument
  /// `training` is true, where it has one.
  std::vector<std::size_t> statistics;
  std::size_t training = kNone;

  explicit OpInfo(const c10::OperatorHandle& op)
      : draws(op.hasTag(at::Tag::nondeterministic_seeded)) {
    const auto& arguments = op.schema().arguments();
    const bool normalises = op.schema().name().find("batch_norm") != std::string::npos ||
                            op.schema().name().find("instance_norm") != std::string::npos;
    overwrites = is_overwriting(op.schema());
    for (std::size_t i = 0; i < arguments.size(); ++i) {
      const std::string& name = arguments[i].name();
      if (arguments[i].alias_info() != nullptr && arguments[i].alias_info()->isWrite()) {
        written.push_back(i);
      } else if (normalises && (name == "running_mean" || name == "running_var")) {
        statistics.push_back(i);
      }
      if (name == "dropout_p" || name == "dropout") {
        dropout = i;
      }
      if (name == "training" || name == "train" || name == "use_input_stats") {
        training = i;
      }
    }
  }

  static bool is_overwriting(const c10::FunctionSchema& schema) {
    for (const char* name : {"aten::copy_", "aten::fill_", "aten::zero_", "aten::normal_",
                             "aten::uniform_", "aten::random_", "aten::bernoulli_"}) {
      if (schema.name() == name) {
        return true;
      }
    }
    for (const c10::Argument& argument : schema.arguments()) {
      if (argument.is_out()) {
        return true;
      }
    }
    return false;
  }

  /// Whether a call with these inputs trains, as far as it is told.
  [[nodiscard]] bool trains(c10::ArrayRef<const c10::IValue> inputs) const {
    return training >= inputs.size() || !inputs[training].isBool() || inputs[training].toBool();
  }

  /// Whether a call with these inputs may draw from a default generator.
  [[nodiscard]] bool may_draw(c10::ArrayRef<const c10::IValue> inputs) const {
    if (!draws || !trains(inputs) ||
        (dropout < inputs.size() && inputs[dropout].isDouble() &&
         inputs[dropout].toDouble() == 0)) {
      return false;
    }
    for (const c10::IValue& input : inputs) {
      if (input.isGenerator() && input.toGenerator().defined() &&
          !GeneratorUse::is_default(input.toGenerator())) {
        return false;
      }
    }
    return true;
  }

  /// The info of the op that runs; nullptr for a range of the user's and for what is no op.
  static const OpInfo* of(const at::RecordFunction& op) {
    if (op.scope() != at::RecordScope::FUNCTION) {
      return nullptr;
    }
    // An op's name stays where its schema is, so the pointer identifies the overload.
    static thread_local PointerIndex index;
    static thread_local std::deque<OpInfo> known;  // nested ops find more while one is looked at
    if (const std::size_t* found = index.find(op.name())) {
      return &known[*found];
    }
    const auto name = op.operator_name();
    if (!name.has_value()) {
      return nullptr;
    }
    const auto handle = c10::Dispatcher::singleton().findSchema(*name);
    if (!handle.has_value()) {
      return nullptr;
    }
    known.emplace_back(*handle);
    index.add(op.name(), known.size() - 1);
    return &known.back();
  }
};

}  // namespace tidemark::detail
