#pragma once

// Generators that a region was given by hand, as they stood before it drew from them.

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>
#include <tidemark/detail/rng_state.h>
#include <tidemark/detail/vector.h>

#include <cstring>
#include <memory>
#include <mutex>
#include <string>

namespace tidemark::detail {

/// The state of any generator. That of the CPU's is kept without LibTorch's allocator, so it can be
/// taken where an allocation must not fail.
class GeneratorState {
 public:
  GeneratorState() = default;
  explicit GeneratorState(at::Generator generator) {
    if (is_cpu(generator)) {
      cpu_.reset(new CpuRngState(CpuRngState::of(generator)));
    } else {
      std::lock_guard<std::mutex> lock(generator.mutex());
      other_ = generator.get_state();
    }
  }

  void put_into(at::Generator generator) const {
    if (cpu_ != nullptr) {
      cpu_->restore(generator);
    } else {
      std::lock_guard<std::mutex> lock(generator.mutex());
      generator.set_state(other_);
    }
  }

  friend bool operator==(const GeneratorState& a, const GeneratorState& b) {
    if (a.cpu_ != nullptr && b.cpu_ != nullptr) {
      return *a.cpu_ == *b.cpu_;
    }
    return a.other_.defined() && b.other_.defined() && a.other_.nbytes() == b.other_.nbytes() &&
           std::memcmp(a.other_.const_data_ptr(), b.other_.const_data_ptr(), a.other_.nbytes()) ==
               0;
  }

 private:
  static bool is_cpu(const at::Generator& generator) {
    return dynamic_cast<at::CPUGeneratorImpl*>(generator.unsafeGetGeneratorImpl()) != nullptr;
  }

  std::shared_ptr<const CpuRngState> cpu_;
  at::Tensor other_;
};

struct GeneratorUse {
  explicit GeneratorUse(const at::Generator& generator) : generator(generator), start(generator) {}

  static bool is_default(const at::Generator& generator) {
    return generator == at::globalContext().defaultGenerator(generator.device());
  }

  at::Generator generator;
  GeneratorState start;
  GeneratorState end;  // once the forward is over
};

/// While alive, the generators stand where the forward found them; afterwards where they stood.
class GeneratorReplay {
 public:
  explicit GeneratorReplay(const Vector<GeneratorUse>& uses) : uses_(uses) {
    for (const GeneratorUse& use : uses_) {
      before_.push_back(GeneratorUse(use.generator));
    }
    for (const GeneratorUse& use : uses_) {
      use.start.put_into(use.generator);
    }
  }
  GeneratorReplay(const GeneratorReplay&) = delete;
  GeneratorReplay& operator=(const GeneratorReplay&) = delete;
  ~GeneratorReplay() {
    for (const GeneratorUse& use : before_) {
      use.start.put_into(use.generator);
    }
  }

  void expect_same_end(const std::string& region) const {
    for (const GeneratorUse& use : uses_) {
      TORCH_CHECK(GeneratorState(use.generator) == use.end, "tidemark: ", region,
                  " was given a torch::Generator, and its re-run for backward "
                  "left it in another state than the forward did. Another thread drew from it "
                  "meanwhile, or the region does not draw the same each time. Give each thread a "
                  "torch::Generator of its own.");
    }
  }

 private:
  const Vector<GeneratorUse>& uses_;
  Vector<GeneratorUse> before_;
};

}  // namespace tidemark::detail
