#pragma once

// What the main() of every example does.

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace examples {

/// Runs a program and returns its exit status: what `body` returns, 2 for a UsageError, 1 for other
/// exceptions, which are told in a line on stderr.
int run_program(const std::string& name, const std::function<int()>& body);

/// What can't be written in the end should fail in the beginning: makes the folders and tries the
/// file. Empty names are left out. Throws std::runtime_error or std::filesystem::filesystem_error.
void check_outputs(const std::vector<std::string>& folders, const std::string& file);

/// Installs the memory meter, sets the number of threads (0: LibTorch's choice) and the seed.
/// Throws std::runtime_error if the device isn't there.
void prepare_machine(const std::string& device, int64_t threads, int64_t seed);

}  // namespace examples
