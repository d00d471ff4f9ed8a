#pragma once

#include <ATen/record_function.h>
#include <c10/util/Exception.h>
#include <tidemark/grad_accumulator.h>
#include <torch/torch.h>

#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

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

/// Counts where a number is read on the host: there a device is waited for.
class HostReads {
 public:
  HostReads()
      : handle_(at::addThreadLocalCallback(
            at::RecordFunctionCallback([](const at::RecordFunction& fn)
                                           -> std::unique_ptr<at::ObserverContext> {
              const std::string name = fn.name();
              count += name == "aten::_local_scalar_dense" || name == "aten::is_nonzero" ||
                       name == "aten::nonzero" || name == "aten::equal";
              return nullptr;
            }).scopes({at::RecordScope::FUNCTION}))) {
    count = 0;
  }
  ~HostReads() { at::removeCallback(handle_); }
  HostReads(const HostReads&) = delete;
  HostReads& operator=(const HostReads&) = delete;

  /// Since the last call.
  static int taken() { return std::exchange(count, 0); }

 private:
  static inline int count = 0;
  at::CallbackHandle handle_;
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
