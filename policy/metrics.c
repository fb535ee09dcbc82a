/* See metrics.h. Names follow Prometheus's rules: base units (nanoseconds become seconds), the unit in the name, _total at the end of what
   only grows. */
#include "metrics.h"
#include "out.h"
#include "report.h"
#include "report_file.h"
#include "report_memory.h"
#include "report_policy.h"
#include "scratch.h"
#include "version.h"
#include "words.h"
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { PATH_BYTES = 4096, LABELS_BYTES = 96, NAME_BYTES = 96 };

struct text {
  const struct config *config;
  int device;
  bool running;
  struct out out;
  char labels[LABELS_BYTES]; /* pid="1",local_rank="0",device="0" */
};

/* In help texts a backslash and a line's end are escaped; ours have neither. */
static void head(struct text *text, const char *name, const char *type, const char *help) {
  out_format(&text->out, "# HELP offload_%s %s\n# TYPE offload_%s %s\n", name, help, name, type);
}

/* A label's value, escaped. */
static const char *escaped(const char *value, char *to, size_t bytes) {
  size_t used = 0;
  for (; *value && used + 3 < bytes; value++) {
    if (*value == '"' || *value == '\\')
      to[used++] = '\\';
    to[used++] = (unsigned char)*value < ' ' ? '?' : *value;
  }
  to[used] = 0;
  return to;
}

/* No locale: the program's may have another point. */
static void sample(struct text *text, const char *name, bool seconds, uint64_t value) {
  const unsigned long long whole = value, second_ns = 1000000000;
  if (seconds)
    out_format(&text->out, "offload_%s{%s} %llu.%09llu\n", name, text->labels, whole / second_ns,
               whole % second_ns);
  else
    out_format(&text->out, "offload_%s{%s} %llu\n", name, text->labels, whole);
}

/* "link_bytes_down" is link_bytes_down_total, "move_ns" move_seconds_total. */
static void counter(struct text *text, const char *name, bool level, const char *help,
                    uint64_t value) {
  char metric[NAME_BYTES];
  const size_t bytes = strlen(name);
  const bool ns = bytes > 3 && !strcmp(name + bytes - 3, "_ns");
  snprintf(metric, sizeof metric, "%.*s%s%s", (int)(ns ? bytes - 3 : bytes), name,
           ns ? "_seconds" : "", level ? "" : "_total");
  head(text, metric, level ? "gauge" : "counter", help);
  sample(text, metric, ns, value);
}

static void gauge(struct text *text, const char *name, const char *help, uint64_t value) {
  head(text, name, "gauge", help);
  sample(text, name, false, value);
}

static void gauge_seconds(struct text *text, const char *name, const char *help, uint64_t ns) {
  head(text, name, "gauge", help);
  sample(text, name, true, ns);
}

static void write_counters(struct text *text) {
#define COUNTER(name, help)                                                                        \
  counter(text, #name, false, help,                                                                \
          atomic_load_explicit(&report.totals.name, memory_order_relaxed));
#define GAUGE(name, help)                                                                          \
  counter(text, #name, true, help, atomic_load_explicit(&report.totals.name, memory_order_relaxed));
#include "counters.def"
#undef COUNTER
}

static void write_gauges(struct text *text) {
  struct report_step step;
  uint64_t used, total;
  gauge(text, "running", "1 while the process runs, 0 in what it writes as it ends", text->running);
  gauge(text, "state_bytes", "optimizer state that the last whole step named, wherever it lies",
        report_memory_state_now());
  if (report_memory_device_now(&used, &total)) {
    gauge(text, "device_used_bytes", "memory of the device in use, by everybody", used);
    gauge(text, "device_memory_bytes", "memory of the device", total);
  }
  if (!report_step_last(&step))
    return;
  gauge_seconds(text, "step_seconds",
                "the last whole step, from its optimizer's first launch to the next", step.step_ns);
  if (!step.optimizer_ns)
    return;
  gauge_seconds(text, "optimizer_seconds", "of it, what the optimizer took on the program's stream",
                step.optimizer_ns);
  gauge_seconds(text, "exposed_seconds",
                "of that, what is more than with all state on the device, as foretold",
                report_step_exposed_ns(&step));
}

static const struct way {
  const char *name;
  unsigned bit;
  size_t launches; /* where a row has their number */
} ways[] = {{"cpu", REPORT_WAY_CPU, offsetof(struct report_function, launches_cpu)},
            {"stream", REPORT_WAY_STREAM, offsetof(struct report_function, launches_stream)},
            {"direct", REPORT_WAY_DIRECT, offsetof(struct report_function, launches_direct)}};
enum { WAYS = sizeof ways / sizeof *ways };

/* Several rows may have one name, of a kernel that was loaded twice: they are one series. */
static bool same(const struct report_function *one, const struct report_function *other) {
  return !strcmp(one->name, other->name) && one->metadata_bytes == other->metadata_bytes;
}

static uint64_t launches(unsigned first, unsigned rows, const struct way *way, bool running) {
  (void)running;
  uint64_t sum = 0;
  for (unsigned i = first; i < rows; i++)
    if (same(&report.functions[first], &report.functions[i]))
      sum += atomic_load_explicit(
          (const _Atomic uint64_t *)(const void *)((const char *)&report.functions[i] +
                                                   way->launches),
          memory_order_relaxed);
  return sum;
}

/* While the process runs its last step may not be whole. */
static uint64_t goes(unsigned first, unsigned rows, const struct way *way, bool running) {
  unsigned gone = 0;
  for (unsigned i = first; i < rows; i++) {
    const struct report_function *row = &report.functions[i];
    const unsigned last = atomic_load_explicit(&row->ways, memory_order_relaxed),
                   before = atomic_load_explicit(&row->ways_before, memory_order_relaxed);
    if (same(&report.functions[first], row))
      gone |= running && before ? before : last;
  }
  return (gone & way->bit) != 0;
}

static void each_function(struct text *text, const char *metric,
                          uint64_t (*value)(unsigned first, unsigned rows, const struct way *,
                                            bool running)) {
  const unsigned rows = atomic_load_explicit(&report.function_count, memory_order_acquire);
  for (unsigned i = 0; i < rows; i++) {
    const struct report_function *row = &report.functions[i];
    char function[2 * sizeof row->name];
    bool again = false;
    for (unsigned k = 0; k < i && !again; k++)
      again = same(&report.functions[k], row);
    for (size_t w = 0; w < WAYS && !again; w++)
      out_format(&text->out,
                 "offload_%s{%s,function=\"%s\",metadata_bytes=\"%u\",way=\"%s\"} %llu\n", metric,
                 text->labels, escaped(row->name, function, sizeof function), row->metadata_bytes,
                 ways[w].name, (unsigned long long)value(i, rows, &ways[w], text->running));
  }
}

static int write_text(int fd, const void *context) {
  const struct config *config = ((const struct text *)context)->config;
  struct text *text = scratch_take(sizeof *text);
  if (!text)
    return ENOMEM;
  *text = *(const struct text *)context;
  size_t used = (size_t)snprintf(text->labels, sizeof text->labels, "pid=\"%d\"", (int)getpid());
  if (config->local_rank >= 0)
    used += (size_t)snprintf(text->labels + used, sizeof text->labels - used, ",local_rank=\"%d\"",
                             config->local_rank);
  if (text->device >= 0)
    snprintf(text->labels + used, sizeof text->labels - used, ",device=\"%d\"", text->device);
  out_open(&text->out, fd);
  head(text, "info", "gauge", "1; what wrote this");
  out_format(&text->out, "offload_info{%s,version=\"%s\",mode=\"%s\"} 1\n", text->labels,
             OFFLOAD_VERSION, config_mode_name(config->mode));
  write_gauges(text);
  head(text, "way", "gauge",
       "1 for each way in which a function's last whole step was carried out");
  each_function(text, "way", goes);
  head(text, "function_launches_total", "counter",
       "launches of a recognised function, by the way in which they were carried out");
  each_function(text, "function_launches_total", launches);
  write_counters(text);
  const int error = out_close(&text->out);
  scratch_drop(text, sizeof *text);
  return error;
}

static int replace(const struct config *config, int device, bool running) {
  struct text *text = scratch_take(sizeof *text);
  char *path = scratch_take(PATH_BYTES);
  int error = ENOMEM;
  if (text && path) {
    text->config = config;
    text->device = device;
    text->running = running;
    error = report_file_path(config->metrics, path, PATH_BYTES)
                ? report_file_write(path, &(struct file_contents){write_text, text})
                : ENAMETOOLONG;
  }
  scratch_drop(path, PATH_BYTES);
  scratch_drop(text, sizeof *text);
  return error;
}

void metrics_write(const struct config *config, int device, bool running) {
  static _Atomic bool said;
  char shown[REPORT_FILE_SHOWN], reason[WORDS_BYTES];
  const int error = config->metrics ? replace(config, device, running) : 0;
  if (error && !atomic_exchange_explicit(&said, true, memory_order_relaxed))
    report_line(LOG_QUIET,
                "OFFLOAD_METRICS=%s could not be written (%s): name a file in a directory that "
                "this process may write to",
                report_file_shown(config->metrics, shown), words_error(error, reason));
}
