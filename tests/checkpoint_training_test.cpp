// Whole trainings of the usual 3D models: never refused, and bit-equal to plain after every step.

#include <gtest/gtest.h>
#include <tidemark/checkpoint.h>
#include <torch/torch.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "support/cpu_kernels.h"
#include "support/plain_and_checkpointed.h"

namespace {

using tidemark::CheckpointOptions;
using tidemark::remember;
using tidemark::tests::CheckpointedRegions;
using tidemark::tests::cpu_autocast_has_lstm;
using tidemark::tests::PlainRegions;
using tidemark::tests::Record;
using torch::Tensor;
namespace nn = torch::nn;

constexpr int kSteps = 200;

class Autocast {
 public:
  explicit Autocast(bool enabled) : enabled_(enabled) {
    if (enabled_) {
      at::autocast::set_autocast_enabled(at::kCPU, true);
      at::autocast::increment_nesting();
    }
  }
  Autocast(const Autocast&) = delete;
  Autocast& operator=(const Autocast&) = delete;
  ~Autocast() {
    if (enabled_) {
      at::autocast::decrement_nesting();
      at::autocast::clear_cache();
      at::autocast::set_autocast_enabled(at::kCPU, false);
    }
  }

 private:
  bool enabled_;
};

// Trains for kSteps with plain and with checkpointed regions; `make` returns the step.
template <class Make>
void expect_training_equal_to_plain(Make&& make) {
  const auto train = [&](auto regions) {
    Record record;
    torch::manual_seed(11);
    auto [step, modules] = make(regions);
    for (int i = 0; i < kSteps; ++i) {
      step();
    }
    for (std::size_t m = 0; m < modules.size(); ++m) {
      record("module " + std::to_string(m), *modules[m]);
      for (const auto& buffer : modules[m]->named_buffers()) {
        record(buffer.key(), buffer.value());
      }
    }
    record("random numbers", torch::rand({4}));
    return record;
  };
  const Record plain = train(PlainRegions());
  train(CheckpointedRegions(CheckpointOptions().name("region"))).expect_equal(plain);
}

using Modules = std::vector<std::shared_ptr<nn::Module>>;

nn::Conv3d conv(int64_t in, int64_t out) {
  return nn::Conv3d(nn::Conv3dOptions(in, out, 3).padding(1).bias(false));
}
nn::ReLU relu() { return nn::ReLU(nn::ReLUOptions().inplace(true)); }

nn::Sequential voxel_block(int64_t in, int64_t out) {
  return nn::Sequential(conv(in, out), nn::BatchNorm3d(out), relu(), conv(out, out),
                        nn::BatchNorm3d(out));
}

class Training : public testing::TestWithParam<bool> {};

TEST_P(Training, VoxelNet) {
  const bool amp = GetParam();
  expect_training_equal_to_plain([amp](auto region) {
    nn::Sequential stem(conv(1, 4)), head(nn::Conv3d(4, 3, 1));
    std::vector<nn::Sequential> blocks{voxel_block(4, 4), voxel_block(4, 4)};
    Modules modules{stem.ptr(), blocks[0].ptr(), blocks[1].ptr(), head.ptr()};
    std::vector<Tensor> parameters;
    for (const auto& module : modules) {
      for (const auto& parameter : module->parameters()) {
        parameters.push_back(parameter);
      }
    }
    auto optimizer = std::make_shared<torch::optim::SGD>(
        parameters, torch::optim::SGDOptions(0.05).momentum(0.9));
    return std::pair(
        std::function<void()>([=]() mutable {
          optimizer->zero_grad();
          Tensor loss;
          {
            Autocast autocast(amp);
            Tensor y = stem->forward(torch::rand({2, 1, 4, 4, 4}));
            for (auto& block : blocks) {
              y = region([block](Tensor t) mutable { return torch::relu(t + block->forward(t)); },
                         y);
            }
            y = torch::dropout(head->forward(y), 0.1, true);
            loss = y.to(torch::kFloat).square().mean();
          }
          loss.backward();
          optimizer->step();
        }),
        modules);
  });
}

TEST_P(Training, UNetWithSkips) {
  const bool amp = GetParam();
  expect_training_equal_to_plain([amp](auto region) {
    nn::Sequential down = voxel_block(1, 4), middle = voxel_block(4, 8), up = voxel_block(12, 4);
    nn::InstanceNorm3d norm(nn::InstanceNorm3dOptions(4).affine(true).track_running_stats(true));
    Modules modules{down.ptr(), middle.ptr(), up.ptr(), norm.ptr()};
    std::vector<Tensor> parameters;
    for (const auto& module : modules) {
      for (const auto& parameter : module->parameters()) {
        parameters.push_back(parameter);
      }
    }
    auto optimizer = std::make_shared<torch::optim::Adam>(parameters);
    return std::pair(std::function<void()>([=]() mutable {
                       optimizer->zero_grad();
                       Tensor loss;
                       {
                         Autocast autocast(amp);
                         const Tensor skip =
                             region([down](Tensor t) mutable { return down->forward(t).relu_(); },
                                    torch::rand({1, 1, 4, 4, 4}));
                         const Tensor deep = region(
                             [middle](Tensor t) mutable {
                               t = middle->forward(torch::max_pool3d(t, 2));
                               return nn::functional::interpolate(
                                   t, nn::functional::InterpolateFuncOptions()
                                          .scale_factor(std::vector<double>{2, 2, 2})
                                          .mode(torch::kNearest));
                             },
                             skip);
                         const Tensor y = region(
                             [up, norm](Tensor a, Tensor b) mutable {
                               Tensor t = norm(up->forward(torch::cat({a, b}, 1)));
                               return torch::leaky_relu_(t, 0.01);
                             },
                             skip, deep);
                         loss = y.to(torch::kFloat).square().mean();
                       }
                       loss.backward();
                       optimizer->step();
                     }),
                     modules);
  });
}

TEST_P(Training, PointNetWithNeighbours) {
  const bool amp = GetParam();
  expect_training_equal_to_plain([amp](auto region) {
    nn::Sequential mlp(nn::Linear(6, 16), nn::ReLU(), nn::Linear(16, 16));
    nn::Linear head(16, 4);
    Modules modules{mlp.ptr(), head.ptr()};
    std::vector<Tensor> parameters = mlp->parameters();
    for (const auto& parameter : head->parameters()) {
      parameters.push_back(parameter);
    }
    auto optimizer = std::make_shared<torch::optim::AdamW>(parameters);
    return std::pair(
        std::function<void()>([=]() mutable {
          optimizer->zero_grad();
          Tensor loss;
          {
            Autocast autocast(amp);
            const Tensor pooled = region(
                [mlp](Tensor p) mutable {
                  const Tensor centres =
                      remember([&] { return torch::randperm(p.size(0)).slice(0, 0, 8); });
                  const Tensor nearest = std::get<1>(
                      torch::cdist(p.index_select(0, centres), p).topk(4, 1, /*largest=*/false));
                  const Tensor groups = p.index({nearest});
                  const Tensor origin = p.index_select(0, centres).unsqueeze(1).expand_as(groups);
                  return std::get<0>(mlp->forward(torch::cat({groups - origin, origin}, 2)).max(1));
                },
                torch::rand({32, 3}));
            loss = nn::functional::cross_entropy(
                head(torch::dropout(pooled, 0.3, true)).to(torch::kFloat),
                torch::randint(0, 4, {8}, torch::kLong));
          }
          loss.backward();
          optimizer->step();
        }),
        modules);
  });
}

TEST_P(Training, GanWithASharedDiscriminator) {
  const bool amp = GetParam();
  expect_training_equal_to_plain([amp](auto region) {
    nn::Sequential generator(nn::Linear(4, 16), nn::BatchNorm1d(16), relu(), nn::Linear(16, 8));
    nn::Sequential discriminator(nn::Linear(8, 16), nn::BatchNorm1d(16),
                                 nn::LeakyReLU(nn::LeakyReLUOptions().inplace(true)),
                                 nn::Linear(16, 1));
    Modules modules{generator.ptr(), discriminator.ptr()};
    auto g = std::make_shared<torch::optim::Adam>(generator->parameters());
    auto d = std::make_shared<torch::optim::Adam>(discriminator->parameters());
    return std::pair(std::function<void()>([=]() mutable {
                       const auto make = [generator](Tensor z) mutable {
                         return generator->forward(z);
                       };
                       const auto judge = [discriminator](Tensor x) mutable {
                         return discriminator->forward(x);
                       };
                       const Tensor z = torch::randn({6, 4});
                       d->zero_grad();
                       Tensor loss;
                       {
                         Autocast autocast(amp);
                         const Tensor fake = region(make, z);
                         loss = (region(judge, fake.detach()) - region(judge, torch::randn({6, 8})))
                                    .to(torch::kFloat)
                                    .mean();
                       }
                       loss.backward();
                       d->step();
                       g->zero_grad();
                       {
                         Autocast autocast(amp);
                         loss = -region(judge, region(make, z)).to(torch::kFloat).mean();
                       }
                       loss.backward();
                       g->step();
                     }),
                     modules);
  });
}

TEST_P(Training, LstmAndAttention) {
  const bool amp = GetParam();
  if (amp && !cpu_autocast_has_lstm(torch::kBFloat16)) {
    GTEST_SKIP() << "no LSTM in bfloat16 on this CPU";
  }
  expect_training_equal_to_plain([amp](auto region) {
    nn::LSTM lstm(nn::LSTMOptions(4, 8).num_layers(2).dropout(0.2));
    nn::MultiheadAttention attention(nn::MultiheadAttentionOptions(8, 2).dropout(0.1));
    Modules modules{lstm.ptr(), attention.ptr()};
    std::vector<Tensor> parameters = lstm->parameters();
    for (const auto& parameter : attention->parameters()) {
      parameters.push_back(parameter);
    }
    auto optimizer = std::make_shared<torch::optim::RMSprop>(parameters);
    return std::pair(
        std::function<void()>([=]() mutable {
          optimizer->zero_grad();
          Tensor loss;
          {
            Autocast autocast(amp);
            Tensor y = region([lstm](Tensor t) mutable { return std::get<0>(lstm(t)); },
                              torch::rand({5, 2, 4}));
            y = region(
                [attention](Tensor t) mutable { return t + std::get<0>(attention(t, t, t)); }, y);
            loss = y.to(torch::kFloat).square().mean();
          }
          loss.backward();
          optimizer->step();
        }),
        modules);
  });
}

INSTANTIATE_TEST_SUITE_P(Precision, Training, testing::Bool(),
                         [](const auto& info) { return info.param ? "Autocast" : "Full"; });

}  // namespace
