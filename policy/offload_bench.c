/* `offload bench`: what this machine does in a second, measured by offload-probe, as a table with what it means for a step; kept for
   later runs, or written to a file for OFFLOAD_RATES. */
#define _GNU_SOURCE
#include "../nvme/files.h"
#include "command.h"
#include "cost.h"
#include "cpus.h"
#include "json.h"
#include "ranks.h"
#include "rates_cache.h"
#include "report_rates.h"
#include "size.h"
#include "words.h"
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { OPTION_RATES = 256, OPTION_GPU, OPTION_NVME, OPTION_RANKS, OPTION_JSON };
enum { OUTPUT_BYTES = 16384, PATH_MOST = 4096, ARGUMENTS = 16, DRIVES_MOST = 64 };

static const struct argp_option options[] = {
    {"rates", OPTION_RATES, "FILE", 0,
     "write them there, for OFFLOAD_RATES, instead of keeping them", 0},
    {"gpu", OPTION_GPU, "NUMBER", 0, "the GPU, by number or PCI bus id; 0 when not given", 0},
    {"nvme", OPTION_NVME, "DIRECTORIES", 0,
     "measure drives as well: directories separated by colons, as OFFLOAD_NVME", 0},
    {"ranks", OPTION_RANKS, "N", 0,
     "ranks of this node that will share its memory; 1 when not given", 0},
    {"json", OPTION_JSON, NULL, 0, "write JSON", 0},
    {0}};

struct bench {
  const char *rates, *gpu, *nvme, *ranks;
  bool json;
};

static error_t parse_option(int key, char *argument, struct argp_state *state) {
  struct bench *bench = state->input;
  const char *end = argument;
  uint64_t ranks;
  switch (key) {
  case OPTION_RATES:
    bench->rates = argument;
    return 0;
  case OPTION_GPU:
    bench->gpu = argument;
    return 0;
  case OPTION_NVME:
    bench->nvme = argument;
    return 0;
  case OPTION_RANKS:
    bench->ranks = argument;
    if (!size_parse_number(&end, RANKS_MOST, &ranks) || *end || !ranks)
      argp_error(state, "--ranks=%s: write how many, 1 to %d", argument, RANKS_MOST);
    return 0;
  case OPTION_JSON:
    bench->json = true;
    return 0;
  case ARGP_KEY_ARG:
    argp_error(state, "bench takes options only, so not '%s'", argument);
    return 0;
  default:
    return ARGP_ERR_UNKNOWN;
  }
}

/* Beside this program, or where `make install` puts it. */
static bool find_probe(char path[PATH_MOST]) {
  static const char *const places[] = {"offload-probe", "../lib/offload-probe"};
  for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
    const ssize_t length = readlink("/proc/self/exe", path, PATH_MOST - 32);
    char *slash = length > 0 ? memrchr(path, '/', (size_t)length) : NULL;
    if (!slash)
      break;
    memcpy(slash + 1, places[i], strlen(places[i]) + 1);
    if (!access(path, X_OK))
      return true;
  }
  say("offload-probe isn't beside this program, nor in ../lib: install both anew");
  return false;
}

/* Every directory can hold state, so that nothing is measured for drives that aren't there. False: said. */
static bool drives_good(const char *nvme) {
  char directory[PATH_MOST], why[600];
  unsigned count = 0;
  for (const char *at = nvme; *at; at += *at == ':') {
    const size_t length = strcspn(at, ":");
    struct drive_file file;
    if (length >= sizeof directory || (length && ++count > DRIVES_MOST)) {
      say("--nvme: more than %d directories, or one of more than %d bytes", DRIVES_MOST,
          PATH_MOST - 1);
      return false;
    }
    snprintf(directory, sizeof directory, "%.*s", (int)length, at);
    if (length && !drive_file_open(directory, &file, why, sizeof why)) {
      say("--nvme: %s", why);
      return false;
    }
    if (length)
      close(file.file);
    at += length;
  }
  if (!count)
    say("--nvme '%s' names no directory: give one for each drive, separated by colons", nvme);
  return count > 0;
}

/* Its output; false when it failed, which it has told on stderr. */
static bool run_probe(const struct bench *bench, char *output) {
  char path[PATH_MOST];
  int ends[2], status = 0;
  if (!find_probe(path))
    return false;
  const char *arguments[ARGUMENTS] = {path,        "--gpu", bench->gpu,
                                      "--verbose", "--as",  "offload bench"};
  size_t count = 6;
  if (!bench->rates)
    arguments[count++] = "--again";
  if (bench->nvme) {
    arguments[count++] = "--nvme";
    arguments[count++] = bench->nvme;
  }
  if (bench->ranks) {
    arguments[count++] = "--ranks";
    arguments[count++] = bench->ranks;
  }
  if (pipe2(ends, O_CLOEXEC)) {
    say("no pipe: %s", strerror(errno));
    return false;
  }
  const pid_t child = fork();
  if (!child) {
    dup2(ends[1], STDOUT_FILENO);
    execv(path, (char *const *)arguments); /* which doesn't write to them */
    say("%s can't be run: %s", path, strerror(errno));
    _exit(EXIT_CANNOT_RUN);
  }
  close(ends[1]);
  size_t used = 0;
  for (ssize_t got = 1; child > 0 && got > 0 && used < OUTPUT_BYTES - 1;) {
    got = read(ends[0], output + used, OUTPUT_BYTES - 1 - used);
    if (got < 0 && errno == EINTR)
      got = 1;
    else if (got > 0)
      used += (size_t)got;
  }
  output[used] = 0;
  close(ends[0]);
  while (child > 0 && waitpid(child, &status, 0) < 0 && errno == EINTR)
    ;
  if (child > 0 && WIFEXITED(status) && !WEXITSTATUS(status) && used)
    return true;
  if (child < 0)
    say("no process: %s", strerror(errno));
  else if (WIFEXITED(status))
    say("nothing was measured; `offload check` lists the GPUs, tells what stands in the way, and "
        "the "
        "remedy");
  else if (WIFSIGNALED(status))
    say("offload-probe was ended by signal %d%s", WTERMSIG(status),
        WTERMSIG(status) == SIGALRM ? ": the driver took too long" : "");
  return false;
}

static bool write_rates(const char *path, const char *text) {
  FILE *file = fopen(path, "we");
  bool good = file && fputs(text, file) >= 0;
  if (file)
    good &= !fclose(file);
  if (!good)
    say("%s can't be written (%s): name a file in a directory that you may write to", path,
        strerror(errno));
  return good;
}

/* "54.1 GB/s"; "-" for what isn't known. */
static const char *value_of(const char *unit, double value, char text[WORDS_BYTES]) {
  if (!(value > 0))
    return "-";
  if (!strcmp(unit, "bytes/s"))
    return words_rate(value, text);
  if (!strcmp(unit, "s"))
    return words_seconds(value, text);
  (void)snprintf(text, WORDS_BYTES, *unit ? "%.0f M/s" : "%.0f", *unit ? value / 1e6 : value);
  return text;
}

static void print_row(const char *name, const char *unit, double value, const char *help) {
  char text[WORDS_BYTES];
  printf("  %-14s %10s  %s\n", name, value_of(unit, value, text), help);
}

/* What a step of a round number of parameters takes by each way, by the model that the library decides by. */
static void print_meaning(const struct rates *rates, unsigned ranks) {
  const double elements = 1e9;
  const struct cost_input input = {.rates = *rates,
                                   .family = cost_families[0],
                                   .elements = elements,
                                   .on_host = elements,
                                   .staged = 0,
                                   .threads = cpus_threads(ranks, NULL),
                                   .sharers = ranks};
  struct cost cost;
  char text[WORDS_BYTES];
  cost_estimate(&input, &cost);
  printf("\nA step of 1e9 parameters (%s) with all state in host memory, %u thread%s%s:\n",
         input.family.name, input.threads, input.threads == 1 ? "" : "s",
         ranks > 1 ? " a rank" : "");
  for (int way = COST_CPU; way <= COST_DIRECT; way++) {
    const struct cost_of_way *one = &cost.ways[way];
    if (one->possible)
      printf("  %-8s %10s  bound by %s%s\n", cost_way_name((enum cost_way)way),
             words_seconds(one->seconds, text), cost_resource_name(one->bound),
             (enum cost_way)way == cost.best ? "; what `auto` takes" : "");
  }
  printf("`offload plan` does this for a model of yours.\n");
}

static void print_charges(const struct rates *rates) {
#define CHARGE(name, limit, help)                                                                  \
  printf("  %-22s %s\n", limit,                                                                    \
         rates->name == CHARGE_YES  ? "charged: it bounds how much state may be there"             \
         : rates->name == CHARGE_NO ? "not charged: it bounds nothing"                             \
                                    : "not known");
  printf("\nPages that the driver makes for state in host memory:\n");
#include "charges.def"
#undef CHARGE
}

static void print_table(const struct bench *bench, const struct rates *rates, const char *output,
                        const char *kept) {
  const char *second = strchr(output, '\n');
  const char *key = second ? strstr(second, "driver ") : NULL;
  if (key)
    printf("%.*s\n\n", (int)strcspn(key, "\n"), key);
#define RATE(name, unit, assumed, help) print_row(#name, unit, rates->name, help);
#include "rates.def"
#undef RATE
  print_charges(rates);
  print_meaning(rates, bench->ranks ? (unsigned)strtoul(bench->ranks, NULL, 10) : 1);
  if (kept)
    printf("Kept in %s%s\n", kept,
           bench->rates ? "; OFFLOAD_RATES names it to jobs" : ", where jobs find it");
}

int offload_bench(int argc, char **argv) {
  struct bench bench = {.gpu = "0"};
  const struct argp argp = {.options = options,
                            .parser = parse_option,
                            .doc = "Takes one to two seconds and some 500 MB of device memory. "
                                   "Jobs measure by themselves when "
                                   "nothing is kept for this boot, driver and GPU."};
  command_parse(&argp, argc, argv, 0, &bench);
  static char output[OUTPUT_BYTES];
  static struct rates_kept newest;
  char problem[600];
  struct rates rates;
  rates_assume(&rates);
  if (bench.nvme && !drives_good(bench.nvme))
    return EXIT_USAGE;
  if (!run_probe(&bench, output))
    return EXIT_BLOCKED;
  if (!rates_parse(&rates, output, problem, sizeof problem)) {
    say("offload-probe is of another version: %s", problem);
    return EXIT_BLOCKED;
  }
  rates.source = RATES_MEASURED;
  const char *kept = bench.rates;
  if (bench.rates && !write_rates(bench.rates, output))
    return EXIT_BLOCKED;
  struct rates there;
  if (!bench.rates &&
      rates_cached_newest(getenv("OFFLOAD_SYSROOT"), false, bench.nvme, &there, &newest))
    kept = newest.path;
  if (bench.json) {
    struct json json;
    report_rates(0, &rates, kept, NULL);
    json_open(&json, STDOUT_FILENO);
    json_begin(&json, NULL, '{');
    report_rates_json(&json);
    json_end(&json, '}');
    const int error = json_close(&json);
    if (error)
      say("the JSON could not be written: %s", strerror(error));
    return error ? EXIT_BLOCKED : EXIT_SUCCESS;
  }
  print_table(&bench, &rates, output, kept);
  return EXIT_SUCCESS;
}
