/* On which terms the log is replayed: the machine, a line of policy/gpus.def, and how much what was logged
   counts there. Those of the environment are read once, in cuInit, like all switches; a bad value
   ends the process. */
#include "tests/gpusim/clock.h"
#include "tests/gpusim/driver.h"
#include <fnmatch.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct clock_profile profiles[] = {
#define PROFILE(id, words, ...) {.name = #id, __VA_ARGS__},
#include "policy/gpus.def"
#undef PROFILE
};

/* 28 bytes of DRAM for 4 of an fp32 gradient: p, g, m, v read, p, m, v written. */
static struct clock_terms terms = {.scale = 1, .starts = 1, .host_ratio = {[CLOCK_DRAM] = 7}};

const struct clock_terms *clock_terms(void) {
  return terms.profile != NULL ? &terms : NULL;
}

bool clock_kernel_time(const struct clock_terms *of, const char *name, double *ns) {
  for (size_t i = 0; i < of->time_count; i++)
    if (fnmatch(of->times[i].pattern, name, 0) == 0) {
      *ns =
          of->times[i].flop ? of->times[i].amount / (of->profile->bf16 * 1e3) : of->times[i].amount;
      return true;
    }
  return false;
}

bool clock_terms_profile(struct clock_terms *of, const char *name) {
  for (size_t i = 0; i < sizeof profiles / sizeof *profiles; i++)
    if (strcmp(profiles[i].name, name) == 0) {
      of->profile = &profiles[i];
      return true;
    }
  return false;
}

static void refuse_profile(const char *name) {
  char remedy[512] = "no such machine; known are";
  for (size_t i = 0; i < sizeof profiles / sizeof *profiles; i++)
    snprintf(remedy + strlen(remedy), sizeof remedy - strlen(remedy), "%s %s", i > 0 ? "," : "",
             profiles[i].name);
  gpusim_settings_refuse("GPUSIM_PROFILE", name, remedy);
}

/* A number from zero on, and what follows it. */
static bool number_of(const char *words, double *number, char **unit) {
  *number = strtod(words, unit);
  return *unit != words && *number >= 0 && isfinite(*number);
}

bool clock_terms_number(double *number, const char *words) {
  char *unit;
  return number_of(words, number, &unit) && *unit == '\0' && *number > 0;
}

/* Splits "name=number[unit],..."; calls `take` for each part. */
static bool each_part(struct clock_terms *of, const char *value,
                      bool (*take)(struct clock_terms *, const char *name, double number,
                                   const char *unit)) {
  char *copy = strdup(value), *save = NULL;
  bool good = true;
  if (copy == NULL)
    abort();
  for (char *part = strtok_r(copy, ",", &save); part != NULL && good;
       part = strtok_r(NULL, ",", &save)) {
    char *equals = strrchr(part, '='), *unit;
    double number;
    good = equals != NULL && equals != part && number_of(equals + 1, &number, &unit);
    if (good) {
      *equals = '\0';
      good = take(of, part, number, unit);
    }
  }
  free(copy);
  return good;
}

static bool take_kernel_time(struct clock_terms *of, const char *name, double number,
                             const char *unit) {
  const bool flop = strcmp(unit, "flop") == 0;
  if (!flop && *unit != '\0' && strcmp(unit, "us") != 0)
    return false;
  of->times = clock_room(of->times, of->time_count, &of->time_capacity, sizeof *of->times);
  struct clock_kernel_time *time = &of->times[of->time_count++];
  *time = (struct clock_kernel_time){.amount = flop ? number : number * 1e3, .flop = flop};
  time->pattern = strdup(name);
  if (time->pattern == NULL)
    abort();
  return true;
}

bool clock_terms_kernel_time(struct clock_terms *of, const char *words) {
  of->times = NULL;
  of->time_count = of->time_capacity = 0;
  return each_part(of, words, take_kernel_time);
}

static bool take_host_ratio(struct clock_terms *of, const char *name, double number,
                            const char *unit) {
  static const struct {
    const char *name;
    enum clock_resource resource;
  } known[] = {
      {"dram", CLOCK_DRAM}, {"drive_read", CLOCK_DRIVE_READ}, {"drive_write", CLOCK_DRIVE_WRITE}};
  for (size_t i = 0; i < sizeof known / sizeof *known; i++)
    if (*unit == '\0' && strcmp(name, known[i].name) == 0) {
      of->host_ratio[known[i].resource] = number;
      return true;
    }
  return false;
}

bool clock_terms_host_work(struct clock_terms *of, const char *words) {
  return each_part(of, words, take_host_ratio);
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
    if (s->replays != NULL)
      gpusim_settings_refuse("GPUSIM_REPLAYS", s->replays, alone);
    return;
  }
  if (!clock_terms_profile(&terms, s->profile))
    refuse_profile(s->profile);
  terms.scale = (double)s->scale;
  terms.starts = (double)s->starts;
  if (s->kernel_time != NULL && !clock_terms_kernel_time(&terms, s->kernel_time))
    gpusim_settings_refuse(
        "GPUSIM_KERNEL_TIME", s->kernel_time,
        "expected PATTERN=MICROSECONDS or PATTERN=NUMBERflop, several separated by commas");
  if (s->host_work != NULL && !clock_terms_host_work(&terms, s->host_work))
    gpusim_settings_refuse("GPUSIM_HOST_WORK", s->host_work,
                           "expected dram=, drive_read= or drive_write= with bytes for each byte "
                           "that comes down, several separated by commas");
}
