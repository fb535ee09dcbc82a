/* The machine whose time the clock tells: a line of profiles.def, chosen by GPUSIM_PROFILE, and what
   the environment says about kernels and about the CPU's work. Read once, in cuInit, like all
   switches; a bad value ends the process. */
#include "tests/gpusim/clock.h"
#include "tests/gpusim/driver.h"
#include <fnmatch.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct clock_profile profiles[] = {
#define PROFILE(id, words, ...) {.name = #id, __VA_ARGS__},
#include "profiles.def"
#undef PROFILE
};
static const struct clock_profile *chosen;

struct kernel_time {
  const char *pattern;
  double ns;
};
static struct kernel_time *kernel_times;
static size_t kernel_time_count;
/* 28 bytes of DRAM for 4 of an fp32 gradient: p, g, m, v read, p, m, v written. */
static double host_ratio[CLOCK_RESOURCES] = {[CLOCK_DRAM] = 7};

const struct clock_profile *clock_profile(void) {
  return chosen;
}

double clock_host_ratio(enum clock_resource resource) {
  return host_ratio[resource];
}

bool clock_kernel_time(const char *name, double *ns) {
  for (size_t i = 0; i < kernel_time_count; i++)
    if (fnmatch(kernel_times[i].pattern, name, 0) == 0) {
      *ns = kernel_times[i].ns;
      return true;
    }
  return false;
}

static const struct clock_profile *find(const char *name) {
  for (size_t i = 0; i < sizeof profiles / sizeof *profiles; i++)
    if (strcmp(profiles[i].name, name) == 0)
      return &profiles[i];
  char remedy[512] = "no such machine; known are";
  for (size_t i = 0; i < sizeof profiles / sizeof *profiles; i++)
    snprintf(remedy + strlen(remedy), sizeof remedy - strlen(remedy), "%s %s", i > 0 ? "," : "",
             profiles[i].name);
  gpusim_settings_refuse("GPUSIM_PROFILE", name, remedy);
}

/* Splits "name=number[unit],..." in place; calls `take` for each part. */
static void each_part(const char *variable, const char *value, const char *remedy,
                      bool (*take)(char *name, double number, const char *unit)) {
  char *copy = strdup(value), *save = NULL;
  if (copy == NULL)
    abort();
  for (char *part = strtok_r(copy, ",", &save); part != NULL; part = strtok_r(NULL, ",", &save)) {
    char *equals = strrchr(part, '='), *end = NULL;
    double number = -1;
    if (equals != NULL && equals != part) {
      *equals = '\0';
      number = strtod(equals + 1, &end);
    }
    if (end == NULL || end == equals + 1 || !(number >= 0) || !isfinite(number) ||
        !take(part, number, end))
      gpusim_settings_refuse(variable, value, remedy);
  }
  free(copy);
}

static bool take_kernel_time(char *name, double number, const char *unit) {
  double ns = 0;
  if (*unit == '\0' || strcmp(unit, "us") == 0)
    ns = number * 1e3;
  else if (strcmp(unit, "flop") == 0)
    ns = number / (chosen->bf16 * 1e3);
  else
    return false;
  struct kernel_time *grown = realloc(kernel_times, (kernel_time_count + 1) * sizeof *kernel_times);
  if (grown == NULL)
    abort();
  kernel_times = grown;
  kernel_times[kernel_time_count].pattern = strdup(name);
  if (kernel_times[kernel_time_count].pattern == NULL)
    abort();
  kernel_times[kernel_time_count++].ns = ns;
  return true;
}

static bool take_host_ratio(char *name, double number, const char *unit) {
  static const struct {
    const char *name;
    enum clock_resource resource;
  } known[] = {
      {"dram", CLOCK_DRAM}, {"drive_read", CLOCK_DRIVE_READ}, {"drive_write", CLOCK_DRIVE_WRITE}};
  for (size_t i = 0; i < sizeof known / sizeof *known; i++)
    if (*unit == '\0' && strcmp(name, known[i].name) == 0) {
      host_ratio[known[i].resource] = number;
      return true;
    }
  return false;
}

void clock_profile_load(void) {
  const struct gpusim_settings *s = &gpusim_settings;
  const char *const alone = "needs a machine: set GPUSIM_PROFILE, too";
  if (s->profile == NULL) {
    if (s->timeline != NULL)
      gpusim_settings_refuse("GPUSIM_TIMELINE", s->timeline, alone);
    if (s->kernel_time != NULL)
      gpusim_settings_refuse("GPUSIM_KERNEL_TIME", s->kernel_time, alone);
    if (s->host_work != NULL)
      gpusim_settings_refuse("GPUSIM_HOST_WORK", s->host_work, alone);
    return;
  }
  chosen = find(s->profile);
  if (s->kernel_time != NULL)
    each_part("GPUSIM_KERNEL_TIME", s->kernel_time,
              "expected PATTERN=MICROSECONDS or PATTERN=NUMBERflop, several separated by commas",
              take_kernel_time);
  if (s->host_work != NULL)
    each_part(
        "GPUSIM_HOST_WORK", s->host_work,
        "expected dram=, drive_read= or drive_write= with bytes for each byte that comes down, "
        "several separated by commas",
        take_host_ratio);
}
