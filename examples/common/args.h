#pragma once

// Command-line arguments from one table: it drives getopt_long and prints --help.

#include <cstdint>
#include <functional>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

namespace examples {

/// A command line that a program can't accept; what() names the argument and says why.
class UsageError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// One row of the table. Make it with the functions below; the default that --help shows is what
/// the variable holds when the row is made.
struct Argument {
  std::string name;         ///< without the dashes; empty in a heading
  std::string placeholder;  ///< what --help calls the value; empty where there is none
  std::string help;
  std::string shown_default;
  std::function<void(const std::string& value)> set;  ///< throws UsageError
};

/// A line between groups of arguments.
Argument heading(std::string text);

/// `--name`, which sets the variable to true.
Argument flag(std::string name, bool& variable, std::string help);

/// `--name N` with N a whole number from `min` to `max`.
Argument whole(std::string name, int64_t& variable, int64_t min, int64_t max,
               const std::string& help);
Argument whole(std::string name, std::optional<int64_t>& variable, int64_t min, int64_t max,
               const std::string& help);

/// `--name X` with X a number above `above` and at most `max`.
Argument real(std::string name, double& variable, double above, double max,
              const std::string& help);

/// `--name VALUE` with a value that isn't empty.
Argument text(std::string name, std::string placeholder, std::string& variable, std::string help);

/// `--name VALUE` with a value out of a list.
Argument choice(std::string name, const std::vector<std::string>& allowed, std::string& variable,
                const std::string& help);

/// Sets the variables that the rows name from the command line, in its order. Throws UsageError for
/// what is unknown, incomplete or out of range, and for what isn't an option. Not thread-safe.
void parse_arguments(const std::vector<Argument>& table, int argc, char** argv);

/// The table as text, to be printed below "usage: ...".
std::string describe_arguments(const std::vector<Argument>& table);

}  // namespace examples
