#pragma once

// What an op's schema says of it, looked up once per thread and op.

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>
#include <ATen/record_function.h>
#include <tidemark/detail/generator_use.h>

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <string>
#include <unordered_map>
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
    static const char* const kNames[] = {"aten::copy_",     "aten::fill_",    "aten::zero_",
                                         "aten::normal_",   "aten::uniform_", "aten::random_",
                                         "aten::bernoulli_"};
    return std::find(std::begin(kNames), std::end(kNames), schema.name()) != std::end(kNames) ||
           std::any_of(schema.arguments().begin(), schema.arguments().end(),
                       [](const c10::Argument& argument) { return argument.is_out(); });
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
    return std::none_of(inputs.begin(), inputs.end(), [](const c10::IValue& input) {
      return input.isGenerator() && input.toGenerator().defined() &&
             !GeneratorUse::is_default(input.toGenerator());
    });
  }

  /// The info of the op that runs; nullptr for a range of the user's.
  static const OpInfo* of(const at::RecordFunction& op) {
    // An op's name stays where its schema is, so the pointer identifies the overload.
    static thread_local std::unordered_map<const char*, OpInfo> known;
    const auto found = known.find(op.name());
    if (found != known.end()) {
      return &found->second;
    }
    const auto name = op.operator_name();
    if (!name.has_value()) {
      return nullptr;
    }
    const auto handle = c10::Dispatcher::singleton().findSchema(*name);
    return handle.has_value() ? &known.emplace(op.name(), OpInfo(*handle)).first->second : nullptr;
  }
};

}  // namespace tidemark::detail
