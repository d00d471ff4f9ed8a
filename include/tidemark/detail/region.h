#pragma once

// A region of a forward pass whose saved tensors are not kept: the graph is recorded as always,
// every saved tensor becomes a slot, and the first slot that backward asks for re-runs the region
// and fills them all. (Non-reentrant activation checkpointing, as in torch.utils.checkpoint with
// use_reentrant=False.)

#include <c10/util/Exception.h>
#include <tidemark/checkpoint_options.h>
#include <tidemark/detail/content_hash.h>
#include <tidemark/detail/early_stop.h>
#include <tidemark/detail/forward_trace.h>
#include <tidemark/detail/graph_end.h>
#include <tidemark/detail/out_of_memory.h>
#include <tidemark/detail/recompute.h>
#include <tidemark/detail/region_run.h>
#include <tidemark/detail/saved_tensor_hooks.h>
#include <tidemark/detail/tensor_meta.h>
#include <tidemark/detail/vector.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/saved_variable.h>

#include <condition_variable>
#include <cstddef>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tidemark::detail {

/// Thrown through a region's forward, has it undo what it wrote and drew: it will run again.
/// Running out of memory does so, too.
struct UndoForward {};

/// One call of a region. Its slots share it; thread-safe once the forward is over, since the
/// devices of one backward pass, or two passes over one graph, may ask at the same time.
class Region : public std::enable_shared_from_this<Region> {
 public:
  Region(const Region&) = delete;
  Region& operator=(const Region&) = delete;
  virtual ~Region() = default;

 protected:
  explicit Region(CheckpointOptions options)
      : options_(std::move(options)), early_stop_(options_.early_stop()) {}

  /// Stores one tensor argument, through the hooks that are active outside: where another region is
  /// being recorded, the argument is that one's to give back.
  void save_input(const at::Tensor& input) {
    TORCH_CHECK(!input.defined() || !input.is_inference(),
                "tidemark: ", input_title(inputs_.size()), " (", describe(input),
                ") was made in inference mode, so changes to it can't be noticed. Clone it outside "
                "of inference mode and pass the clone.");
    inputs_.push_back({torch::autograd::SavedVariable(input, /*is_output=*/false),
                       input.defined() ? VersionCheck(input) : VersionCheck()});
    arguments_.push_back(input);
  }

  /// Runs `forward`; what it saves for backward becomes slots of this region.
  template <class Forward>
  auto record(Forward&& forward) {
    ForwardTrace::Recorder recorder(options_, arguments_);
    arguments_.clear();
    const auto run = [&]() -> decltype(forward()) {
      RegionRun region_run(remembered_);
      SlotMaker maker(shared_from_this());
      SavedTensorHooksScope scope(maker);
      return forward();
    };
    try {
      if constexpr (std::is_void_v<decltype(forward())>) {
        run();
        forward_done(recorder);
      } else {
        auto result = run();
        forward_done(recorder);
        return result;
      }
    } catch (const UndoForward&) {
      recorder.undo();
      abandon();
      throw;
    } catch (const std::exception& error) {
      if (is_out_of_memory(error)) {
        recorder.undo();
      }
      abandon();
      throw;
    } catch (...) {
      abandon();
      throw;
    }
  }

  /// Runs the region's function once more on `inputs`.
  virtual void run_again(std::vector<at::Tensor> inputs) = 0;

  /// Lets go of the function and its arguments.
  virtual void drop_call() = 0;

 private:
  // One tensor argument.
  struct Input {
    torch::autograd::SavedVariable saved;
    VersionCheck check;
  };

  struct SlotState {
    explicit SlotState(const at::Tensor& variable)
        : meta(variable),
          check(variable),
          kept(variable.is_leaf() ? variable : variable.tensor_data()) {}

    TensorMeta meta;
    VersionCheck check;
    // Everything until the forward is over, as the region may run a backward of its own; then
    // leaves that require grad alone. Parameters are alive anyway, and so is what the region makes
    // a leaf of: the graph owns it to accumulate its gradient.
    at::Tensor kept;
    uint64_t content = 0;  // for `verify`
    bool released = false;
  };

  class Slot final : public torch::autograd::SavedVariableHooks {
   public:
    explicit Slot(std::shared_ptr<Region> region) : region_(std::move(region)) {}
    ~Slot() override {
      if (index_.has_value()) {
        region_->release(*index_);
      }
    }
    void call_pack_hook(const at::Tensor& variable) override { index_ = region_->pack(variable); }
    at::Tensor call_unpack_hook() override { return region_->unpack(index_.value()); }

   private:
    std::shared_ptr<Region> region_;
    std::optional<std::size_t> index_;
  };

  class SlotMaker final : public HookMaker {
   public:
    explicit SlotMaker(std::shared_ptr<Region> region) : region_(std::move(region)) {}
    std::unique_ptr<torch::autograd::SavedVariableHooks> make_hooks() override {
      return std::unique_ptr<torch::autograd::SavedVariableHooks>(new Slot(region_));
    }

   private:
    std::shared_ptr<Region> region_;
  };

  // During a re-run each saved tensor fills its slot, and stays usable by the re-run's own graph:
  // the region may run a backward of its own.
  class Capture final : public torch::autograd::SavedVariableHooks {
   public:
    Capture(Region& region, Recompute& recompute) : region_(region), recompute_(recompute) {}
    void call_pack_hook(const at::Tensor& variable) override {
      kept_ = KeptTensor(variable);
      region_.capture(recompute_, variable, kept_);
    }
    at::Tensor call_unpack_hook() override { return kept_.unpack(); }

   private:
    Region& region_;
    Recompute& recompute_;
    KeptTensor kept_;
  };

  class CaptureMaker final : public HookMaker {
   public:
    CaptureMaker(Region& region, Recompute& recompute) : region_(region), recompute_(recompute) {}
    std::unique_ptr<torch::autograd::SavedVariableHooks> make_hooks() override {
      return std::unique_ptr<torch::autograd::SavedVariableHooks>(new Capture(region_, recompute_));
    }

   private:
    Region& region_;
    Recompute& recompute_;
  };

  std::size_t pack(const at::Tensor& variable) {
    SlotState slot(variable);
    early_stop_.saved(slot.kept);
    std::lock_guard<std::mutex> lock(mutex_);
    slots_.push_back(std::move(slot));
    return slots_.size() - 1;
  }

  at::Tensor unpack(std::size_t index) {
    TORCH_CHECK(!abandoned_, "tidemark: the forward of ", title(),
                " failed, so there is nothing to go back through. Start from its arguments again.");
    {
      std::lock_guard<std::mutex> lock(mutex_);
      expect_not_written(index);
      if (slots_[index].kept.defined()) {
        return slots_[index].kept;
      }
    }
    const std::shared_ptr<Recompute> recompute = recompute_for_this_pass();
    KeptTensor value;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      expect_not_written(index);  // by the re-run itself, where nobody observed it
      value = recompute->values[index];
    }
    TORCH_CHECK(value.defined(), "tidemark: ", slot_title(index), " was not recomputed.");
    recompute->hand_over_to_current_stream(value.tensor());
    return value.unpack();
  }

  void expect_not_written(std::size_t index) const {
    slots_[index].check.expect_unchanged(
        [&] { return slot_title(index) + ", " + describe(slots_[index].meta) + ","; });
  }

  void release(std::size_t index) {
    for (bool found = true; found;) {
      // One at a time, which takes no memory, and destroyed outside of the lock: a tensor's deleter
      // may be the user's.
      at::Tensor kept;
      KeptTensor value;
      const std::lock_guard<std::mutex> lock(mutex_);
      slots_[index].released = true;
      kept = std::move(slots_[index].kept);
      found = false;
      for (const auto& recompute : recomputes_) {
        if (recompute->values[index].defined()) {
          value = std::exchange(recompute->values[index], KeptTensor());
          found = true;
          break;
        }
      }
    }
  }

  // After a forward that failed. A tensor that it wrote to in place may have got a graph that leads
  // here, and must not be held here.
  void abandon() {
    abandoned_ = true;
    drop_call();
    inputs_.clear();
    remembered_.clear();
    std::vector<at::Tensor> dropped;
    const std::lock_guard<std::mutex> lock(mutex_);
    for (SlotState& slot : slots_) {
      dropped.push_back(std::move(slot.kept));
    }
  }

  void forward_done(ForwardTrace::Recorder& recorder) {
    if (slots_.empty()) {
      return;
    }
    for (std::size_t i = 0; i < inputs_.size(); ++i) {
      TORCH_CHECK(inputs_[i].check.writes_since() == 0, "tidemark: ", title(),
                  " writes to its argument in place (", input_title(i),
                  "), so it can't be re-run for backward: what it started from is gone. Clone the "
                  "argument inside the region before the write, or begin the region behind it.");
    }
    bool remembered_draws = false;
    for (const auto& value : remembered_) {
      remembered_draws = remembered_draws || value->drew;
    }
    recorder.finish(title(), remembered_draws);
    early_stop_.forward_done(slots_.back().kept, recorder.log());
    std::vector<at::Tensor> dropped;
    const std::lock_guard<std::mutex> lock(mutex_);
    if (options_.verify()) {
      for (SlotState& slot : slots_) {
        slot.content = content_hash(slot.kept);
      }
    }
    recorder.hand_over(trace_);
    for (SlotState& slot : slots_) {
      if (!slot.kept.requires_grad()) {
        dropped.push_back(std::move(slot.kept));
      }
    }
  }

  std::shared_ptr<Recompute> recompute_for_this_pass() {
    const int pass = torch::autograd::get_current_graph_task_id();
    std::shared_ptr<Recompute> recompute(new Recompute(pass, slots_.size()));
    if (pass < 0) {
      run_recompute(*recompute);  // outside of a pass nothing would say when to drop it
      return recompute;
    }
    std::unique_lock<std::mutex> lock(mutex_);
    if (const auto entry = recompute_of(pass); entry != recomputes_.end()) {
      recompute = *entry;
      recompute_ended_.wait(lock, [&] { return recompute->state != Recompute::State::kRunning; });
      if (recompute->state == Recompute::State::kFailed) {
        std::rethrow_exception(recompute->error);
      }
      return recompute;
    }
    recomputes_.push_back(recompute);
    lock.unlock();
    try {
      run_recompute(*recompute);
      EngineLink::hold_until_backward_ends(
          std::shared_ptr<void>(nullptr, [region = weak_from_this(), pass](void*) {
            if (const auto alive = region.lock()) {
              alive->drop_recompute(pass);
            }
          }));
      lock.lock();
      recompute->state = Recompute::State::kDone;
    } catch (...) {
      lock.lock();
      recompute->state = Recompute::State::kFailed;
      recompute->error = std::current_exception();
      forget_recompute(pass);
      recompute_ended_.notify_all();
      throw;
    }
    recompute_ended_.notify_all();
    return recompute;
  }

  void run_recompute(Recompute& recompute) {
    try {
      ForwardTrace::Replay replay(trace_, title());
      std::vector<at::Tensor> inputs = unpack_inputs();
      replay.begin(inputs);
      recompute.replay = &replay;
      const RegionRun region_run(std::as_const(remembered_), options_.preserve_rng());
      CaptureMaker maker(*this, recompute);
      const SavedTensorHooksScope scope(maker);
      try {
        run_again(std::move(inputs));
        replay.done();
        TORCH_CHECK(recompute.packed == slots_.size(), "tidemark: ", title(), " saved ",
                    slots_.size(), " tensors for backward in the forward and only ",
                    recompute.packed, " when it was re-run. ", reason(replay));
        replay.expect_same();
      } catch (const RecomputeIsComplete&) {
        replay.expect_same_so_far();
      } catch (const std::exception& error) {
        // Rather the cause than what came of it; our own refusals name it themselves.
        if (std::string_view(error.what()).substr(0, 9) != "tidemark:") {
          replay.expect_same_so_far();
        }
        throw;
      }
      if (options_.verify()) {
        verify(recompute);
      }
      keep_what_is_put_back(recompute);
      if (trace_.stream().has_value()) {
        recompute.finish_on(*trace_.stream());
      }
    } catch (const std::exception&) {
      throw;
    } catch (...) {
      // On a device thread of the engine anything else would end the program.
      TORCH_CHECK(
          false, "tidemark: ", title(),
          " threw something that is no std::exception when it was re-run for backward. Throw "
          "one that is.");
    }
  }

  std::vector<at::Tensor> unpack_inputs() const {
    std::vector<at::Tensor> inputs;
    inputs.reserve(inputs_.size());
    decltype(torch::autograd::Edge::function) end;
    for (std::size_t i = 0; i < inputs_.size(); ++i) {
      inputs_[i].check.expect_unchanged([&] { return input_title(i); });
      const at::Tensor input = inputs_[i].saved.unpack();
      inputs.push_back(input.defined() ? GraphEnd::argument(input, end, title()) : input);
    }
    return inputs;
  }

  void capture(Recompute& recompute, const at::Tensor& variable, const KeptTensor& kept) {
    const std::size_t index = recompute.packed++;
    TORCH_CHECK(index < slots_.size(), "tidemark: ", title(), " saved ", slots_.size(),
                " tensors for backward in the forward and more when it was re-run: the next is ",
                describe(variable), ". ", reason(*recompute.replay));
    const TensorMeta meta(variable);
    TORCH_CHECK(meta == slots_[index].meta, "tidemark: ", slot_title(index), " was ",
                describe(slots_[index].meta), " in the forward and is ", describe(meta),
                " when re-run. ", reason(*recompute.replay));
    recompute.replay->expect_same_so_far();
    {
      std::lock_guard<std::mutex> lock(mutex_);
      if (!slots_[index].released && !slots_[index].kept.defined()) {
        recompute.values[index] = kept;
      }
    }
    if (early_stop_.allowed() && recompute.packed == slots_.size()) {
      throw RecomputeIsComplete();
    }
  }

  void verify(const Recompute& recompute) const {
    for (std::size_t i = 0; i < slots_.size(); ++i) {
      TORCH_CHECK(
          !recompute.values[i].defined() ||
              content_hash(recompute.values[i].tensor()) == slots_[i].content,
          "tidemark: ", slot_title(i), " (", describe(slots_[i].meta),
          ") has other values when re-run than in the forward. Something that the region "
          "reads past LibTorch's ops differs: a counter, a clock, std::rand, a custom kernel. "
          "Wrap it in tidemark::remember.");
    }
  }

  // A buffer that the region writes gets today's value back when the re-run is over; what the
  // re-run saved of it stays.
  void keep_what_is_put_back(Recompute& recompute) {
    const OpPause own_ops;
    const at::NoGradGuard no_grad;
    for (KeptTensor& value : recompute.values) {
      if (value.defined() && recompute.replay->puts_back(value.tensor())) {
        value = KeptTensor(value.tensor().clone());
      }
    }
  }

  void drop_recompute(int pass) {
    std::shared_ptr<Recompute> dropped;
    std::lock_guard<std::mutex> lock(mutex_);
    dropped = forget_recompute(pass);
  }

  // Under the mutex. Returns it, if there is one, to be destroyed outside.
  std::shared_ptr<Recompute> forget_recompute(int pass) {
    std::shared_ptr<Recompute> forgotten;
    if (const auto entry = recompute_of(pass); entry != recomputes_.end()) {
      forgotten = std::move(*entry);
      recomputes_.erase(entry);
    }
    return forgotten;
  }

  // Where a backward pass's own is kept; under the mutex.
  Vector<std::shared_ptr<Recompute>>::iterator recompute_of(int pass) {
    auto entry = recomputes_.begin();
    while (entry != recomputes_.end() && (*entry)->pass != pass) {
      ++entry;
    }
    return entry;
  }

  [[nodiscard]] std::string title() const {
    return options_.name().empty() ? "a checkpointed region"
                                   : "checkpointed region '" + options_.name() + "'";
  }
  [[nodiscard]] std::string slot_title(std::size_t index) const {
    return "saved tensor #" + std::to_string(index) + " of " + title();
  }
  [[nodiscard]] std::string input_title(std::size_t index) const {
    return "argument tensor #" + std::to_string(index) + " of " + title();
  }

  // Why a re-run saves other tensors: what its ops show, or else a guess.
  static std::string reason(const ForwardTrace::Replay& replay) {
    const std::string seen = replay.error();
    return seen.empty()
               ? "A region must do the same when it runs again. Was a module switched between "
                 "train() and eval(), or something else that the region reads replaced, between "
                 "forward and backward?"
               : "The cause: " + seen;
  }

  const CheckpointOptions options_;
  ForwardTrace trace_;
  Memory remembered_;
  Vector<Input> inputs_;
  std::vector<at::Tensor> arguments_;  // until the forward begins
  EarlyStop early_stop_;
  bool abandoned_ = false;

  std::mutex mutex_;
  std::condition_variable recompute_ended_;
  Vector<SlotState> slots_;  // grows during the forward only
  Vector<std::shared_ptr<Recompute>> recomputes_;
};

}  // namespace tidemark::detail
