// Checkpointed training is bit-equal to plain training: networks as people train them.

#include <gtest/gtest.h>
#include <tidemark/checkpoint.h>
#include <torch/torch.h>

#include <string>
#include <utility>

#include "support/plain_and_checkpointed.h"

namespace {

using tidemark::tests::expect_equal_to_plain;
using torch::Tensor;
namespace nn = torch::nn;

/// Trains for two steps and records loss, gradients and parameters of each.
template <class Record, class Net, class Optimizer, class Forward>
void train(Record& record, Net& net, Optimizer&& optimizer, Forward&& forward) {
  for (int step = 0; step < 2; ++step) {
    optimizer.zero_grad();
    const Tensor out = forward();
    const Tensor loss = (out * out).mean() + out.sum() * 0.01;
    loss.backward();
    record("loss of step " + std::to_string(step), loss);
    optimizer.step();
    record("step " + std::to_string(step), *net);
  }
}

torch::optim::SGD sgd(const std::vector<Tensor>& parameters) {
  return torch::optim::SGD(parameters, torch::optim::SGDOptions(0.1).momentum(0.9));
}

/// A Sequential can't be called, it only has a forward().
auto calling(nn::Sequential net) {
  return [net](const Tensor& x) mutable { return net->forward(x); };
}

TEST(CheckpointGradients, KeepDropoutMasks) {
  expect_equal_to_plain([](auto& region, auto& record) {
    nn::Sequential net(nn::Linear(6, 16), nn::ReLU(), nn::Dropout(0.4), nn::Linear(16, 16),
                       nn::AlphaDropout(0.2), nn::Linear(16, 3));
    torch::optim::Adam adam(net->parameters(), torch::optim::AdamOptions(0.01).weight_decay(0.1));
    const Tensor x = torch::randn({5, 6});
    train(record, net, adam, [&] { return region(calling(net), x); });
  });
}

TEST(CheckpointGradients, KeepDropoutMasksOfThreeRegionsInARow) {
  expect_equal_to_plain([](auto& region, auto& record) {
    nn::Sequential net(nn::Dropout(0.5), nn::Linear(8, 8), nn::Dropout(0.5));
    const Tensor x = torch::randn({8, 8});
    const auto f = [&](const Tensor& in) { return region(calling(net), in); };
    train(record, net, sgd(net->parameters()), [&] { return f(f(f(x) + torch::rand({8, 8}))); });
  });
}

// The classic voxel residual block: Conv3d-BatchNorm-ReLU(inplace)-Conv3d-BatchNorm plus skip.
struct VoxelBlockImpl : nn::Module {
  explicit VoxelBlockImpl(int64_t channels)
      : conv1(nn::Conv3dOptions(channels, channels, 3).padding(1).bias(false)),
        conv2(nn::Conv3dOptions(channels, channels, 3).padding(1).bias(false)),
        norm1(channels),
        norm2(channels) {
    register_module("conv1", conv1);
    register_module("norm1", norm1);
    register_module("conv2", conv2);
    register_module("norm2", norm2);
  }
  Tensor forward(const Tensor& x) {
    Tensor y = norm2(conv2(norm1(conv1(x)).relu_()));
    y += x;
    return y.relu_();
  }
  nn::Conv3d conv1, conv2;
  nn::BatchNorm3d norm1, norm2;
};
TORCH_MODULE(VoxelBlock);

TEST(CheckpointGradients, OfConvBatchNormReluInPlace) {
  expect_equal_to_plain([](auto& region, auto& record) {
    nn::ModuleList net(VoxelBlock(4), VoxelBlock(4));
    const Tensor x = torch::randn({2, 4, 5, 6, 4});
    train(record, net, sgd(net->parameters()), [&] {
      Tensor y = x;
      for (const auto& block : *net) {
        y = region([block](const Tensor& in) { return block->as<VoxelBlock>()->forward(in); }, y);
      }
      return y;
    });
  });
}

TEST(CheckpointGradients, OfABatchNormWhoseInputHasNoGradient) {
  expect_equal_to_plain([](auto& region, auto& record) {
    nn::Sequential net(nn::Conv2d(1, 1, 3), nn::BatchNorm2d(1));
    const Tensor x = torch::randn({4, 1, 5, 5});
    train(record, net, sgd(net->parameters()), [&] { return region(calling(net), x); });
  });
}

// A 3D U-Net of depth one, as people write it: concatenated skip, transposed convolution.
struct UnetImpl : nn::Module {
  UnetImpl()
      : encoder(nn::Conv3d(nn::Conv3dOptions(1, 4, 3).padding(1)), normed(4), leaky()),
        bottom(nn::Conv3d(nn::Conv3dOptions(4, 8, 3).stride(2).padding(1)), normed(8), leaky()),
        up(nn::ConvTranspose3d(nn::ConvTranspose3dOptions(8, 4, 2).stride(2))),
        decoder(nn::Conv3d(nn::Conv3dOptions(8, 2, 3).padding(1)), normed(2), leaky()) {
    register_module("encoder", encoder);
    register_module("bottom", bottom);
    register_module("up", up);
    register_module("decoder", decoder);
  }
  static nn::InstanceNorm3d normed(int64_t channels) {
    return nn::InstanceNorm3d(nn::InstanceNorm3dOptions(channels).affine(true));
  }
  static nn::LeakyReLU leaky() {
    return nn::LeakyReLU(nn::LeakyReLUOptions().negative_slope(0.01).inplace(true));
  }
  nn::Sequential encoder, bottom;
  nn::ConvTranspose3d up;
  nn::Sequential decoder;
};
TORCH_MODULE(Unet);

TEST(CheckpointGradients, OfInstanceNormAndLeakyReluInPlace) {
  expect_equal_to_plain([](auto& region, auto& record) {
    Unet net;
    const Tensor x = torch::randn({2, 1, 6, 4, 8});
    train(record, net, sgd(net->parameters()), [&] {
      const Tensor skip = region(calling(net->encoder), x);
      return region(
          [net](const Tensor& in, const Tensor& skipped) mutable {
            Tensor up = net->up->forward(net->bottom->forward(in));
            return net->decoder->forward(torch::cat({up, skipped}, 1));
          },
          skip, skip);
    });
  });
}

TEST(CheckpointGradients, OfAChannelsLast3dNetwork) {
  expect_equal_to_plain([](auto& region, auto& record) {
    nn::Sequential net(nn::Conv3d(nn::Conv3dOptions(4, 4, 3).padding(1)), nn::BatchNorm3d(4),
                       nn::ReLU(nn::ReLUOptions().inplace(true)), nn::MaxPool3d(2));
    const auto format = torch::MemoryFormat::ChannelsLast3d;
    const Tensor x = torch::randn({2, 4, 4, 4, 4}).contiguous(format).requires_grad_();
    train(record, net, sgd(net->parameters()), [&] {
      const Tensor y = region(calling(net), x);
      EXPECT_TRUE(y.is_contiguous(format));
      return y;
    });
    record("input", x.grad());
  });
}

TEST(CheckpointGradients, OfAnLstmWithDropout) {
  expect_equal_to_plain([](auto& region, auto& record) {
    nn::LSTM net(nn::LSTMOptions(5, 8).num_layers(2).dropout(0.3).bidirectional(true));
    const Tensor x = torch::randn({7, 2, 5}).requires_grad_();
    const auto state = std::make_tuple(torch::randn({4, 2, 8}), torch::randn({4, 2, 8}));
    train(record, net, sgd(net->parameters()), [&] {
      auto [out, last] = region(net, x, state);
      return out.sum(0) + std::get<1>(last)[0].repeat({1, 2});
    });
    record("input", x.grad());
  });
}

TEST(CheckpointGradients, OfAGru) {
  expect_equal_to_plain([](auto& region, auto& record) {
    nn::GRU net(nn::GRUOptions(5, 6).batch_first(true));
    const Tensor x = torch::randn({2, 7, 5});
    train(record, net, sgd(net->parameters()), [&] { return std::get<0>(region(net, x)); });
  });
}

TEST(CheckpointGradients, OfATransformerLayerWithAttentionDropout) {
  expect_equal_to_plain([](auto& region, auto& record) {
    nn::TransformerEncoderLayer net(
        nn::TransformerEncoderLayerOptions(8, 2).dim_feedforward(12).dropout(0.2));
    const Tensor x = torch::randn({5, 3, 8});
    train(record, net, sgd(net->parameters()), [&] { return region(net, x); });
  });
}

TEST(CheckpointGradients, OfANerfMlpWithPositionalEncoding) {
  expect_equal_to_plain([](auto& region, auto& record) {
    nn::Sequential net(nn::Linear(18, 16), nn::SiLU(), nn::Linear(16, 4), nn::Softplus());
    const Tensor points = torch::rand({9, 3});
    train(record, net, sgd(net->parameters()), [&] {
      return region(
          [net](const Tensor& p) mutable {
            std::vector<Tensor> waves;
            for (int level = 0; level < 3; ++level) {
              waves.push_back(torch::sin(p * (1 << level)));
              waves.push_back(torch::cos(p * (1 << level)));
            }
            return net->forward(torch::cat(waves, 1));
          },
          points);
    });
  });
}

TEST(CheckpointGradients, OfAPointNetLayerWithGatherAndMax) {
  expect_equal_to_plain([](auto& region, auto& record) {
    nn::Sequential net(nn::Linear(6, 8), nn::BatchNorm1d(8), nn::ReLU());
    const Tensor points = torch::randn({10, 3}).requires_grad_();
    const Tensor neighbours = torch::randint(10, {10, 4});
    train(record, net, sgd(net->parameters()), [&] {
      return region(
          [net](const Tensor& p, const Tensor& index) mutable {
            const Tensor gathered = p.index_select(0, index.flatten()).view({10, 4, 3});
            const Tensor edges = torch::cat({gathered, gathered - p.unsqueeze(1)}, 2);
            return std::get<0>(net->forward(edges.view({40, 6})).view({10, 4, 8}).max(1));
          },
          points, neighbours);
    });
    record("points", points.grad());
  });
}

TEST(CheckpointGradients, OfFrozenLayers) {
  expect_equal_to_plain([](auto& region, auto& record) {
    nn::Sequential net(nn::Linear(4, 4), nn::Tanh(), nn::Linear(4, 4), nn::Tanh(),
                       nn::Linear(4, 4));
    for (Tensor& parameter : net[2]->parameters()) {
      parameter.requires_grad_(false);
    }
    const Tensor x = torch::randn({3, 4});
    std::vector<Tensor> trained;
    for (const Tensor& parameter : net->parameters()) {
      if (parameter.requires_grad()) {
        trained.push_back(parameter);
      }
    }
    train(record, net, sgd(trained), [&] { return region(calling(net), x); });
  });
}

TEST(CheckpointGradients, OfAFrozenNetworkFlowToItsInput) {
  expect_equal_to_plain([](auto& region, auto& record) {
    nn::Sequential net(nn::Conv3d(2, 3, 3), nn::BatchNorm3d(3), nn::ReLU(), nn::Flatten(),
                       nn::Linear(24, 2));
    for (Tensor& parameter : net->parameters()) {
      parameter.requires_grad_(false);
    }
    net->eval();
    const Tensor x = torch::randn({2, 2, 4, 4, 4}).requires_grad_();
    region(calling(net), x).square().sum().backward();
    record("input", x.grad());
  });
}

TEST(CheckpointGradients, OfARegionInEvalMode) {
  expect_equal_to_plain([](auto& region, auto& record) {
    nn::Sequential net(nn::Conv3d(2, 3, 3), nn::BatchNorm3d(3), nn::Dropout(0.5), nn::ReLU());
    net->forward(torch::randn({2, 2, 4, 4, 4}));  // gives BatchNorm statistics
    net->eval();
    const Tensor x = torch::randn({2, 2, 4, 4, 4}).requires_grad_();
    train(record, net, sgd(net->parameters()), [&] { return region(calling(net), x); });
    record("input", x.grad());
    record("running mean", net[1]->as<nn::BatchNorm3d>()->running_mean);
  });
}

TEST(CheckpointGradients, OfWeightsSharedByTwoRegions) {
  expect_equal_to_plain([](auto& region, auto& record) {
    nn::Linear net(5, 5);
    const Tensor x = torch::randn({3, 5});
    train(record, net, sgd(net->parameters()),
          [&] { return region(net, torch::tanh(region(net, x))) + net(x); });
  });
}

TEST(CheckpointGradients, ReachEveryLayerWhenTheInputHasNone) {
  expect_equal_to_plain([](auto& region, auto& record) {
    nn::Sequential net(nn::Linear(4, 4), nn::Linear(4, 4), nn::Linear(4, 4), nn::Linear(4, 4));
    Tensor x = torch::randn({3, 4});
    for (std::size_t i = 0; i < net->size(); ++i) {
      x = region(
          [layer = net[i]](const Tensor& in) { return layer->as<nn::Linear>()->forward(in); }, x);
      EXPECT_TRUE(x.requires_grad());
    }
    x.square().sum().backward();
    for (const Tensor& parameter : net->parameters()) {
      EXPECT_TRUE(parameter.grad().defined());
    }
    record("net", *net);
  });
}

TEST(CheckpointGradients, OfASparseEmbedding) {
  expect_equal_to_plain([](auto& region, auto& record) {
    nn::Embedding table(nn::EmbeddingOptions(12, 4).sparse(true));
    nn::Linear head(4, 2);
    const Tensor indices = torch::tensor({1, 5, 5, 0});
    for (int step = 0; step < 2; ++step) {
      region([table, head](const Tensor& i) mutable { return head(table(i)).exp(); }, indices)
          .sum()
          .backward();
      EXPECT_EQ(table->weight.grad().layout(), torch::kSparse);
    }
    record("table", *table);
    record("head", *head);
  });
}

TEST(CheckpointGradients, OfSparseMatrixProducts) {
  expect_equal_to_plain([](auto& region, auto& record) {
    const Tensor adjacency = torch::rand({5, 5}).gt(0.5).to(torch::kFloat).to_sparse();
    const Tensor x = torch::randn({5, 3}).requires_grad_();
    region([](const Tensor& a, const Tensor& v) { return a.mm(v.exp()); }, adjacency, x)
        .square()
        .sum()
        .backward();
    record("x", x.grad());
  });
}

TEST(CheckpointGradients, OfDoubleAndComplexTensors) {
  for (const auto dtype : {torch::kDouble, torch::kComplexFloat, torch::kComplexDouble}) {
    expect_equal_to_plain([&](auto& region, auto& record) {
      const Tensor x = torch::randn({4, 4}, dtype).requires_grad_();
      const Tensor y = region(
          [](const Tensor& a) { return torch::matmul(a.exp(), a.conj().transpose(0, 1)).sin(); },
          x);
      torch::abs(y).sum().backward();
      record("x", x.grad());
    });
  }
}

TEST(CheckpointGradients, OfComplexAndFourierOps) {
  expect_equal_to_plain([](auto& region, auto& record) {
    const Tensor x = torch::randn({4, 6}).requires_grad_();
    region(
        [](const Tensor& a) {
          const Tensor spectrum = torch::fft::rfft(a);
          return torch::fft::irfft(spectrum * spectrum.conj(), 6) +
                 torch::real(spectrum).square().mean();
        },
        x)
        .sum()
        .backward();
    record("x", x.grad());
  });
}

}  // namespace
