// The command line as a struct; options.def is the list.
#pragma once
#include <cstdint>
#include <stdexcept>
#include <string>

namespace charlm {

struct Options {
  using count = uint64_t;
  using bytes = uint64_t;
  using real = double;
  using text = std::string;
  using flag = bool;
#define OPTION(field, name, kind, initial, argument, help) kind field = initial;
#include "options.def"
#undef OPTION
  std::string text_path;
  bool help_wanted = false;
};

struct UsageError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Throws UsageError with a sentence that names the option, the value and the remedy.
Options parse_options(int argc, char **argv);

std::string usage();

} // namespace charlm
