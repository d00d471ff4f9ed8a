// Advice is followed here, and has to bring what it announced.

#include <gtest/gtest.h>
#include <tidemark/checkpoint.h>
#include <tidemark/checkpointed_sequential.h>
#include <tidemark/memory/bytes.h>
#include <tidemark/memory/measure.h>
#include <tidemark/memory/memory_recorder.h>
#include <torch/torch.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace {

using namespace tidemark::literals;
using tidemark::MemoryAdvice;
using tidemark::MemoryRecorder;
using tidemark::MemoryRecorderOptions;
using tidemark::MemoryReport;
using tidemark::StepMemory;
using Kind = MemoryAdvice::Kind;

// What a model is told to checkpoint: modules, and Sequentials with their `every`.
using Plan = std::map<std::string, int64_t>;

// Runs a module that takes one tensor as the plan says.
template <class Holder>
torch::Tensor run(const Plan& plan, const std::string& name, Holder& module, torch::Tensor x) {
  const auto planned = plan.find(name);
  if (planned == plan.end()) {
    return module->forward(std::move(x));
  }
  return tidemark::checkpoint(
      [module](const torch::Tensor& input) mutable { return module->forward(input); },
      std::move(x));
}

// A Sequential that can be cut. Made once for each way, for its first forward copies inputs.
class MaybeCut {
 public:
  torch::Tensor run(const Plan& plan, const std::string& name, torch::Tensor x) {
    const auto planned = plan.find(name);
    if (planned == plan.end() || planned->second == 0) {
      return ::run(plan, name, modules, std::move(x));
    }
    const auto options = tidemark::CheckpointedSequentialOptions().every(planned->second);
    const auto [cut, first] = cut_.try_emplace(planned->second, nullptr);
    if (first) {
      cut->second = std::make_shared<tidemark::CheckpointedSequentialImpl>(modules, options);
    }
    return cut->second->forward(x);
  }

  torch::nn::Sequential modules;

 private:
  std::map<int64_t, std::shared_ptr<tidemark::CheckpointedSequentialImpl>> cut_;
};

struct ResBlockImpl : torch::nn::Module {
  explicit ResBlockImpl(int64_t channels)
      : conv1(torch::nn::Conv3dOptions(channels, channels, 3).padding(1).bias(false)),
        norm1(channels),
        conv2(torch::nn::Conv3dOptions(channels, channels, 3).padding(1).bias(false)),
        norm2(channels) {
    register_module("conv1", conv1);
    register_module("norm1", norm1);
    register_module("conv2", conv2);
    register_module("norm2", norm2);
  }
  torch::Tensor forward(const torch::Tensor& x) {
    const auto hidden = torch::relu(norm1(conv1(x)));
    return torch::relu(norm2(conv2(hidden)) + x);
  }
  torch::nn::Conv3d conv1;
  torch::nn::BatchNorm3d norm1;
  torch::nn::Conv3d conv2;
  torch::nn::BatchNorm3d norm2;
};
TORCH_MODULE(ResBlock);

struct VoxelNet : torch::nn::Module {
  VoxelNet() : stem(torch::nn::Conv3dOptions(1, 8, 3).padding(1)), head(8, 4) {
    register_module("stem", stem);
    for (int i = 0; i < 6; ++i) {
      blocks.modules->push_back(ResBlock(8));
    }
    register_module("blocks", blocks.modules);
    register_module("head", head);
  }
  torch::Tensor forward(const Plan& plan, const torch::Tensor& x) {
    auto hidden = stem(x);
    if (plan.count("blocks") != 0) {
      hidden = blocks.run(plan, "blocks", hidden);
    } else {
      for (std::size_t i = 0; i < blocks.modules->size(); ++i) {
        auto block = blocks.modules->ptr<ResBlockImpl>(i);
        hidden = run(plan, "blocks." + std::to_string(i), block, hidden);
      }
    }
    return head(hidden.mean({2, 3, 4}));
  }
  torch::nn::Conv3d stem;
  MaybeCut blocks;
  torch::nn::Linear head;
};

struct DoubleConvImpl : torch::nn::Module {
  DoubleConvImpl(int64_t in, int64_t out)
      : conv1(torch::nn::Conv3dOptions(in, out, 3).padding(1)),
        norm1(torch::nn::InstanceNorm3dOptions(out).affine(true)),
        conv2(torch::nn::Conv3dOptions(out, out, 3).padding(1)),
        norm2(torch::nn::InstanceNorm3dOptions(out).affine(true)) {
    register_module("conv1", conv1);
    register_module("norm1", norm1);
    register_module("conv2", conv2);
    register_module("norm2", norm2);
  }
  torch::Tensor forward(torch::Tensor x) {
    x = torch::leaky_relu(norm1(conv1(x)), 0.01);
    return torch::leaky_relu(norm2(conv2(x)), 0.01);
  }
  torch::nn::Conv3d conv1;
  torch::nn::InstanceNorm3d norm1;
  torch::nn::Conv3d conv2;
  torch::nn::InstanceNorm3d norm2;
};
TORCH_MODULE(DoubleConv);

struct UNet : torch::nn::Module {
  UNet()
      : enc0(1, 4),
        enc1(4, 8),
        bottom(8, 16),
        up1(torch::nn::ConvTranspose3dOptions(16, 8, 2).stride(2)),
        dec1(16, 8),
        up0(torch::nn::ConvTranspose3dOptions(8, 4, 2).stride(2)),
        dec0(8, 4),
        head(torch::nn::Conv3dOptions(4, 2, 1)) {
    register_module("enc0", enc0);
    register_module("enc1", enc1);
    register_module("bottom", bottom);
    register_module("up1", up1);
    register_module("dec1", dec1);
    register_module("up0", up0);
    register_module("dec0", dec0);
    register_module("head", head);
  }
  torch::Tensor forward(const Plan& plan, const torch::Tensor& x) {
    const auto skip0 = run(plan, "enc0", enc0, x);
    const auto skip1 = run(plan, "enc1", enc1, torch::max_pool3d(skip0, 2));
    auto y = run(plan, "bottom", bottom, torch::max_pool3d(skip1, 2));
    y = run(plan, "dec1", dec1, torch::cat({up1(y), skip1}, 1));
    y = run(plan, "dec0", dec0, torch::cat({up0(y), skip0}, 1));
    return head(y);
  }
  DoubleConv enc0, enc1, bottom;
  torch::nn::ConvTranspose3d up1;
  DoubleConv dec1;
  torch::nn::ConvTranspose3d up0;
  DoubleConv dec0;
  torch::nn::Conv3d head;
};

// An MLP as in NeRF: a trunk that sees the encoded position again half-way, density and colour.
struct Nerf : torch::nn::Module {
  Nerf() : density(64, 1), colour(64 + 3, 3) {
    for (int i = 0; i < 4; ++i) {
      trunk1.modules->push_back(torch::nn::Linear(i == 0 ? 27 : 64, 64));
      trunk1.modules->push_back(torch::nn::ReLU());
      trunk2.modules->push_back(torch::nn::Linear(i == 0 ? 64 + 27 : 64, 64));
      trunk2.modules->push_back(torch::nn::ReLU());
    }
    register_module("trunk1", trunk1.modules);
    register_module("trunk2", trunk2.modules);
    register_module("density", density);
    register_module("colour", colour);
  }
  torch::Tensor forward(const Plan& plan, const torch::Tensor& x) {
    const auto position = x.slice(1, 0, 3);
    std::vector<torch::Tensor> encoded{position};
    for (int i = 0; i < 4; ++i) {
      encoded.push_back(torch::sin((1 << i) * position));
      encoded.push_back(torch::cos((1 << i) * position));
    }
    const auto points = torch::cat(encoded, 1);
    auto hidden = trunk1.run(plan, "trunk1", points);
    hidden = trunk2.run(plan, "trunk2", torch::cat({hidden, points}, 1));
    const auto rgb = torch::sigmoid(colour(torch::cat({hidden, x.slice(1, 3, 6)}, 1)));
    return rgb * torch::softplus(density(hidden));
  }
  MaybeCut trunk1, trunk2;
  torch::nn::Linear density, colour;
};

struct AttentionImpl : torch::nn::Module {
  explicit AttentionImpl(int64_t width)
      : norm(torch::nn::LayerNormOptions({width})), qkv(width, 3 * width), out(width, width) {
    register_module("norm", norm);
    register_module("qkv", qkv);
    register_module("out", out);
  }
  torch::Tensor forward(const torch::Tensor& x) {
    const auto parts = qkv(norm(x)).chunk(3, -1);
    const auto weights = torch::softmax(torch::matmul(parts[0], parts[1].transpose(-2, -1)), -1);
    return x + out(torch::matmul(weights, parts[2]));
  }
  torch::nn::LayerNorm norm;
  torch::nn::Linear qkv, out;
};
TORCH_MODULE(Attention);

struct FeedForwardImpl : torch::nn::Module {
  explicit FeedForwardImpl(int64_t width)
      : norm(torch::nn::LayerNormOptions({width})),
        wide(width, 4 * width),
        narrow(4 * width, width) {
    register_module("norm", norm);
    register_module("wide", wide);
    register_module("narrow", narrow);
  }
  torch::Tensor forward(const torch::Tensor& x) { return x + narrow(torch::gelu(wide(norm(x)))); }
  torch::nn::LayerNorm norm;
  torch::nn::Linear wide, narrow;
};
TORCH_MODULE(FeedForward);

struct Transformer : torch::nn::Module {
  Transformer() {
    for (int i = 0; i < 3; ++i) {
      const auto number = std::to_string(i);
      attention.push_back(register_module("attention" + number, Attention(32)));
      feed_forward.push_back(register_module("feed_forward" + number, FeedForward(32)));
    }
  }
  torch::Tensor forward(const Plan& plan, torch::Tensor x) {
    for (std::size_t i = 0; i < attention.size(); ++i) {
      x = run(plan, "attention" + std::to_string(i), attention[i], x);
      x = run(plan, "feed_forward" + std::to_string(i), feed_forward[i], x);
    }
    return x;
  }
  std::vector<Attention> attention;
  std::vector<FeedForward> feed_forward;
};

template <class Model>
class Follower {
 public:
  explicit Follower(torch::Tensor x) : x_(std::move(x)) {
    tidemark::install_memory_meter();
    step();  // allocates gradients
  }

  MemoryReport record() {
    model_.zero_grad();
    MemoryRecorder recorder(model_);
    step();
    return recorder.report();
  }

  StepMemory measure() {
    model_.zero_grad();
    step();  // the first forward of a CheckpointedSequential copies its segments' inputs
    model_.zero_grad();
    return tidemark::measure([this] { step(); });
  }

  // Follows the checkpoint advice of `report` bit by bit, and compares.
  void expect_what_is_announced(const MemoryReport& report) {
    const StepMemory plain = measure();
    ASSERT_EQ(report.peak, report.at_begin.total() + plain.peak);
    ASSERT_EQ(report.held, plain.held);
    int64_t followed = 0;
    for (const MemoryAdvice& advice : report.advice) {
      if (advice.kind != Kind::kCheckpoint && advice.kind != Kind::kCheckpointSequential) {
        continue;
      }
      ++followed;
      plan[advice.modules.at(0)] = advice.every;
      const StepMemory with = measure();
      const auto saved = static_cast<double>(plain.peak - with.peak);
      const auto announced = static_cast<double>(advice.saves.value());
      EXPECT_NEAR(saved, announced, 0.15 * announced) << advice.text;
      EXPECT_EQ(advice.expected_peak.value(), report.peak - advice.saves.value());
      const auto held_less = static_cast<double>(plain.held - with.held);
      const auto announced_less = static_cast<double>(plain.held - advice.expected_held.value());
      EXPECT_NEAR(held_less, announced_less, 0.15 * announced_less) << advice.text;
      EXPECT_GT(advice.costs_seconds, 0);
      RecordProperty(advice.modules.at(0) + "_announced", std::to_string(*advice.saves));
      RecordProperty(advice.modules.at(0) + "_saved", std::to_string(plain.peak - with.peak));
    }
    EXPECT_GT(followed, 0);
  }

  Plan plan;

 private:
  static void RecordProperty(const std::string& key, const std::string& value) {
    testing::Test::RecordProperty(key, value);
  }

  void step() {
    torch::Tensor loss = model_.forward(plan, x_).square().mean();
    loss.backward();
  }

  Model model_;
  torch::Tensor x_;
};

double share_saved(const MemoryReport& report) {
  int64_t most = 0;
  for (const MemoryAdvice& advice : report.advice) {
    if (advice.kind != Kind::kAccumulate && advice.saves.has_value()) {
      most = std::max(most, *advice.saves);
    }
  }
  return static_cast<double>(most) / static_cast<double>(report.peak);
}

TEST(MemoryAdvice, ForAVoxelNetSavesWhatItAnnounced) {
  Follower<VoxelNet> voxel_net(torch::randn({2, 1, 16, 16, 16}));
  const MemoryReport report = voxel_net.record();
  EXPECT_GT(share_saved(report), 0.4);
  voxel_net.expect_what_is_announced(report);
}

TEST(MemoryAdvice, ForAUNetWithSkipsSavesWhatItAnnounced) {
  Follower<UNet> unet(torch::randn({2, 1, 16, 16, 16}));
  const MemoryReport report = unet.record();
  EXPECT_GT(share_saved(report), 0.2);
  unet.expect_what_is_announced(report);
}

TEST(MemoryAdvice, ForANerfMlpSavesWhatItAnnounced) {
  Follower<Nerf> nerf(torch::randn({4096, 6}));
  const MemoryReport report = nerf.record();
  EXPECT_GT(share_saved(report), 0.2);
  nerf.expect_what_is_announced(report);
}

TEST(MemoryAdvice, ForAttentionSavesWhatItAnnounced) {
  Follower<Transformer> transformer(torch::randn({2, 256, 32}));
  const MemoryReport report = transformer.record();
  EXPECT_GT(share_saved(report), 0.3);
  transformer.expect_what_is_announced(report);
}

// One block, run six times.
struct SharedBlock : torch::nn::Module {
  SharedBlock() : block(8), head(8, 4) {
    register_module("block", block);
    register_module("head", head);
  }
  torch::Tensor forward(const Plan& plan, torch::Tensor x) {
    for (int i = 0; i < 6; ++i) {
      x = run(plan, "block", block, x);
    }
    return head(x.mean({2, 3, 4}));
  }
  ResBlock block;
  torch::nn::Linear head;
};

TEST(MemoryAdvice, ForAModuleThatRunsSeveralTimesSavesWhatItAnnounced) {
  Follower<SharedBlock> shared(torch::randn({2, 8, 12, 12, 12}));
  const MemoryReport report = shared.record();
  EXPECT_GT(share_saved(report), 0.3);
  shared.expect_what_is_announced(report);
}

TEST(MemoryAdvice, CutsASequentialThatIsTheModelAndRunsTwice) {
  torch::nn::Sequential model;
  for (int i = 0; i < 8; ++i) {
    model->push_back(torch::nn::Linear(64, 64));
    model->push_back(torch::nn::Tanh());
  }
  const auto x = torch::randn({512, 64});
  const auto step = [&x](auto& net) {
    for (int i = 0; i < 2; ++i) {
      net->forward(x).square().mean().backward();
    }
  };
  step(model);
  model->zero_grad();
  MemoryReport report;
  {
    MemoryRecorder recorder(*model);
    step(model);
    report = recorder.report();
  }
  ASSERT_FALSE(report.advice.empty());
  EXPECT_EQ(report.advice[0].kind, Kind::kCheckpointSequential);
  EXPECT_EQ(report.advice[0].modules.at(0), "");
  const auto plain = tidemark::measure([&] { step(model); });
  tidemark::CheckpointedSequential cut(
      model, tidemark::CheckpointedSequentialOptions().every(report.advice[0].every));
  step(cut);
  const auto with = tidemark::measure([&] { step(cut); });
  const auto announced = static_cast<double>(report.advice[0].saves.value());
  EXPECT_NEAR(static_cast<double>(plain.peak - with.peak), announced, 0.15 * announced);
}

TEST(MemoryAdvice, DoesNotRepeatItselfOnceItIsFollowed) {
  Follower<VoxelNet> voxel_net(torch::randn({2, 1, 16, 16, 16}));
  for (const MemoryAdvice& advice : voxel_net.record().advice) {
    if (advice.kind == Kind::kCheckpoint || advice.kind == Kind::kCheckpointSequential) {
      voxel_net.plan[advice.modules.at(0)] = advice.every;
    }
  }
  voxel_net.measure();
  for (const MemoryAdvice& advice : voxel_net.record().advice) {
    EXPECT_NE(advice.kind, Kind::kCheckpoint) << advice.text;
    EXPECT_NE(advice.kind, Kind::kCheckpointSequential) << advice.text;
  }
}

}  // namespace
