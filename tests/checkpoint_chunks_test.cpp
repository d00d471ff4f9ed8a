// checkpoint_chunks(): the loop over rows that it stands for, with the memory of one chunk.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <tidemark/checkpoint.h>
#include <torch/torch.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <variant>
#include <vector>

#include "support/counted_tensor.h"
#include "support/plain_and_checkpointed.h"
#include "support/thrown_text.h"

namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Optional;
using tidemark::checkpoint_chunks;
using tidemark::CheckpointOptions;
using tidemark::tests::alive;
using tidemark::tests::CountedExp;
using tidemark::tests::Record;
using tidemark::tests::thrown_text;
using torch::Tensor;
namespace nn = torch::nn;

Tensor leaf(at::IntArrayRef sizes) { return torch::randn(sizes).requires_grad_(); }

/// Calls `visit` with the begin and number of rows of each chunk; at least once.
template <class Visit>
void each_chunk(int64_t rows, int64_t chunk, Visit&& visit) {
  int64_t begin = 0;
  do {
    const int64_t count = std::min(chunk, rows - begin);
    visit(begin, count);
    begin += count;
  } while (begin < rows);
}

/// The loop that checkpoint_chunks stands for.
struct PlainLoop {
  template <class Fn>
  Tensor operator()(int64_t chunk, Fn fn, const Tensor& x) const {
    std::vector<Tensor> parts;
    each_chunk(x.size(0), chunk, [&](int64_t begin, int64_t count) {
      parts.push_back(fn(x.narrow(0, begin, count)));
    });
    return torch::cat(parts);
  }
};

struct Chunks {
  CheckpointOptions options;
  template <class Fn>
  Tensor operator()(int64_t chunk, Fn fn, const Tensor& x) const {
    return checkpoint_chunks(options, chunk, fn, x);
  }
};

/// Runs `body(chunks, record)` with the plain loop and with checkpoint_chunks, from the same seed.
template <class Body>
void expect_equal_to_loop(Body&& body) {
  const auto run = [&](const auto& chunks) {
    Record record;
    torch::manual_seed(7);
    body(chunks, record);
    record("random numbers after it", torch::rand({8}));
    return record;
  };
  const Record expected = run(PlainLoop());
  run(Chunks()).expect_equal(expected);
  run(Chunks{CheckpointOptions().early_stop(true)}).expect_equal(expected);
}

TEST(CheckpointChunks, EqualTheLoopForEveryNumberOfRowsAndSizeOfChunk) {
  for (const int64_t rows : {0, 1, 7, 8}) {
    for (const int64_t chunk :
         std::vector<int64_t>{1, 3, 4, 7, 8, 100, std::numeric_limits<int64_t>::max()}) {
      SCOPED_TRACE(std::to_string(rows) + " rows in chunks of " + std::to_string(chunk));
      expect_equal_to_loop([&](const auto& chunks, auto& record) {
        nn::Sequential mlp(nn::Linear(3, 8), nn::ReLU(), nn::Linear(8, 2));
        const Tensor x = leaf({rows, 3});
        const Tensor y = chunks(
            chunk, [mlp](const Tensor& a) mutable { return mlp->forward(a).exp(); }, x);
        EXPECT_EQ(y.size(0), rows);
        record("y", y);
        y.sum().backward();
        record("x", x.grad());
        record("mlp", *mlp);
      });
    }
  }
}

TEST(CheckpointChunks, CallsTheRegionOncePerChunkInOrder) {
  std::vector<int64_t> rows;
  const auto fn = [&rows](const Tensor& a) {
    rows.push_back(a.size(0));
    return a.exp();
  };
  const Tensor y = checkpoint_chunks(3, fn, leaf({7, 3}));
  EXPECT_THAT(rows, ElementsAre(3, 3, 1));
  y.sum().backward();
  EXPECT_EQ(rows.size(), 6U) << "each chunk is re-run once";
}

TEST(CheckpointChunks, DropoutDrawsAsInTheLoop) {
  expect_equal_to_loop([](const auto& chunks, auto& record) {
    const Tensor x = leaf({7, 3});
    const Tensor y = chunks(
        2, [](const Tensor& a) { return torch::dropout(a.exp(), 0.5, true).sin(); }, x);
    record("y", y);
    torch::rand({5});
    y.sum().backward();
    record("x", x.grad());
  });
}

TEST(CheckpointChunks, TakeModulesByHolder) {
  nn::Sequential mlp(nn::Linear(3, 4), nn::ReLU(), nn::Linear(4, 2));
  const auto gradients = [&](const Tensor& y) {
    return torch::autograd::grad({y.square().sum()}, mlp->parameters());
  };
  const Tensor x = torch::randn({5, 3});
  const auto plain = gradients(PlainLoop()(
      2, [&](const Tensor& a) { return mlp->forward(a); }, x));
  const auto chunked = gradients(checkpoint_chunks(2, mlp, x));
  for (std::size_t i = 0; i < plain.size(); ++i) {
    EXPECT_TRUE(torch::equal(chunked[i], plain[i])) << i;
  }
}

TEST(CheckpointChunks, ReturnPairsVectorsAndOptionals) {
  const auto fn = [](const Tensor& a) {
    return std::make_tuple(a.exp(), std::make_pair(a.sin(), a.argmax(1)),
                           std::vector<Tensor>{a.tanh(), Tensor()},
                           std::optional<Tensor>(a.square()), std::optional<Tensor>(), Tensor());
  };
  const Tensor x = leaf({7, 3});
  const auto [a, pair, list, some, none, undefined] = checkpoint_chunks(3, fn, x);
  EXPECT_FALSE(none.has_value());
  EXPECT_FALSE(undefined.defined());
  ASSERT_EQ(list.size(), 2U);
  EXPECT_FALSE(list[1].defined());
  EXPECT_TRUE(torch::equal(pair.second, x.argmax(1)));
  (a.sum() + pair.first.sum() + list[0].sum() + some.value().sum()).backward();
  const Tensor grad = x.grad();
  x.mutable_grad() = Tensor();

  std::vector<std::vector<Tensor>> parts(4);
  each_chunk(7, 3, [&](int64_t begin, int64_t count) {
    const auto part = fn(x.narrow(0, begin, count));
    parts[0].push_back(std::get<0>(part));
    parts[1].push_back(std::get<1>(part).first);
    parts[2].push_back(std::get<2>(part)[0]);
    parts[3].push_back(std::get<3>(part).value());
  });
  EXPECT_TRUE(torch::equal(a, torch::cat(parts[0])));
  (torch::cat(parts[0]).sum() + torch::cat(parts[1]).sum() + torch::cat(parts[2]).sum() +
   torch::cat(parts[3]).sum())
      .backward();
  EXPECT_TRUE(torch::equal(grad, x.grad()));
}

TEST(CheckpointChunks, CutEveryTensorAndPassPlainValuesToEachChunk) {
  const Tensor x = leaf({5, 3}), y = leaf({5, 1}), z = leaf({5});
  const Tensor out = checkpoint_chunks(
      2,
      [](const Tensor& a, const std::vector<Tensor>& list, const Tensor& none,
         const std::optional<Tensor>& absent, double scale, at::IntArrayRef shape,
         const std::string& name) {
        EXPECT_FALSE(none.defined());
        EXPECT_FALSE(absent.has_value());
        EXPECT_EQ(name, "rays");
        EXPECT_EQ(a.size(0), list[0].size(0));
        EXPECT_EQ(a.size(0), list[1].size(0));
        return (a * list[0] * list[1].unsqueeze(1) * scale).exp().view(shape);
      },
      x, std::vector<Tensor>{y, z}, Tensor(), std::optional<Tensor>(), 0.5,
      at::IntArrayRef({-1, 3}), std::string("rays"));
  out.sum().backward();
  const std::vector<Tensor> leaves{x, y, z};
  const Tensor plain = (x * y * z.unsqueeze(1) * 0.5).exp();
  const auto expected = torch::autograd::grad({plain.sum()}, leaves);
  for (std::size_t i = 0; i < leaves.size(); ++i) {
    EXPECT_TRUE(torch::equal(leaves[i].grad(), expected[i])) << i;
  }
}

TEST(CheckpointChunks, WithoutGradModeAreAPlainLoop) {
  const torch::NoGradGuard no_grad;
  const Tensor x = leaf({5, 3});
  const auto fn = [](const Tensor& a) {
    EXPECT_EQ(tidemark::detail::EngineLink::innermost_maker(), nullptr);
    return a.exp();
  };
  EXPECT_TRUE(torch::equal(checkpoint_chunks(2, fn, x), x.exp()));
}

TEST(CheckpointChunks, KeepWhatOneChunkSavesAtATime) {
  std::vector<int> alive_in_a_chunk;
  const auto fn = [&alive_in_a_chunk](const Tensor& a) {
    const Tensor out = CountedExp::apply(CountedExp::apply(a) * 0.1).sin();
    alive_in_a_chunk.push_back(alive());
    return out;
  };
  const Tensor y = checkpoint_chunks(3, fn, leaf({12, 3}));
  EXPECT_EQ(alive(), 0);
  y.sum().backward();
  EXPECT_EQ(alive_in_a_chunk.size(), 8U);
  EXPECT_THAT(alive_in_a_chunk, Each(2));
  EXPECT_EQ(alive(), 0);
}

// --- errors ---

Tensor same(const Tensor& a) { return a.exp(); }
Tensor sum(const Tensor& a, const Tensor& b) { return a + b; }

TEST(CheckpointChunks, RefuseAChunkWithoutRows) {
  for (const int64_t chunk : {0, -4}) {
    EXPECT_THAT(thrown_text([&] {
                  checkpoint_chunks(chunk, same, leaf({3, 2}));
                }),
                Optional(AllOf(HasSubstr("chunk of " + std::to_string(chunk) + " rows"),
                               HasSubstr("at least 1"))));
  }
}

TEST(CheckpointChunks, RefuseTensorsWithDifferentNumbersOfRows) {
  EXPECT_THAT(thrown_text([] {
                checkpoint_chunks(2, sum, leaf({3, 2}), leaf({4, 2}));
              }),
              Optional(AllOf(HasSubstr("argument tensor #1"), HasSubstr("4 rows"),
                             HasSubstr("have 3"), HasSubstr("Capture"))));
}

TEST(CheckpointChunks, RefuseAScalarArgument) {
  EXPECT_THAT(thrown_text([] {
                checkpoint_chunks(2, sum, leaf({3, 2}), leaf({}));
              }),
              Optional(AllOf(HasSubstr("argument tensor #1"), HasSubstr("scalar"),
                             HasSubstr("Capture it"))));
}

TEST(CheckpointChunks, RefuseACallWithoutATensor) {
  EXPECT_THAT(thrown_text([] { checkpoint_chunks(2, same, Tensor()); }),
              Optional(HasSubstr("needs a defined tensor")));
  const auto none = [](int n) { return torch::ones({n}); };
  EXPECT_THAT(thrown_text([&] { checkpoint_chunks(2, none, 2); }),
              Optional(HasSubstr("needs a defined tensor")));
}

TEST(CheckpointChunks, RefuseChunksThatReturnDifferentNumbersOfTensors) {
  const auto list = [](const Tensor& a) { return std::vector<Tensor>(a.size(0), a.exp()); };
  EXPECT_THAT(thrown_text([&] {
                checkpoint_chunks(2, list, leaf({5, 2}));
              }),
              Optional(AllOf(HasSubstr("got 1 tensors"), HasSubstr("rows 4 to 4"),
                             HasSubstr("2 from the first"))));
  const auto maybe = [](const Tensor& a) {
    return a.size(0) == 2 ? std::optional<Tensor>(a.exp()) : std::nullopt;
  };
  EXPECT_THAT(thrown_text([&] {
                checkpoint_chunks(2, maybe, leaf({3, 2}));
              }),
              Optional(AllOf(HasSubstr("got 0 tensors"), HasSubstr("rows 2 to 2"))));
}

// As many tensors, but not each other's counterparts.
TEST(CheckpointChunks, RefuseChunksThatReturnOtherKeysOrAlternatives) {
  const auto refuses = [](auto result_of_first, auto result_of_second) {
    const auto calls = std::make_shared<int>(0);
    return thrown_text([&] {
      checkpoint_chunks(
          2,
          [=](const Tensor& x) {
            return ++*calls == 1 ? result_of_first(x.exp()) : result_of_second(x.exp());
          },
          leaf({4, 2}));
    });
  };
  const auto same_keys = Optional(HasSubstr("under the same keys"));
  using Map = std::map<std::string, Tensor>;
  EXPECT_THAT(refuses(
                  [](const Tensor& y) {
                    return Map{{"rgb", y}};
                  },
                  [](const Tensor& y) {
                    return Map{{"depth", y}};
                  }),
              same_keys);
  using Pair = std::pair<std::optional<Tensor>, std::optional<Tensor>>;
  EXPECT_THAT(refuses([](const Tensor& y) { return Pair(y, std::nullopt); },
                      [](const Tensor& y) { return Pair(std::nullopt, y); }),
              same_keys);
  using Either = std::variant<Tensor, std::vector<Tensor>>;
  EXPECT_THAT(refuses([](const Tensor& y) { return Either(y); },
                      [](const Tensor& y) { return Either(std::vector<Tensor>{y}); }),
              same_keys);
  struct Rays {
    std::vector<Tensor> near, far;
  };
  EXPECT_THAT(refuses(
                  [](const Tensor& y) {
                    return Rays{{y}, {}};
                  },
                  [](const Tensor& y) {
                    return Rays{{}, {y}};
                  }),
              same_keys);
}

TEST(CheckpointChunks, JoinMapsVariantsAndStructsByTheirKeys) {
  struct Rendered {
    Tensor rgb;
    std::map<std::string, std::variant<Tensor, std::vector<Tensor>>> more;
  };
  const Tensor x = leaf({5, 2});
  const Rendered joined = checkpoint_chunks(
      2,
      [](const Tensor& rows) {
        return Rendered{rows.exp(), {{"depth", rows.sin()}, {"list", std::vector{rows.cos()}}}};
      },
      x);
  EXPECT_TRUE(torch::equal(joined.rgb, x.exp()));
  EXPECT_TRUE(torch::equal(std::get<0>(joined.more.at("depth")), x.sin()));
  EXPECT_TRUE(torch::equal(std::get<1>(joined.more.at("list"))[0], x.cos()));
}

TEST(CheckpointChunks, RefuseAnUndefinedTensorFromSomeChunks) {
  const auto some = [](const Tensor& a) { return a.size(0) == 2 ? a.exp() : Tensor(); };
  EXPECT_THAT(thrown_text([&] {
                checkpoint_chunks(2, some, leaf({5, 2}));
              }),
              Optional(HasSubstr("an undefined tensor from 1 of 3 chunks")));
}

TEST(CheckpointChunks, RefuseScalarResults) {
  const auto total = [](const Tensor& a) { return a.sum(); };
  for (const int64_t rows : {2, 5}) {
    EXPECT_THAT(thrown_text([&] {
                  checkpoint_chunks(2, total, leaf({rows, 2}));
                }),
                Optional(AllOf(HasSubstr("got a scalar from a chunk"), HasSubstr("reduce"))));
  }
}

}  // namespace
