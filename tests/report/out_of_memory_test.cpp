#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <tidemark/gtest/memory_cap.h>
#include <tidemark/memory/bytes.h>
#include <tidemark/memory/explain_out_of_memory.h>
#include <torch/torch.h>

#include <new>
#include <stdexcept>
#include <string>

namespace {

using namespace tidemark::literals;
using testing::HasSubstr;
using testing::Not;
using tidemark::explain_out_of_memory;
using tidemark::gtest::MemoryCap;

// 16 KiB of parameters in each layer; 256 KiB of activations.
struct Layers : torch::nn::Module {
  Layers() {
    for (int i = 0; i < 8; ++i) {
      layers->push_back(torch::nn::Linear(torch::nn::LinearOptions(64, 64).bias(false)));
      layers->push_back(torch::nn::Tanh());
    }
    register_module("layers", layers);
  }
  torch::nn::Sequential layers;
};

class ExplainOutOfMemory : public testing::Test {
 protected:
  static void SetUpTestSuite() { tidemark::install_memory_meter(); }

  std::string explanation(int64_t bytes) {
    const auto x = torch::randn({1024, 64});
    const MemoryCap cap(bytes);
    try {
      explain_out_of_memory(model, [&] { model.layers->forward(x).sum().backward(); });
    } catch (const c10::OutOfMemoryError& error) {
      return error.what_without_backtrace();
    }
    return "nothing thrown";
  }

  Layers model;
};

TEST_F(ExplainOutOfMemory, SaysWhoAskedAndWhatWasLive) {
  // three outputs of Tanh, of the layer before and of the one that asks
  const std::string text = explanation(4 * 256_KiB + 128_KiB);
  EXPECT_THAT(text, HasSubstr("The cap is at"));  // what the allocator said stays
  EXPECT_THAT(text, HasSubstr("aten::tanh (forward of the model) asked for 256.0 KiB"));
  EXPECT_THAT(text, HasSubstr("activations 768.0 KiB"));
  EXPECT_THAT(text, HasSubstr("parameters 128.0 KiB"));
  EXPECT_THAT(text, HasSubstr("At the peak of 1.4 MiB, most was in\n  'layers' 1.1 MiB"));
}

TEST_F(ExplainOutOfMemory, SaysWhatToCheckpointThoughThereWasNoBackwardYet) {
  const std::string text = explanation(6 * 256_KiB + 128_KiB);
  EXPECT_THAT(text, HasSubstr("Make 'layers' a CheckpointedSequential"));
  EXPECT_THAT(text, HasSubstr("As far as it came, the step would peak at"));
}

TEST_F(ExplainOutOfMemory, ExplainsBackwardToo) {
  const std::string text = explanation(9 * 256_KiB + 128_KiB);
  EXPECT_THAT(text, HasSubstr("(backward of"));
}

TEST_F(ExplainOutOfMemory, ReturnsWhatTheStepReturns) {
  EXPECT_EQ(explain_out_of_memory(model, [] { return 5; }), 5);
  int value = 3;
  int& same = explain_out_of_memory(model, [&]() -> int& { return value; });
  EXPECT_EQ(&same, &value);
}

TEST_F(ExplainOutOfMemory, LeavesOtherErrorsAlone) {
  try {
    explain_out_of_memory(model, [] { TORCH_CHECK_VALUE(false, "as it was"); });
    FAIL();
  } catch (const c10::ValueError& error) {
    EXPECT_THAT(error.what_without_backtrace(), Not(HasSubstr("tidemark")));
  }
  EXPECT_THROW(explain_out_of_memory(model, [] { throw std::logic_error("no error of LibTorch"); }),
               std::logic_error);
}

TEST_F(ExplainOutOfMemory, TurnsBadAllocIntoAnErrorThatCanSayMore) {
  EXPECT_THROW(explain_out_of_memory(model, [] { throw std::bad_alloc(); }), c10::OutOfMemoryError);
}

TEST_F(ExplainOutOfMemory, SaysWhereToLookWhenItSawNothingFail) {
  try {
    explain_out_of_memory(model, [] {
      TORCH_CHECK_WITH(OutOfMemoryError, false, "CUDA out of memory.");  // of another device
    });
    FAIL();
  } catch (const c10::OutOfMemoryError& error) {
    EXPECT_THAT(error.what_without_backtrace(),
                HasSubstr("no allocation of cpu was seen to fail. If memory ran out on another"));
  }
}

TEST_F(ExplainOutOfMemory, LeavesTheNextStepUndisturbed) {
  EXPECT_THAT(explanation(2 * 256_KiB), HasSubstr("ran out"));
  const auto x = torch::randn({1024, 64});
  explain_out_of_memory(model, [&] { model.layers->forward(x).sum().backward(); });
}

}  // namespace
