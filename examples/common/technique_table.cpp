#include "common/technique_table.h"

#include <tidemark/memory/measure.h>
#include <torch/torch.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <limits>

namespace examples {

namespace {

// Buffers as they were, no gradients, and the same random numbers.
class SameStart {
 public:
  SameStart(std::vector<torch::Tensor> parameters, std::vector<torch::Tensor> buffers)
      : parameters_(std::move(parameters)), buffers_(std::move(buffers)) {
    for (const torch::Tensor& buffer : buffers_) {
      values_.push_back(buffer.clone());
    }
  }
  SameStart(const SameStart&) = delete;
  SameStart& operator=(const SameStart&) = delete;
  ~SameStart() { restore(); }

  void restore() {
    const torch::NoGradGuard no_grad;
    for (size_t i = 0; i < buffers_.size(); ++i) {
      buffers_[i].copy_(values_[i]);
    }
    for (torch::Tensor& parameter : parameters_) {
      parameter.mutable_grad() = torch::Tensor();
    }
    torch::manual_seed(0);
  }

  /// What a step from here leaves behind.
  std::vector<torch::Tensor> outcome_of(const std::function<void()>& step) {
    restore();
    step();
    return outcome();
  }

  [[nodiscard]] std::vector<torch::Tensor> outcome() const {
    std::vector<torch::Tensor> result;
    for (const torch::Tensor& parameter : parameters_) {
      result.push_back(parameter.grad().defined() ? parameter.grad().clone() : torch::Tensor());
    }
    for (const torch::Tensor& buffer : buffers_) {
      result.push_back(buffer.clone());
    }
    return result;
  }

 private:
  std::vector<torch::Tensor> parameters_;
  std::vector<torch::Tensor> buffers_;
  std::vector<torch::Tensor> values_;
};

double seconds_of(const std::function<void()>& step, torch::Device device) {
  const auto synchronize = [device] {
    if (device.is_cuda()) {
      torch::cuda::synchronize();
    }
  };
  synchronize();
  const auto start = std::chrono::steady_clock::now();
  step();
  synchronize();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

std::string mebibytes(std::optional<int64_t> bytes) {
  char text[32] = "";
  if (bytes.has_value()) {
    std::snprintf(text, sizeof(text), "%.1f", static_cast<double>(*bytes) / (1 << 20));
  }
  return text;
}

bool exceeds(int64_t bytes, std::optional<int64_t> most) {
  return most.has_value() && bytes > *most;
}

}  // namespace

double largest_difference(const std::vector<torch::Tensor>& a,
                          const std::vector<torch::Tensor>& b) {
  TORCH_CHECK(a.size() == b.size(), "lists of ", a.size(), " and ", b.size(),
              " tensors can't be compared");
  std::vector<torch::Tensor> differences{torch::zeros({}, torch::kFloat64)};
  for (size_t i = 0; i < a.size(); ++i) {
    if (a[i].defined() != b[i].defined()) {
      return std::numeric_limits<double>::infinity();
    }
    if (a[i].defined() && a[i].numel() > 0) {
      differences.push_back((a[i].detach().to(torch::kFloat64) - b[i].detach().to(torch::kFloat64))
                                .abs()
                                .max()
                                .cpu());
    }
  }
  return torch::stack(differences).max().item<double>();
}

std::vector<Measured> measure_techniques(torch::nn::Module& net,
                                         const std::vector<Technique>& techniques,
                                         torch::Device device, int64_t rounds) {
  return measure_techniques(net.parameters(), net.buffers(), techniques, device, rounds);
}

std::vector<Measured> measure_techniques(const std::vector<torch::Tensor>& parameters,
                                         const std::vector<torch::Tensor>& buffers,
                                         const std::vector<Technique>& techniques,
                                         torch::Device device, int64_t rounds) {
  SameStart start(parameters, buffers);
  std::vector<Measured> result;
  for (const Technique& technique : techniques) {
    const auto plain = start.outcome_of(technique.reference ? technique.reference
                                                            : techniques.at(technique.plain).step);
    // once unmeasured: the first forward of a CheckpointedSequential copies its segments' inputs
    technique.step();
    start.restore();
    const tidemark::StepMemory memory = tidemark::measure(technique.step, device);
    result.push_back({memory.peak, memory.held, 0, largest_difference(start.outcome(), plain)});
  }

  // round by round, so that a busy moment of the machine doesn't hit one technique only
  std::vector<std::vector<double>> seconds(techniques.size());
  for (int64_t round = 0; round < rounds; ++round) {
    for (size_t i = 0; i < techniques.size(); ++i) {
      start.restore();
      seconds[i].push_back(seconds_of(techniques[i].step, device));
    }
  }
  for (size_t i = 0; i < techniques.size(); ++i) {
    result[i].seconds = median(seconds[i]) / static_cast<double>(techniques[i].micro_batches);
  }
  return result;
}

bool print_techniques(const std::vector<Technique>& techniques,
                      const std::vector<Measured>& measured, torch::Device device,
                      const std::string& compared) {
  bool limits = false;
  for (const Technique& technique : techniques) {
    limits = limits || technique.most_peak.has_value() || technique.most_held.has_value();
  }
  const auto bytes = [limits](const char* what) {
    return std::string(what) + (limits ? "  at most" : "");
  };
  const int width = limits ? 19 : 9;
  std::printf("  %-34s %*s   %*s   %8s   %s\n", "", width, bytes("peak MiB").c_str(), width,
              bytes("held MiB").c_str(), "ms/batch", "difference");

  std::vector<std::string> failures;
  const auto check = [&failures](bool holds, const Technique& technique, const std::string& what) {
    if (!holds) {
      failures.push_back(technique.name + ": " + what);
    }
  };
  for (size_t i = 0; i < techniques.size(); ++i) {
    const Technique& technique = techniques[i];
    const Measured& row = measured.at(i);
    const auto figures = [limits](int64_t value, std::optional<int64_t> most) {
      char text[48];
      std::snprintf(text, sizeof(text), limits ? "%9s %9s" : "%9s", mebibytes(value).c_str(),
                    mebibytes(most).c_str());
      return std::string(text);
    };
    std::printf("  %-34s %s   %s   %8.0f   %.3g\n", technique.name.c_str(),
                figures(row.peak, technique.most_peak).c_str(),
                figures(row.held, technique.most_held).c_str(), 1e3 * row.seconds, row.difference);
    check(!exceeds(row.held, technique.most_held), technique, "holds more than it may");
    if (device.is_cpu()) {
      check(!exceeds(row.peak, technique.most_peak), technique, "peaks higher than it may");
      check(row.difference <= technique.bound, technique, "changes " + compared);
    }
  }
  std::printf("\n");
  for (const std::string& failure : failures) {
    std::printf("  FAILED %s\n", failure.c_str());
  }
  return failures.empty();
}

}  // namespace examples
