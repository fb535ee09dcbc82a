/* The switches of switches.def, read from the environment once, at the first call. A variable
   that is misspelt or out of range would silently make a test weaker, so it ends the process with
   GPUSIM_EXIT_SETTINGS instead. */
#include "tests/gpusim/clock.h"
#include "tests/gpusim/driver.h"
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

extern char **environ;

struct gpusim_settings gpusim_settings = {
#define SWITCH(field, NAME, type, initial, help) .field = initial,
#include "switches.def"
#undef SWITCH
};

void gpusim_settings_refuse(const char *variable, const char *value, const char *remedy) {
  fprintf(stderr, "gpusim: %s=%s: %s\n", variable, value, remedy);
  fflush(stderr);
  _exit(GPUSIM_EXIT_SETTINGS);
}

static void read_int(const char *variable, const char *value, int *into) {
  char *end;
  errno = 0;
  long number = strtol(value, &end, 10);
  if (end == value || *end || errno || number < 0 || number > INT_MAX)
    gpusim_settings_refuse(variable, value, "expected a decimal number from 0 to 2147483647");
  *into = (int)number;
}

static void read_bytes_t(const char *variable, const char *value, bytes_t *into) {
  static const struct {
    const char *suffix;
    int shift;
  } units[] = {{"", 0}, {"KiB", 10}, {"MiB", 20}, {"GiB", 30}, {"TiB", 40}};
  char *end;
  errno = 0;
  unsigned long long number = strtoull(value, &end, 10);
  if (end == value || *value < '0' || *value > '9' || errno)
    end = NULL;
  for (size_t i = 0; end != NULL && i < sizeof units / sizeof *units; i++)
    if (strcmp(end, units[i].suffix) == 0 && number <= ULLONG_MAX >> units[i].shift) {
      *into = (bytes_t)(number << units[i].shift);
      return;
    }
  gpusim_settings_refuse(variable, value, "expected bytes such as 4096, 64KiB, 2MiB or 1GiB");
}

static void read_text(const char *variable, const char *value, text *into) {
  (void)variable;
  *into = *value ? strdup(value) : NULL;
}

static bool known(const char *name, size_t length) {
#define SWITCH(field, NAME, type, initial, help)                                                   \
  if (length == sizeof #NAME - 1 && strncmp(name, #NAME, length) == 0)                             \
    return true;
#include "switches.def"
#undef SWITCH
  return false;
}

static void check_range(const char *variable, uint64_t value, uint64_t low, uint64_t high) {
  char number[32], remedy[96];
  if (value >= low && value <= high)
    return;
  snprintf(number, sizeof number, "%llu", (unsigned long long)value);
  snprintf(remedy, sizeof remedy, "expected a value from %llu to %llu", (unsigned long long)low,
           (unsigned long long)high);
  gpusim_settings_refuse(variable, number, remedy);
}

static void load(void) {
  for (char **entry = environ; entry != NULL && *entry != NULL; entry++) {
    size_t length = strcspn(*entry, "=");
    if (strncmp(*entry, "GPUSIM_", 7) == 0 && !known(*entry, length)) {
      fprintf(stderr, "gpusim: %.*s: no such variable; those of tests/gpusim/switches.def exist\n",
              (int)length, *entry);
      fflush(stderr);
      _exit(GPUSIM_EXIT_SETTINGS);
    }
  }
  const char *value;
#define SWITCH(field, NAME, type, initial, help)                                                   \
  if ((value = getenv(#NAME)) != NULL)                                                             \
    read_##type(#NAME, value, &gpusim_settings.field);
#include "switches.def"
#undef SWITCH
  const struct gpusim_settings *s = &gpusim_settings;
  check_range("GPUSIM_DEVICES", (uint64_t)s->devices, 0, GPUSIM_MAX_DEVICES);
  gpusim_machine_configure();
  check_range("GPUSIM_MEMORY", s->memory, 1 << 20, (uint64_t)1 << 40);
  check_range("GPUSIM_GRANULARITY", s->granularity, 4096, 1 << 30);
  check_range("GPUSIM_QUEUES", (uint64_t)s->queues, 1, GPUSIM_MAX_QUEUES);
  check_range("GPUSIM_DEPTH", (uint64_t)s->depth, 1, 1 << 20);
  check_range("GPUSIM_THREADS", (uint64_t)s->threads, 1, 256);
  check_range("GPUSIM_COMPUTE_CAPABILITY", (uint64_t)s->compute_capability, 50, 130);
  if (s->engine == NULL || (strcmp(s->engine, "auto") != 0 && strcmp(s->engine, "native") != 0 &&
                            strcmp(s->engine, "interpreter") != 0))
    gpusim_settings_refuse("GPUSIM_ENGINE", getenv("GPUSIM_ENGINE"),
                           "expected auto, native or interpreter");
  check_range("GPUSIM_CONTRACT", (uint64_t)s->contract, 0, 1);
  if ((s->granularity & (s->granularity - 1)) != 0)
    gpusim_settings_refuse("GPUSIM_GRANULARITY", getenv("GPUSIM_GRANULARITY"),
                           "expected a power of two");
  check_range("GPUSIM_SCALE", (uint64_t)s->scale, 1, INT_MAX);
  check_range("GPUSIM_STARTS", (uint64_t)s->starts, 1, INT_MAX);
  clock_profile_load();
  clock_replays_load();
  gpusim_odd_configure();
  gpusim_calls_configure();
}

void gpusim_settings_load(void) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  pthread_once(&once, load);
}
