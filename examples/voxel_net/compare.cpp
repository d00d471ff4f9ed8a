#include "voxel_net/compare.h"

#include <tidemark/amp_scope.h>
#include <tidemark/checkpoint.h>
#include <tidemark/grad_accumulator.h>

#include <algorithm>
#include <cstdio>
#include <numeric>
#include <utility>

#include "common/training_options.h"
#include "voxel_net/train.h"

namespace voxel_net {

using examples::Batch;

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
int64_t least_held_saving(const Way& way, const Sizes& sizes) {
  const auto regions = static_cast<int64_t>(way.regions.size());
  const int64_t blocks = std::accumulate(way.regions.begin(), way.regions.end(), way.kept);
  const bool half = way.amp.has_value();
  const int64_t activation = half ? sizes.activation / 2 : sizes.activation;
  const int64_t weights = half ? sizes.block_gradients / 2 : 0;
  return 4 * blocks * sizes.activation - regions * activation -
         way.kept * (4 * activation + weights);
}

int64_t least_peak_saving(const Way& way, const Sizes& sizes) {
  if (way.regions.empty()) {
    return 0;
  }
  const auto regions = static_cast<int64_t>(way.regions.size());
  const int64_t blocks = std::accumulate(way.regions.begin(), way.regions.end(), way.kept);
  int64_t most = (regions + 4 * way.kept) * sizes.activation;
  int64_t behind = blocks;
  for (int64_t j = 0; j < regions; ++j) {
    const int64_t again = way.regions[static_cast<size_t>(j)];
    behind -= again;
    most = std::max(most, (j + 4 * again) * sizes.activation + behind * sizes.block_gradients);
  }
  return std::max((4 * blocks - 1) * sizes.activation - most, -sizes.activation);
}

namespace {

Way cut(const std::string& name, const torch::nn::Sequential& blocks,
        const tidemark::CheckpointedSequentialOptions& options) {
  tidemark::CheckpointedSequential cut_blocks(blocks, options);
  Way way{name, [cut_blocks](const torch::Tensor& x) mutable { return cut_blocks(x); }, {}, 0, {}};
  int64_t begin = 0;
  for (const size_t end : cut_blocks->segment_ends()) {
    way.regions.push_back(static_cast<int64_t>(end) - begin);
    begin = static_cast<int64_t>(end);
  }
  if (!options.checkpoint_last()) {
    way.kept = way.regions.back();
    way.regions.pop_back();
  }
  return way;
}

// Forward, loss and backward; the gradients are left in the parameters.
void run_step(VoxelNet& net, const Way& way, const Batch& batch) {
  tidemark::GradAccumulator accumulator(
      tidemark::GradAccumulatorOptions(way.micro_batches).module(net));
  bool done = false;
  while (!done) {
    torch::Tensor loss;
    {
      const tidemark::AmpScope amp(batch.scan.device(), examples::mixed_precision(way.amp));
      const torch::Tensor scores = net->head(way.run_blocks(net->stem(batch.scan)));
      loss = segmentation_loss(scores, batch.labels);
    }
    done = accumulator.backward(loss, static_cast<double>(batch.scan.size(0)));
  }
}

double mebibytes(int64_t bytes) { return static_cast<double>(bytes) / (1 << 20); }

}  // namespace

std::vector<Way> all_ways(VoxelNet& net, std::optional<torch::ScalarType> amp) {
  using Options = tidemark::CheckpointedSequentialOptions;
  torch::nn::Sequential blocks;
  for (const torch::nn::AnyModule& block : *net->blocks) {
    blocks->push_back(block);
  }
  const auto count = static_cast<int64_t>(blocks->size());
  const auto plain = [blocks](const torch::Tensor& x) mutable { return blocks->forward(x); };
  std::vector<Way> ways{
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
    ways.push_back(cut("  as trained", blocks, trained));
  }
  if (!amp.has_value()) {
    return ways;
  }
  const std::string precision = amp == torch::kFloat16 ? "AMP fp16" : "AMP bf16";
  ways.push_back({precision, plain, {}, count, amp});
  ways.push_back(cut(precision + " + CheckpointedSequential", blocks, Options()));
  ways.back().amp = amp;
  ways.push_back(ways.back());
  ways.back().name = "  8 times the batch";
  ways.back().micro_batches = 8;
  return ways;
}

std::vector<examples::Measured> measure_ways(VoxelNet& net, const std::vector<Way>& ways,
                                             const Batch& batch, int64_t rounds) {
  std::vector<examples::Technique> techniques;
  for (const Way& way : ways) {
    Way plain = ways.front();
    plain.amp = way.amp;
    plain.micro_batches = way.micro_batches;
    examples::Technique technique;
    technique.name = way.name;
    technique.step = [&net, &batch, way] { run_step(net, way, batch); };
    technique.micro_batches = way.micro_batches;
    technique.reference = [&net, &batch, plain] { run_step(net, plain, batch); };
    techniques.push_back(technique);
  }
  return examples::measure_techniques(*net, techniques, batch.scan.device(), rounds);
}

bool report_ways(const std::vector<Way>& ways, const std::vector<examples::Measured>& measured,
                 const Sizes& sizes, torch::Device device) {
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
  const examples::Measured& plain = measured.at(0);
  std::vector<examples::Technique> techniques;
  for (const Way& way : ways) {
    examples::Technique technique;
    technique.name = way.name;
    technique.micro_batches = way.micro_batches;
    technique.most_held = plain.held - least_held_saving(way, sizes);
    if (!way.amp.has_value()) {
      technique.most_peak = plain.peak - least_peak_saving(way, sizes);
    } else if (way.micro_batches > 1) {
      technique.most_peak = plain.peak;
    }
    techniques.push_back(technique);
  }
  return examples::print_techniques(techniques, measured, device,
                                    "gradients or BatchNorm statistics");
}

std::function<void()> whole_step(VoxelNet& net, torch::optim::Optimizer& optimizer, const Way& way,
                                 const Batch& batch) {
  return [&net, &optimizer, way, batch] {
    optimizer.zero_grad();
    run_step(net, way, batch);
    optimizer.step();
  };
}

}  // namespace voxel_net
