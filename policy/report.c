/* The process's report: counters, rows, reasons, stderr lines, and what is written at exit
   (report.schema.json). Called by the shim from any thread.

   Counters and rows are atomics or belong to their writer; the lock protects the list of reasons
   only, and nothing is called under it. report_line writes each line with one write, so that lines
   of several processes don't mix. */
#include "report.h"
#include "json.h"
#include "version.h"
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { SCHEMA = 1, LINE_BYTES = 1024, SIZE_TEXT_BYTES = 32, PATH_BYTES = 4096 };

struct report report;

static struct {
  _Atomic bool may_print; /* report_configure was called: cuInit has succeeded */
  _Atomic int log;        /* enum config_log */
  _Atomic bool rows_lost_said;
  pthread_mutex_t reasons; /* report.reasons and reason_count */
} state = {.reasons = PTHREAD_MUTEX_INITIALIZER};

void report_configure(const struct config *config) {
  atomic_store_explicit(&state.log, (int)config->log, memory_order_relaxed);
  atomic_store_explicit(&state.may_print, true, memory_order_release);
}

void report_reset(void) {
  memset(&report, 0, sizeof report);
  atomic_store_explicit(&state.may_print, false, memory_order_relaxed);
  atomic_store_explicit(&state.rows_lost_said, false, memory_order_relaxed);
  /* A forked child may have inherited it locked by a thread that it doesn't have. */
  state.reasons = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
}

void report_moved(int64_t bytes) {
  /* Unsigned arithmetic wraps: adding the negative number subtracts. */
  const uint64_t delta = (uint64_t)bytes;
  const uint64_t now =
      atomic_fetch_add_explicit(&report.totals.moved_bytes, delta, memory_order_relaxed) + delta;
  uint64_t peak = atomic_load_explicit(&report.totals.moved_bytes_peak, memory_order_relaxed);
  while (bytes > 0 && now > peak &&
         !atomic_compare_exchange_weak_explicit(&report.totals.moved_bytes_peak, &peak, now,
                                                memory_order_relaxed, memory_order_relaxed))
    ;
}

/* Writes the line whole; stderr may be closed or full, which is nobody's error but stderr's. */
static void __attribute__((format(printf, 1, 0)))
print_line(const char *format, va_list arguments) {
  static const char prefix[] = "liboffload: ";
  char line[LINE_BYTES];
  memcpy(line, prefix, sizeof prefix);
  const size_t used = sizeof prefix - 1;
  const int length = vsnprintf(line + used, sizeof line - used - 1, format, arguments);
  size_t end = length < 0 ? used : used + (size_t)length;
  if (end > sizeof line - 2)
    end = sizeof line - 2;
  line[end++] = '\n';
  ssize_t written;
  do
    written = write(STDERR_FILENO, line, end);
  while (written < 0 && errno == EINTR);
}

void report_line(enum config_log least, const char *format, ...) {
  if (!atomic_load_explicit(&state.may_print, memory_order_acquire) ||
      atomic_load_explicit(&state.log, memory_order_relaxed) < (int)least)
    return;
  const int error = errno; /* callers stand inside the program's calls */
  va_list arguments;
  va_start(arguments, format);
  print_line(format, arguments);
  va_end(arguments);
  errno = error;
}

void report_reason(const char *format, ...) {
  char sentence[sizeof report.reasons[0]];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(sentence, sizeof sentence, format, arguments);
  va_end(arguments);

  pthread_mutex_lock(&state.reasons);
  const unsigned count = atomic_load_explicit(&report.reason_count, memory_order_relaxed);
  bool fresh = count < REPORT_REASONS;
  for (unsigned i = 0; fresh && i < count; i++)
    fresh = strcmp(report.reasons[i], sentence) != 0;
  if (fresh) {
    memcpy(report.reasons[count], sentence, sizeof sentence);
    atomic_store_explicit(&report.reason_count, count + 1, memory_order_release);
  }
  pthread_mutex_unlock(&state.reasons);
  if (fresh)
    report_line(LOG_VERBOSE, "%s", sentence);
}

struct report_function *report_function_new(void) {
  unsigned count = atomic_load_explicit(&report.function_count, memory_order_relaxed);
  while (count < REPORT_FUNCTIONS)
    if (atomic_compare_exchange_weak_explicit(&report.function_count, &count, count + 1,
                                              memory_order_relaxed, memory_order_relaxed))
      return &report.functions[count];
  if (!atomic_exchange_explicit(&state.rows_lost_said, true, memory_order_relaxed))
    report_reason("more than %d functions were recognised; the report lists the first of them",
                  REPORT_FUNCTIONS);
  return NULL;
}

/* "812 MiB", "1.50 GiB": three figures. */
static const char *size_text(uint64_t bytes, char text[SIZE_TEXT_BYTES]) {
  static const char *const units[] = {"bytes", "KiB", "MiB", "GiB", "TiB"};
  double value = (double)bytes;
  size_t unit = 0;
  for (; value >= 1024 && unit < 4; unit++)
    value /= 1024;
  const int decimals = !unit || value >= 100 ? 0 : value >= 10 ? 1 : 2;
  snprintf(text, SIZE_TEXT_BYTES, "%.*f %s", decimals, value, units[unit]);
  return text;
}

static uint64_t total(const _Atomic uint64_t *counter) {
  return atomic_load_explicit(counter, memory_order_relaxed);
}

/* "cpu", or "cpu 96%, direct 4%" when several modes had a part. */
static void step_text(char *text, size_t text_bytes) {
  const struct {
    const char *name;
    uint64_t elements;
  } modes[] = {{"cpu", total(&report.totals.elements_cpu)},
               {"stream", total(&report.totals.elements_stream)},
               {"direct", total(&report.totals.elements_direct)}};
  uint64_t sum = 0;
  for (size_t i = 0; i < 3; i++)
    sum += modes[i].elements;
  size_t used = 0;
  snprintf(text, text_bytes, "the program alone");
  for (size_t i = 0; i < 3 && used < text_bytes; i++)
    if (modes[i].elements == sum && sum)
      used += (size_t)snprintf(text + used, text_bytes - used, "%s", modes[i].name);
    else if (modes[i].elements)
      used += (size_t)snprintf(text + used, text_bytes - used, "%s%s %.0f%%", used ? ", " : "",
                               modes[i].name, 100.0 * (double)modes[i].elements / (double)sum);
}

static void exit_line(const struct config *config) {
  const struct report_totals *t = &report.totals;
  char now[SIZE_TEXT_BYTES], peak[SIZE_TEXT_BYTES], down[SIZE_TEXT_BYTES], up[SIZE_TEXT_BYTES];
  char budget[SIZE_TEXT_BYTES], step[64], file[PATH_BYTES + 32] = "", refused[64] = "";
  if (config->report)
    snprintf(file, sizeof file, "; report in %s", config->report);
  const unsigned reasons = atomic_load_explicit(&report.reason_count, memory_order_acquire);
  const char *why = reasons ? report.reasons[0] : "";
  if (!total(&t->steps)) {
    report_line(LOG_NORMAL, "no optimizer step was recognised, nothing was moved%s%s%s",
                *why ? ": " : "", why, file);
    return;
  }
  step_text(step, sizeof step);
  if (total(&t->refusals))
    snprintf(refused, sizeof refused, "; %llu launches refused by the proof",
             (unsigned long long)total(&t->refusals));
  if (!total(&t->moved_bytes_peak)) {
    report_line(LOG_NORMAL, "%llu steps; no optimizer state was moved%s%s%s",
                (unsigned long long)total(&t->steps), *why ? ": " : "", why, file);
    return;
  }
  report_line(LOG_NORMAL,
              "%llu steps; %s of optimizer state on the host (at most %s, budget %s by %s); step "
              "by %s; %s down, %s up%s%s",
              (unsigned long long)total(&t->steps), size_text(total(&t->moved_bytes), now),
              size_text(total(&t->moved_bytes_peak), peak), size_text(report.budget_bytes, budget),
              *report.budget_limited_by ? report.budget_limited_by : "no limit", step,
              size_text(total(&t->link_bytes_down), down), size_text(total(&t->link_bytes_up), up),
              refused, file);
}

/* A setting's value in JSON, by its kind in variables.def. */
static void setting_size(struct json *json, const char *name, const struct config_size *size) {
  char text[16];
  snprintf(text, sizeof text, "%u%%", size->percent);
  if (size->percent)
    json_string(json, name, text);
  else if (size->set)
    json_number(json, name, size->bytes);
  else
    json_string(json, name, NULL);
}
#define SETTING_WORD_MODE(field) json_string(json, #field, config_mode_name(config->field))
#define SETTING_WORD_STEP(field) json_string(json, #field, config_step_name(config->field))
#define SETTING_WORD_LOG(field) json_string(json, #field, config_log_name(config->field))
#define SETTING_WORD_ISA(field) json_string(json, #field, config_isa_name(config->field))
#define SETTING_SIZE(field) setting_size(json, #field, &config->field)
#define SETTING_BYTES(field) setting_size(json, #field, &config->field)
#define SETTING_COUNT(field) json_number(json, #field, config->field)
#define SETTING_FLAG(field) json_boolean(json, #field, config->field)
#define SETTING_PATH(field) json_string(json, #field, config->field)
#define SETTING_LIST(field) json_string(json, #field, config->field)

static void write_settings(struct json *json, const struct config *config) {
  json_begin(json, "settings", '{');
#define VARIABLE(field, NAME, kind, initial, help) SETTING_##kind(field);
#include "variables.def"
#undef VARIABLE
  json_end(json, '}');
}

static void write_functions(struct json *json) {
  const unsigned count = atomic_load_explicit(&report.function_count, memory_order_acquire);
  json_begin(json, "functions", '[');
  for (unsigned i = 0; i < count; i++) {
    const struct report_function *f = &report.functions[i];
    json_begin(json, NULL, '{');
    json_string(json, "name", f->name);
    json_string(json, "family", f->family);
    json_number(json, "metadata_bytes", f->metadata_bytes);
    json_string(json, "generation", f->generation);
    json_string(json, "decay", f->decay);
    json_string(json, "mode", f->mode);
    json_string(json, "why", f->why);
    json_number(json, "launches", total(&f->launches));
    json_number(json, "launches_cpu", total(&f->launches_cpu));
    json_number(json, "launches_stream", total(&f->launches_stream));
    json_number(json, "launches_direct", total(&f->launches_direct));
    json_number(json, "launches_refused", total(&f->launches_refused));
    json_number(json, "blocks", total(&f->blocks));
    json_number(json, "blocks_taken", total(&f->blocks_taken));
    json_end(json, '}');
  }
  json_end(json, ']');
}

static int write_report(int fd, const struct config *config) {
  struct json writer, *json = &writer;
  json_open(json, fd);
  json_begin(json, NULL, '{');
  json_number(json, "schema", SCHEMA);
  json_string(json, "version", OFFLOAD_VERSION);
  json_number(json, "pid", (uint64_t)getpid());
  write_settings(json, config);
  json_string(json, "tier", report.tier ? report.tier : "none");
  json_begin(json, "budget", '{');
  json_number(json, "bytes", report.budget_bytes);
  json_string(json, "limited_by", report.budget_limited_by);
  json_end(json, '}');
  json_begin(json, "totals", '{');
#define COUNTER(name, help) json_number(json, #name, total(&report.totals.name));
#include "counters.def"
#undef COUNTER
  json_end(json, '}');
  write_functions(json);
  json_begin(json, "reasons", '[');
  const unsigned reasons = atomic_load_explicit(&report.reason_count, memory_order_acquire);
  for (unsigned i = 0; i < reasons; i++)
    json_string(json, NULL, report.reasons[i]);
  json_end(json, ']');
  json_end(json, '}');
  return json_close(json);
}

/* Beside the file under another name, then renamed: a reader sees the old report or the new one,
 * never half of one. */
static int write_report_file(const char *path, const struct config *config) {
  char temporary[PATH_BYTES];
  const int length = snprintf(temporary, sizeof temporary, "%s.%d.tmp", path, (int)getpid());
  if (length < 0 || (size_t)length >= sizeof temporary)
    return ENAMETOOLONG;
  const int fd = open(temporary, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0644);
  if (fd < 0)
    return errno;
  int error = write_report(fd, config);
  if (close(fd) < 0 && !error)
    error = errno;
  if (!error && rename(temporary, path) < 0)
    error = errno;
  if (error)
    unlink(temporary);
  return error;
}

void report_finish(const struct config *config) {
  exit_line(config);
  if (!config->report)
    return;
  const int error = write_report_file(config->report, config);
  if (error)
    report_line(LOG_QUIET,
                "OFFLOAD_REPORT=%s could not be written (%s): name a file in a directory that this "
                "process may write to",
                config->report, strerror(error));
}
