// Options, setters, and what is saved of a GradScaler.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <tidemark/grad_scaler.h>
#include <torch/torch.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <sstream>
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
using tidemark::GradScalerState;
using tidemark::StepResult;
using torch::optim::SGD;

::testing::AssertionResult same(const GradScalerState& a, const GradScalerState& b) {
  const bool equal = a.scale == b.scale && a.growth_factor == b.growth_factor &&
                     a.backoff_factor == b.backoff_factor &&
                     a.growth_interval == b.growth_interval && a.growth_tracker == b.growth_tracker;
  return (equal ? ::testing::AssertionSuccess() : ::testing::AssertionFailure())
         << a.scale << " and " << b.scale << ", tracker " << a.growth_tracker << " and "
         << b.growth_tracker;
}

// No power of two, so that a lost bit shows.
GradScalerState odd_state() { return {1234.5677F, 1.7, 0.3, 5, 3}; }

TEST(GradScalerOptions, DefaultsArePythons) {
  const GradScaler scaler;
  EXPECT_TRUE(same(scaler.state(), {65536, 2, 0.5, 2000, 0}));
  EXPECT_TRUE(scaler.is_enabled());
  EXPECT_EQ(scaler.get_scale(), 65536);
  EXPECT_EQ(scaler.get_growth_factor(), 2);
  EXPECT_EQ(scaler.get_backoff_factor(), 0.5);
  EXPECT_EQ(scaler.get_growth_interval(), 2000);
  EXPECT_EQ(scaler.consecutive_skips(), 0);
}

TEST(GradScalerOptions, ThatMakeNoSenseAreRefusedWithTheirValue) {
  const auto text = [](const GradScalerOptions& options) {
    return thrown_text([&] { GradScaler scaler(options); });
  };
  for (const double bad : {0.0, -2.0, 1e39, double{kInf}, double{kNaN}}) {
    EXPECT_THAT(text(GradScalerOptions().init_scale(bad)), Optional(HasSubstr("the scale of the")));
    EXPECT_THAT(text(GradScalerOptions().min_scale(bad)), Optional(HasSubstr("min_scale")));
    EXPECT_THAT(text(GradScalerOptions().max_scale(bad)), Optional(HasSubstr("max_scale")));
  }
  EXPECT_THAT(text(GradScalerOptions().init_scale(4).min_scale(8)),
              Optional(AllOf(HasSubstr("init_scale 4"), HasSubstr("min_scale 8"))));
  EXPECT_THAT(text(GradScalerOptions().init_scale(4).max_scale(2)),
              Optional(HasSubstr("max_scale 2")));
  for (const double bad : {1.0, 0.5, double{kInf}, double{kNaN}}) {
    EXPECT_THAT(text(GradScalerOptions().growth_factor(bad)), Optional(HasSubstr("growth_factor")));
  }
  for (const double bad : {1.0, 0.0, -0.5, double{kNaN}}) {
    EXPECT_THAT(text(GradScalerOptions().backoff_factor(bad)),
                Optional(HasSubstr("backoff_factor")));
  }
  for (const int64_t bad : {int64_t{0}, int64_t{-1}, int64_t{1} << 31}) {
    EXPECT_THAT(text(GradScalerOptions().growth_interval(bad)),
                Optional(HasSubstr("growth_interval of the options is " + std::to_string(bad))));
  }
  EXPECT_THAT(text(GradScalerOptions().max_consecutive_skips(-1)),
              Optional(HasSubstr("max_consecutive_skips is -1")));
}

TEST(GradScalerSetters, TakeEffectAndRefuseWhatMakesNoSense) {
  GradScaler scaler(GradScalerOptions().init_scale(4));
  scaler.set_growth_interval(1);
  scaler.set_growth_factor(3);
  scaler.set_backoff_factor(0.25);
  update_with(scaler, 0);
  EXPECT_EQ(scaler.get_scale(), 12);
  update_with(scaler, kInf);
  EXPECT_EQ(scaler.get_scale(), 3);
  EXPECT_THAT(thrown_text([&] { scaler.set_growth_factor(1); }), Optional(HasSubstr("is 1;")));
  EXPECT_THAT(thrown_text([&] { scaler.set_backoff_factor(1); }), Optional(HasSubstr("is 1;")));
  EXPECT_THAT(thrown_text([&] { scaler.set_growth_interval(0); }), Optional(HasSubstr("is 0;")));
  EXPECT_TRUE(same(scaler.state(), {3, 3, 0.25, 1, 0}));
}

TEST(GradScalerState, IsTheSameBeforeAndAfterTheFirstScale) {
  GradScaler scaler(GradScalerOptions().init_scale(0.1));
  const auto before = scaler.state();
  EXPECT_EQ(before.scale, 0.1F);
  (void)scaler.scale(torch::ones({}));
  EXPECT_TRUE(same(before, scaler.state()));
}

TEST(GradScalerState, LoadedBeforeTheFirstScaleSurvivesIt) {
  GradScaler scaler;
  scaler.load_state({8, 2, 0.5, 2000, 1999});
  EXPECT_EQ(scaler.get_scale(), 8);
  update_with(scaler, 0);
  EXPECT_EQ(scaler.get_scale(), 16);
}

TEST(GradScalerState, LoadedLaterReplacesAllAndForgetsWhatWasUnscaled) {
  GradScaler scaler;
  const auto w = weight(1);
  SGD sgd({w}, 0.5);
  backward(scaler, w, kInf);
  scaler.step(sgd);
  EXPECT_EQ(scaler.consecutive_skips(), 1);
  scaler.load_state(odd_state());
  EXPECT_TRUE(same(scaler.state(), odd_state()));
  EXPECT_EQ(scaler.consecutive_skips(), 0);
  sgd.zero_grad();
  backward(scaler, w, 2);
  EXPECT_FLOAT_EQ(grad_value(w), 2 * 1234.5677F);
  EXPECT_EQ(scaler.step(sgd), StepResult::kStepped);
}

TEST(GradScalerState, OfNoScalerIsRefusedAndChangesNothing) {
  for (const bool started : {false, true}) {
    GradScaler scaler;
    scaler.load_state(odd_state());
    if (started) {
      (void)scaler.scale(torch::ones({}));
    }
    const auto refused = [&](auto member, auto bad, const char* what) {
      auto state = GradScalerState{8, 2, 0.5, 10, 0};
      state.*member = bad;
      EXPECT_THAT(thrown_text([&] { scaler.load_state(state); }), Optional(HasSubstr(what)));
      EXPECT_TRUE(same(scaler.state(), odd_state()));
    };
    for (const double bad : {0.0, -8.0, 1e39, 1e-40, double{kInf}, double{kNaN}}) {
      refused(&GradScalerState::scale, bad, "the scale to load");
    }
    refused(&GradScalerState::growth_factor, double{kNaN}, "growth_factor");
    refused(&GradScalerState::backoff_factor, 2.0, "backoff_factor");
    refused(&GradScalerState::growth_interval, 0, "growth_interval");
    refused(&GradScalerState::growth_tracker, -1, "growth_tracker");
    refused(&GradScalerState::growth_tracker, int64_t{1} << 31, "growth_tracker");
  }
}

TEST(GradScalerArchive, GoesOnBitForBit) {
  for (const bool started : {false, true}) {
    GradScaler scaler;
    scaler.load_state(odd_state());
    if (started) {
      update_with(scaler, 0);
    }
    std::stringstream file;
    torch::save(scaler, file);
    GradScaler loaded;
    torch::load(loaded, file);
    EXPECT_TRUE(same(loaded.state(), scaler.state()));
    for (const double gradient : {0.F, 0.F, kInf, 0.F, 0.F}) {
      update_with(scaler, gradient);
      update_with(loaded, gradient);
      EXPECT_TRUE(same(loaded.state(), scaler.state()));
    }
  }
}

TEST(GradScalerArchive, IsAPartOfALargerOne) {
  GradScaler scaler;
  scaler.load_state(odd_state());
  std::stringstream file;
  {
    torch::serialize::OutputArchive archive;
    torch::serialize::OutputArchive part(archive.compilation_unit());
    scaler.save(part);
    archive.write("scaler", part);
    archive.write("epoch", c10::IValue(int64_t{7}));
    archive.save_to(file);
  }
  torch::serialize::InputArchive archive;
  archive.load_from(file);
  torch::serialize::InputArchive part;
  archive.read("scaler", part);
  GradScaler loaded;
  loaded.load(part);
  EXPECT_TRUE(same(loaded.state(), odd_state()));
}

TEST(GradScalerArchive, OfADisabledScalerLoadsAsAnyOther) {
  GradScaler disabled(GradScalerOptions().enabled(false).init_scale(16));
  std::stringstream file;
  torch::save(disabled, file);
  GradScaler loaded;
  torch::load(loaded, file);
  EXPECT_EQ(loaded.get_scale(), 16);
}

class GradScalerArchiveRefusal : public ::testing::Test {
 protected:
  using Write = std::function<void(torch::serialize::OutputArchive&)>;

  // The text of the error, after a look that the scaler is as it was.
  static std::optional<std::string> load(const std::string& bytes) {
    GradScaler scaler;
    scaler.load_state(odd_state());
    std::istringstream file(bytes);
    auto text = thrown_text([&] { torch::load(scaler, file); });
    EXPECT_TRUE(same(scaler.state(), odd_state()));
    return text;
  }

  // Loads what a scaler of 8, 2, 0.5, 10, 0 writes, where an entry is written otherwise.
  static std::optional<std::string> load_with(const std::string& key, const c10::IValue& value) {
    torch::serialize::OutputArchive archive;
    for (const auto& [name, usual] :
         std::vector<std::pair<std::string, c10::IValue>>{{"grad_scaler_version", int64_t{1}},
                                                          {"scale", 8.0},
                                                          {"growth_factor", 2.0},
                                                          {"backoff_factor", 0.5},
                                                          {"growth_interval", int64_t{10}},
                                                          {"growth_tracker", int64_t{0}}}) {
      if (name != key) {
        archive.write(name, usual);
      } else if (!value.isNone()) {
        archive.write(name, value);
      }
    }
    std::ostringstream file;
    archive.save_to(file);
    return load(file.str());
  }
};

TEST_F(GradScalerArchiveRefusal, OfForeignArchives) {
  std::ostringstream file;
  const SGD sgd({weight(1)}, 0.5);
  torch::save(sgd, file);
  EXPECT_THAT(load(file.str()), Optional(AllOf(HasSubstr("no entry 'grad_scaler_version'"),
                                               HasSubstr("torch::save(scaler, ...)"))));
}

TEST_F(GradScalerArchiveRefusal, OfCutAndBrokenFiles) {
  GradScaler scaler;
  std::ostringstream file;
  torch::save(scaler, file);
  const auto bytes = file.str();
  EXPECT_NE(load(bytes.substr(0, bytes.size() / 2)), std::nullopt);
  EXPECT_NE(load(""), std::nullopt);
  EXPECT_NE(load("growth_interval"), std::nullopt);
}

TEST_F(GradScalerArchiveRefusal, OfMissingAndMistypedEntries) {
  for (const std::string key : {"grad_scaler_version", "scale", "growth_factor", "backoff_factor",
                                "growth_interval", "growth_tracker"}) {
    EXPECT_THAT(load_with(key, c10::IValue()), Optional(HasSubstr("no entry '" + key + "'")));
    EXPECT_THAT(load_with(key, c10::IValue("8")), Optional(HasSubstr("entry '" + key + "' is a")));
  }
}

TEST_F(GradScalerArchiveRefusal, OfOtherVersionsAndBadValues) {
  EXPECT_THAT(load_with("grad_scaler_version", int64_t{2}), Optional(HasSubstr("version 2")));
  EXPECT_THAT(load_with("scale", double{kNaN}), Optional(HasSubstr("the scale to load is nan")));
  EXPECT_THAT(load_with("scale", -8.0), Optional(HasSubstr("the scale to load is -8")));
  EXPECT_THAT(load_with("growth_tracker", int64_t{-1}), Optional(HasSubstr("growth_tracker")));
}

}  // namespace
