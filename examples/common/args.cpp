#include "common/args.h"

#include <getopt.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <sstream>
#include <utility>

namespace examples {

namespace {

std::string shortest(double number) {
  std::ostringstream out;
  out << number;
  return out.str();
}

[[noreturn]] void refuse(const std::string& name, const std::string& value,
                         const std::string& wanted) {
  throw UsageError("--" + name + " is '" + value + "'; it must be " + wanted);
}

int64_t parse_whole(const std::string& name, const std::string& value, int64_t min, int64_t max) {
  int64_t number = 0;
  const char* end = value.data() + value.size();
  const auto [stop, error] = std::from_chars(value.data(), end, number);
  if (value.empty() || error != std::errc() || stop != end || number < min || number > max) {
    refuse(name, value,
           "a whole number from " + std::to_string(min) + " to " + std::to_string(max));
  }
  return number;
}

double parse_real(const std::string& name, const std::string& value, double above, double max) {
  // strtod would skip leading blanks and take hexadecimal numbers
  const bool plain =
      !value.empty() && value.find_first_not_of("0123456789+-.eE") == std::string::npos;
  char* stop = nullptr;
  errno = 0;
  const double number = plain ? std::strtod(value.c_str(), &stop) : 0;
  if (!plain || *stop != '\0' || errno == ERANGE || !(number > above) || number > max) {
    refuse(name, value, "a number above " + shortest(above) + ", at most " + shortest(max));
  }
  return number;
}

std::string range_text(int64_t min, int64_t max) {
  return ", " + std::to_string(min) + " to " + std::to_string(max);
}

}  // namespace

Argument heading(std::string text) { return {"", "", std::move(text), "", nullptr}; }

Argument flag(std::string name, bool& variable, std::string help) {
  return {std::move(name), "", std::move(help), "",
          [&variable](const std::string&) { variable = true; }};
}

Argument whole(std::string name, int64_t& variable, int64_t min, int64_t max,
               const std::string& help) {
  const auto set = [name, &variable, min, max](const std::string& value) {
    variable = parse_whole(name, value, min, max);
  };
  return {std::move(name), "N", help + range_text(min, max), std::to_string(variable), set};
}

Argument whole(std::string name, std::optional<int64_t>& variable, int64_t min, int64_t max,
               const std::string& help) {
  const auto set = [name, &variable, min, max](const std::string& value) {
    variable = parse_whole(name, value, min, max);
  };
  return {std::move(name), "N", help + range_text(min, max),
          variable.has_value() ? std::to_string(*variable) : "", set};
}

Argument real(std::string name, double& variable, double above, double max,
              const std::string& help) {
  const auto set = [name, &variable, above, max](const std::string& value) {
    variable = parse_real(name, value, above, max);
  };
  return {std::move(name), "X", help + ", above " + shortest(above) + " to " + shortest(max),
          shortest(variable), set};
}

Argument text(std::string name, std::string placeholder, std::string& variable, std::string help) {
  const auto set = [name, &variable](const std::string& value) {
    if (value.empty()) {
      throw UsageError("--" + name + " is empty");
    }
    variable = value;
  };
  return {std::move(name), std::move(placeholder), std::move(help), variable, set};
}

Argument choice(std::string name, const std::vector<std::string>& allowed, std::string& variable,
                const std::string& help) {
  std::string list;
  for (const std::string& item : allowed) {
    const bool last = &item == &allowed.back();
    list += (list.empty() ? "" : last ? " or " : ", ") + item;
  }
  const auto set = [name, allowed, list, &variable](const std::string& value) {
    if (std::find(allowed.begin(), allowed.end(), value) == allowed.end()) {
      refuse(name, value, list);
    }
    variable = value;
  };
  return {std::move(name), "NAME", help + ", " + list, variable, set};
}

void parse_arguments(const std::vector<Argument>& table, int argc, char** argv) {
  std::vector<option> options;
  std::vector<const Argument*> rows;
  for (const Argument& row : table) {
    if (!row.name.empty()) {
      options.push_back({row.name.c_str(),
                         row.placeholder.empty() ? no_argument : required_argument, nullptr, 0});
      rows.push_back(&row);
    }
  }
  options.push_back({nullptr, 0, nullptr, 0});

  optind = 0;  // 0 and not 1: GNU's getopt then forgets an earlier command line
  opterr = 0;  // the messages are ours
  while (true) {
    int index = -1;
    optopt = 0;  // stays 0 where the culprit is a long option
    const int found = getopt_long(argc, argv, ":", options.data(), &index);
    if (found == -1) {
      break;
    }
    if (found == ':') {
      throw UsageError(std::string(argv[optind - 1]) + " needs a value");
    }
    if (found != 0) {
      const std::string letter = std::string("-") + static_cast<char>(optopt);
      throw UsageError("unknown, ambiguous or malformed option '" +
                       (optopt != 0 ? letter : std::string(argv[optind - 1])) + "'");
    }
    rows[static_cast<size_t>(index)]->set(optarg != nullptr ? optarg : "");
  }
  if (optind < argc) {
    throw UsageError("unexpected argument '" + std::string(argv[optind]) + "'");
  }
}

std::string describe_arguments(const std::vector<Argument>& table) {
  const auto left_column = [](const Argument& row) {
    return "  --" + row.name + (row.placeholder.empty() ? "" : " " + row.placeholder);
  };
  size_t width = 0;
  for (const Argument& row : table) {
    width = std::max(width, row.name.empty() ? 0 : left_column(row).size());
  }
  std::string result;
  for (const Argument& row : table) {
    if (row.name.empty()) {
      result += "\n" + row.help + ":\n";
      continue;
    }
    const std::string left = left_column(row);
    result += left + std::string(width + 2 - left.size(), ' ') + row.help;
    if (!row.shown_default.empty()) {
      result += " (default " + row.shown_default + ")";
    }
    result += "\n";
  }
  return result;
}

}  // namespace examples
