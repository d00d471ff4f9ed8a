#pragma once

// The state of the default random number generators: what a region must find again when re-run.

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/DeviceAccelerator.h>
#include <ATen/core/Tensor.h>
#include <tidemark/detail/fingerprint.h>
#include <tidemark/detail/vector.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <optional>

namespace tidemark::detail {

/// The type of the devices that have been used in this process besides the CPU, if any.
inline std::optional<c10::DeviceType> accelerator_in_use() {
  const auto type = at::accelerator::getAccelerator();
  if (!type.has_value() || at::accelerator::deviceCount() == 0) {
    return std::nullopt;
  }
  return type;
}

/// Calls `visit` with every accelerator device that has a context; the others have drawn nothing,
/// and looking at them could create one.
template <class Visit>
void for_each_device_in_use(Visit&& visit) {
  const auto type = accelerator_in_use();
  if (!type.has_value()) {
    return;
  }
  const auto& hooks = at::globalContext().getAcceleratorHooksInterface(*type);
  for (c10::DeviceIndex index = 0; index < at::accelerator::deviceCount(); ++index) {
    if (hooks.hasPrimaryContext(index)) {
      visit(c10::Device(*type, index));
    }
  }
}

/// A generator of the CPU. Read through its engine: get_state() would allocate a tensor of 5 KB for
/// each region, which also fails when memory has run out.
class CpuRngState {
 public:
  /// The default generator's.
  static CpuRngState now() { return of(at::detail::getDefaultCPUGenerator()); }

  static CpuRngState of(at::Generator generator) {
    std::lock_guard<std::mutex> lock(generator.mutex());
    auto* impl = generator.get<at::CPUGeneratorImpl>();
    return {impl->engine().data(), impl->next_float_normal_sample(),
            impl->next_double_normal_sample()};
  }

  void restore() const { restore(at::detail::getDefaultCPUGenerator()); }

  void restore(at::Generator generator) const {
    std::lock_guard<std::mutex> lock(generator.mutex());
    auto* impl = generator.get<at::CPUGeneratorImpl>();
    at::mt19937 engine;
    engine.set_data(engine_);
    impl->set_engine(engine);
    impl->set_next_float_normal_sample(next_float_);
    impl->set_next_double_normal_sample(next_double_);
  }

  /// Whether the generator was given another seed since.
  [[nodiscard]] bool seeded_anew_since(const CpuRngState& earlier) const {
    return engine_.seed_ != earlier.engine_.seed_;
  }

  /// A number that tells states apart.
  [[nodiscard]] uint64_t fingerprint() const {
    Hash hash;
    hash.add(engine_.seed_);
    hash.add((static_cast<uint64_t>(engine_.left_) << 32) | engine_.next_);
    // The words are made anew all at once, so a few of them stand for all.
    for (const std::size_t i :
         {std::size_t{0}, engine_.state_.size() / 2, engine_.state_.size() - 1}) {
      hash.add(engine_.state_[i]);
    }
    hash.add(next_float_.has_value());
    hash.add(next_double_.has_value());
    return hash.value();
  }

  friend bool operator==(const CpuRngState& a, const CpuRngState& b) {
    return a.engine_.seed_ == b.engine_.seed_ && a.engine_.left_ == b.engine_.left_ &&
           a.engine_.next_ == b.engine_.next_ && a.engine_.state_ == b.engine_.state_ &&
           a.next_float_ == b.next_float_ && a.next_double_ == b.next_double_;
  }
  friend bool operator!=(const CpuRngState& a, const CpuRngState& b) { return !(a == b); }

 private:
  CpuRngState(const at::mt19937_data_pod& engine, std::optional<float> next_float,
              std::optional<double> next_double)
      : engine_(engine), next_float_(next_float), next_double_(next_double) {}

  at::mt19937_data_pod engine_;
  std::optional<float> next_float_;
  std::optional<double> next_double_;
};

/// The default generators of all accelerator devices in use.
class DeviceRngState {
 public:
  static DeviceRngState now() {
    DeviceRngState state;
    for_each_device_in_use([&](c10::Device device) {
      at::Generator generator = at::globalContext().defaultGenerator(device);
      std::lock_guard<std::mutex> lock(generator.mutex());
      state.devices_.push_back({device, generator.get_state()});
    });
    return state;
  }

  void restore() const {
    for (const auto& [device, state] : devices_) {
      at::Generator generator = at::globalContext().defaultGenerator(device);
      std::lock_guard<std::mutex> lock(generator.mutex());
      generator.set_state(state);
    }
  }

  [[nodiscard]] bool empty() const { return devices_.empty(); }

  friend bool operator==(const DeviceRngState& a, const DeviceRngState& b) {
    // A device that came into use in between had drawn nothing before.
    for (const auto& [device, state] : a.devices_) {
      for (const auto& [other_device, other_state] : b.devices_) {
        if (device == other_device &&
            (state.nbytes() != other_state.nbytes() ||
             std::memcmp(state.const_data_ptr(), other_state.const_data_ptr(), state.nbytes()))) {
          return false;
        }
      }
    }
    return true;
  }
  friend bool operator!=(const DeviceRngState& a, const DeviceRngState& b) { return !(a == b); }

 private:
  struct OneDevice {
    c10::Device device;
    at::Tensor state;
  };
  Vector<OneDevice> devices_;
};

/// All default generators as they stand when it is made.
struct DefaultRngState {
  CpuRngState cpu = CpuRngState::now();
  DeviceRngState devices = DeviceRngState::now();
};

}  // namespace tidemark::detail
