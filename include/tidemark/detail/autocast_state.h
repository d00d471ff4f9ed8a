#pragma once

// What autocast is set to on a thread, and a scope that sets it and puts back what was before.

#include <ATen/autocast_mode.h>
#include <c10/util/Exception.h>
#include <tidemark/detail/vector.h>

#include <array>
#include <cstddef>
#include <iterator>
#include <tuple>
#include <type_traits>

namespace tidemark::detail {

/// Whether autocast is on and its dtype, for every device type that has autocast; and whether casts
/// of weights are cached.
class AutocastState {
 public:
  /// The calling thread's.
  static AutocastState now() {
    AutocastState state;
    for (std::size_t i = 0; i < kTypes.size(); ++i) {
      state.settings_[i] = {at::autocast::is_autocast_enabled(kTypes[i]),
                            at::autocast::get_autocast_dtype(kTypes[i])};
    }
    state.cache_ = at::autocast::is_autocast_cache_enabled();
    return state;
  }

  /// Makes `to` of the calling thread's state, which is `from`.
  static void change(const AutocastState& from, const AutocastState& to) {
    for (std::size_t i = 0; i < kTypes.size(); ++i) {
      if (from.settings_[i].enabled != to.settings_[i].enabled) {
        at::autocast::set_autocast_enabled(kTypes[i], to.settings_[i].enabled);
      }
      if (from.settings_[i].dtype != to.settings_[i].dtype) {
        at::autocast::set_autocast_dtype(kTypes[i], to.settings_[i].dtype);
      }
    }
    if (from.cache_ != to.cache_) {
      at::autocast::set_autocast_cache_enabled(to.cache_);
    }
  }

  /// The same for every device type but `type`, which has to have autocast.
  [[nodiscard]] AutocastState with(c10::DeviceType type, bool enabled, at::ScalarType dtype) const {
    AutocastState state = *this;
    for (std::size_t i = 0; i < kTypes.size(); ++i) {
      if (kTypes[i] == type) {
        state.settings_[i] = {enabled, dtype};
      }
    }
    return state;
  }

  [[nodiscard]] AutocastState with_cache(bool cache) const {
    AutocastState state = *this;
    state.cache_ = cache;
    return state;
  }

  /// The same with autocast off everywhere.
  [[nodiscard]] AutocastState off() const {
    AutocastState state = *this;
    for (auto& setting : state.settings_) {
      setting.enabled = false;
    }
    return state;
  }

  /// Whether casts that were cached under one can be used under the other.
  [[nodiscard]] bool shares_casts(const AutocastState& other) const {
    bool same = cache_ == other.cache_;
    for (std::size_t i = 0; i < kTypes.size(); ++i) {
      same = same && settings_[i].dtype == other.settings_[i].dtype;
    }
    return same;
  }

 private:
  struct Setting {
    bool enabled = false;
    at::ScalarType dtype = at::kFloat;
  };

  static constexpr std::size_t kCount =
      std::tuple_size_v<std::decay_t<decltype(at::autocast::_AUTOCAST_SUPPORTED_DEVICES)>>;
  static inline const auto& kTypes = at::autocast::_AUTOCAST_SUPPORTED_DEVICES;

  std::array<Setting, kCount> settings_;
  bool cache_ = true;
};

/// While alive, autocast is in the given state on the thread that made it.
///
/// Nothing in torch drops a cached cast when its weight changes, and casts are found by weight, not
/// by dtype. So the cache, which all threads share, is emptied where an outermost scope begins and
/// ends, and where a scope changes a dtype or switches caching.
class AutocastScope {
 public:
  explicit AutocastScope(const AutocastState& wanted) {
    const auto before = AutocastState::now();
    open_scopes().push_back({this, before});
    const bool outermost = at::autocast::increment_nesting() == 1;
    change(before, wanted, outermost);
  }
  AutocastScope(const AutocastScope&) = delete;
  AutocastScope& operator=(const AutocastScope&) = delete;

  ~AutocastScope() {
    auto& scopes = open_scopes();
    auto inner = scopes.end();  // what was opened inside of this one
    while (inner != scopes.begin() && std::prev(inner)->scope != this) {
      --inner;
    }
    if (inner == scopes.begin()) {
      TORCH_WARN(
          "tidemark: an AmpScope ended on another thread than the one it was opened on, whose "
          "autocast settings stay as the scope set them. Open and close it on one thread.");
      return;
    }
    const auto own = std::prev(inner);
    const bool outermost = at::autocast::decrement_nesting() == 0;
    if (inner == scopes.end()) {
      change(AutocastState::now(), own->before, outermost);
    } else {
      TORCH_WARN(
          "tidemark: an AmpScope ended before one that was opened inside of it; its settings hold "
          "until that one ends, too. Let scopes end in the reverse order of their beginning.");
      inner->before = own->before;
    }
    scopes.erase(own);
  }

 private:
  struct Entry {
    const AutocastScope* scope;
    AutocastState before;
  };

  /// The calling thread's, innermost last.
  static Vector<Entry>& open_scopes() {
    static thread_local Vector<Entry> scopes;
    return scopes;
  }

  static void change(const AutocastState& from, const AutocastState& to, bool outermost) {
    AutocastState::change(from, to);
    if (outermost || !from.shares_casts(to)) {
      at::autocast::clear_cache();
    }
  }
};

}  // namespace tidemark::detail
