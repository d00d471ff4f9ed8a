// Losses, multiplied by the scale.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <tidemark/grad_scaler.h>
#include <torch/torch.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "../support/thrown_text.h"
#include "weights.h"

namespace {

using namespace tidemark::tests;
using ::testing::HasSubstr;
using ::testing::Optional;
using tidemark::GradScaler;
using tidemark::GradScalerOptions;
using torch::Tensor;
using torch::optim::SGD;

TEST(GradScalerScale, MultipliesByInitScaleAndLeavesTheLossAsItWas) {
  GradScaler scaler;
  const auto w = weight(3);
  const auto loss = w.sum();
  const auto scaled = scaler.scale(loss);
  EXPECT_EQ(scaled.item<float>(), 6 * 65536);
  EXPECT_EQ(loss.item<float>(), 6);
  scaled.backward();
  EXPECT_EQ(grad_value(w), 65536);
}

TEST(GradScalerScale, PromotesHalfPrecisionOfAnyShapeSoThatItDoesNotOverflow) {
  GradScaler scaler;
  for (const auto dtype : {torch::kHalf, torch::kBFloat16}) {
    for (const auto& sizes : std::vector<std::vector<int64_t>>{{}, {1}, {4}, {2, 3}}) {
      const auto scaled = scaler.scale(torch::full(sizes, 2.0, dtype));
      EXPECT_EQ(scaled.sizes(), at::IntArrayRef(sizes));
      EXPECT_EQ(scaled.scalar_type(), torch::kFloat);
      EXPECT_TRUE(scaled.eq(131072).all().item<bool>()) << scaled;
    }
  }
}

TEST(GradScalerScale, GivesAHalfPrecisionLossItsGradientsInItsOwnDtype) {
  GradScaler scaler(GradScalerOptions().init_scale(8));
  const auto loss = torch::ones({3}, torch::kHalf).requires_grad_();
  scaler.scale(loss).sum().backward();
  EXPECT_EQ(loss.grad().scalar_type(), torch::kHalf);
  EXPECT_EQ(grad_value(loss), 8);
}

TEST(GradScalerScale, KeepsDoubleAndFloat) {
  GradScaler scaler(GradScalerOptions().init_scale(4));
  for (const auto dtype : {torch::kDouble, torch::kFloat}) {
    EXPECT_EQ(scaler.scale(torch::ones({}, dtype)).scalar_type(), dtype);
    EXPECT_EQ(scaler.scale(torch::ones({2}, dtype)).scalar_type(), dtype);
  }
}

struct Losses {
  Tensor loss;
  std::optional<Tensor> penalty;
  std::vector<std::pair<std::string, Tensor>> terms;
  Tensor points;  // a count
  Tensor absent;
  int level = 0;
};

TEST(GradScalerScale, GivesBackNestedContainersAndStructsOfTheSameType) {
  GradScaler scaler(GradScalerOptions().init_scale(4));
  const Losses losses{torch::ones({}),
                      torch::full({}, 2.0),
                      {{"a", torch::full({}, 3.0)}, {"b", torch::full({2}, 5.0, torch::kHalf)}},
                      torch::tensor(7),
                      Tensor(),
                      9};
  const Losses scaled = scaler.scale(losses);
  EXPECT_EQ(scaled.loss.item<float>(), 4);
  EXPECT_EQ(scaled.penalty->item<float>(), 8);
  EXPECT_EQ(scaled.terms[0].first, "a");
  EXPECT_EQ(scaled.terms[0].second.item<float>(), 12);
  EXPECT_EQ(value(scaled.terms[1].second), 20);
  EXPECT_TRUE(scaled.points.is_same(losses.points));
  EXPECT_FALSE(scaled.absent.defined());
  EXPECT_EQ(scaled.level, 9);
  EXPECT_EQ(losses.loss.item<float>(), 1);
  EXPECT_EQ(losses.terms[0].second.item<float>(), 3);
}

TEST(GradScalerScale, TakesListsByViewAndGivesBackAVector) {
  GradScaler scaler(GradScalerOptions().init_scale(4));
  const std::vector<Tensor> losses{torch::ones({}), torch::full({}, 2.0)};
  const std::vector<Tensor> scaled = scaler.scale(at::TensorList(losses));
  EXPECT_EQ(scaled[0].item<float>(), 4);
  EXPECT_EQ(scaled[1].item<float>(), 8);
}

TEST(GradScalerScale, RefusesWhatIsNoLoss) {
  GradScaler scaler;
  EXPECT_THAT(thrown_text([&] { (void)scaler.scale(Tensor()); }), Optional(HasSubstr("undefined")));
  EXPECT_THAT(thrown_text([&] { (void)scaler.scale(torch::tensor(3)); }),
              Optional(HasSubstr("dtype Long")));
}

TEST(GradScalerScale, ReturnsItsArgumentIfDisabled) {
  GradScaler scaler(GradScalerOptions().enabled(false));
  const auto loss = torch::ones({});
  EXPECT_TRUE(scaler.scale(loss).is_same(loss));
  EXPECT_TRUE(scaler.scale(std::vector<Tensor>{loss})[0].is_same(loss));
}

TEST(GradScalerScale, BackwardAfterTheUpdateIsRefusedSinceItWouldMixTwoScales) {
  GradScaler scaler;
  const auto w = weight(1);
  SGD sgd({w}, 0.1);
  const auto late = scaler.scale(w.sum());
  backward(scaler, w, kInf);
  scaler.step(sgd);
  scaler.update();
  EXPECT_THAT(thrown_text([&] { late.backward(); }),
              Optional(HasSubstr("modified by an inplace operation")));
}

}  // namespace
