// The side of C++ in the comparison with Python: the same networks and loops with tidemark, and the
// meter that measures both sides.

#include <tidemark/memory.h>
#include <torch/extension.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "networks.h"

namespace {

using compared::Network;
using torch::Tensor;

// A step of a network: forward and backward, as Python's side does it.
class Step {
 public:
  Step(const std::string& name, const std::vector<std::pair<std::string, Tensor>>& parameters)
      : network_(compared::make(name)) {
    auto own = network_->named_parameters();
    TORCH_CHECK(own.size() == parameters.size(), "there are ", own.size(),
                " parameters in C++ and ", parameters.size(), " in Python");
    const torch::NoGradGuard no_grad;
    for (size_t i = 0; i < parameters.size(); ++i) {
      TORCH_CHECK(own[i].key() == parameters[i].first, own[i].key(), " in C++ is ",
                  parameters[i].first, " in Python");
      own[i].value().copy_(parameters[i].second);
    }
  }

  Tensor forward(const Tensor& x, bool checkpointed) {
    const py::gil_scoped_release released;
    return network_->forward(x, checkpointed).square().mean();
  }
  void backward(const Tensor& loss) {
    const py::gil_scoped_release released;
    loss.backward();
  }
  void zero_grad() { network_->zero_grad(); }

  std::vector<Tensor> gradients() const {
    std::vector<Tensor> all;
    for (const auto& parameter : network_->parameters()) {
      all.push_back(parameter.grad());
    }
    return all;
  }

 private:
  std::shared_ptr<Network> network_;
};

template <class Function>
double seconds_of(const Function& function) {
  const auto begin = std::chrono::steady_clock::now();
  function();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

// Seconds for each of `count` forwards and backwards of `ops` ops, in a region or not.
double region_seconds(int64_t ops, bool checkpointed, int64_t count) {
  const py::gil_scoped_release released;
  const auto chain = [ops](Tensor x) {
    for (int64_t i = 0; i < ops; ++i) {
      x = x.sin();
    }
    return x;
  };
  const auto x = torch::ones({8}).requires_grad_() * 1;
  return seconds_of([&] {
           for (int64_t i = 0; i < count; ++i) {
             const auto y = checkpointed ? tidemark::checkpoint(chain, x) : chain(x);
             torch::autograd::grad({y.sum()}, {x});
           }
         }) /
         static_cast<double>(count);
}

// Steps with nothing, so that what remains is the scaler's.
class NoStep : public torch::optim::Optimizer {
 public:
  explicit NoStep(std::vector<Tensor> parameters)
      : Optimizer({torch::optim::OptimizerParamGroup(std::move(parameters))},
                  std::make_unique<torch::optim::SGDOptions>(0.1)) {}
  Tensor step(LossClosure /*closure*/ = nullptr) override { return {}; }
};

std::vector<Tensor> parameters_with_gradients(int64_t count) {
  std::vector<Tensor> parameters;
  for (int64_t i = 0; i < count; ++i) {
    parameters.push_back(torch::ones({64}).requires_grad_());
    parameters.back().mutable_grad() = torch::ones({64});
  }
  return parameters;
}

// Seconds of step() and update() of a scaler.
double scaler_seconds(int64_t parameters, int64_t count) {
  const py::gil_scoped_release released;
  NoStep optimizer(parameters_with_gradients(parameters));
  tidemark::GradScaler scaler(tidemark::GradScalerOptions().init_scale(1));
  const auto unused = scaler.scale(torch::ones({}));
  return seconds_of([&] {
           for (int64_t i = 0; i < count; ++i) {
             scaler.step(optimizer);
             scaler.update();
           }
         }) /
         static_cast<double>(count);
}

// Seconds of a window of four micro-batches of a small MLP.
double window_seconds(int64_t count) {
  const py::gil_scoped_release released;
  torch::nn::Sequential mlp(torch::nn::Linear(16, 16), torch::nn::ReLU(), torch::nn::Linear(16, 1));
  torch::optim::SGD optimizer(mlp->parameters(), 0.01);
  tidemark::GradAccumulator accumulator(optimizer,
                                        tidemark::GradAccumulatorOptions(4).clip_grad_norm(1.0));
  const auto x = torch::ones({8, 16});
  return seconds_of([&] {
           for (int64_t i = 0; i < 4 * count; ++i) {
             accumulator.backward(mlp->forward(x).square().mean());
           }
         }) /
         static_cast<double>(count);
}

// Live and peak bytes of the CPU since it was made, of both languages.
class Meter {
 public:
  int64_t current() const { return scope_.current(); }
  int64_t peak() const { return scope_.peak(); }

 private:
  tidemark::MemoryScope scope_;
};

}  // namespace

PYBIND11_MODULE(TORCH_EXTENSION_NAME, module) {
  py::class_<Step>(module, "Step")
      .def(py::init<const std::string&, const std::vector<std::pair<std::string, Tensor>>&>())
      .def("forward", &Step::forward)
      .def("backward", &Step::backward)
      .def("zero_grad", &Step::zero_grad)
      .def("gradients", &Step::gradients);
  py::class_<Meter>(module, "Meter")
      .def(py::init<>())
      .def_property_readonly("current", &Meter::current)
      .def_property_readonly("peak", &Meter::peak);
  module.def("region_seconds", &region_seconds);
  module.def("scaler_seconds", &scaler_seconds);
  module.def("window_seconds", &window_seconds);
}
