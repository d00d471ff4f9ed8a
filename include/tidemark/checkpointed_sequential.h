#pragma once

/// \file
/// A Sequential that is checkpointed in segments.

#include <tidemark/checkpoint.h>
#include <tidemark/detail/forward_trace.h>
#include <tidemark/detail/input_writers.h>
#include <tidemark/detail/tensor_tree.h>
#include <tidemark/detail/vector.h>
#include <tidemark/detail/version_check.h>
#include <torch/nn/cloneable.h>
#include <torch/nn/modules/container/any.h>
#include <torch/nn/modules/container/named_any.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/pimpl.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <optional>
#include <ostream>
#include <string>
#include <tuple>
#include <type_traits>
#include <typeinfo>
#include <utility>
#include <vector>

namespace tidemark {

/// How a CheckpointedSequential is cut into regions. Without `segments` or `every` it is cut into
/// about sqrt(N) segments, which holds about 2 sqrt(N) of N equal blocks.
///
///     auto options = tidemark::CheckpointedSequentialOptions().every(2).checkpoint_last(true);
struct CheckpointedSequentialOptions {
  /// The number of segments, from 1 to the number of modules. The first ones get the remainder.
  TORCH_ARG(std::optional<int64_t>, segments);

  /// The number of modules in each segment; the last one may have fewer.
  TORCH_ARG(std::optional<int64_t>, every);

  /// Checkpoints the last segment too. Off by default: its backward comes first, so what it would
  /// free is needed again at once.
  TORCH_ARG(bool, checkpoint_last) = false;

  /// How each segment is recorded and re-run. Its name is followed by the modules of the segment.
  TORCH_ARG(CheckpointOptions, checkpoint);
};

class CheckpointedSequentialImpl;

namespace detail {

template <class T>
struct IsSharedModule : std::false_type {};
template <class T>
struct IsSharedModule<std::shared_ptr<T>> : torch::detail::is_module<T> {};

// What Sequential's constructor takes as one module. A whole container, and a copy, are not.
template <class T>
inline constexpr bool is_sequential_element =
    (torch::detail::is_module<T>::value || torch::detail::is_module_holder<T>::value ||
     IsSharedModule<T>::value ||
     std::is_same_v<T, torch::nn::AnyModule>)&&!std::is_same_v<T, torch::nn::Sequential> &&
    !std::is_same_v<T, CheckpointedSequentialImpl>;

}  // namespace detail

/// A torch::nn::Sequential whose modules run as a few checkpointed regions: of N equal blocks it
/// holds the inputs of its segments and what the last segment saves, instead of what all N save.
/// Children, parameter names and saved files are a Sequential's. It has a plain
/// `Tensor forward(Tensor)`, so it nests in a Sequential; with grad mode off it runs like one.
///
/// Every module has to repeat itself when it is run again, see checkpoint(). Modules that write
/// their input in place are noticed when they first run, and no segment begins with one from then
/// on; in that first forward the segments' inputs are copied instead, so its peak is higher.
///
/// When memory runs out in a forward, what all of its modules wrote to their buffers and drew is
/// undone, as if it had not begun.
///
/// Method: Chen et al., Training Deep Nets with Sublinear Memory Cost, 2016.
class CheckpointedSequentialImpl : public torch::nn::SequentialImpl {
 public:
  CheckpointedSequentialImpl() = default;

  /// Empty, to be filled by push_back(). Throws if the options make no sense, or give both.
  explicit CheckpointedSequentialImpl(CheckpointedSequentialOptions options)
      : options_(std::move(options)) {
    check_options();
  }

  /// Takes modules as Sequential does: by value, by holder or by shared_ptr.
  template <class First, class... Rest,
            class = std::enable_if_t<detail::is_sequential_element<std::decay_t<First>>>>
  explicit CheckpointedSequentialImpl(First&& first, Rest&&... rest) {
    append(std::forward<First>(first), std::forward<Rest>(rest)...);
  }
  /// The same with options first.
  template <class First, class... Rest,
            class = std::enable_if_t<detail::is_sequential_element<std::decay_t<First>>>>
  CheckpointedSequentialImpl(CheckpointedSequentialOptions options, First&& first, Rest&&... rest)
      : CheckpointedSequentialImpl(std::move(options)) {
    append(std::forward<First>(first), std::forward<Rest>(rest)...);
  }

  /// Takes named modules, with their names.
  explicit CheckpointedSequentialImpl(
      torch::OrderedDict<std::string, torch::nn::AnyModule>&& modules,
      CheckpointedSequentialOptions options = {})
      : CheckpointedSequentialImpl(std::move(options)) {
    for (auto& item : modules) {
      push_back(item.key(), std::move(item.value()));
    }
  }
  /// The same from a list in braces: `{{"conv", Conv(1, 8)}, {"act", torch::nn::ReLU()}}`.
  explicit CheckpointedSequentialImpl(std::initializer_list<torch::nn::NamedAnyModule> modules,
                                      CheckpointedSequentialOptions options = {})
      : CheckpointedSequentialImpl(std::move(options)) {
    for (const auto& module : modules) {
      push_back(module.name(), module.module());
    }
  }

  /// Shares the modules of an existing Sequential, under their names.
  explicit CheckpointedSequentialImpl(const torch::nn::Sequential& modules,
                                      CheckpointedSequentialOptions options = {})
      : CheckpointedSequentialImpl(std::move(options)) {
    const std::vector<std::string> names = modules->named_children().keys();
    std::size_t index = 0;
    for (const torch::nn::AnyModule& module : *modules) {
      push_back(names[index++], module);
    }
  }

  /// Runs the modules one after the other. The first takes a Tensor, the last returns one.
  at::Tensor forward(at::Tensor input) { return run<at::Tensor>(std::move(input)); }

  /// As Sequential's forward<Result>(inputs...): the first module may take several values, of its
  /// exact argument types, and modules may pass other types than Tensor on.
  template <class Result = at::Tensor, class... Inputs>
  Result run(Inputs... inputs) {
    std::vector<at::Tensor> arguments;
    const auto add = [&](const at::Tensor& tensor) { arguments.push_back(tensor); };
    (detail::for_each_tensor(inputs, add), ...);
    torch::nn::AnyValue value =
        detail::undone_if_out_of_memory(options_.checkpoint(), std::move(arguments), [&] {
          if constexpr ((sizeof...(Inputs) == 1) && (std::is_same_v<Inputs, at::Tensor> && ...)) {
            return run_pieces(Value(std::move(inputs)...));
          } else {
            return run_pieces(std::move(inputs)...);
          }
        });
    auto* result = value.try_get<Result>();
    TORCH_CHECK(
        result != nullptr, "tidemark: the last module of a CheckpointedSequential returned ",
        c10::demangle(value.type_info().name()), ", but ", c10::demangle(typeid(Result).name()),
        " was asked for. Name the type: run<Type>(inputs...).");
    return std::move(*result);
  }

  /// The index behind the last module of each segment, as asked for by the options. Cuts before
  /// modules that write their input in place are moved behind those, once seen to do so.
  [[nodiscard]] std::vector<std::size_t> segment_ends() const {
    TORCH_CHECK(!is_empty(),
                "tidemark: a CheckpointedSequential can't run without modules; push_back() some.");
    const auto modules = static_cast<int64_t>(size());
    std::vector<std::size_t> ends;
    if (options_.every().has_value()) {
      const int64_t every = *options_.every();
      for (int64_t end = every; end < modules; end += every) {
        ends.push_back(static_cast<std::size_t>(end));
      }
      ends.push_back(size());
      return ends;
    }
    int64_t segments = 0;
    if (options_.segments().has_value()) {
      segments = *options_.segments();
      TORCH_CHECK(segments <= modules, "tidemark: CheckpointedSequentialOptions::segments is ",
                  segments, ", but there are only ", modules,
                  " modules; at most one segment for each is possible.");
    } else {
      segments = static_cast<int64_t>(std::ceil(std::sqrt(static_cast<double>(modules))));
    }
    for (int64_t i = 0, end = 0; i < segments; ++i) {
      end += modules / segments + (i < modules % segments ? 1 : 0);
      ends.push_back(static_cast<std::size_t>(end));
    }
    return ends;
  }

  /// The options given at construction.
  [[nodiscard]] const CheckpointedSequentialOptions& checkpoint_options() const { return options_; }

  /// A deep copy, with the names, options and training mode of this one.
  std::shared_ptr<torch::nn::Module> clone(
      const std::optional<c10::Device>& device = std::nullopt) const override {
    const std::shared_ptr<CheckpointedSequentialImpl> copy(
        new CheckpointedSequentialImpl(options_));
    const std::vector<std::string> names = named_children().keys();
    std::size_t index = 0;
    for (const torch::nn::AnyModule& module : *this) {
      copy->push_back(names[index++], module.clone(device));
    }
    copy->train(is_training());
    return copy;
  }

  /// Prints the name tidemark::CheckpointedSequential; the modules follow, as a Sequential's do.
  void pretty_print(std::ostream& stream) const override {
    stream << "tidemark::CheckpointedSequential";
  }

 private:
  // Thrown through the first region when its first module turns out to overwrite its input.
  struct OverwritesItsInput : detail::UndoForward {};

  // What goes from one module to the next: a tensor, or a value that a region keeps whole.
  struct Value {
    explicit Value(at::Tensor value) : tensor(std::move(value)) {}
    explicit Value(torch::nn::AnyValue value) {
      if (auto* held = value.try_get<at::Tensor>()) {
        tensor = std::move(*held);
      } else {
        other.emplace(std::move(value));
      }
    }
    friend auto tidemark_tensors(Value& value) { return std::tie(value.tensor); }

    at::Tensor tensor;
    // Copied from const alone: AnyValue's constructor from a non-const lvalue calls itself for
    // ever.
    std::optional<torch::nn::AnyValue> other;
  };

  // Owns its modules, so that what a region re-runs is what it ran.
  struct Segment {
    std::vector<torch::nn::AnyModule> modules;
    std::shared_ptr<detail::InputWriters> writers;
    bool is_first = false;
    bool clone_input = false;

    template <class... Inputs>
    torch::nn::AnyValue operator()(Inputs... inputs) {
      torch::nn::AnyValue value = modules.front().any_forward(std::move(inputs)...);
      return rest(std::move(value));
    }

    torch::nn::AnyValue operator()(Value input) {
      if (input.other.has_value()) {
        return rest(modules.front().any_forward(*std::move(input.other)));
      }
      if (clone_input) {
        input.tensor = input.tensor.clone();
      }
      const detail::VersionCheck check(input.tensor);
      torch::nn::AnyValue value = modules.front().any_forward(std::move(input.tensor));
      const bool wrote = check.writes_since() != 0;
      writers->saw(*modules.front().ptr(), wrote);
      if (wrote && is_first && clone_input) {
        throw OverwritesItsInput();
      }
      return rest(std::move(value));
    }

   private:
    torch::nn::AnyValue rest(torch::nn::AnyValue value) {
      for (std::size_t i = 1; i < modules.size(); ++i) {
        value = modules[i].any_forward(std::move(value));
      }
      return value;
    }
  };

  // A run of modules, as a region or plain.
  struct Piece {
    std::size_t begin;
    std::size_t end;
    bool region;
    bool clone_input;
  };

  template <class... Inputs>
  torch::nn::AnyValue run_pieces(Inputs... inputs) {
    // Remembered, since what is known of the modules may have grown when an outer region is re-run.
    detail::Vector<Piece> pieces = remember([&] { return cut(); });
    std::optional<torch::nn::AnyValue> value;
    std::size_t next = 1;
    try {
      value.emplace(run_piece(pieces.front(), inputs...));
    } catch (const OverwritesItsInput&) {
      // Once more, plain: it has to write to the caller's tensor, not to a copy.
      value.emplace(run_piece({0, 1, false, false}, std::move(inputs)...));
      if (pieces.front().end > 1) {
        pieces.front().begin = 1;
        next = 0;
      }
    }
    for (std::size_t i = next; i < pieces.size(); ++i) {
      Value input(std::move(*value));
      value.reset();
      value.emplace(run_piece(pieces[i], std::move(input)));
    }
    return std::move(*value);
  }

  // The segments, but none begins with a module that is known to overwrite its input. One that has
  // not run yet might: it gets a copy.
  [[nodiscard]] detail::Vector<Piece> cut() const {
    const auto overwrites = [&](std::size_t index) {
      return index < size() && writers_->writes(*ptr(index)).value_or(false);
    };
    const auto is_region = [&](std::size_t end) {
      return end < size() || options_.checkpoint_last();
    };
    detail::Vector<Piece> pieces;
    std::size_t begin = 0;
    for (std::size_t end : segment_ends()) {
      if (begin == 0 && is_region(end)) {
        while (begin < end && overwrites(begin)) {
          ++begin;
        }
        if (begin > 0) {
          pieces.push_back({0, begin, false, false});
        }
      }
      while (overwrites(end)) {
        ++end;
      }
      if (end > begin) {
        const bool unknown = !writers_->writes(*ptr(begin)).has_value();
        pieces.push_back({begin, end, is_region(end), is_region(end) && unknown});
        begin = end;
      }
    }
    return pieces;
  }

  template <class... Inputs>
  torch::nn::AnyValue run_piece(const Piece& piece, Inputs... inputs) {
    Segment modules{{begin() + static_cast<std::ptrdiff_t>(piece.begin),
                     begin() + static_cast<std::ptrdiff_t>(piece.end)},
                    writers_,
                    piece.begin == 0,
                    piece.clone_input};
    if (!piece.region) {
      return modules(std::move(inputs)...);
    }
    CheckpointOptions options = options_.checkpoint();
    options.name(segment_name(piece.begin, piece.end));
    return tidemark::checkpoint(std::move(options), std::move(modules), std::move(inputs)...);
  }

  void check_options() const {
    const auto& segments = options_.segments();
    const auto& every = options_.every();
    TORCH_CHECK(!segments.has_value() || *segments >= 1,
                "tidemark: CheckpointedSequentialOptions::segments is ", *segments,
                "; it must be from 1 to the number of modules.");
    TORCH_CHECK(!every.has_value() || *every >= 1,
                "tidemark: CheckpointedSequentialOptions::every is ", *every,
                "; it must be at least 1.");
    TORCH_CHECK(!segments.has_value() || !every.has_value(),
                "tidemark: CheckpointedSequentialOptions got both segments (", *segments,
                ") and every (", *every, "); give one of them.");
  }

  void append() {}
  template <class First, class... Rest>
  void append(First&& first, Rest&&... rest) {
    push_back(std::forward<First>(first));
    append(std::forward<Rest>(rest)...);
  }

  [[nodiscard]] std::string segment_name(std::size_t begin, std::size_t end) const {
    const std::string& name = options_.checkpoint().name();
    return (name.empty() ? "CheckpointedSequential" : name) + "[" + std::to_string(begin) + ".." +
           std::to_string(end - 1) + "]";
  }

  CheckpointedSequentialOptions options_;
  std::shared_ptr<detail::InputWriters> writers_{new detail::InputWriters};
};

/// A holder of CheckpointedSequentialImpl, to be declared where a torch::nn::Sequential was.
///
///     tidemark::CheckpointedSequential blocks;                    // filled by push_back
///     tidemark::CheckpointedSequential stem(Block(8), Block(8));  // about sqrt(N) segments
///     tidemark::CheckpointedSequential body(
///         tidemark::CheckpointedSequentialOptions().segments(2), Block(8), Block(8));
///
/// Takes what CheckpointedSequentialImpl's constructors take; its functions are behind `->`.
class CheckpointedSequential : public torch::nn::ModuleHolder<CheckpointedSequentialImpl> {
 public:
  using torch::nn::ModuleHolder<CheckpointedSequentialImpl>::ModuleHolder;

  CheckpointedSequential() = default;
  /// Takes named modules from a list in braces, and then options.
  CheckpointedSequential(std::initializer_list<torch::nn::NamedAnyModule> modules,
                         CheckpointedSequentialOptions options = {})
      : ModuleHolder(std::shared_ptr<CheckpointedSequentialImpl>(
            new CheckpointedSequentialImpl(modules, std::move(options)))) {}
};

}  // namespace tidemark
