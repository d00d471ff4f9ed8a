#pragma once

/// \file
/// A module whose calls are checkpointed, declared where the plain one was.

#include <c10/util/Type.h>
#include <tidemark/checkpoint.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/container/named_any.h>
#include <torch/nn/pimpl.h>

#include <initializer_list>
#include <memory>
#include <optional>
#include <ostream>
#include <type_traits>
#include <typeinfo>
#include <utility>

namespace tidemark {

namespace detail {

template <class M, class = void>
struct ImplOf {
  using type = M;
};
template <class M>
struct ImplOf<M, std::void_t<typename M::ContainedType>> {
  using type = typename M::ContainedType;
};

// The signature of a forward() that is neither overloaded nor a template; else Tensor(Tensor).
template <class R, class C, class... Args>
auto signature_of(R (C::*)(Args...)) -> std::decay_t<R> (*)(Args...);
template <class R, class C, class... Args>
auto signature_of(R (C::*)(Args...) const) -> std::decay_t<R> (*)(Args...);

template <class Impl, class = void>
struct ForwardSignature {
  using type = at::Tensor (*)(at::Tensor);
};
template <class Impl>
struct ForwardSignature<Impl, std::void_t<decltype(signature_of(&Impl::forward))>> {
  using type = decltype(signature_of(&Impl::forward));
};

template <class C>
C owner_of(void (C::*)(std::ostream&) const);

/// Calls the forward() that the user wrote, of a module that is kept alive where somebody shares
/// it.
template <class Impl>
struct OwnForward {
  std::shared_ptr<Impl> module;
  std::weak_ptr<void> alive;

  template <class... Args>
  auto operator()(Args&&... args) const
      -> decltype(module->Impl::forward(std::forward<Args>(args)...)) {
    TORCH_CHECK(!alive.expired(),
                "tidemark: the module of a checkpointed region was destroyed "
                "before backward. Hold it in its holder or in a shared_ptr.");
    return module->Impl::forward(std::forward<Args>(args)...);
  }
};

/// What a holder of Checkpointed<M> shows: M, whose forward() is a region, called in every way that
/// M's can be called. Its own names have a prefix that no user's class has.
template <class Impl>
class CheckpointedCalls : public Impl {
 public:
  using Impl::Impl;
  explicit CheckpointedCalls(const Impl& module) : Impl(module) {}

  // The unnamed int keeps forward<T>(...) of M away from this overload.
  template <int = 0, class... Args>
  auto forward(Args&&... args)
      -> std::decay_t<decltype(std::declval<Impl&>().forward(std::forward<Args>(args)...))> {
    return checkpoint_callable(tidemark_options_,
                               OwnForward<Impl>{share<Impl>(*this), tidemark_alive_.token},
                               std::forward<Args>(args)...);
  }

  /// How the module is recorded and re-run; may be changed between calls.
  CheckpointOptions& checkpoint_options() { return tidemark_options_; }
  [[nodiscard]] const CheckpointOptions& checkpoint_options() const { return tidemark_options_; }

  void pretty_print(std::ostream& stream) const override {
    stream << "tidemark::Checkpointed(";
    if constexpr (std::is_same_v<decltype(owner_of(&Impl::pretty_print)), torch::nn::Module>) {
      stream << c10::demangle(typeid(Impl).name());
    } else {
      Impl::pretty_print(stream);
    }
    stream << ')';
  }

 private:
  // Not shared by copies: each module has its own life.
  struct Alive {
    Alive() = default;
    Alive(const Alive&) {}
    // NOLINTNEXTLINE(bugprone-unhandled-self-assignment): nothing is assigned
    Alive& operator=(const Alive&) { return *this; }
    std::shared_ptr<void> token = std::make_shared<char>();
  };

  CheckpointOptions tidemark_options_;
  Alive tidemark_alive_;
};

}  // namespace detail

/// The module behind Checkpointed<M>: derived from M's own, so that parameters, buffers, members
/// and saved files are M's, with one plain forward(), as AnyModule asks for.
template <class Impl, class Signature = typename detail::ForwardSignature<Impl>::type>
class CheckpointedImpl;

/// \cond
template <class Impl, class R, class... Args>
class CheckpointedImpl<Impl, R (*)(Args...)> : public detail::CheckpointedCalls<Impl> {
  using Calls = detail::CheckpointedCalls<Impl>;

 public:
  using Calls::Calls;

  R forward(Args... args) { return Calls::forward(std::forward<Args>(args)...); }

  /// A deep copy of the same type, with the options and training mode of this one.
  std::shared_ptr<torch::nn::Module> clone(
      const std::optional<c10::Device>& device = std::nullopt) const override {
    if constexpr (std::is_copy_constructible_v<Impl>) {
      // M clones itself; the copy of that clone shares its tensors with nobody else.
      const auto plain = std::dynamic_pointer_cast<Impl>(Impl::clone(device));
      TORCH_CHECK(plain != nullptr, "tidemark: clone() of ", c10::demangle(typeid(Impl).name()),
                  " returned a module of another type; it has to return a copy of its own.");
      auto copy = std::make_shared<CheckpointedImpl>(static_cast<const Impl&>(*plain));
      copy->checkpoint_options() = this->checkpoint_options();
      copy->train(this->is_training());
      return copy;
    } else {
      TORCH_CHECK(
          false, "tidemark: ", c10::demangle(typeid(Impl).name()),
          " can't be copied, so Checkpointed of it can't be cloned. Give it a copy constructor, or "
          "make a new one and copy the parameters.");
    }
  }
};
/// \endcond

/// A user's module as one checkpointed region, declared where its holder was.
///
///     tidemark::Checkpointed<Decoder> head{64, 7};                     // was Decoder head{64, 7}
///     tidemark::Checkpointed<Decoder> named(tidemark::CheckpointOptions().name("head"), 64, 7);
///     tidemark::Checkpointed<torch::nn::Sequential> stem(Conv(1, 8), Conv(8, 8));
///
/// `M` is a holder or an implementation. Constructor arguments, members behind `->`, registration,
/// names and saved files are M's; it nests in a Sequential and clones as itself. Only forward() is
/// a region, see checkpoint(); M's other functions run plain. Its options are
/// `head->checkpoint_options()`, to be read, or changed between calls. An existing instance is
/// wrapped by `checkpoint(module, ...)` instead. Gradients are checkpointed in eval() too.
template <class M>
class Checkpointed
    : public torch::nn::ModuleHolder<CheckpointedImpl<typename detail::ImplOf<M>::type>> {
 public:
  /// M's implementation: that of its holder, or M itself.
  using Impl = typename detail::ImplOf<M>::type;

 private:
  static_assert(detail::is_module<Impl>,
                "tidemark: Checkpointed<M> takes a module or its holder (TORCH_MODULE).");
  static_assert(!std::is_final_v<Impl>,
                "tidemark: Checkpointed<M> derives from M, which is final. Drop `final`, or call "
                "tidemark::checkpoint(module, x) where the module is used.");
  static_assert(!std::is_abstract_v<Impl>,
                "tidemark: Checkpointed<M> makes an M, which is abstract. Name a concrete module.");

  using Base = torch::nn::ModuleHolder<CheckpointedImpl<Impl>>;
  using Calls = detail::CheckpointedCalls<Impl>;

 public:
  using Base::Base;

  /// Made without arguments, if M can be.
  Checkpointed() = default;

  /// Options first, then what M's constructor takes.
  template <class... Args>
  explicit Checkpointed(CheckpointOptions options, Args&&... args)
      : Base(std::make_shared<CheckpointedImpl<Impl>>(std::forward<Args>(args)...)) {
    (*this)->checkpoint_options() = std::move(options);
  }

  /// Named modules, where M is a Sequential or another container that takes them.
  explicit Checkpointed(std::initializer_list<torch::nn::NamedAnyModule> modules)
      : Base(std::make_shared<CheckpointedImpl<Impl>>(modules)) {}

  /// M with its members, and the options as checkpoint_options(); forward() is a region.
  Calls* operator->() { return this->get(); }
  /// The same, read-only: forward() is not const, so it can't be called.
  const Calls* operator->() const { return this->get(); }

  /// Calls forward(), in every way that M's can be called, as a region.
  template <class... Args>
  auto operator()(Args&&... args)
      -> decltype(std::declval<Calls&>().forward(std::forward<Args>(args)...)) {
    return static_cast<Calls&>(*this->get()).forward(std::forward<Args>(args)...);
  }
};

}  // namespace tidemark
