// Which tensors are found in arguments and results, in which order, and how views are kept.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <tidemark/checkpoint.h>
#include <tidemark/detail/tensor_tree.h>
#include <torch/torch.h>

#include <array>
#include <deque>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

#include "../support/plain_and_checkpointed.h"

namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;
using tidemark::detail::for_each_tensor;
using tidemark::detail::holds_only_tensors;
using tidemark::detail::holds_tensors;
using tidemark::detail::holds_views;
using tidemark::detail::lend;
using tidemark::detail::owned_t;
using tidemark::detail::to_owned;
using torch::Tensor;

Tensor t(int number) { return torch::tensor(number); }

/// The numbers of the tensors in `value`, -1 for an undefined one.
template <class T>
std::vector<int> found(T value) {
  std::vector<int> numbers;
  for_each_tensor(value, [&](Tensor& tensor) {
    numbers.push_back(tensor.defined() ? tensor.item<int>() : -1);
  });
  return numbers;
}

TEST(TensorTree, FindsTensorsInStandardTypes) {
  EXPECT_THAT(found(t(1)), ElementsAre(1));
  EXPECT_THAT(found(Tensor()), ElementsAre(-1));
  EXPECT_THAT(found(std::optional<Tensor>(t(1))), ElementsAre(1));
  EXPECT_THAT(found(std::optional<Tensor>()), IsEmpty());
  EXPECT_THAT(found(std::make_pair(t(1), t(2))), ElementsAre(1, 2));
  EXPECT_THAT(found(std::make_tuple(t(1), 5, t(2), Tensor(), t(3))), ElementsAre(1, 2, -1, 3));
  EXPECT_THAT(found(std::array<Tensor, 2>{t(1), t(2)}), ElementsAre(1, 2));
  EXPECT_THAT(found(std::vector<Tensor>{t(1), t(2), t(3)}), ElementsAre(1, 2, 3));
  EXPECT_THAT(found(std::vector<Tensor>()), IsEmpty());
  EXPECT_THAT(found(std::deque<Tensor>{t(1), t(2)}), ElementsAre(1, 2));
  EXPECT_THAT(found(std::list<Tensor>{t(1), t(2)}), ElementsAre(1, 2));
  EXPECT_THAT(found(std::map<std::string, Tensor>{{"b", t(1)}, {"a", t(2)}}), ElementsAre(2, 1));
  EXPECT_THAT(found(std::unordered_map<int, Tensor>{{1, t(1)}, {2, t(2)}}),
              UnorderedElementsAre(1, 2));
  using Either = std::variant<int, Tensor, std::vector<Tensor>>;
  EXPECT_THAT(found(Either(3)), IsEmpty());
  EXPECT_THAT(found(Either(t(1))), ElementsAre(1));
  EXPECT_THAT(found(Either(std::vector<Tensor>{t(1), t(2)})), ElementsAre(1, 2));
}

TEST(TensorTree, FindsTensorsInAnOrderedDict) {
  torch::OrderedDict<std::string, Tensor> dict;
  dict.insert("b", t(1));
  dict.insert("a", t(2));
  EXPECT_THAT(found(dict), ElementsAre(1, 2));
}

TEST(TensorTree, FindsTensorsInNestedTypes) {
  using Level = std::pair<Tensor, std::optional<std::vector<Tensor>>>;
  EXPECT_THAT(found(std::make_tuple(
                  std::vector<Level>{{t(1), std::nullopt}, {t(2), std::vector<Tensor>{t(3), t(4)}}},
                  std::map<std::string, std::array<Tensor, 2>>{{"a", {t(5), Tensor()}}}, t(6))),
              ElementsAre(1, 2, 3, 4, 5, -1, 6));
}

TEST(TensorTree, VisitsTheTensorsThemselves) {
  auto value = std::make_pair(t(1), std::vector<Tensor>{t(2)});
  for_each_tensor(value, [](Tensor& tensor) { tensor = t(7); });
  EXPECT_THAT(found(value), ElementsAre(7, 7));
}

// --- structs ---

enum class Mode { kFast, kExact };

struct Rays {
  Tensor origins;
  Tensor directions;
};

struct Batch {
  std::string name = "batch";
  Rays rays;
  double near = 0.1;
  std::vector<Rays> levels;
  Mode mode = Mode::kExact;
  bool training = true;
  std::optional<Tensor> mask;
  torch::Device device = torch::kCPU;
  at::Scalar scale = 1.0;
  Tensor target;
};

struct OnDevice {
  Tensor first;
  torch::Device device;  // has no default constructor
  Tensor second;
};

struct WithArray {
  int count;
  Tensor pyramid[3];
  Tensor last;
};

struct OneVector {
  std::vector<Tensor> all;
};

struct Twelve {
  Tensor a, b, c, d, e, f, g, h, i, j, k, l;
};

TEST(TensorTree, FindsTheMembersOfAggregates) {
  EXPECT_THAT(found(Rays{t(1), t(2)}), ElementsAre(1, 2));
  EXPECT_THAT(found(Batch()), ElementsAre(-1, -1, -1));
  Batch batch;
  batch.rays = {t(1), t(2)};
  batch.levels = {{t(3), t(4)}, {t(5), t(6)}};
  batch.mask = t(7);
  batch.target = t(8);
  EXPECT_THAT(found(batch), ElementsAre(1, 2, 3, 4, 5, 6, 7, 8));
  EXPECT_THAT(found(std::vector<Batch>{batch, {}}),
              ElementsAre(1, 2, 3, 4, 5, 6, 7, 8, -1, -1, -1));
  EXPECT_THAT(found(OnDevice{t(1), torch::kCPU, t(2)}), ElementsAre(1, 2));
  EXPECT_THAT(found(WithArray{3, {t(1), t(2), t(3)}, t(4)}), ElementsAre(1, 2, 3, 4));
  EXPECT_THAT(found(OneVector{{t(1), t(2)}}), ElementsAre(1, 2));
  EXPECT_THAT(
      found(Twelve{t(1), t(2), t(3), t(4), t(5), t(6), t(7), t(8), t(9), t(10), t(11), t(12)}),
      ElementsAre(1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12));
}

class Described {
 public:
  Described(Tensor rgb, Tensor depth) : rgb_(std::move(rgb)), layers_{std::move(depth)} {}

 private:
  friend auto tidemark_tensors(Described& d) { return std::tie(d.rgb_, d.width_, d.layers_); }
  Tensor rgb_;
  int width_ = 3;
  std::vector<Tensor> layers_;
};

struct FromABase : Rays {
  Tensor extra;
  friend auto tidemark_tensors(FromABase& f) { return std::tie(f.origins, f.extra); }
};

TEST(TensorTree, FindsWhatAClassSaysOfItself) {
  EXPECT_THAT(found(Described(t(1), t(2))), ElementsAre(1, 2));
  EXPECT_THAT(found(std::make_pair(Described(t(1), t(2)), t(3))), ElementsAre(1, 2, 3));
  EXPECT_THAT(found(FromABase{{t(1), t(2)}, t(3)}), ElementsAre(1, 3));
}

struct Camera {
  double focal;
  int width;
};

class NotDescribed {
 public:
  NotDescribed() = default;

 private:
  Tensor hidden_ = torch::ones({1});
};

TEST(TensorTree, OpaqueValuesHoldNoTensors) {
  EXPECT_THAT(found(std::function<Tensor()>([] { return t(1); })), IsEmpty());
  EXPECT_THAT(found(std::make_shared<Tensor>(t(1))), IsEmpty());
  EXPECT_THAT(found(Camera{2.0, 3}), IsEmpty());
  EXPECT_THAT(found(std::vector<bool>{true, false}), IsEmpty());
  EXPECT_THAT(found(at::Scalar(3)), IsEmpty());
  EXPECT_THAT(found(std::string("text")), IsEmpty());
  EXPECT_THAT(found(NotDescribed()), IsEmpty());
  EXPECT_THAT(found(std::make_tuple(4, Mode::kFast, torch::Device(torch::kCPU))), IsEmpty());
}

static_assert(holds_tensors<Tensor>() && holds_tensors<std::vector<std::optional<Tensor>>>());
static_assert(holds_tensors<Batch>() && holds_tensors<WithArray>() && holds_tensors<Described>());
static_assert(holds_tensors<std::variant<int, Tensor>>());
static_assert(!holds_tensors<int>() && !holds_tensors<std::string>() && !holds_tensors<Camera>());
static_assert(!holds_tensors<std::vector<bool>>() && !holds_tensors<std::map<int, double>>());
static_assert(!holds_tensors<std::shared_ptr<Tensor>>() && !holds_tensors<NotDescribed>());

static_assert(holds_only_tensors<Tensor>() && holds_only_tensors<Rays>());
static_assert(holds_only_tensors<std::tuple<Tensor, std::vector<Tensor>, std::optional<Rays>>>());
static_assert(holds_only_tensors<std::map<std::string, Tensor>>());
static_assert(!holds_only_tensors<int>() && !holds_only_tensors<std::vector<int>>());
static_assert(!holds_only_tensors<std::pair<Tensor, int>>() && !holds_only_tensors<Batch>());

TEST(TensorTree, ContainersOfMoreThanTensorsHoldNotOnlyTensors) {
  using Counted = std::pair<Tensor, int>;
  EXPECT_FALSE(holds_only_tensors<std::vector<Counted>>());
  EXPECT_FALSE(holds_only_tensors<std::optional<Counted>>());
  EXPECT_FALSE((holds_only_tensors<std::array<Counted, 2>>()));
  EXPECT_FALSE((holds_only_tensors<std::map<int, Counted>>()));
}

// --- views ---

/// Whether T is kept as an Owner and arrives as the same view again.
template <class T, class Owner>
bool keeps(T view) {
  static_assert(std::is_same_v<owned_t<T>, Owner>);
  owned_t<T> owner = to_owned(view);
  const T lent = lend<T>(owner);
  if constexpr (std::is_same_v<T, at::OptionalIntArrayRef>) {  // can't be compared
    return lent.has_value() ? view.has_value() && *lent == *view : !view.has_value();
  } else {
    return lent == view;
  }
}

TEST(TensorTree, ViewsAreKeptAsTheirOwners) {
  const std::vector<int64_t> sizes{2, 3};
  using Sizes = std::vector<int64_t>;
  const at::IntArrayRef view(sizes);
  EXPECT_TRUE((keeps<at::IntArrayRef, Sizes>(view)));
  EXPECT_TRUE((keeps<at::OptionalIntArrayRef, std::optional<Sizes>>(view)));
  EXPECT_TRUE((keeps<at::OptionalIntArrayRef, std::optional<Sizes>>(std::nullopt)));
  EXPECT_TRUE((keeps<std::optional<at::IntArrayRef>, std::optional<Sizes>>(view)));
  EXPECT_TRUE((keeps<std::optional<at::IntArrayRef>, std::optional<Sizes>>(std::nullopt)));
  EXPECT_TRUE((keeps<std::string_view, std::string>("text")));
  EXPECT_TRUE((keeps<std::string, std::string>("text")));
  EXPECT_TRUE((keeps<std::optional<double>, std::optional<double>>(2.0)));

  const std::vector<Tensor> tensors{t(1), t(2)};
  auto owner = to_owned(at::TensorList(tensors));
  static_assert(std::is_same_v<decltype(owner), std::vector<Tensor>>);
  EXPECT_THAT(found(owner), ElementsAre(1, 2));
  EXPECT_TRUE(lend<at::TensorList>(owner)[1].is_same(tensors[1]));
}

static_assert(holds_views<std::vector<at::IntArrayRef>>());
static_assert(holds_views<std::pair<int, std::string_view>>());
static_assert(!holds_views<std::vector<std::string>>() && !holds_views<at::IntArrayRef>());

// --- through checkpoint() ---

TEST(TensorTree, AggregatesPassThroughARegion) {
  tidemark::tests::expect_equal_to_plain([](auto& region, auto& record) {
    const auto leaf = [] { return torch::randn({3}).requires_grad_(); };
    Batch batch;
    batch.rays = {leaf(), leaf()};
    batch.levels = {{leaf(), leaf()}};
    batch.scale = 0.5;
    const Batch out = region(
        [](const Batch& in, const Described&) {
          Batch result = in;
          const Tensor depth = (in.rays.origins * in.levels[0].origins * in.scale).exp();
          result.rays.directions = (depth * in.rays.directions).sin();
          result.levels.push_back({depth * depth, in.levels[0].directions.tanh()});
          result.name = in.name + " rendered";
          return result;
        },
        batch, Described(t(1), t(2)));
    EXPECT_EQ(out.name, "batch rendered");
    EXPECT_TRUE(out.rays.origins.is_same(batch.rays.origins));
    (out.rays.directions + out.levels[1].origins + out.levels[1].directions).sum().backward();
    for_each_tensor(
        batch, [&](Tensor& input) { record("input", input.defined() ? input.grad() : input); });
  });
}

struct HoldsAView {
  at::IntArrayRef sizes;
  at::Tensor x;
};
static_assert(tidemark::detail::holds_views<HoldsAView>());
static_assert(tidemark::detail::holds_views<std::array<at::IntArrayRef, 2>>());
static_assert(tidemark::detail::holds_views<std::map<int, at::IntArrayRef>>());
static_assert(tidemark::detail::holds_views<std::optional<std::vector<at::IntArrayRef>>>());

}  // namespace
