// A training step in C++, called from Python.
#include <tidemark/memory.h>
#include <tidemark/tidemark.h>
#include <torch/extension.h>

namespace {

// Checkpointed here, whoever asks.
at::Tensor block(const at::Tensor& x, const at::Tensor& weight) {
  return tidemark::checkpoint(
      [](const at::Tensor& t, const at::Tensor& w) { return t.mm(w).tanh().mm(w).tanh(); }, x,
      weight);
}

// Bytes that the graph of the block holds for backward.
int64_t held(const at::Tensor& x, const at::Tensor& weight) {
  const tidemark::HeldBytesScope scope;
  const auto y = block(x, weight);
  return scope.current();
}

// The highest number of live bytes while `function`, of Python, runs.
int64_t peak(const py::function& function) {
  const tidemark::MemoryScope scope;
  function();
  return scope.peak();
}

}  // namespace

PYBIND11_MODULE(TORCH_EXTENSION_NAME, module) {
  module.def("block", &block);
  module.def("held", &held);
  module.def("peak", &peak);
}
