#include "common/program.h"

#include <tidemark/memory/memory_scope.h>
#include <torch/torch.h>

#include <filesystem>
#include <fstream>
#include <iostream>
#include <stdexcept>

#include "common/args.h"

namespace examples {

int run_program(const std::string& name, const std::function<int()>& body) {
  try {
    return body();
  } catch (const UsageError& error) {
    std::cerr << name << ": " << error.what() << "\nTry '" << name << " --help'.\n";
    return 2;
  } catch (const c10::Error& error) {
    std::cerr << name << ": " << error.what_without_backtrace() << "\n";
    return 1;
  } catch (const std::exception& error) {
    std::cerr << name << ": " << error.what() << "\n";
    return 1;
  }
}

void check_outputs(const std::vector<std::string>& folders, const std::string& file) {
  for (const std::string& folder : folders) {
    if (!folder.empty()) {
      std::filesystem::create_directories(folder);
    }
  }
  if (file.empty()) {
    return;
  }
  const bool existed = std::filesystem::exists(file);
  if (!std::ofstream(file, std::ios::app)) {
    throw std::runtime_error("can't write " + file);
  }
  if (!existed) {
    std::filesystem::remove(file);
  }
}

void prepare_machine(const std::string& device, int64_t threads, int64_t seed) {
  tidemark::install_memory_meter();
  if (device == "cuda" && !torch::cuda::is_available()) {
    throw std::runtime_error("--device cuda: this LibTorch finds no CUDA device");
  }
  if (threads > 0) {
    at::set_num_threads(static_cast<int>(threads));
  }
  torch::manual_seed(static_cast<uint64_t>(seed));
}

}  // namespace examples
