#pragma once

// What a region's forward found and did, and how a re-run finds it again and is held to it.

#include <c10/util/Exception.h>
#include <tidemark/checkpoint_options.h>
#include <tidemark/detail/forward_world.h>
#include <tidemark/detail/generator_use.h>
#include <tidemark/detail/in_place.h>
#include <tidemark/detail/op_observer.h>
#include <tidemark/detail/out_of_memory.h>
#include <tidemark/detail/region_rng.h>
#include <tidemark/detail/rng_state.h>
#include <tidemark/detail/storage_locks.h>
#include <tidemark/detail/vector.h>
#include <tidemark/detail/write_snapshot.h>

#include <exception>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace tidemark::detail {

/// The settings, random numbers, reads and writes of one run of a region.
class ForwardTrace {
 public:
  /// Traces the forward of a region while alive.
  class Recorder {
   public:
    Recorder(const CheckpointOptions& options, const std::vector<at::Tensor>& arguments,
             bool to_rerun = true)
        : preserve_rng_(options.preserve_rng()) {
      // Where nobody sees the ops, only the generators tell whether numbers were drawn.
      if (preserve_rng_ || !options.observe() || !at::isRecordFunctionEnabled() ||
          OpPause::active()) {
        rng_.emplace();
      }
      if (options.observe()) {
        observer_.emplace(options, to_rerun);
        observer_->arguments(arguments);
      }
    }

    /// Makes undone what it has written and drawn so far. Not after hand_over().
    void undo() const {
      if (observer_.has_value()) {
        const OpPause own_ops;
        const at::NoGradGuard no_grad;
        const OpLog& log = observer_->log;
        const StorageLocks locks(OpObserver::rerunning() ? Vector<const c10::StorageImpl*>()
                                                         : storages_of(log.writes));
        for (const WriteSnapshot& write : log.writes) {
          write.put_back();
        }
        for (const GeneratorUse& use : log.generators) {
          use.start.put_into(use.generator);
        }
      }
      if (rng_.has_value()) {
        rng_->cpu.restore();
        rng_->devices.restore();
      }
    }

    /// What it did so far.
    [[nodiscard]] const OpLog& log() const {
      static const OpLog unseen = OpLog::unseen();
      return observer_.has_value() ? observer_->log : unseen;
    }

    /// Refuses what no re-run of `region` could repeat.
    void finish(const std::string& region, bool remembered_draws) {
      if (observer_.has_value()) {
        observer_->rethrow_failure();
        TORCH_CHECK(observer_->error().empty(), "tidemark: ", region,
                    " can't be re-run for backward: ", observer_->error());
        observer_->log.remembered_draws = remembered_draws;
        observer_->forward_done();
      }
      if (rng_.has_value()) {
        drawn_.forward_done(*rng_, log());
      }
      TORCH_CHECK(
          preserve_rng_ || (log().draws.empty() && log().generators.empty() && !drawn_.drew()),
          "tidemark: ", region,
          " drew random numbers, but preserve_rng is off: the re-run would draw others, "
          "and gradients would be wrong. Leave preserve_rng on, or draw outside the "
          "region.");
    }

    /// Gives what a re-run needs to `trace`, once nothing will be undone any more.
    void hand_over(ForwardTrace& trace) {
      trace.rng_ = std::move(drawn_);
      if (observer_.has_value()) {
        trace.log_ = std::move(observer_->log);
      }
      for (WriteSnapshot& write : trace.log_.writes) {
        if (write.for_undo) {
          write.before.reset();
        }
      }
    }

   private:
    bool preserve_rng_;
    InPlace<DefaultRngState> rng_;
    InPlace<OpObserver> observer_;
    RegionRng drawn_;
  };

  /// While alive, the calling thread and what the region reads are as the forward found them.
  class Replay {
   public:
    /// Sets the settings; the arguments may then be unpacked.
    Replay(const ForwardTrace& trace, std::string region)
        : trace_(trace), region_(std::move(region)), world_(trace.world_) {}

    /// Puts back random numbers and written tensors, and begins to compare. To be called once.
    void begin(const std::vector<at::Tensor>& arguments) {
      found_.emplace(trace_, region_);
      if (trace_.log_.complete && at::isRecordFunctionEnabled()) {
        observer_.emplace(trace_.log_);
        observer_->arguments(arguments);
      }
    }

    /// Whether the tensor's memory gets another value when this ends.
    [[nodiscard]] bool puts_back(const at::Tensor& tensor) const {
      return found_.has_value() && found_->writes.holds(tensor);
    }

    /// How the re-run has left the forward's way; empty if it has not.
    [[nodiscard]] std::string error() const {
      return observer_.has_value() ? observer_->error() : std::string();
    }
    void expect_same_so_far() const {
      if (observer_.has_value()) {
        observer_->rethrow_failure();
      }
      TORCH_CHECK(error().empty(), "tidemark: ", region_,
                  " can't be re-run for backward: ", error());
    }

    /// To be called when the whole region has been re-run.
    void done() {
      if (observer_.has_value()) {
        observer_->rerun_done();
      }
    }

    /// Throws if the whole re-run did not do what the forward did.
    void expect_same() const {
      expect_same_so_far();
      found_->rng.expect_same_end(region_);
      found_->generators.expect_same_end(region_);
    }

   private:
    // What the forward found.
    struct Found {
      Found(const ForwardTrace& trace, const std::string& region)
          : writes(trace.log_.writes, region), rng(trace.rng_), generators(trace.log_.generators) {}

      WriteReplay writes;
      RegionRng::Replay rng;
      GeneratorReplay generators;
    };

    const ForwardTrace& trace_;
    std::string region_;
    ForwardWorld::Guard world_;
    InPlace<Found> found_;
    InPlace<OpObserver> observer_;
  };

  [[nodiscard]] const std::optional<c10::Stream>& stream() const { return world_.stream(); }

 private:
  ForwardWorld world_ = ForwardWorld::now();
  RegionRng rng_;
  OpLog log_ = OpLog::unseen();
};

/// Calls `work`, a forward that several regions may be parts of, so that it has not happened if
/// memory runs out: what it wrote to captured tensors, its `arguments` aside, and drew is undone.
template <class Work>
auto undone_if_out_of_memory(const CheckpointOptions& options, std::vector<at::Tensor> arguments,
                             Work&& work) {
  if (!c10::GradMode::is_enabled()) {
    return std::forward<Work>(work)();  // no region, and nobody waits for its memory
  }
  ForwardTrace::Recorder recorder(options, arguments, /*to_rerun=*/false);
  arguments.clear();
  try {
    return std::forward<Work>(work)();
  } catch (const std::exception& error) {
    if (is_out_of_memory(error)) {
      recorder.undo();
    }
    throw;
  }
}

}  // namespace tidemark::detail
