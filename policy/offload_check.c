/* `offload check`: what the library needs of this machine, of its settings and of a command, each with what was found, a verdict and
   a remedy. The checks are in offload_check_*.c; here are the command line, the output and the exit status. */
#define _GNU_SOURCE
#include "check.h"
#include "command.h"
#include "json.h"
#include "size.h"
#include "version.h"
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
  OPTION_JSON = 256,
  OPTION_LIBRARY,
  OPTION_TIMEOUT,
  OPTION_CHILD_DRIVER,
  OPTION_CHILD_LOADED
};
enum { WIDTH = 80, WIDTH_MOST = 120, TITLE_WIDTH = 14, VERDICT_WIDTH = 7 };

static const struct {
  const char *name, *title;
  void (*call)(struct check *);
} checks[] = {
#define CHECK(name, title) {#name, title, check_##name},
#include "checks.def"
#undef CHECK
};

const char *check_verdict_name(enum check_verdict verdict) {
  static const char *const names[] = {
      [VERDICT_GOOD] = "good", [VERDICT_LIMITS] = "limits", [VERDICT_BLOCKS] = "blocks"};
  return names[verdict];
}

struct finding *find(struct check *check, enum check_name name, enum check_verdict verdict,
                     const char *format, ...) {
  /* The last place is for what doesn't fit: its verdict is the worst of them. */
  if (check->count == CHECK_FINDINGS)
    check->count--;
  struct finding *finding = &check->findings[check->count++];
  const enum check_verdict before =
      check->count == CHECK_FINDINGS ? finding->verdict : VERDICT_GOOD;
  va_list arguments;
  va_start(arguments, format);
  *finding = (struct finding){.check = name, .verdict = verdict > before ? verdict : before};
  vsnprintf(finding->found, sizeof finding->found, format, arguments);
  va_end(arguments);
  return finding;
}

void remedy(struct finding *finding, const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(finding->remedy, sizeof finding->remedy, format, arguments);
  va_end(arguments);
}

static enum check_verdict worst(const struct check *check) {
  enum check_verdict verdict = VERDICT_GOOD;
  for (size_t i = 0; i < check->count; i++)
    if (check->findings[i].verdict > verdict)
      verdict = check->findings[i].verdict;
  return verdict;
}

/* ---- for people ---- */

static size_t width(void) {
  const size_t columns = output_columns();
  return columns < WIDTH ? WIDTH : columns < WIDTH_MOST ? columns : WIDTH_MOST;
}

static void print_table(const struct check *check) {
  static const char *const colours[] = {
      [VERDICT_GOOD] = "\033[32m", [VERDICT_LIMITS] = "\033[33m", [VERDICT_BLOCKS] = "\033[1;31m"};
  static const char *const endings[] = {
      [VERDICT_GOOD] = "Nothing stands in the way: state can move.",
      [VERDICT_LIMITS] = "State can move; what limits it is above.",
      [VERDICT_BLOCKS] = "No state can move here: what blocks it is above."};
  const bool colour = output_coloured();
  const size_t columns = width(), indent = VERDICT_WIDTH + TITLE_WIDTH + 1;
  for (size_t i = 0; i < check->count; i++) {
    const struct finding *finding = &check->findings[i];
    const bool repeated = i && check->findings[i - 1].check == finding->check;
    printf("%s%-*s%s%-*s ", colour ? colours[finding->verdict] : "", VERDICT_WIDTH,
           check_verdict_name(finding->verdict), colour ? "\033[0m" : "", TITLE_WIDTH,
           repeated ? "" : checks[finding->check].title);
    print_wrapped(finding->found, indent, columns);
    if (finding->remedy[0]) {
      printf("\n%*s> ", (int)indent, "");
      print_wrapped(finding->remedy, indent + 2, columns);
    }
    putchar('\n');
  }
  printf("\n%s\n", endings[worst(check)]);
}

/* ---- for programs: check.schema.json ---- */

static void gpu_json(struct json *json, const struct check_gpu *gpu) {
  char capability[32];
  snprintf(capability, sizeof capability, "%d.%d", gpu->major, gpu->minor);
  json_begin(json, NULL, '{');
  json_string(json, "name", gpu->name);
  json_string(json, "compute_capability", capability);
  json_string(json, "pci_bus", gpu->bus);
  json_number(json, "bytes", gpu->bytes);
  json_number(json, "free_bytes", gpu->free_bytes);
  if (gpu->node >= 0)
    json_number(json, "node", (uint64_t)gpu->node);
  json_boolean(json, "integrated", gpu->integrated);
  json_boolean(json, "mps", gpu->mps);
  json_boolean(json, "vmm", gpu->vmm);
  json_boolean(json, "host_numa_handles", gpu->host_numa);
  json_boolean(json, "host_handles", gpu->host);
  json_boolean(json, "host_memory_used", gpu->used);
  json_end(json, '}');
}

static bool print_json(const struct check *check) {
  struct json json;
  json_open(&json, STDOUT_FILENO);
  json_begin(&json, NULL, '{');
  json_number(&json, "schema", 1);
  json_string(&json, "version", OFFLOAD_VERSION);
  json_string(&json, "verdict", check_verdict_name(worst(check)));
  json_number(&json, "driver", (uint64_t)check->driver_version);
  json_number(&json, "budget_bytes", check->budget_bytes);
  json_number(&json, "threads", check->threads);
  json_begin(&json, "gpus", '[');
  for (unsigned i = 0; i < check->gpu_count; i++)
    gpu_json(&json, &check->gpus[i]);
  json_end(&json, ']');
  json_begin(&json, "checks", '[');
  for (size_t i = 0; i < check->count; i++) {
    const struct finding *finding = &check->findings[i];
    json_begin(&json, NULL, '{');
    json_string(&json, "name", checks[finding->check].name);
    json_string(&json, "title", checks[finding->check].title);
    json_string(&json, "verdict", check_verdict_name(finding->verdict));
    json_string(&json, "found", finding->found);
    json_string(&json, "remedy", finding->remedy);
    json_end(&json, '}');
  }
  json_end(&json, ']');
  json_end(&json, '}');
  const int error = json_close(&json);
  if (error)
    say("the JSON could not be written: %s", strerror(error));
  return !error;
}

/* ---- the command line ---- */

struct options {
  const char *library;
  char **command;
  unsigned timeout_s;
  bool json, child_driver, child_loaded;
};

static const struct argp_option options_of_check[] = {
    {"json", OPTION_JSON, NULL, 0, "as JSON (check.schema.json)", 0},
    {"library", OPTION_LIBRARY, "FILE", 0,
     "the library that would be preloaded; otherwise beside this program, or in ../lib from there",
     0},
    {"timeout", OPTION_TIMEOUT, "SECONDS", 0, "how long the driver may take for all GPUs: 60", 0},
    {&CHECK_CHILD_DRIVER[2], OPTION_CHILD_DRIVER, NULL, OPTION_HIDDEN, "", 0},
    {&CHECK_CHILD_LOADED[2], OPTION_CHILD_LOADED, NULL, OPTION_HIDDEN, "", 0},
    {0}};

static error_t parse_option(int key, char *argument, struct argp_state *state) {
  struct options *options = state->input;
  if (key == OPTION_JSON)
    options->json = true;
  else if (key == OPTION_LIBRARY)
    options->library = argument;
  else if (key == OPTION_TIMEOUT) {
    uint64_t seconds;
    const char *at = argument;
    if (!size_parse_number(&at, 3600, &seconds) || *at || !seconds)
      argp_error(state, "--timeout %s: write a whole number of seconds from 1 to 3600", argument);
    else
      options->timeout_s = (unsigned)seconds;
  } else if (key == OPTION_CHILD_DRIVER)
    options->child_driver = true;
  else if (key == OPTION_CHILD_LOADED)
    options->child_loaded = true;
  else if (key == ARGP_KEY_ARG) {
    options->command = state->argv + state->next - 1;
    state->next = state->argc; /* the rest is the command's */
  } else
    return ARGP_ERR_UNKNOWN;
  return 0;
}

int offload_check(int argc, char **argv) {
  static const char doc[] =
      "Each requirement with what was found, a verdict (good, limits, blocks) and a remedy. The "
      "GPUs "
      "are tried in a child process: host memory is made, mapped, written by the CPU and by a "
      "kernel. COMMAND is looked at, not run; OFFLOAD_* variables count as they are set.\n\n"
      "Exit status: 0 state can move, perhaps with limits; 1 something blocks it; 2 wrong usage.";
  const struct argp argp = {.options = options_of_check, .parser = parse_option, .doc = doc};
  struct options options = {.timeout_s = 60};
  command_parse(&argp, argc, argv, ARGP_IN_ORDER, &options);
  if (options.child_driver)
    return check_child_driver();
  if (options.child_loaded)
    return check_child_loaded();
  static struct check check;
  check.library = options.library;
  check.command = options.command;
  check.timeout_s = options.timeout_s;
  config_check(&check.config, environ);
  check.root = check.config.sysroot ? check.config.sysroot : "";
  for (size_t i = 0; i < CHECKS; i++)
    checks[i].call(&check);
  bool written = true;
  if (options.json)
    written = print_json(&check);
  else
    print_table(&check);
  config_free(&check.config);
  if (!output_end() || !written)
    return EXIT_CANNOT_RUN;
  return worst(&check) == VERDICT_BLOCKS ? EXIT_BLOCKED : EXIT_SUCCESS;
}
