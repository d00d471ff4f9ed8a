#pragma once

// Reports on where the memory of a training step goes.

#include <torch/types.h>

#include <functional>
#include <string>
#include <vector>

namespace torch::nn {
class Module;
}
namespace torch::optim {
class Optimizer;
}

namespace examples {

/// A whole training step in one of several ways, with zero_grad() and the optimizer's step.
struct RecordedStep {
  std::string name;  ///< of the folder, such as "plain"
  std::function<void()> step;
};

/// Runs each step twice, the second time recorded, and writes its report into `folder`/<name>.
/// Prints the first one's report, the others' peaks and what the allocator tells. `net` names the
/// modules and may be null.
void write_memory_reports(const std::string& folder, const torch::nn::Module* net,
                          const std::vector<torch::optim::Optimizer*>& optimizers,
                          const std::vector<RecordedStep>& steps, torch::Device device);

}  // namespace examples
