#include "voxel_net/compare.h"

#include <tidemark/amp_scope.h>
#include <tidemark/checkpoint.h>
#include <tidemark/grad_accumulator.h>
#include <tidemark/memory/bytes.h>
#include <tidemark/memory/measure.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <map>
#include <numeric>
#include <utility>

#include "voxel_net/train.h"

namespace voxel_net {

// What the shapes promise. One activation, [batch, channels, edge, edge, edge] floats, has A bytes;
// the gradients of one block's parameters have W.
//
// Held for backward. A plain block keeps four activations: the inputs of its two convolutions and
// of its two BatchNorms. They are what both convolutions return, the ReLU's result between them,
// and the block's result, which the next convolution keeps as its input. (Adding keeps nothing, and
// the ReLUs work in place. A few hundred bytes of statistics per BatchNorm come on top.) N blocks
// hold 4 N A. Of a checkpointed region of n blocks only its result is held, as the input of what
// follows:
//
//     held saving >= sum over regions of (4 n - 1) A
//
// In mixed precision each of these activations has half the bytes, and a block that is kept holds
// its convolutions' weights once more, in that precision: W/2 at most, for BatchNorm's are not
// cast.
//
//     held saving >= 4 N A - regions A/2 - kept (4 A/2 + W/2)
//
// Peak. The plain step peaks as backward begins, with 4 N A held. A checkpointed step peaks
//   - as backward begins, with one result for each region and 4 for each block that is kept, or
//   - in the backward of region j, whose n_j blocks are there again, with the results of the j - 1
//     regions before it and the parameter gradients of the blocks behind it.
// What backward works on besides, such as the gradient that comes in, is the same in number. One
// activation is allowed for what is freed a moment earlier or later:
//
//     peak saving >= (4 N - 1) A - max((regions + 4 kept) A,
//                                      max over j of (j - 1 + 4 n_j) A + (blocks behind j) W)
//
// and >= -A in any case, since at each moment of backward the plain step holds no less.
int64_t least_held_saving(const Technique& technique, const Sizes& sizes) {
  const auto regions = static_cast<int64_t>(technique.regions.size());
  const int64_t blocks =
      std::accumulate(technique.regions.begin(), technique.regions.end(), technique.kept);
  const bool half = technique.amp.has_value();
  const int64_t activation = half ? sizes.activation / 2 : sizes.activation;
  const int64_t weights = half ? sizes.block_gradients / 2 : 0;
  return 4 * blocks * sizes.activation - regions * activation -
         technique.kept * (4 * activation + weights);
}

int64_t least_peak_saving(const Technique& technique, const Sizes& sizes) {
  if (technique.regions.empty()) {
    return 0;
  }
  const auto regions = static_cast<int64_t>(technique.regions.size());
  const int64_t blocks =
      std::accumulate(technique.regions.begin(), technique.regions.end(), technique.kept);
  int64_t most = (regions + 4 * technique.kept) * sizes.activation;
  int64_t behind = blocks;
  for (int64_t j = 0; j < regions; ++j) {
    const int64_t again = technique.regions[static_cast<size_t>(j)];
    behind -= again;
    most = std::max(most, (j + 4 * again) * sizes.activation + behind * sizes.block_gradients);
  }
  return std::max((4 * blocks - 1) * sizes.activation - most, -sizes.activation);
}

namespace {

Technique cut(const std::string& name, const torch::nn::Sequential& blocks,
              const tidemark::CheckpointedSequentialOptions& options) {
  tidemark::CheckpointedSequential cut_blocks(blocks, options);
  Technique technique{
      name, [cut_blocks](const torch::Tensor& x) mutable { return cut_blocks(x); }, {}, 0, {}};
  int64_t begin = 0;
  for (const size_t end : cut_blocks->segment_ends()) {
    technique.regions.push_back(static_cast<int64_t>(end) - begin);
    begin = static_cast<int64_t>(end);
  }
  if (!options.checkpoint_last()) {
    technique.kept = technique.regions.back();
    technique.regions.pop_back();
  }
  return technique;
}

// Forward, loss and backward; the gradients are left in the parameters.
void run_step(VoxelNet& net, const Technique& technique, const Batch& batch) {
  tidemark::GradAccumulator accumulator(
      tidemark::GradAccumulatorOptions(technique.micro_batches).module(net));
  bool done = false;
  while (!done) {
    torch::Tensor loss;
    {
      const tidemark::AmpScope amp(batch.scan.device(), mixed_precision(technique.amp));
      const torch::Tensor scores = net->head(technique.run_blocks(net->stem(batch.scan)));
      loss = segmentation_loss(scores, batch.labels);
    }
    done = accumulator.backward(loss, static_cast<double>(batch.scan.size(0)));
  }
}

// BatchNorm's statistics as they were, no gradients, and the same random numbers.
class SameStart {
 public:
  explicit SameStart(VoxelNet& net) : net_(net), buffers_(net->buffers()) {
    for (const torch::Tensor& buffer : buffers_) {
      values_.push_back(buffer.clone());
    }
  }
  ~SameStart() { restore(); }

  void restore() {
    const torch::NoGradGuard no_grad;
    for (size_t i = 0; i < buffers_.size(); ++i) {
      buffers_[i].copy_(values_[i]);
    }
    net_->zero_grad();
    torch::manual_seed(0);
  }

 private:
  VoxelNet net_;
  std::vector<torch::Tensor> buffers_;
  std::vector<torch::Tensor> values_;
};

// What a step leaves behind: gradients, and BatchNorm's statistics.
std::vector<torch::Tensor> outcome(VoxelNet& net) {
  std::vector<torch::Tensor> result;
  for (const torch::Tensor& parameter : net->parameters()) {
    result.push_back(parameter.grad().clone());
  }
  for (const torch::Tensor& buffer : net->buffers()) {
    result.push_back(buffer.clone());
  }
  return result;
}

// Not a number if there is one in it.
double largest_difference(const std::vector<torch::Tensor>& a,
                          const std::vector<torch::Tensor>& b) {
  std::vector<torch::Tensor> differences;
  for (size_t i = 0; i < a.size(); ++i) {
    differences.push_back((a[i] - b[i]).abs().max().to(torch::kFloat64));
  }
  return torch::stack(differences).max().item<double>();
}

double seconds_of_step(VoxelNet& net, const Technique& technique, const Batch& batch) {
  const bool cuda = batch.scan.is_cuda();
  if (cuda) {
    torch::cuda::synchronize();
  }
  const auto start = std::chrono::steady_clock::now();
  run_step(net, technique, batch);
  if (cuda) {
    torch::cuda::synchronize();
  }
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

std::string one_decimal(double value) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.1f", value);
  return text;
}

double mebibytes(int64_t bytes) { return static_cast<double>(bytes) / (1 << 20); }

}  // namespace

std::vector<Technique> all_techniques(VoxelNet& net, std::optional<torch::ScalarType> amp) {
  using Options = tidemark::CheckpointedSequentialOptions;
  torch::nn::Sequential blocks;
  for (const torch::nn::AnyModule& block : *net->blocks) {
    blocks->push_back(block);
  }
  const auto count = static_cast<int64_t>(blocks->size());
  const auto plain = [blocks](const torch::Tensor& x) mutable { return blocks->forward(x); };
  std::vector<Technique> techniques{
      {"plain torch::nn::Sequential", plain, {}, count, {}},
      cut("CheckpointedSequential", blocks, Options()),
      cut("  every(2)", blocks, Options().every(2)),
      cut("  every(1)", blocks, Options().every(1)),
      cut("  every(1).checkpoint_last(true)", blocks, Options().every(1).checkpoint_last(true)),
      {"checkpoint() of all blocks",
       [plain](const torch::Tensor& x) { return tidemark::checkpoint(plain, x); },
       {count},
       0,
       {}}};
  const Options& trained = net->blocks->checkpoint_options();
  if (trained.segments().has_value() || trained.every().has_value()) {
    techniques.push_back(cut("  as trained", blocks, trained));
  }
  if (!amp.has_value()) {
    return techniques;
  }
  const std::string precision = amp == torch::kFloat16 ? "AMP fp16" : "AMP bf16";
  techniques.push_back({precision, plain, {}, count, amp});
  techniques.push_back(cut(precision + " + CheckpointedSequential", blocks, Options()));
  techniques.back().amp = amp;
  techniques.push_back(techniques.back());
  techniques.back().name = "  8 times the batch";
  techniques.back().micro_batches = 8;
  return techniques;
}

std::vector<Measured> measure_techniques(VoxelNet& net, const std::vector<Technique>& techniques,
                                         const Batch& batch, int64_t rounds) {
  SameStart start(net);
  std::vector<Measured> result;
  // by precision and number of micro-batches
  std::map<std::pair<std::optional<torch::ScalarType>, int64_t>, std::vector<torch::Tensor>> plain;
  for (const Technique& technique : techniques) {
    const auto otherwise = std::make_pair(technique.amp, technique.micro_batches);
    if (plain.count(otherwise) == 0) {
      Technique plain_blocks = techniques.front();
      plain_blocks.amp = technique.amp;
      plain_blocks.micro_batches = technique.micro_batches;
      start.restore();
      run_step(net, plain_blocks, batch);
      plain[otherwise] = outcome(net);
    }
    // once unmeasured: the first forward of a CheckpointedSequential copies its segments' inputs
    run_step(net, technique, batch);
    start.restore();
    const tidemark::StepMemory memory =
        tidemark::measure([&] { run_step(net, technique, batch); }, batch.scan.device());
    result.push_back(
        {memory.peak, memory.held, 0, largest_difference(outcome(net), plain[otherwise])});
  }

  // round by round, so that a busy moment of the machine doesn't hit one technique only
  std::vector<std::vector<double>> seconds(techniques.size());
  for (int64_t round = 0; round < rounds; ++round) {
    for (size_t i = 0; i < techniques.size(); ++i) {
      start.restore();
      seconds[i].push_back(seconds_of_step(net, techniques[i], batch));
    }
  }
  for (size_t i = 0; i < techniques.size(); ++i) {
    result[i].seconds = median(seconds[i]) / static_cast<double>(techniques[i].micro_batches);
  }
  return result;
}

bool report_techniques(const std::vector<Technique>& techniques,
                       const std::vector<Measured>& measured, const Sizes& sizes, bool on_cpu) {
  std::printf(
      "  \"at most\" is the plain figure less what the shapes promise, with A = %.2f MiB for one\n"
      "  activation, W = %.2f MiB for the gradients of a block, regions of n blocks, N in all:\n"
      "    held  (4 n - 1) A for each region\n"
      "    peak  (4 N - 1) A - max((regions + 4 kept) A, (j - 1 + 4 n_j) A + (blocks behind j) W)\n"
      "  in mixed precision: held  4 N A - regions A/2 - kept (4 A/2 + W/2)\n"
      "  \"difference\" is the largest from plain blocks in the same precision and number of "
      "batches,\n"
      "  of gradients and BatchNorm statistics\n\n",
      mebibytes(sizes.activation), mebibytes(sizes.block_gradients));
  std::printf("  %-34s %19s   %19s   %8s   %s\n", "", "peak MiB  at most", "held MiB  at most",
              "ms/batch", "difference");
  std::vector<std::string> failures;
  const auto check = [&failures](bool holds, const Technique& technique, const std::string& what) {
    if (!holds) {
      failures.push_back(technique.name + ": " + what);
    }
  };
  for (size_t i = 0; i < techniques.size(); ++i) {
    const Technique& technique = techniques[i];
    const Measured& row = measured[i];
    const bool bounds_peak = !technique.amp.has_value();
    const int64_t most_peak = measured[0].peak - least_peak_saving(technique, sizes);
    const int64_t most_held = measured[0].held - least_held_saving(technique, sizes);
    const std::string bound = bounds_peak ? one_decimal(mebibytes(most_peak)) : "";
    std::printf("  %-34s %9.1f %9s   %9.1f %9.1f   %8.0f   %.3g\n", technique.name.c_str(),
                mebibytes(row.peak), bound.c_str(), mebibytes(row.held), mebibytes(most_held),
                1e3 * row.seconds, row.difference);
    check(row.held <= most_held, technique, "holds more than the shapes allow");
    if (on_cpu) {
      check(!bounds_peak || row.peak <= most_peak, technique, "peaks above what the shapes allow");
      check(technique.micro_batches == 1 || row.peak <= measured[0].peak, technique,
            "peaks above plain");
      check(row.difference == 0, technique, "changes gradients or BatchNorm statistics");
    }
  }
  std::printf("\n");
  for (const std::string& failure : failures) {
    std::printf("  FAILED %s\n", failure.c_str());
  }
  return failures.empty();
}

}  // namespace voxel_net
