/* GPUSIM_REPLAYS: what one run would take on many machines and at many sizes. The log doesn't depend on
   them, so the program runs once. Each line of the file is one replay, `name=value` separated by blanks,
   and what it leaves out is as in the environment:

     label=TEXT profile=MACHINE scale=NUMBER starts=NUMBER kernel_time=... host_work=...

   FILE.json gets an object for each, in order: totals and, for each mark of the program, what happened
   since the one before. Read in cuInit, where a bad line ends the process; written at exit. */
#include "tests/gpusim/clock.h"
#include "tests/gpusim/driver.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct replay_line {
  char label[128];
  struct clock_terms terms;
};
static struct replay_line *lines;
static size_t line_count, line_capacity;
static FILE *out;

static bool take(struct replay_line *line, const char *name, const char *value) {
  struct clock_terms *terms = &line->terms;
  if (strcmp(name, "label") == 0)
    return snprintf(line->label, sizeof line->label, "%s", value) < (int)sizeof line->label;
  if (strcmp(name, "profile") == 0)
    return clock_terms_profile(terms, value);
  else if (strcmp(name, "scale") == 0)
    return clock_terms_number(&terms->scale, value);
  else if (strcmp(name, "starts") == 0)
    return clock_terms_number(&terms->starts, value);
  else if (strcmp(name, "kernel_time") == 0)
    return clock_terms_kernel_time(terms, value);
  else if (strcmp(name, "host_work") == 0)
    return clock_terms_host_work(terms, value);
  else
    return false;
  return true;
}

static void take_line(char *words) {
  char *save = NULL;
  struct replay_line line = {.terms = *clock_terms()};
  char *part = strtok_r(words, " \t\n", &save);
  if (part == NULL || *part == '#')
    return;
  for (; part != NULL; part = strtok_r(NULL, " \t\n", &save)) {
    char *equals = strchr(part, '=');
    if (equals != NULL)
      *equals = '\0';
    if (equals == NULL || !take(&line, part, equals + 1)) {
      if (equals != NULL)
        *equals = '=';
      gpusim_settings_refuse("GPUSIM_REPLAYS", part,
                             "expected label=, profile=, scale=, starts=, kernel_time= or "
                             "host_work= as the switches have them, separated by blanks");
    }
  }
  lines = clock_room(lines, line_count, &line_capacity, sizeof *lines);
  lines[line_count++] = line;
}

void clock_replays_load(void) {
  const char *path = gpusim_settings.replays;
  if (path == NULL)
    return;
  FILE *file = fopen(path, "r");
  if (file == NULL)
    gpusim_settings_refuse("GPUSIM_REPLAYS", path, "cannot be read; name a file of machines");
  char *words = NULL;
  size_t room = 0;
  while (getline(&words, &room, file) > 0)
    take_line(words);
  free(words);
  (void)fclose(file);
}

/* What happened between two marks. */
static void print_sums(const struct clock_sums *from, const struct clock_sums *to) {
  const struct {
    const char *name;
    double value;
  } times[] = {{"kernel_ns", to->kernel_ns - from->kernel_ns},
               {"copy_ns", to->copy_ns - from->copy_ns},
               {"host_ns", to->host_ns - from->host_ns},
               {"given_ns", to->given_ns - from->given_ns},
               {"other_ns", to->other_ns - from->other_ns},
               {"hidden_ns", to->hidden_ns - from->hidden_ns}};
  static const struct {
    const char *name;
    enum clock_resource resource;
  } resources[] = {{"hbm", CLOCK_HBM},
                   {"issue", CLOCK_ISSUE},
                   {"up", CLOCK_UP},
                   {"down", CLOCK_DOWN},
                   {"dram", CLOCK_DRAM}};
  for (size_t i = 0; i < sizeof times / sizeof *times; i++)
    fprintf(out, ", \"%s\": %.0f", times[i].name, times[i].value);
  for (size_t i = 0; i < sizeof resources / sizeof *resources; i++) {
    const enum clock_resource k = resources[i].resource;
    fprintf(out, ", \"%s_full_ns\": %.0f, \"%s_amount\": %.0f", resources[i].name,
            to->full_ns[k] - from->full_ns[k], resources[i].name, to->amount[k] - from->amount[k]);
  }
}

static void replay_all(const struct clock_log *log) {
  for (size_t i = 0; i < line_count; i++) {
    struct clock_result result;
    struct clock_mark begin = {.name = "begin"};
    clock_replay(log, &lines[i].terms, &result);
    fprintf(out, "%s{\"label\": ", i > 0 ? ",\n" : "");
    clock_print_text(out, lines[i].label);
    fprintf(out,
            ", \"profile\": \"%s\", \"memory\": %.0f, \"gpus\": %d, \"total_ns\": %.0f, "
            "\"inferred_waits\": %llu, \"assumed_waits\": %llu, \"unmeasured_kernels\": %llu, "
            "\"marks\": [",
            lines[i].terms.profile->name, lines[i].terms.profile->memory * (1 << 30),
            lines[i].terms.profile->gpus, result.total_ns, (unsigned long long)result.inferred,
            (unsigned long long)result.assumed, (unsigned long long)result.unmeasured);
    for (size_t m = 0; m < result.mark_count; m++) {
      const struct clock_mark *mark = &result.marks[m];
      fprintf(out, "%s{\"name\": ", m > 0 ? ", " : "");
      clock_print_text(out, mark->name);
      fprintf(out, ", \"ns\": %.0f", mark->ns - begin.ns);
      print_sums(&begin.sums, &mark->sums);
      fprintf(out, "}");
      begin = *mark;
    }
    fprintf(out, "]}");
    clock_result_free(&result);
  }
}

void clock_replays_write(void) {
  const char *path = gpusim_settings.replays;
  char name[4096];
  if (path == NULL)
    return;
  if (snprintf(name, sizeof name, "%s.json", path) >= (int)sizeof name ||
      (out = fopen(name, "w")) == NULL) {
    fprintf(stderr,
            "gpusim: GPUSIM_REPLAYS=%s: nothing can be written beside it; name a file in a folder "
            "that may be written\n",
            path);
    return;
  }
  fprintf(out, "[");
  clock_log_read(replay_all);
  fprintf(out, "]\n");
  if (fclose(out) != 0)
    fprintf(stderr, "gpusim: GPUSIM_REPLAYS=%s: could not be completed\n", path);
}
