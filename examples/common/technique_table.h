#pragma once

// One training step in several ways: what each costs, and whether its gradients are the same.

#include <torch/types.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace torch::nn {
class Module;
}

namespace examples {

/// One way to run a training step: a row of the table.
struct Technique {
  std::string name;
  std::function<void()> step;        ///< forward, loss and backward; leaves gradients
  std::size_t plain = 0;             ///< the row that it must agree with; its own if with none
  int64_t micro_batches = 1;         ///< times are per micro-batch
  double bound = 0;                  ///< largest difference from that row that is accepted
  std::optional<int64_t> most_peak;  ///< limits in bytes, where something promises them; they may
  std::optional<int64_t> most_held;  ///< be set between measuring and printing
  std::function<void()> reference;   ///< the step to agree with, where it is no row of the table
};

/// What a technique did in one step, measured.
struct Measured {
  int64_t peak = 0;       ///< bytes above what is live between steps
  int64_t held = 0;       ///< bytes that the graph holds for backward
  double seconds = 0;     ///< for each micro-batch
  double difference = 0;  ///< largest from the plain step, of gradients and buffers
};

/// Runs the same step with each technique: the same weights, buffers and seed each time, no
/// gradients before it. Leaves the net as it was, without gradients, and LibTorch's generators
/// seeded. Times are medians of `rounds` steps.
std::vector<Measured> measure_techniques(torch::nn::Module& net,
                                         const std::vector<Technique>& techniques,
                                         torch::Device device, int64_t rounds);

/// The same for parameters that are no module's, and for tensors that steps write to.
std::vector<Measured> measure_techniques(const std::vector<torch::Tensor>& parameters,
                                         const std::vector<torch::Tensor>& buffers,
                                         const std::vector<Technique>& techniques,
                                         torch::Device device, int64_t rounds);

/// Prints the table, then what failed: held bytes above their limit, and on the CPU also peaks
/// above theirs and differences above the bound. (Elsewhere kernels may add up in any order and use
/// workspaces of any size.) `compared` is what a difference is one of, such as "gradients". Returns
/// whether all checks hold.
bool print_techniques(const std::vector<Technique>& techniques,
                      const std::vector<Measured>& measured, torch::Device device,
                      const std::string& compared = "gradients");

/// The largest difference of two lists of tensors, some of which may be undefined: infinity if only
/// one of two is, not a number if there is one in them.
double largest_difference(const std::vector<torch::Tensor>& a, const std::vector<torch::Tensor>& b);

}  // namespace examples
