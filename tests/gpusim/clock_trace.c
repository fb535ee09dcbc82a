/* What the clock found out, for people and programs: the counters clock_* of the run report, a line
   at the end of the process, and a timeline in Chrome's trace format (chrome://tracing, Perfetto):
   for each device its streams and its engines, and the host's calls and threads. */
#include "tests/gpusim/clock.h"
#include "tests/gpusim/driver.h"
#include <stdio.h>
#include <stdlib.h>

enum { HOST_PROCESS = 1, WORKER_ROW = 100000 };

static const char *clock_kind_words(enum clock_kind kind) {
  static const char *const words[CLOCK_KINDS] = {
#define KIND(name, text, engine) text,
#include "clock_kinds.def"
#undef KIND
  };
  return words[kind];
}

static const char *const engine_names[CLOCK_ENGINES] = {
    [UP_ENGINE] = "copies to the device",
    [DOWN_ENGINE] = "copies to the host",
    [DEVICE_ENGINE] = "copies on the device",
    [PEER_ENGINE] = "copies between devices",
    [KERNEL_ENGINE] = "kernels",
};

/* ---- events ---- */

/* Names of kernels are the program's: anything may be in them. */
void clock_print_text(FILE *file, const char *words) {
  fputc('"', file);
  for (; *words != '\0'; words++)
    if (*words == '"' || *words == '\\')
      fprintf(file, "\\%c", *words);
    else
      fprintf(file, (unsigned char)*words < ' ' ? "\\u%04x" : "%c", (unsigned char)*words);
  fputc('"', file);
}

static void print_name(FILE *file, int process, int row, const char *name, uint64_t number) {
  fprintf(file, ",\n{\"ph\":\"M\",\"name\":\"%s\",\"pid\":%d,\"tid\":%d,\"args\":{\"name\":\"",
          row == 0 ? "process_name" : "thread_name", process, row);
  fprintf(file, "%s %llu\"}}", name, (unsigned long long)number);
}

static void print_span(FILE *file, int process, uint64_t row, const char *name,
                       const struct clock_cost *cost, double started, double ended) {
  if (started < 0 || ended < started)
    return;
  fprintf(file,
          ",\n{\"ph\":\"X\",\"pid\":%d,\"tid\":%llu,\"ts\":%.3f,\"dur\":%.3f,\"name\":", process,
          (unsigned long long)row, started / 1e3, (ended - started) / 1e3);
  clock_print_text(file, name);
  fprintf(file, ",\"args\":{");
  if (cost != NULL) {
    double bytes = 0;
    for (int i = 0; i < CLOCK_TIME; i++)
      bytes += i == CLOCK_ISSUE ? 0 : cost->amount[i];
    fprintf(file, "\"unscaled_bytes\":%.0f,\"instructions\":%.0f", bytes,
            cost->amount[CLOCK_ISSUE]);
  }
  fprintf(file, "}}");
}

static int streams_of(int device) {
  return 2 + 2 * device;
}

static void print_names(FILE *file, const struct clock_log *log,
                        const struct clock_result *result) {
  uint64_t streams = 0;
  fprintf(file, "{\"ph\":\"M\",\"name\":\"process_name\",\"pid\":%d,\"args\":{\"name\":\"host\"}}",
          HOST_PROCESS);
  for (int d = 0; d < gpusim_settings.devices; d++) {
    print_name(file, streams_of(d), 0, "streams of device", (uint64_t)d);
    print_name(file, streams_of(d) + 1, 0, "engines of device", (uint64_t)d);
    for (int e = 1; e < CLOCK_ENGINES; e++)
      print_name(file, streams_of(d) + 1, e, engine_names[e], (uint64_t)d);
  }
  for (size_t i = 0; i < log->count; i++)
    if (log->entries[i].stream > streams)
      streams = log->entries[i].stream;
  bool *named = gpusim_new((streams + 1) * sizeof *named);
  for (size_t i = 0; i < log->count; i++) {
    const uint64_t stream = log->entries[i].stream;
    if (stream != 0 && !named[stream])
      print_name(file, streams_of(log->entries[i].device), (int)stream, "stream", stream);
    named[stream] = true;
  }
  free(named);
  for (size_t i = 0; i < result->worker_count; i++)
    if (i == 0 || result->workers[i].thread != result->workers[i - 1].thread)
      print_name(file, HOST_PROCESS, WORKER_ROW + (int)result->workers[i].thread,
                 result->workers[i].thread == 0 ? "inferred worker" : "worker thread",
                 result->workers[i].thread);
}

static void print_events(FILE *file, const struct clock_log *log,
                         const struct clock_result *result) {
  for (size_t i = 0; i < log->count; i++) {
    const struct clock_entry *entry = &log->entries[i];
    const struct clock_cost *cost = &entry->cost;
    const struct clock_span *span = &result->spans[i];
    const char *name = cost->name != NULL ? cost->name : clock_kind_words(cost->kind);
    const enum clock_engine engine = clock_engine_of(cost->kind);
    if (cost->kind == CLOCK_WORKER)
      continue;
    if (cost->kind >= CLOCK_HOST_WAIT) {
      print_span(file, HOST_PROCESS, entry->thread, name, NULL, span->started, span->ended);
      continue;
    }
    print_span(file, streams_of(entry->device), entry->stream, name, cost, span->started,
               span->ended);
    if (engine != NO_ENGINE)
      print_span(file, streams_of(entry->device) + 1, (uint64_t)engine, name, cost, span->started,
                 span->ended);
  }
  for (size_t i = 0; i < result->worker_count; i++) {
    const struct clock_worker *worker = &result->workers[i];
    const char *name = worker->name != NULL ? worker->name : clock_kind_words(CLOCK_WORKER);
    print_span(file, HOST_PROCESS, WORKER_ROW + worker->thread, name, NULL, worker->span.started,
               worker->span.ended);
  }
}

static void write_timeline(const struct clock_log *log, const struct clock_result *result) {
  const char *path = gpusim_settings.timeline;
  FILE *file = fopen(path, "w");
  if (file == NULL) {
    fprintf(
        stderr,
        "gpusim: GPUSIM_TIMELINE=%s: cannot be written; name a file in a directory that exists\n",
        path);
    return;
  }
  fprintf(file, "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n");
  print_names(file, log, result);
  print_events(file, log, result);
  fprintf(file, "\n]}\n");
  if (fclose(file) != 0)
    fprintf(stderr, "gpusim: GPUSIM_TIMELINE=%s: could not be completed\n", path);
}

/* ---- the report ---- */

static void count(const struct clock_result *result) {
  const struct clock_sums *sums = &result->sums;
  const struct {
    enum gpusim_counter counter;
    double ns;
  } times[] = {{GPUSIM_COUNT_clock_total_ns, result->total_ns},
               {GPUSIM_COUNT_clock_kernel_ns, sums->kernel_ns},
               {GPUSIM_COUNT_clock_copy_ns, sums->copy_ns},
               {GPUSIM_COUNT_clock_copy_exposed_ns, sums->copy_exposed_ns},
               {GPUSIM_COUNT_clock_host_ns, sums->host_ns},
               {GPUSIM_COUNT_clock_host_exposed_ns, sums->host_exposed_ns},
               {GPUSIM_COUNT_clock_exposed_ns, sums->exposed_ns}};
  for (size_t i = 0; i < sizeof times / sizeof *times; i++)
    gpusim_count_set(times[i].counter, (uint64_t)(times[i].ns + 0.5));
  gpusim_count_set(GPUSIM_COUNT_clock_unmeasured_kernels, result->unmeasured);
  gpusim_count_set(GPUSIM_COUNT_clock_inferred_waits, result->inferred);
  gpusim_count_set(GPUSIM_COUNT_clock_assumed_waits, result->assumed);
}

static void report(const struct clock_log *log) {
  struct clock_result result;
  clock_replay(log, clock_terms(), &result);
  count(&result);
  if (gpusim_settings.timeline != NULL)
    write_timeline(log, &result);
  clock_result_free(&result);
}

static double milliseconds(enum gpusim_counter counter) {
  return (double)gpusim_counter_value(counter) / 1e6;
}

void clock_report(bool at_exit) {
  if (clock_terms() == NULL)
    return;
  clock_log_read(report);
  if (!at_exit)
    return;
  clock_replays_write();
  gpusim_trace(0,
               "clock of %s: %.3f ms in all; kernels run %.3f; copies %.3f, exposed %.3f; the CPU "
               "%.3f, exposed %.3f",
               clock_terms()->profile->name, milliseconds(GPUSIM_COUNT_clock_total_ns),
               milliseconds(GPUSIM_COUNT_clock_kernel_ns), milliseconds(GPUSIM_COUNT_clock_copy_ns),
               milliseconds(GPUSIM_COUNT_clock_copy_exposed_ns),
               milliseconds(GPUSIM_COUNT_clock_host_ns),
               milliseconds(GPUSIM_COUNT_clock_host_exposed_ns));
  if (gpusim_counter_value(GPUSIM_COUNT_clock_unmeasured_kernels) > 0)
    gpusim_trace(0, "clock: %llu kernels have no measured work: give them a GPUSIM_KERNEL_TIME",
                 (unsigned long long)gpusim_counter_value(GPUSIM_COUNT_clock_unmeasured_kernels));
}

GPUSIM_EXPORT unsigned long long gpusim_clock_report(void) {
  clock_report(false);
  return gpusim_counter_value(GPUSIM_COUNT_clock_total_ns);
}
