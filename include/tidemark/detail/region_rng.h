#pragma once

// The random numbers of one region: drawn in the forward, drawn again in every re-run.

#include <c10/util/Exception.h>
#include <tidemark/detail/op_observer.h>
#include <tidemark/detail/rng_state.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>

namespace tidemark::detail {

/// Where the generators stood before and after the region's forward, for one kind of generator.
template <class State>
struct Draws {
  State start;
  State end;
  // An op of the region drew; otherwise only the state moved, perhaps by another thread's doing.
  bool certain;
};

/// While alive, the generators stand where the forward found them; afterwards where they stood
/// before.
template <class State>
class Redraw {
 public:
  explicit Redraw(const Draws<State>& draws) : draws_(draws), before_(State::now()) {
    draws_.start.restore();
  }
  Redraw(const Redraw&) = delete;
  Redraw& operator=(const Redraw&) = delete;
  ~Redraw() { before_.restore(); }

  /// Refuses a re-run that did not draw what the forward drew: with several threads on one
  /// generator, one gradient in a hundred is wrong otherwise.
  void expect_same_end(const std::string& region, const char* generator) const {
    TORCH_CHECK(!draws_.certain || State::now() == draws_.end, "tidemark: ", region,
                " drew random numbers from the default generator of the ", generator,
                ", and its re-run for backward left that generator in another state. Another "
                "thread drew from it during the forward or the re-run, or the region does not "
                "draw the same each time. Give the other thread a torch::Generator of its own, "
                "or draw outside the region and pass the numbers in.");
  }

 private:
  const Draws<State>& draws_;
  State before_;
};

/// What a region remembers of its random numbers.
class RegionRng {
 public:
  /// Generators as they stand before the region runs.
  struct Start {
    CpuRngState cpu = CpuRngState::now();
    DeviceRngState devices = DeviceRngState::now();
  };

  /// To be called when the region's forward has run.
  void forward_done(const Start& start, const OpLog& log) {
    // On the CPU the state alone proves nothing where the ops were seen: data loaders draw, too,
    // and rewinding the generator would give them the same numbers again.
    const CpuRngState cpu = CpuRngState::now();
    if (log.complete
            ? log.drew_on(c10::kCPU) || log.remembered_draws || cpu.seeded_anew_since(start.cpu)
            : cpu != start.cpu) {
      cpu_.reset(new Draws<CpuRngState>{start.cpu, cpu, true});
    }
    // On devices kernels of users' own draw past the ops, and other threads hardly do.
    const DeviceRngState devices = DeviceRngState::now();
    if (!devices.empty() && devices != start.devices) {
      devices_.reset(new Draws<DeviceRngState>{
          start.devices, devices, !log.complete || log.drew_on(*accelerator_in_use())});
    }
  }

  /// Whether the forward drew random numbers, or must be taken to have.
  [[nodiscard]] bool drew() const {
    return (cpu_ != nullptr && cpu_->certain) || (devices_ != nullptr && devices_->certain);
  }

  /// While alive, the region's random numbers are drawn again.
  class Replay {
   public:
    explicit Replay(const RegionRng& rng) {
      if (rng.cpu_ != nullptr) {
        cpu_.emplace(*rng.cpu_);
      }
      if (rng.devices_ != nullptr) {
        devices_.emplace(*rng.devices_);
      }
    }

    void expect_same_end(const std::string& region) const {
      if (cpu_.has_value()) {
        cpu_->expect_same_end(region, "CPU");
      }
      if (devices_.has_value()) {
        devices_->expect_same_end(region, "devices");
      }
    }

   private:
    std::optional<Redraw<CpuRngState>> cpu_;
    std::optional<Redraw<DeviceRngState>> devices_;
  };

 private:
  std::unique_ptr<Draws<CpuRngState>> cpu_;
  std::unique_ptr<Draws<DeviceRngState>> devices_;
};

}  // namespace tidemark::detail
