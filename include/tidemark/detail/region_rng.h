#pragma once

// The random numbers of one region: drawn in the forward, drawn again in every re-run.

#include <c10/util/Exception.h>
#include <tidemark/detail/in_place.h>
#include <tidemark/detail/op_observer.h>
#include <tidemark/detail/rng_state.h>

#include <memory>
#include <string>

namespace tidemark::detail {

/// What a region remembers of its random numbers.
class RegionRng {
  struct Draws {
    DefaultRngState start;
    DefaultRngState end;
    bool cpu;
    bool devices;
    // An op of the region drew; otherwise only the state moved, perhaps by another thread's doing.
    bool certain_on_devices;
  };

 public:
  /// To be called when the region's forward has run; `start` is from before.
  void forward_done(const DefaultRngState& start, const OpLog& log) {
    const DefaultRngState end;
    // On the CPU the state alone proves nothing where the ops were seen: data loaders draw, too,
    // and rewinding the generator would give them the same numbers again.
    const bool cpu = log.complete ? log.drew_on(c10::kCPU) || log.remembered_draws ||
                                        end.cpu.seeded_anew_since(start.cpu)
                                  : end.cpu != start.cpu;
    // On devices kernels of users' own draw past the ops, and other threads hardly do.
    const bool devices = !end.devices.empty() && end.devices != start.devices;
    const bool an_op_drew = devices && (!log.complete || log.drew_on(*accelerator_in_use()));
    if (cpu || devices) {
      draws_.reset(new Draws{start, end, cpu, devices, an_op_drew});
    }
  }

  /// Whether the forward drew random numbers, or must be taken to have.
  [[nodiscard]] bool drew() const {
    return draws_ != nullptr && (draws_->cpu || draws_->certain_on_devices);
  }

  /// While alive, the generators that the region drew from stand where its forward found them;
  /// afterwards where they stood before.
  class Replay {
   public:
    explicit Replay(const RegionRng& rng) : draws_(rng.draws_.get()) {
      if (draws_ != nullptr) {
        before_.emplace();
        put_back(draws_->start);
      }
    }
    Replay(const Replay&) = delete;
    Replay& operator=(const Replay&) = delete;
    ~Replay() {
      if (draws_ != nullptr) {
        put_back(*before_);
      }
    }

    /// Refuses a re-run that did not draw what the forward drew: with several threads on one
    /// generator, one gradient in a hundred is wrong otherwise.
    void expect_same_end(const std::string& region) const {
      if (draws_ == nullptr) {
        return;
      }
      expect(!draws_->cpu || CpuRngState::now() == draws_->end.cpu, region, "CPU");
      expect(!draws_->certain_on_devices || DeviceRngState::now() == draws_->end.devices, region,
             "devices");
    }

   private:
    void put_back(const DefaultRngState& state) const {
      if (draws_->devices) {
        state.devices.restore();  // first, since it can fail
      }
      if (draws_->cpu) {
        state.cpu.restore();
      }
    }

    static void expect(bool same, const std::string& region, const char* generator) {
      TORCH_CHECK(same, "tidemark: ", region,
                  " drew random numbers from the default generator of the ", generator,
                  ", and its re-run for backward left that generator in another state. Another "
                  "thread drew from it during the forward or the re-run, or the region does not "
                  "draw the same each time. Give the other thread a torch::Generator of its own, "
                  "or draw outside the region and pass the numbers in.");
    }

    const Draws* draws_;
    InPlace<DefaultRngState> before_;
  };

 private:
  std::shared_ptr<const Draws> draws_;  // compiles faster than a unique_ptr
};

}  // namespace tidemark::detail
