/* Counters, trace lines, violations and the JSON report. Counters are atomic and relaxed: they
 * order nothing. */
#include "tests/gpusim/clock.h"
#include "tests/gpusim/driver.h"
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static _Atomic uint64_t counters[GPUSIM_COUNTERS];
static const char *const names[GPUSIM_COUNTERS] = {
#define COUNTER(name, help) #name,
#include "counters.def"
#undef COUNTER
};
/* The process that called cuInit: a child must not write its parent's report, be it one that shares
   the parent's memory (vfork). */
static pid_t reporting_process;

void gpusim_count(enum gpusim_counter counter, uint64_t add) {
  atomic_fetch_add_explicit(&counters[counter], add, memory_order_relaxed);
}

uint64_t gpusim_counter_value(enum gpusim_counter counter) {
  return atomic_load_explicit(&counters[counter], memory_order_relaxed);
}

void gpusim_count_set(enum gpusim_counter counter, uint64_t value) {
  atomic_store_explicit(&counters[counter], value, memory_order_relaxed);
}

void gpusim_count_peak(enum gpusim_counter counter, uint64_t value) {
  uint64_t seen = gpusim_counter_value(counter);
  while (value > seen &&
         !atomic_compare_exchange_weak_explicit(&counters[counter], &seen, value,
                                                memory_order_relaxed, memory_order_relaxed)) {
  }
}

GPUSIM_EXPORT unsigned long long gpusim_counter_by_name(const char *name) {
  for (int i = 0; i < GPUSIM_COUNTERS; i++) {
    const char *a = names[i], *b = name;
    while (*a && *a == *b)
      a++, b++;
    if (*a == *b)
      return gpusim_counter_value((enum gpusim_counter)i);
  }
  return ~0ULL;
}

/* One write per line, so that lines of several threads and processes stay whole. */
__attribute__((format(printf, 2, 0))) static void print_line(const char *prefix, const char *format,
                                                             va_list arguments) {
  char line[1024];
  int length = vsnprintf(line, sizeof line, format, arguments);
  if (length >= 0)
    fprintf(stderr, "gpusim: %s%s\n", prefix, line);
}

void gpusim_trace(int level, const char *format, ...) {
  if (gpusim_settings.trace < level)
    return;
  va_list arguments;
  va_start(arguments, format);
  print_line("", format, arguments);
  va_end(arguments);
}

void gpusim_violation(const char *format, ...) {
  gpusim_count(GPUSIM_COUNT_violations, 1);
  va_list arguments;
  va_start(arguments, format);
  print_line("VIOLATION: ", format, arguments);
  va_end(arguments);
  fflush(stderr);
}

void gpusim_report_write(void) {
  const char *path = gpusim_settings.report;
  if (reporting_process != getpid() || !gpusim_at_home())
    return;
  clock_report(true);
  if (path == NULL)
    return;
  char temporary[4096];
  if (snprintf(temporary, sizeof temporary, "%s.%ld", path, (long)getpid()) >=
      (int)sizeof temporary) {
    fprintf(stderr, "gpusim: GPUSIM_REPORT=%s: the path is too long\n", path);
    return;
  }
  /* Written aside and renamed: a reader never sees half a report. */
  FILE *file = fopen(temporary, "w");
  if (file == NULL) {
    fprintf(stderr,
            "gpusim: GPUSIM_REPORT=%s: cannot be written; name a file in a directory that exists\n",
            path);
    return;
  }
  fprintf(file, "{\n");
  for (int i = 0; i < GPUSIM_COUNTERS; i++)
    fprintf(file, "  \"%s\": %llu%s\n", names[i],
            (unsigned long long)gpusim_counter_value((enum gpusim_counter)i),
            i + 1 < GPUSIM_COUNTERS ? "," : "");
  fprintf(file, "}\n");
  if (fclose(file) != 0 || rename(temporary, path) != 0)
    fprintf(stderr, "gpusim: GPUSIM_REPORT=%s: could not be completed\n", path);
}

void gpusim_report_start(void) {
  reporting_process = getpid();
}

/* After the program's own exit handlers: what they launch is counted. */
__attribute__((destructor)) static void report_at_exit(void) {
  gpusim_report_write();
}

void *gpusim_new(size_t bytes) {
  void *memory = calloc(1, bytes ? bytes : 1);
  if (memory == NULL) {
    fprintf(stderr, "gpusim: no memory for %zu bytes of its own bookkeeping\n", bytes);
    abort();
  }
  return memory;
}
