#pragma once

// Generators that a region was given by hand, as they stood before it drew from them.

#include <ATen/Context.h>
#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>

#include <cstring>
#include <mutex>
#include <string>
#include <vector>

namespace tidemark::detail {

struct GeneratorUse {
  explicit GeneratorUse(const at::Generator& generator)
      : generator(generator), start(state_of(generator)) {}

  /// The state of a generator, copied.
  static at::Tensor state_of(at::Generator generator) {
    std::lock_guard<std::mutex> lock(generator.mutex());
    return generator.get_state();
  }
  static void set_state(at::Generator generator, const at::Tensor& state) {
    std::lock_guard<std::mutex> lock(generator.mutex());
    generator.set_state(state);
  }
  static bool is_default(const at::Generator& generator) {
    return generator == at::globalContext().defaultGenerator(generator.device());
  }

  at::Generator generator;
  at::Tensor start;
  at::Tensor end;  // once the forward is over
};

/// While alive, the generators stand where the forward found them; afterwards where they stood.
class GeneratorReplay {
 public:
  explicit GeneratorReplay(const std::vector<GeneratorUse>& uses) : uses_(uses) {
    for (const GeneratorUse& use : uses_) {
      before_.push_back(GeneratorUse::state_of(use.generator));
    }
    for (const GeneratorUse& use : uses_) {
      GeneratorUse::set_state(use.generator, use.start);
    }
  }
  GeneratorReplay(const GeneratorReplay&) = delete;
  GeneratorReplay& operator=(const GeneratorReplay&) = delete;
  ~GeneratorReplay() {
    for (std::size_t i = 0; i < before_.size(); ++i) {
      GeneratorUse::set_state(uses_[i].generator, before_[i]);
    }
  }

  void expect_same_end(const std::string& region) const {
    for (const GeneratorUse& use : uses_) {
      const at::Tensor now = GeneratorUse::state_of(use.generator);
      TORCH_CHECK(
          now.nbytes() == use.end.nbytes() &&
              std::memcmp(now.const_data_ptr(), use.end.const_data_ptr(), now.nbytes()) == 0,
          "tidemark: ", region,
          " was given a torch::Generator, and its re-run for backward "
          "left it in another state than the forward did. Another thread drew from it "
          "meanwhile, or the region does not draw the same each time. Give each thread a "
          "torch::Generator of its own.");
    }
  }

 private:
  const std::vector<GeneratorUse>& uses_;
  std::vector<at::Tensor> before_;
};

}  // namespace tidemark::detail
