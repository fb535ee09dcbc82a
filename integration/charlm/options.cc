// Parses the command line and checks that the values make sense together.
#include "options.h"

#include "kernels/fused_adam.h"

#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <getopt.h>

namespace charlm {
namespace {

enum class Kind { count, bytes, real, text, flag };

struct Description {
  const char *name;
  Kind kind;
  const char *argument, *help;
};

const Description descriptions[] = {
#define OPTION(field, name, kind, initial, argument, help) {name, Kind::kind, argument, help},
#include "options.def"
#undef OPTION
};

[[noreturn]] void bad_value(const std::string &name, const std::string &value,
                            const std::string &wanted) {
  throw UsageError("--" + name + " is '" + value + "', which is not " + wanted);
}

void parse(const char *name, const char *value, uint64_t *result, Kind kind) {
  char *end = nullptr;
  errno = 0;
  unsigned long long number = std::strtoull(value, &end, 10);
  const std::string wanted =
      kind == Kind::bytes ? "a size such as 65536, 64KiB, 2MiB or 1GiB" : "a whole number";
  if (value[0] < '0' || value[0] > '9' || errno != 0)
    bad_value(name, value, wanted);
  const std::string unit = end;
  int shift = 0;
  if (kind == Kind::bytes && !unit.empty()) {
    shift = unit == "KiB" ? 10 : unit == "MiB" ? 20 : unit == "GiB" ? 30 : -1;
    if (shift < 0 || number > UINT64_MAX >> shift)
      bad_value(name, value, wanted);
  } else if (!unit.empty()) {
    bad_value(name, value, wanted);
  }
  *result = static_cast<uint64_t>(number) << shift;
}

void parse(const char *name, const char *value, double *result, Kind) {
  char *end = nullptr;
  *result = std::strtod(value, &end);
  if (end == value || *end != '\0' || !std::isfinite(*result))
    bad_value(name, value, "a finite number");
}

void parse(const char *, const char *value, std::string *result, Kind) {
  *result = value;
}

void parse(const char *, const char *, bool *result, Kind) {
  *result = true;
}

void require(bool good, const std::string &sentence) {
  if (!good)
    throw UsageError(sentence);
}

void check(const Options &o) {
  auto between = [](const char *name, uint64_t value, uint64_t low, uint64_t high) {
    require(value >= low && value <= high, std::string("--") + name + " is " +
                                               std::to_string(value) + "; give " +
                                               std::to_string(low) + " to " + std::to_string(high));
  };
  between("steps", o.steps, 1, 1000000);
  between("batch", o.batch, 1, 65536);
  between("table-count", o.tables, 1, 64);
  between("tables", o.rows, o.tables, 1u << 30);
  between("embedding", o.embedding, 1, 4096);
  between("hidden", o.hidden, 1, 4096);
  between("context", o.context, 1, 32);
  between("sync-every", o.sync_every, 1, UINT64_MAX);
  require(o.segment_scale >= 1 && o.segment_scale <= 2048 &&
              (o.segment_scale & (o.segment_scale - 1)) == 0,
          "--segment-scale is " + std::to_string(o.segment_scale) +
              "; give a power of two from 1 to 2048");
  require(!(o.adam && o.adamw), "--adam and --adamw exclude each other; give one of them");
  require(find_fused_adam_kernel(o.kernel) != nullptr,
          "--kernel is '" + o.kernel + "'; the kernels are listed by --help");
  require(o.lr >= 0 && o.eps >= 0 && o.weight_decay >= 0,
          "--lr, --eps and --weight-decay must not be negative");
  require(o.beta1 >= 0 && o.beta1 < 1 && o.beta2 >= 0 && o.beta2 < 1,
          "--beta1 and --beta2 must be at least 0 and less than 1");
  require(o.grad_scale >= 0, "--grad-scale must not be negative; 0 turns scaling off");
  require(!o.text_path.empty(), "no text file was named; give its path");
}

} // namespace

Options parse_options(int argc, char **argv) {
  Options options;
  enum { first_option = 1000 };
  const option table[] = {
#define OPTION(field, name, kind, initial, argument, help)                                         \
  {name, Kind::kind == Kind::flag ? no_argument : required_argument, nullptr, 0},
#include "options.def"
#undef OPTION
      {"help", no_argument, nullptr, 'h'},
      {nullptr, 0, nullptr, 0},
  };
  opterr = 0;
  for (;;) {
    int index = -1;
    const int code = getopt_long(argc, argv, ":h", table, &index);
    if (code == -1)
      break;
    if (code == 'h') {
      options.help_wanted = true;
      return options;
    }
    if (code == ':')
      throw UsageError(std::string(argv[optind - 1]) + " needs a value");
    if (code != 0)
      throw UsageError(std::string("unknown option ") + argv[optind - 1] +
                       "; the options are listed by --help");
    int position = 0;
#define OPTION(field, name, kind, initial, argument, help)                                         \
  if (index == position++)                                                                         \
    parse(name, optarg, &options.field, Kind::kind);
#include "options.def"
#undef OPTION
  }
  require(argc - optind <= 1, "more than one text file was named; give one path");
  if (optind < argc)
    options.text_path = argv[optind];
  if (options.embedding == 0)
    options.embedding = options.hidden;
  check(options);
  return options;
}

std::string usage() {
  std::string text = "usage: charlm TEXT [OPTION...]\n"
                     "Trains a character-level language model on a text file.\n\noptions:\n";
  char line[256];
  for (const Description &d : descriptions) {
    const std::string left = std::string("--") + d.name + (*d.argument ? " " : "") + d.argument;
    std::snprintf(line, sizeof line, "  %-24s %s\n", left.c_str(), d.help);
    text += line;
  }
  text += "\nkernels:\n";
  for (const FusedAdamKernel &kernel : fused_adam_kernels()) {
    std::snprintf(line, sizeof line, "  %-24s %s\n", kernel.name, kernel.help);
    text += line;
  }
  return text + "\nexit status: 0 trained, 1 failed, 2 wrong usage, 3 out of device memory\n";
}

} // namespace charlm
