#pragma once

#include <c10/util/Exception.h>
#include <tidemark/grad_accumulator.h>
#include <torch/torch.h>

#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "../support/host_reads.h"

namespace tidemark::tests {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

/// A parameter of one element.
inline torch::Tensor weight(double value, torch::ScalarType dtype = torch::kFloat) {
  return torch::full({1}, value, dtype).requires_grad_();
}

inline double value(const torch::Tensor& tensor) {
  return tensor.detach().to(torch::kDouble).item<double>();
}

/// Keeps the gradients that each of its steps works on, of its first parameter.
class RecordingSGD : public torch::optim::SGD {
 public:
  explicit RecordingSGD(std::vector<torch::Tensor> parameters, double rate = 1)
      : SGD(std::move(parameters), rate) {}
  torch::Tensor step(LossClosure closure = nullptr) override {
    gradients.push_back(param_groups()[0].params()[0].grad().clone());
    return SGD::step(std::move(closure));
  }
  std::vector<torch::Tensor> gradients;
};

/// What an action warns of.
template <class Action>
std::vector<std::string> warnings_of(Action&& action) {
  struct Handler final : c10::WarningHandler {
    void process(const c10::Warning& warning) override { texts.push_back(warning.msg()); }
    std::vector<std::string> texts;
  } handler;
  const c10::WarningUtils::WarningHandlerGuard guard(&handler);
  action();
  return handler.texts;
}

}  // namespace tidemark::tests
