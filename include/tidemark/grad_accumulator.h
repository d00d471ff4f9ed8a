#pragma once

/// \file
/// The step of a big batch, from small ones that fit in memory.
///
///     tidemark::GradAccumulator accumulator(
///         optimizer, tidemark::GradAccumulatorOptions(4).scaler(scaler).clip_grad_norm(1.0));
///     for (auto& batch : *loader) {
///       torch::Tensor loss;
///       {
///         tidemark::AmpScope amp(device);
///         loss = criterion(model->forward(batch.data), batch.target);
///       }
///       accumulator.backward(loss, batch.data.size(0));   // steps on every fourth call
///     }
///     accumulator.flush();                                // the last, partial window
///
/// That is the whole loop: no zero_grad(), no scale(), no division of the loss, no clipping, no
/// step(), no update(). Each of them done by hand as well would be done twice. Four micro-batches,
/// however uneven, and a last window of fewer, give the gradient of one big batch. What is done
/// twice is refused where it shows; a loss that was scaled or divided looks like any other, and
/// torch::nn::utils::clip_grad_norm_ and writes through data() within a window leave no trace.
///
/// The weight is the number of items that the loss is a mean over: not the batch size where voxels
/// are masked or rays differ in number.
///
///     accumulator.backward(masked_loss, mask.sum().item<int64_t>());
///
/// Or a loader gives whole batches, and the accumulator cuts them to what memory holds:
///
///     auto result = accumulator.accumulate(batch, [&](auto micro) {
///       return criterion(model->forward(micro.data), micro.target);
///     });
///
/// A learning rate follows the steps that were taken, once per window:
///
///     options.after_step([&](tidemark::StepResult result) {
///       if (result == tidemark::StepResult::kStepped) scheduler.step();
///     });
///
/// Logging: window_loss() is the mean over the whole window. Log it after a window; keeping the
/// losses of micro-batches keeps their graphs, unless they are detached.
///
/// Gradients of tensors that no optimizer holds (retain_grad() on places on the screen) are scaled
/// with a GradScaler, and the backward() that ends a window has updated the scale: read
/// scaler.get_scale() before backward(), and divide them by it.
///
/// A GAN has an accumulator for each of its two losses. A backward pass of one reaches the other's
/// parameters, too, so either windows alternate as a whole (a window begins by dropping gradients
/// that are there), or the other's parameters are frozen meanwhile; else backward() refuses to go
/// on, since gradients changed under it.
///
/// What doesn't add up over micro-batches, so that the big batch's gradient can't be had:
///   - Losses that are no mean over items: dice over the batch (MONAI's batch=True, nnU-Net's
///     batch_dice), contrastive losses, ranks, a penalty on the norm of a mean. Dice per sample is
///     a mean over samples, and adds up.
///   - Batch statistics. BatchNorm normalises a micro-batch by its own; GroupNorm or InstanceNorm
///     don't depend on the batch. The running statistics: batch_norm().
///   - Random numbers: dropout and augmentation draw others than for one big batch.
///
/// A term that doesn't depend on the data (weight decay by hand, total variation of a grid) is part
/// of every micro-batch's loss: the weights make it count once.
///
/// Parameters in bfloat16 or float16 (model->to(torch::kBFloat16)) add up their gradients in these,
/// and lose small ones: accumulate_dtype(torch::kFloat). Under an AmpScope parameters and gradients
/// are float32 anyway.
///
/// Peak memory is that of one micro-batch, and from the second on of the gradients, which live
/// through a window. Let go of a micro-batch's loss and outputs before the next forward.

#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>
#include <tidemark/detail/accumulator_core.h>
#include <tidemark/detail/batch_slices.h>
#include <tidemark/detail/grad_accumulator_state.h>
#include <tidemark/detail/optimizer_ref.h>
#include <tidemark/detail/out_of_memory.h>
#include <tidemark/detail/tensor_tree.h>
#include <tidemark/detail/update_window.h>
#include <tidemark/detail/window_snapshot.h>
#include <tidemark/grad_accumulator_options.h>
#include <torch/optim/optimizer.h>
#include <torch/serialize/archive.h>

#include <algorithm>
#include <cstdint>
#include <exception>
#include <initializer_list>
#include <iterator>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace tidemark {

/// Adds up the gradients of micro-batches and steps with their weighted mean, once per window.
///
/// At the end of a window gradients are unscaled, divided by the sum of the weights, clipped,
/// stepped with and set to none, in this order. A step that a GradScaler skips leaves nothing
/// behind for the next window. With equal weights all is, bit for bit, as in the common loop that
/// divides its losses by the number of micro-batches. Recipes: grad_accumulator.h.
///
/// Takes optimizers by reference, and reads their parameters anew in each call: between windows
/// they may be replaced. Without optimizers it works on the parameters of
/// GradAccumulatorOptions::module(), ends a window without a step and leaves the gradients, to be
/// stepped with in after_step() or before the next window begins; with a GradScaler that is
/// scaler.step(parameters, own_step) and scaler.update().
///
/// Does not wait for a device but at the end of a window with a GradScaler, and where an option
/// says so.
///
/// A window whose backward pass throws, or whose end does, is given up: its gradients are gone, the
/// next call begins another, a GradScaler is as before the window, and the exception passes as it
/// is. If it comes from an optimizer's own step, its text names the optimizer, whose parameters may
/// be half updated; that is the one thing that a failed call does not leave as it was.
///
/// For one thread at a time. Not copyable.
class GradAccumulator {
 public:
  /// What steps at the end of a window: any of LibTorch's optimizers, or one derived from it.
  using Optimizer = torch::optim::Optimizer;

  /// Throws if an option makes no sense.
  explicit GradAccumulator(Optimizer& optimizer, const GradAccumulatorOptions& options = {})
      : core_({&optimizer}, options) {}
  explicit GradAccumulator(Optimizer&&, const GradAccumulatorOptions& = {}) = delete;

  /// Several optimizers, which step together: {adam, sgd}, or {&adam, &sgd}.
  explicit GradAccumulator(std::initializer_list<detail::OptimizerRef> optimizers,
                           const GradAccumulatorOptions& options = {})
      : core_(detail::pointers_to(optimizers), options) {}

  /// The same from a container of optimizers, or of pointers of any kind to them.
  template <class Optimizers, class = decltype(std::begin(std::declval<Optimizers&>()))>
  // NOLINTNEXTLINE(bugprone-forwarding-reference-overload): a GradAccumulator has no begin()
  explicit GradAccumulator(Optimizers&& optimizers, const GradAccumulatorOptions& options = {})
      : core_(detail::pointers_to(optimizers), options) {}

  /// No optimizer: the parameters of GradAccumulatorOptions::module(), and a step of one's own.
  explicit GradAccumulator(const GradAccumulatorOptions& options) : core_({}, options) {}

  GradAccumulator(const GradAccumulator&) = delete;
  GradAccumulator& operator=(const GradAccumulator&) = delete;
  ~GradAccumulator() {
    if (core_.micro_steps() != 0) {
      TORCH_WARN("tidemark: GradAccumulator: destroyed with ", core_.micro_steps(),
                 " micro-batches that no step was taken for. Call flush() after the last batch, or "
                 "discard().");
    }
  }

  /// Adds the gradient of a loss that is a mean over `weight` items. Returns whether that ended the
  /// window, and so whether a step was taken or skipped. A weight of 0 is a micro-batch without
  /// items: it counts as one of the window's, and no more. Throws, and changes nothing, if the loss
  /// is no scalar that requires grad or the weight is negative, infinite or NaN.
  bool backward(const at::Tensor& loss, double weight = 1) {
    core_.add(loss, weight, weight * static_cast<double>(core_.options().steps()));
    if (core_.micro_steps() < core_.options().steps()) {
      return false;
    }
    end_window();
    return true;
  }

  /// Ends a window early: the last one of an epoch, which has fewer micro-batches. Its gradient is
  /// the mean over these. Returns false, and does nothing, if no window is open.
  bool flush() {
    if (core_.micro_steps() == 0) {
      return false;
    }
    core_.check_intact();
    end_window();
    return true;
  }

  /// Gives the open window up: without a step, with gradients set to none.
  void discard() { core_.discard(); }

  /// A window of its own from a whole batch, cut along the first dimension of its tensors: one, or
  /// pairs, tuples, containers and structs of them, or a torch::data::Example. Tensors without
  /// dimensions and all else are passed on as they are. `function` gets each part, in order, and
  /// returns its loss, a mean over the rows; or a WeightedLoss or pair of a loss and a weight.
  ///
  /// Unless micro_batch() says how many rows a part has, the first try is the whole batch. When
  /// memory runs out in `function` or its backward pass, the try is undone and the whole window
  /// done anew with half as many rows, so that all is, bit for bit, as if it had begun with these.
  /// They are kept for later calls. Undone are gradients, the default random number generators, the
  /// buffers of GradAccumulatorOptions::module() and the peaks of open MemoryScopes; what else
  /// `function` changes is its own to undo.
  ///
  /// Any other exception, and one at the window's end, passes after the same undoing. Gradients
  /// from before the call are kept until it is over, and are there again if it throws: zero_grad()
  /// first where there are some and memory is scarce. Throws c10::OutOfMemoryError where one row is
  /// too many, and when memory runs out inside an optimizer, which is never tried again: the error
  /// names the optimizer, whose parameters may be half updated. Throws if a window is open.
  template <class Batch, class Function>
  StepResult accumulate(const Batch& batch, Function&& function) {
    TORCH_CHECK(core_.micro_steps() == 0, "tidemark: GradAccumulator: accumulate() is a window of ",
                "its own, and one is open, with ", core_.micro_steps(),
                " micro-batches. Call flush() or discard() first.");
    auto whole = detail::to_owned(batch);
    const int64_t rows = detail::count_rows(whole);
    while (true) {
      const int64_t size = std::min(rows, micro_batch().value_or(rows));
      const auto out_of_memory = try_window(whole, rows, size, function);
      if (!out_of_memory.has_value()) {
        break;
      }
      shrink(size, *out_of_memory);
    }
    core_.after_step();
    return last_result();
  }

  /// The mean of the losses of the last window, over all its items; NaN if none was counted. Waits
  /// for the device. This and the next three throw before the first window has ended.
  [[nodiscard]] double window_loss() const {
    const auto& outcome = core_.last();
    return outcome.total == 0 ? std::numeric_limits<double>::quiet_NaN()
                              : outcome.loss_sum.item<double>() / outcome.total;
  }

  /// The norm of the last window's gradients, normalised and before they were clipped; 0 if there
  /// were none. Needs GradAccumulatorOptions::clip_grad_norm(). Waits for the device.
  [[nodiscard]] double grad_norm() const {
    TORCH_CHECK(core_.options().clip_grad_norm().has_value(),
                "tidemark: GradAccumulator: grad_norm() is only known with clip_grad_norm(); its "
                "argument may be infinity.");
    return core_.last().grad_norm.defined() ? core_.last().grad_norm.item<double>() : 0;
  }

  /// What each optimizer did at the end of the last window.
  [[nodiscard]] const std::vector<StepResult>& results() const { return core_.last().results; }

  /// The same in one: kSkipped if any was skipped, else kStepped if any stepped, else kNoGrads.
  /// Without optimizers kStepped says that there are gradients to step with.
  [[nodiscard]] StepResult last_result() const { return core_.last().result(); }

  /// The number of micro-batches in the open window.
  [[nodiscard]] int64_t micro_steps() const { return core_.micro_steps(); }

  /// The number of windows that have ended.
  [[nodiscard]] int64_t windows() const { return core_.windows(); }

  /// The number of micro-batches that GradAccumulatorOptions::drop_nonfinite left out, in all
  /// windows that have ended.
  [[nodiscard]] int64_t dropped() const { return core_.dropped(); }

  /// The rows that accumulate() passes at a time, if an option or a lack of memory limits them.
  [[nodiscard]] std::optional<int64_t> micro_batch() const {
    return core_.options().micro_batch().has_value() ? core_.options().micro_batch() : found_;
  }

  /// For torch::save(accumulator, "accumulator.pt"), or as a part of an archive of one's own, also
  /// while a window is open. What a window has of gradients, weights and losses goes on bit for bit
  /// after load(); models, optimizers, scalers and random number generators are saved by
  /// themselves.
  void save(torch::serialize::OutputArchive& archive) const {
    auto state = core_.state();
    state.micro_batch = found_.value_or(0);
    detail::write_state(archive, state);
  }
  /// Goes on from what save() wrote. Throws, and changes nothing, if the archive holds no such.
  void load(torch::serialize::InputArchive& archive) {
    const auto state = detail::read_accumulator_state(archive);
    core_.load_state(state);
    found_ = state.micro_batch == 0 ? std::nullopt : std::optional(state.micro_batch);
  }

  /// For torch::save(accumulator, "accumulator.pt"): save().
  friend torch::serialize::OutputArchive& operator<<(torch::serialize::OutputArchive& archive,
                                                     const GradAccumulator& accumulator) {
    accumulator.save(archive);
    return archive;
  }
  /// For torch::load(accumulator, "accumulator.pt"): load().
  friend torch::serialize::InputArchive& operator>>(torch::serialize::InputArchive& archive,
                                                    GradAccumulator& accumulator) {
    accumulator.load(archive);
    return archive;
  }

 private:
  void end_window() {
    core_.end_window();
    core_.after_step();
  }

  // Says what ran out if memory did before the window's end. What throws has undone everything.
  template <class Batch, class Function>
  std::optional<std::string> try_window(const Batch& whole, int64_t rows, int64_t size,
                                        Function& function) {
    const auto& options = core_.options();
    const detail::WindowSnapshot before(core_.parameters(), options.module() != nullptr
                                                                ? options.module()->buffers()
                                                                : std::vector<at::Tensor>());
    bool ends = false;
    const auto undo = [&] {
      core_.give_up();
      before.put_back();
      core_.correct_momenta(options.steps());
    };
    try {
      core_.correct_momenta((rows + size - 1) / size);
      for (int64_t begin = 0; begin < rows; begin += size) {
        const int64_t part = std::min(size, rows - begin);
        const auto [loss, weight] =
            detail::weighted_loss(function(detail::rows_of(whole, begin, part)), part);
        core_.add(loss, weight, weight * static_cast<double>(rows) / static_cast<double>(part));
      }
      ends = true;
      core_.end_window();
      return std::nullopt;
    } catch (const std::exception& error) {
      undo();
      if (ends || options.micro_batch().has_value() || !detail::is_out_of_memory(error)) {
        throw;
      }
      return detail::text_of(error);
    } catch (...) {
      undo();
      throw;
    }
  }

  void shrink(int64_t size, const std::string& out_of_memory) {
    detail::empty_device_caches();
    TORCH_CHECK_WITH(
        OutOfMemoryError, size > 1,
        "tidemark: GradAccumulator: memory runs out even with micro-batches of size 1. Parameters "
        "and buffers are as they were. Hold less per sample: checkpoint the model "
        "(tidemark::CheckpointedSequential, tidemark::checkpoint()) in smaller segments, run it in "
        "half precision (tidemark::AmpScope), or take smaller crops or patches. What ran out: ",
        out_of_memory);
    found_ = (size + 1) / 2;
    TORCH_WARN("tidemark: GradAccumulator: memory ran out with micro-batches of ", size,
               " rows. From now on they have ", *found_, ". What ran out: ", out_of_memory);
  }

  detail::AccumulatorCore core_;
  std::optional<int64_t> found_;  // rows that memory suffices for, once it did not for more
};

}  // namespace tidemark
