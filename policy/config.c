/* Parsing of the OFFLOAD_* variables. Everything about a variable comes from variables.def; a kind
   is a function set_<kind> and a sentence expected_<kind>. Called by the shim before its first hook
   acts and by the program `offload`; reads only the environment it is given, allocates only paths
   and lists, prints nothing. */
#include "config.h"
#include "../adam/adam.h"
#include "nearest.h"
#include "size.h"
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PREFIX "OFFLOAD_"
enum { PREFIX_BYTES = sizeof PREFIX - 1, NAME_MOST = 40, SHOWN_MOST = 60, COUNT_MOST = 4096 };

static const char *const words_mode[] = {[MODE_FULL] = "full",
                                         [MODE_PRESSURE] = "pressure",
                                         [MODE_OBSERVE] = "observe",
                                         [MODE_OFF] = "off",
                                         NULL};
static const char *const words_step[] = {[STEP_AUTO] = "auto",
                                         [STEP_CPU] = "cpu",
                                         [STEP_STREAM] = "stream",
                                         [STEP_DIRECT] = "direct",
                                         NULL};
static const char *const words_verify_action[] = {
    [VERIFY_STOP] = "stop", [VERIFY_WARN] = "warn", NULL};
static const char *const words_log[] = {
    [LOG_QUIET] = "quiet", [LOG_NORMAL] = "normal", [LOG_VERBOSE] = "verbose", NULL};
static const char *const words_isa[] = {
    [ADAM_ISA_AUTO] = "auto",     [ADAM_ISA_SCALAR] = "scalar", [ADAM_ISA_AVX2] = "avx2",
    [ADAM_ISA_AVX512] = "avx512", [ADAM_ISA_NEON] = "neon",     NULL};

const char *config_mode_name(enum config_mode mode) {
  return words_mode[mode];
}
const char *config_step_name(enum config_step step) {
  return words_step[step];
}
const char *config_verify_action_name(enum config_verify_action action) {
  return words_verify_action[action];
}
const char *config_log_name(enum config_log log) {
  return words_log[log];
}
const char *config_isa_name(int isa) {
  return words_isa[isa];
}

const char *const *config_words(const char *kind) {
  static const struct {
    const char *kind;
    const char *const *words;
  } lists[] = {{"WORD_MODE", words_mode},
               {"WORD_STEP", words_step},
               {"WORD_VERIFY_ACTION", words_verify_action},
               {"WORD_LOG", words_log},
               {"WORD_ISA", words_isa}};
  for (size_t i = 0; i < sizeof lists / sizeof *lists; i++)
    if (!strcmp(lists[i].kind, kind))
      return lists[i].words;
  return NULL;
}

/* Index of a word in a list, or -1. */
static int word_index(const char *const *words, const char *text) {
  for (int i = 0; words[i]; i++)
    if (!strcmp(words[i], text))
      return i;
  return -1;
}

/* One function and one sentence for each kind of variables.def. */

static const char expected_WORD_MODE[] = "write one of full, pressure, observe, off";
static bool set_WORD_MODE(enum config_mode *mode, const char *text) {
  const int index = word_index(words_mode, text);
  if (index >= 0)
    *mode = (enum config_mode)index;
  return index >= 0;
}

static const char expected_WORD_STEP[] = "write one of auto, cpu, stream, direct";
static bool set_WORD_STEP(enum config_step *step, const char *text) {
  const int index = word_index(words_step, text);
  if (index >= 0)
    *step = (enum config_step)index;
  return index >= 0;
}

static const char expected_WORD_VERIFY_ACTION[] = "write stop or warn";
static bool set_WORD_VERIFY_ACTION(enum config_verify_action *action, const char *text) {
  const int index = word_index(words_verify_action, text);
  if (index >= 0)
    *action = (enum config_verify_action)index;
  return index >= 0;
}

static const char expected_WORD_LOG[] = "write one of quiet, normal, verbose";
static bool set_WORD_LOG(enum config_log *log, const char *text) {
  const int index = word_index(words_log, text);
  if (index >= 0)
    *log = (enum config_log)index;
  return index >= 0;
}

static const char expected_WORD_ISA[] = "write one of auto, scalar, avx2, avx512, neon";
static bool set_WORD_ISA(int *isa, const char *text) {
  const int index = word_index(words_isa, text);
  if (index >= 0)
    *isa = index;
  return index >= 0;
}

static const char expected_SIZE[] = "write 20GiB, 512MiB, plain bytes, or a share from 1% to 100%";
static bool set_SIZE(struct config_size *size, const char *text) {
  return config_parse_size(text, size);
}

static const char expected_BYTES[] = "write 20GiB, 512MiB or plain bytes";
static bool set_BYTES(struct config_size *size, const char *text) {
  struct config_size parsed;
  if (!config_parse_size(text, &parsed) || parsed.percent)
    return false;
  *size = parsed;
  return true;
}

static const char expected_COUNT[] = "write a whole number from 0 to 4096";
static bool set_COUNT(unsigned *count, const char *text) {
  uint64_t number;
  if (!size_parse_number(&text, COUNT_MOST, &number) || *text)
    return false;
  *count = (unsigned)number;
  return true;
}

static const char expected_SAMPLE[] =
    "write 0 for none, a whole number up to 10000 for one piece in so many, or all";
static bool set_SAMPLE(unsigned *every, const char *text) {
  uint64_t number = VERIFY_ALL;
  if (strcmp(text, "all") != 0 && (!size_parse_number(&text, VERIFY_MOST, &number) || *text))
    return false;
  *every = (unsigned)number;
  return true;
}

static const char expected_FLAG[] = "write 0 or 1";
static bool set_FLAG(bool *flag, const char *text) {
  if (strcmp(text, "0") != 0 && strcmp(text, "1") != 0)
    return false;
  *flag = text[0] == '1';
  return true;
}

static void forget(const char **field) {
  free((char *)(uintptr_t)*field);
  *field = NULL;
}

/* The environment's strings may change under us (setenv, putenv): keep a copy. */
static bool replace(const char **field, char *copy) {
  if (!copy)
    return false;
  forget(field);
  *field = copy;
  return true;
}

static const char expected_LIST[] = "there was no memory to keep it";
static bool set_LIST(const char **list, const char *text) {
  return replace(list, strdup(text));
}

/* Programs change their directory; what a path names belongs where they were started. */
static char *absolute(const char *path, size_t length) {
  char *directory = path[0] == '/' ? NULL : getcwd(NULL, 0);
  if (!directory)
    return strndup(path, length);
  const size_t bytes = strlen(directory) + length + 2;
  char *text = malloc(bytes);
  if (text)
    snprintf(text, bytes, "%s/%.*s", strcmp(directory, "/") ? directory : "", (int)length, path);
  free(directory);
  return text;
}

static const char expected_PATH[] = "write the path of a file";
static bool set_PATH(const char **path, const char *text) {
  return replace(path, absolute(text, strlen(text)));
}

static const char expected_ROOT[] = "write a directory that holds proc and sys";
static bool set_ROOT(const char **root, const char *text) {
  char *path = absolute(text, strlen(text));
  const int directory = path ? open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;
  const bool good = directory >= 0 && !faccessat(directory, "proc", X_OK, 0);
  if (directory >= 0)
    close(directory);
  if (good)
    return replace(root, path);
  free(path);
  return false;
}

static const char expected_DIRECTORIES[] =
    "write a directory for each drive, separated by single colons, as in /mnt/a:/mnt/b";
static bool set_DIRECTORIES(const char **directories, const char *text) {
  char *list = NULL;
  for (const char *at = text;; at++) {
    const size_t length = strcspn(at, ":"), used = list ? strlen(list) : 0;
    char *directory = length ? absolute(at, length) : NULL;
    char *grown =
        directory && !strchr(directory, ':') ? realloc(list, used + strlen(directory) + 2) : NULL;
    if (!grown) {
      free(directory);
      free(list);
      return false;
    }
    snprintf(grown + used, strlen(directory) + 2, "%s%s", used ? ":" : "", directory);
    free(directory);
    list = grown;
    at += length;
    if (!*at)
      return replace(directories, list);
  }
}

static const char expected_WEAR[] =
    "write 20TB (10^12 bytes each), 18TiB, plain bytes, or a share of the rated endurance from 1% "
    "to 255%";
static bool set_WEAR(struct wear_limit *limit, const char *text) {
  return config_parse_wear(text, limit);
}

/* Signals that a program may be told to end offloading by. Those that a job is stopped or ended with are not among them. */
static const struct {
  const char *name;
  int number;
} signals[] = {{"HUP", SIGHUP}, {"USR1", SIGUSR1}, {"USR2", SIGUSR2}, {"WINCH", SIGWINCH},
               {"URG", SIGURG}, {"PWR", SIGPWR},   {"none", 0}};

static const char expected_SIGNAL[] =
    "write RTMIN+9, RTMIN+1 to RTMIN+29, USR1, USR2, HUP, WINCH, URG, PWR, or none";
static bool set_SIGNAL(int *signal, const char *text) {
  static const char real_time[] = "RTMIN+";
  enum { REAL_TIME_MOST = 29 };
  if (!strncmp(text, "SIG", 3))
    text += 3;
  if (!strncmp(text, real_time, sizeof real_time - 1)) {
    uint64_t number;
    text += sizeof real_time - 1;
    if (!size_parse_number(&text, REAL_TIME_MOST, &number) || *text || !number ||
        (int)number > SIGRTMAX - SIGRTMIN)
      return false;
    *signal = SIGRTMIN + (int)number;
    return true;
  }
  for (size_t i = 0; i < sizeof signals / sizeof *signals; i++)
    if (!strcmp(signals[i].name, text)) {
      *signal = signals[i].number;
      return true;
    }
  return false;
}

const char *config_signal_name(int signal, char name[SIGNAL_NAME_BYTES]) {
  const char *known = NULL;
  for (size_t i = 0; i < sizeof signals / sizeof *signals && !known; i++)
    if (signals[i].number == signal)
      known = signals[i].name;
  if (known)
    snprintf(name, SIGNAL_NAME_BYTES, "%s", known);
  else
    snprintf(name, SIGNAL_NAME_BYTES, "RTMIN+%d", signal - SIGRTMIN);
  return name;
}

/* What to write instead of a value: for a size the right form of what was meant, if that can be
 * told. */
static const char *remedy(const char *expected, const char *value, char buffer[SHOWN_MOST]) {
  char meant[SIZE_MEANT_BYTES];
  if ((expected != expected_SIZE && expected != expected_BYTES) || !size_meant(value, meant) ||
      (expected == expected_BYTES && strchr(meant, '%')))
    return expected;
  snprintf(buffer, SHOWN_MOST, "write %s", meant);
  return buffer;
}

/* Adds a sentence; when there is no room left, says so once. */
static void __attribute__((format(printf, 2, 3)))
problem(struct config *config, const char *format, ...) {
  static const char full[] = "more is wrong with OFFLOAD_* variables than can be listed here";
  const size_t used = strlen(config->problems), reserved = sizeof full + 1;
  const size_t separator = used ? 1 : 0;
  char sentence[512];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(sentence, sizeof sentence, format, arguments);
  va_end(arguments);
  if (used >= sizeof full - 1 && !strcmp(config->problems + used - (sizeof full - 1), full))
    return;
  const char *text =
      used + separator + strlen(sentence) + reserved < sizeof config->problems ? sentence : full;
  snprintf(config->problems + used, sizeof config->problems - used, "%s%s", separator ? "\n" : "",
           text);
}

/* A value as it may be shown on a terminal: short, printable. */
static const char *shown(const char *value, char buffer[SHOWN_MOST + 4]) {
  size_t i = 0;
  for (; i < SHOWN_MOST && value[i]; i++)
    buffer[i] = value[i] >= ' ' && value[i] <= '~' ? value[i] : '?';
  memcpy(buffer + i, value[i] ? "..." : "\0\0\0", 4);
  return buffer;
}

static void unknown_name(struct config *config, const char *name) {
  static const char *const known[] = {
#define VARIABLE(field, NAME, kind, initial, help) NAME,
#include "variables.def"
#undef VARIABLE
  };
  const char *nearest = nearest_name(name, known, sizeof known / sizeof *known);
  char buffer[SHOWN_MOST + 4];
  const char *ignored = config->strict ? "" : " and is ignored";
  if (nearest)
    problem(config, PREFIX "%s is not a variable of liboffload%s; did you mean " PREFIX "%s?",
            shown(name, buffer), ignored, nearest);
  else
    problem(config, PREFIX "%s is not a variable of liboffload%s; `offload variables` lists them",
            shown(name, buffer), ignored);
}

enum {
  VARIABLES = 0
#define VARIABLE(field, NAME, kind, initial, help) +1
#include "variables.def"
#undef VARIABLE
};
_Static_assert(VARIABLES <= 64, "a bit for each variable");

static void bad_value(struct config *config, const char *name, const char *value,
                      const char *expected, const char *initial) {
  char buffer[SHOWN_MOST + 4], instead[SHOWN_MOST];
  const bool stays = *initial && !config->strict;
  problem(config, PREFIX "%s=%s%s: %s%s%s", name, shown(value, buffer),
          config->strict ? "" : " is ignored", remedy(expected, value, instead),
          stays ? "; it stays at " : "", stays ? initial : "");
}

/* Sets the variable `name` (without the prefix), if there is one. `seen` keeps which were set. */
static void set_variable(struct config *config, const char *name, const char *value,
                         uint64_t *seen) {
  unsigned index = 0;
#define VARIABLE(field, NAME, kind, initial, help)                                                 \
  if (!strcmp(name, NAME)) {                                                                       \
    if (*seen >> index & 1 || !*value)                                                             \
      return;                                                                                      \
    *seen |= (uint64_t)1 << index;                                                                 \
    if (!set_##kind(&config->field, value))                                                        \
      bad_value(config, NAME, value, expected_##kind, initial);                                    \
    return;                                                                                        \
  }                                                                                                \
  index++;
#include "variables.def"
#undef VARIABLE
  unknown_name(config, name);
}

/* Settings that contradict each other. They stay as they are: what each does alone is defined. */
static void check_together(struct config *config) {
  if (config->mode == MODE_OBSERVE && config->step != STEP_AUTO)
    problem(config,
            "OFFLOAD_STEP=%s has no effect with OFFLOAD_MODE=observe, which moves nothing: unset "
            "one of the two",
            config_step_name(config->step));
  if ((config->step == STEP_STREAM || config->step == STEP_DIRECT) &&
      (config->threads || config->isa != ADAM_ISA_AUTO))
    problem(config,
            "%s has no effect with OFFLOAD_STEP=%s, which takes no CPU step: unset one of the two",
            config->threads ? "OFFLOAD_THREADS" : "OFFLOAD_ISA", config_step_name(config->step));
  if (config->verify && (config->step == STEP_STREAM || config->step == STEP_DIRECT))
    problem(config,
            "OFFLOAD_VERIFY has nothing to verify with OFFLOAD_STEP=%s, where the program's own "
            "kernel takes every step: unset one of the two",
            config_step_name(config->step));
  if (config->verify && config->mode == MODE_OBSERVE)
    problem(config, "OFFLOAD_VERIFY has nothing to verify with OFFLOAD_MODE=observe, which moves "
                    "nothing: unset one of the two");
  if (config->free_bytes.set && config->mode != MODE_FULL)
    problem(config,
            "OFFLOAD_FREE has no effect with OFFLOAD_MODE=%s: it says how much of the state `full` "
            "moves; unset one of the two",
            config_mode_name(config->mode));
  const char *unused = config->nvme_limit.set        ? "OFFLOAD_NVME_LIMIT"
                       : config->nvme_wear_limit.set ? "OFFLOAD_NVME_WEAR_LIMIT"
                                                     : NULL;
  if (unused && !config->nvme)
    problem(config,
            "%s has no effect without OFFLOAD_NVME, which names directories on drives: set "
            "that, or unset this",
            unused);
  if (config->nvme && config->nvme_limit.set && !config->nvme_limit.bytes)
    problem(config, "OFFLOAD_NVME_LIMIT=0 lets nothing go to drives: unset OFFLOAD_NVME, or give "
                    "the limit a size");
  if (config->nvme && config->step == STEP_DIRECT)
    problem(config, "OFFLOAD_NVME has no effect with OFFLOAD_STEP=direct, where the program's own "
                    "kernel takes every step: unset one of the two");
  if (config->nvme && config->mode == MODE_OBSERVE)
    problem(config, "OFFLOAD_NVME has no effect with OFFLOAD_MODE=observe, which moves nothing: "
                    "unset one of the two");
  if (config->host_memory.set && !config->host_memory.percent &&
      (config->mode == MODE_FULL || config->mode == MODE_PRESSURE)) {
    if (!config->host_memory.bytes && !config->nvme)
      problem(config,
              "OFFLOAD_HOST_MEMORY=0 with OFFLOAD_MODE=%s lets nothing move: use "
              "OFFLOAD_MODE=observe, or give it a size",
              config_mode_name(config->mode));
    else if (config->host_memory.bytes < config->piece.bytes && !config->nvme)
      problem(config, "OFFLOAD_HOST_MEMORY is smaller than one piece (OFFLOAD_PIECE), so that "
                      "nothing can move: make it larger");
  }
}

static void load(struct config *config, char **environment, bool strict) {
  memset(config, 0, sizeof *config);
  config->strict = strict;
#define VARIABLE(field, NAME, kind, initial, help)                                                 \
  if (sizeof initial > 1)                                                                          \
    set_##kind(&config->field, initial);
#include "variables.def"
#undef VARIABLE
  config->ranks = ranks_read(environment);
  config->local_ranks = config->ranks.local_ranks ? config->ranks.local_ranks : 1;
  config->local_rank = config->ranks.local_rank;
  uint64_t seen = 0;
  for (; environment && *environment; environment++) {
    const char *entry = *environment, *equals = strchr(entry, '=');
    char name[NAME_MOST + 1];
    if (!equals || strncmp(entry, PREFIX, PREFIX_BYTES) != 0)
      continue;
    snprintf(name, sizeof name, "%.*s", (int)(equals - entry - PREFIX_BYTES), entry + PREFIX_BYTES);
    set_variable(config, name, equals + 1, &seen);
  }
  check_together(config);
  if (config->nvme_limit.set && !config->nvme_limit.bytes)
    forget(&config->nvme);
}

void config_load(struct config *config, char **environment) {
  load(config, environment, false);
}

void config_check(struct config *config, char **settings) {
  load(config, settings, true);
}

void config_free(struct config *config) {
  const char **const texts[] = {&config->callers, &config->report,    &config->metrics,
                                &config->trace,   &config->rates,     &config->sysroot,
                                &config->nvme,    &config->test_nvme, &config->test_nvme_rung};
  for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
    forget(texts[i]);
}

/* Length of a file's base name up to the first ".so" that ends it or is followed by a dot. */
static size_t stem_bytes(const char *base) {
  for (const char *at = strstr(base, ".so"); at; at = strstr(at + 1, ".so"))
    if (!at[3] || at[3] == '.')
      return (size_t)(at - base);
  return strlen(base);
}

bool config_caller_allowed(const struct config *config, const char *module_path) {
  if (!config->callers || !module_path)
    return false;
  const char *slash = strrchr(module_path, '/');
  const char *base = slash ? slash + 1 : module_path;
  const size_t base_stem = stem_bytes(base);
  for (const char *at = config->callers; *at;) {
    char item[256];
    const size_t length = strcspn(at, ",");
    if (length && length < sizeof item) {
      memcpy(item, at, length);
      item[length] = 0;
      const char *item_slash = strrchr(item, '/');
      const char *item_base = item_slash ? item_slash + 1 : item;
      const size_t item_stem = stem_bytes(item_base);
      if (!strcmp(item, "*") ||
          (item_stem && item_stem == base_stem && !memcmp(item_base, base, base_stem)))
        return true;
    }
    at += length + (at[length] == ',');
  }
  return false;
}
