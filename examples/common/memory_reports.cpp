#include "common/memory_reports.h"

#include <tidemark/memory/bytes.h>
#include <tidemark/memory/memory_recorder.h>
#include <tidemark/memory/memory_stats.h>
#include <tidemark/memory/report_files.h>
#include <tidemark/memory/report_text.h>
#include <torch/torch.h>

#include <filesystem>
#include <iostream>
#include <memory>

#ifdef TIDEMARK_EXAMPLES_CUDA
#include <tidemark/memory/cuda_block_events.h>
#endif

namespace examples {

namespace {

tidemark::MemoryReport record(const torch::nn::Module* net,
                              const tidemark::MemoryRecorderOptions& options,
                              const std::function<void()>& step) {
  step();  // what stays, gradients and workspaces, is allocated by the first one
  const auto recorder = net != nullptr ? std::make_unique<tidemark::MemoryRecorder>(*net, options)
                                       : std::make_unique<tidemark::MemoryRecorder>(options);
  step();
  return recorder->report();
}

}  // namespace

void write_memory_reports(const std::string& folder, const torch::nn::Module* net,
                          const std::vector<torch::optim::Optimizer*>& optimizers,
                          const std::vector<RecordedStep>& steps, torch::Device device) {
#ifdef TIDEMARK_EXAMPLES_CUDA
  if (device.is_cuda()) {
    tidemark::watch_cuda_memory();
  }
#endif
  auto options = tidemark::MemoryRecorderOptions().device(device);
  for (torch::optim::Optimizer* optimizer : optimizers) {
    options.optimizer(optimizer);
  }
  std::string peaks, pages;
  for (const RecordedStep& step : steps) {
    const tidemark::MemoryReport report = record(net, options, step.step);
    const std::filesystem::path own_folder = std::filesystem::path(folder) / step.name;
    tidemark::write_report(report, own_folder.string());
    if (peaks.empty()) {
      std::cout << report << "\n";
    }
    peaks += (peaks.empty() ? "" : ", ") + tidemark::format_bytes(report.peak) + " " + step.name;
    pages += "  " + (own_folder / "report.html").string() + "\n";
  }
  std::cout << "The step peaks at " << peaks << ". Wrote the reports, of which\n"
            << pages
            << "are for a browser, snapshot.pickle is for pytorch.org/memory_viz, and trace.json "
               "for ui.perfetto.dev.\n\n"
            << tidemark::memory_stats(device) << "\n";
}

}  // namespace examples
