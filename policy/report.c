/* The process's report: counters, rows, reasons, and what is written at exit and
   meanwhile (report.schema.json). Called by the shim from any thread.

   Counters are atomics; one lock protects the list of reasons and the refused caller, one the texts
   of rows, tier and budget, and nothing is called under either (leaf.h). What is written at exit takes no memory of the process's allocator
   and calls nothing that may (scratch.h): no qsort, realpath, gmtime or strerror. */
#define _GNU_SOURCE
#include "report.h"
#include "json.h"
#include "leaf.h"
#include "observed.h"
#include "report_advice.h"
#include "report_drives.h"
#include "report_file.h"
#include "report_free.h"
#include "report_line.h"
#include "report_memory.h"
#include "report_node.h"
#include "report_observed.h"
#include "report_policy.h"
#include "report_rates.h"
#include "report_switch.h"
#include "scratch.h"
#include "version.h"
#include "words.h"
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { SCHEMA = 1, PATH_BYTES = 4096 };

struct report report;

static struct {
  _Atomic bool rows_lost_said;
  pthread_mutex_t reasons; /* report.reasons and reason_count */
  pthread_mutex_t rows;    /* the texts of report.functions, tier, budget */
  _Atomic bool unwritten_said;
} state = {.reasons = PTHREAD_MUTEX_INITIALIZER, .rows = PTHREAD_MUTEX_INITIALIZER};

void report_reset(void) {
  memset(&report, 0, sizeof report);
  report_drives_forget();
  report_free_forget();
  report_observed_forget();
  report_switch_forget();
  report_node_forget();
  report_rates_forget();
  report_policy_forget();
  report_memory_forget();
  report_line_forget();
  atomic_store_explicit(&state.rows_lost_said, false, memory_order_relaxed);
  atomic_store_explicit(&state.unwritten_said, false, memory_order_relaxed);
  /* A forked child may have inherited them locked by a thread that it doesn't have. */
  state.reasons = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
  state.rows = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
}

/* Adds to a number that also goes down, and to the most that it ever was. */
static void report_level(_Atomic uint64_t *level, _Atomic uint64_t *most, int64_t bytes) {
  /* Unsigned arithmetic wraps: adding the negative number subtracts. */
  const uint64_t delta = (uint64_t)bytes;
  const uint64_t now = atomic_fetch_add_explicit(level, delta, memory_order_relaxed) + delta;
  uint64_t peak = atomic_load_explicit(most, memory_order_relaxed);
  while (bytes > 0 && now > peak &&
         !atomic_compare_exchange_weak_explicit(most, &peak, now, memory_order_relaxed,
                                                memory_order_relaxed))
    ;
}

void report_moved(int64_t bytes) {
  report_level(&report.totals.moved_bytes, &report.totals.moved_bytes_peak, bytes);
}

void report_on_drives(int64_t bytes) {
  report_level(&report.totals.drive_bytes, &report.totals.drive_bytes_peak, bytes);
}

static void __attribute__((format(printf, 2, 0)))
keep_reason(enum config_log least, const char *format, va_list arguments) {
  char sentence[sizeof report.reasons[0]];
  vsnprintf(sentence, sizeof sentence, format, arguments);
  if (!leaf_lock(&state.reasons)) {
    report_sentence(least, sentence);
    return;
  }
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
    report_sentence(least, sentence);
}

void report_reason(const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  keep_reason(LOG_VERBOSE, format, arguments);
  va_end(arguments);
}

void report_notice(const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  keep_reason(LOG_NORMAL, format, arguments);
  va_end(arguments);
}

void report_caller_refused(const char *module_path) {
  const char *slash = strrchr(module_path, '/');
  pthread_mutex_lock(&state.reasons);
  if (!*report.refused_caller)
    snprintf(report.refused_caller, sizeof report.refused_caller, "%s",
             slash ? slash + 1 : module_path);
  pthread_mutex_unlock(&state.reasons);
}

void report_small_allocation(uint64_t bytes) {
  uint64_t largest = atomic_load_explicit(&report.largest_small, memory_order_relaxed);
  while (bytes > largest &&
         !atomic_compare_exchange_weak_explicit(&report.largest_small, &largest, bytes,
                                                memory_order_relaxed, memory_order_relaxed))
    ;
}

struct report_function *report_function_new(const char *family, const char *name,
                                            unsigned metadata_bytes) {
  struct report_function *row = NULL;
  pthread_mutex_lock(&state.rows);
  const unsigned count = atomic_load_explicit(&report.function_count, memory_order_relaxed);
  if (count < REPORT_FUNCTIONS) {
    row = &report.functions[count];
    row->metadata_bytes = metadata_bytes;
    snprintf(row->family, sizeof row->family, "%s", family);
    snprintf(row->name, sizeof row->name, "%s", name);
    snprintf(row->generation, sizeof row->generation, "unknown");
    snprintf(row->decay, sizeof row->decay, "none");
    snprintf(row->mode, sizeof row->mode, "none");
    atomic_store_explicit(&report.function_count, count + 1, memory_order_release);
  }
  pthread_mutex_unlock(&state.rows);
  if (row)
    return row;
  if (!atomic_exchange_explicit(&state.rows_lost_said, true, memory_order_relaxed))
    report_reason("more than %d functions were recognised; the report lists the first of them",
                  REPORT_FUNCTIONS);
  return NULL;
}

bool report_set(char *field, size_t bytes, const char *format, ...) {
  char text[sizeof(((struct report_function *)0)->why)];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(text, bytes < sizeof text ? bytes : sizeof text, format, arguments);
  va_end(arguments);
  if (!leaf_lock(&state.rows))
    return false;
  const bool another = strcmp(field, text) != 0;
  if (another)
    memcpy(field, text, strlen(text) + 1);
  pthread_mutex_unlock(&state.rows);
  return another;
}

void report_get(const char *field, char *copy, size_t bytes) {
  const bool locked = leaf_lock(&state.rows);
  memcpy(copy, field, bytes);
  copy[bytes - 1] = 0; /* worth reading without the lock, too, but it may be half written */
  if (locked)
    pthread_mutex_unlock(&state.rows);
}

/* "812 MiB", "1.50 GiB": three figures. */
_Static_assert((int)REPORT_SIZE_BYTES == (int)WORDS_BYTES, "one buffer for both");
const char *report_size_text(uint64_t bytes, char text[REPORT_SIZE_BYTES]) {
  return bytes ? words_bytes((double)bytes, text) : memcpy(text, "0 bytes", sizeof "0 bytes");
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

/* It found a driver and asked for no memory, as programs do that only look whether there is a device. */
static bool idle(void) {
  const struct report_totals *t = &report.totals;
  return !total(&t->allocations_seen) && !total(&t->steps) &&
         !atomic_load_explicit(&report.largest_small, memory_order_relaxed) &&
         !atomic_load_explicit(&report.function_count, memory_order_relaxed) &&
         !atomic_load_explicit(&report.reason_count, memory_order_relaxed);
}

static bool anything_moved(void) {
  return total(&report.totals.moved_bytes_peak) || total(&report.totals.drive_bytes_peak);
}

/* What at exit alone can be said about why nothing moved. */
static void note_end(const struct config *config) {
  const struct report_totals *t = &report.totals;
  const uint64_t small = atomic_load_explicit(&report.largest_small, memory_order_relaxed);
  char largest[REPORT_SIZE_BYTES], least[REPORT_SIZE_BYTES];
  if (!total(&t->ranges) && *report.refused_caller)
    report_reason("memory was asked for by %s alone, whose allocations stay native: set "
                  "OFFLOAD_CALLERS=%s to let them move",
                  report.refused_caller, report.refused_caller);
  if (total(&t->steps) && !total(&t->allocations_seen) && small &&
      !atomic_load_explicit(&report.state_elsewhere, memory_order_relaxed))
    report_reason("every allocation was smaller than OFFLOAD_MIN_ALLOCATION (%s; the largest was "
                  "%s): lower it",
                  report_size_text(config->min_allocation.bytes, least),
                  report_size_text(small, largest));
  if (total(&t->captured_state_bytes))
    report_reason("optimizer launches that named %s of state were made while a CUDA graph was "
                  "captured, and left to the program's kernel: keep the optimizer's step out of "
                  "the graph (PyTorch: capturable=False, step() after replay())",
                  report_size_text(total(&t->captured_state_bytes), largest));
  else if (config->mode == MODE_PRESSURE && total(&t->steps) && total(&t->ranges) &&
           !anything_moved() && !total(&t->refused_out_of_memory))
    report_reason("OFFLOAD_MODE=pressure: the device never ran short; OFFLOAD_MODE=full moves "
                  "state without waiting for that");
  else if (!total(&t->steps))
    report_reason("no fused Adam step was recognised; PyTorch: fused=True");
  else if (config->mode == MODE_FULL && total(&t->steps) == 1 && total(&t->ranges) &&
           !anything_moved())
    report_reason("state moves in the second step, and there was one");
}

/* The first reasons, as many as a line has room for; "" when there are none. */
static void reasons_text(char *text, size_t text_bytes) {
  const unsigned count = atomic_load_explicit(&report.reason_count, memory_order_acquire);
  size_t used = 0;
  *text = 0;
  for (unsigned i = 0; i < count; i++) {
    const size_t length = strlen(report.reasons[i]);
    if (used + 2 + length >= text_bytes)
      break;
    used += (size_t)snprintf(text + used, text_bytes - used, "%s%s", used ? "; " : ": ",
                             report.reasons[i]);
  }
}

/* Whether a line has said why no state goes to drives. */
static bool drives_refused(void) {
  static const char begin[] = "no state goes to drives";
  const unsigned count = atomic_load_explicit(&report.reason_count, memory_order_acquire);
  for (unsigned i = 0; i < count; i++)
    if (!strncmp(report.reasons[i], begin, sizeof begin - 1))
      return true;
  return false;
}

/* Why drives hold nothing, though they are named. */
static void no_drives_text(char *text, size_t bytes) {
  const uint64_t kept = total(&report.kept_bytes);
  char size[REPORT_SIZE_BYTES];
  report_size_text(kept, size);
  switch (kept ? atomic_load_explicit(&report.kept, memory_order_relaxed) : -1) {
  case KEPT_FULL:
    snprintf(text, bytes,
             "; nothing on drives, which have no room (OFFLOAD_NVME_LIMIT, or what is free "
             "there): %s stays on the device",
             size);
    break;
  case KEPT_SHARED:
    snprintf(text, bytes,
             "; nothing on drives, which take no piece that is also used by others, or whose "
             "partners stay: %s stays on the device",
             size);
    break;
  case KEPT_UNKNOWN:
    snprintf(text, bytes,
             "; nothing on drives, as steps launch what may use any memory: %s stays on the device",
             size);
    break;
  default:
    snprintf(text, bytes, "; nothing on drives, which take what is beyond the budget");
  }
}

static void exit_line(const struct config *config, const char *report_path) {
  const struct report_totals *t = &report.totals;
  const unsigned long long steps = total(&t->steps);
  const uint64_t provisional = total(&t->provisional_bytes), refusals = total(&t->refusals);
  char peak[REPORT_SIZE_BYTES], down[REPORT_SIZE_BYTES], up[REPORT_SIZE_BYTES],
      size[REPORT_SIZE_BYTES];
  char budget[REPORT_SIZE_BYTES], written[REPORT_SIZE_BYTES], step[64], why[640];
  char drives[192] = "", began[80] = "", refused[64] = "", verified[96] = "";
  const bool named = report_path && !strstr(report_path, "/" OBSERVED_DIRECTORY);
  const char *prefix = named ? "; report in " : "";
  char shown[REPORT_FILE_SHOWN];
  const char *file = named ? report_file_shown(report_path, shown) : "";
  if (!anything_moved()) {
    char would[320];
    bool nothing = true;
    const bool observed =
        config->mode == MODE_OBSERVE && report_observed_text(would, sizeof would, &nothing);
    reasons_text(why, sizeof why);
    if (observed)
      report_line(LOG_NORMAL, "%s%s%s%s", would, nothing ? why : "", prefix, file);
    else if (steps)
      report_line(LOG_NORMAL, "no optimizer state was moved in %llu step%s%s%s%s", steps,
                  steps == 1 ? "" : "s", why, prefix, file);
    else
      report_line(LOG_NORMAL, "nothing was moved%s%s%s", why, prefix, file);
    return;
  }
  step_text(step, sizeof step);
  if (provisional)
    snprintf(began, sizeof began, "; %s began there because the device was full",
             report_size_text(provisional, size));
  if (total(&t->drive_bytes_peak))
    snprintf(drives, sizeof drives, "; %s on drives, %s written there",
             report_size_text(total(&t->drive_bytes_peak), size),
             report_size_text(total(&t->drive_written_bytes), written));
  else if (config->nvme && !drives_refused())
    no_drives_text(drives, sizeof drives);
  if (refusals)
    snprintf(refused, sizeof refused, "; %llu launch%s refused by the proof",
             (unsigned long long)refusals, refusals == 1 ? "" : "es");
  if (total(&t->verified_pieces))
    snprintf(verified, sizeof verified, "; %llu piece%s verified, %llu differed",
             (unsigned long long)total(&t->verified_pieces),
             total(&t->verified_pieces) == 1 ? "" : "s", (unsigned long long)total(&t->mismatches));
  report_line(LOG_NORMAL,
              "%s of optimizer state was on the host, budget %s by %s; %llu step%s by %s; %s down, "
              "%s up%s%s%s%s%s%s",
              report_size_text(total(&t->moved_bytes_peak), peak),
              report_size_text(report.budget_bytes, budget),
              *report.budget_limited_by ? report.budget_limited_by : "no limit", steps,
              steps == 1 ? "" : "s", step, report_size_text(total(&t->link_bytes_down), down),
              report_size_text(total(&t->link_bytes_up), up), drives, began, refused, verified,
              prefix, file);
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
static void setting_sample(struct json *json, const char *name, unsigned every) {
  if (every == VERIFY_ALL)
    json_string(json, name, "all");
  else
    json_number(json, name, every);
}
static void setting_wear(struct json *json, const char *name, const struct wear_limit *limit) {
  const struct config_size size = {
      .bytes = limit->bytes, .percent = limit->percent, .set = limit->set};
  setting_size(json, name, &size);
}
static void setting_signal(struct json *json, const char *name, int signal) {
  char text[SIGNAL_NAME_BYTES];
  json_string(json, name, config_signal_name(signal, text));
}
#define SETTING_WORD_MODE(field) json_string(json, #field, config_mode_name(config->field))
#define SETTING_WORD_STEP(field) json_string(json, #field, config_step_name(config->field))
#define SETTING_WORD_VERIFY_ACTION(field)                                                          \
  json_string(json, #field, config_verify_action_name(config->field))
#define SETTING_WORD_LOG(field) json_string(json, #field, config_log_name(config->field))
#define SETTING_WORD_ISA(field) json_string(json, #field, config_isa_name(config->field))
#define SETTING_SIZE(field) setting_size(json, #field, &config->field)
#define SETTING_BYTES(field) setting_size(json, #field, &config->field)
#define SETTING_COUNT(field) json_number(json, #field, config->field)
#define SETTING_SAMPLE(field) setting_sample(json, #field, config->field)
#define SETTING_FLAG(field) json_boolean(json, #field, config->field)
#define SETTING_PATH(field) json_string(json, #field, config->field)
#define SETTING_ROOT(field) json_string(json, #field, config->field)
#define SETTING_DIRECTORIES(field) json_string(json, #field, config->field)
#define SETTING_WEAR(field) setting_wear(json, #field, &config->field)
#define SETTING_SIGNAL(field) setting_signal(json, #field, config->field)
#define SETTING_LIST(field) json_string(json, #field, config->field)

static void write_settings(struct json *json, const struct config *config) {
  json_begin(json, "settings", '{');
#define VARIABLE(field, NAME, kind, initial, help) SETTING_##kind(field);
#include "variables.def"
#undef VARIABLE
  json_end(json, '}');
}

static void row_text(struct json *json, const char *name, const char *field, size_t bytes) {
  char copy[sizeof(((struct report_function *)0)->why)];
  report_get(field, copy, bytes);
  json_string(json, name, copy);
}
#define ROW_TEXT(field) row_text(json, #field, f->field, sizeof f->field)

static void write_functions(struct json *json) {
  const unsigned count = atomic_load_explicit(&report.function_count, memory_order_acquire);
  json_begin(json, "functions", '[');
  for (unsigned i = 0; i < count; i++) {
    const struct report_function *f = &report.functions[i];
    json_begin(json, NULL, '{');
    ROW_TEXT(name);
    ROW_TEXT(family);
    json_number(json, "metadata_bytes", f->metadata_bytes);
    ROW_TEXT(generation);
    ROW_TEXT(decay);
    ROW_TEXT(mode);
    ROW_TEXT(why);
    json_number(json, "launches", total(&f->launches));
    json_number(json, "launches_cpu", total(&f->launches_cpu));
    json_number(json, "launches_stream", total(&f->launches_stream));
    json_number(json, "launches_direct", total(&f->launches_direct));
    json_number(json, "launches_refused", total(&f->launches_refused));
    json_number(json, "verified", total(&f->verified));
    json_number(json, "mismatches", total(&f->mismatches));
    json_number(json, "doubt_first_step", total(&f->doubt_first_step));
    json_number(json, "doubt_last_step", total(&f->doubt_last_step));
    json_number(json, "blocks", total(&f->blocks));
    json_number(json, "blocks_taken", total(&f->blocks_taken));
    json_number(json, "elements", total(&f->elements));
    json_number(json, "elements_host", total(&f->elements_host));
    json_end(json, '}');
  }
  json_end(json, ']');
}

void report_tier(const char *tier) {
  pthread_mutex_lock(&state.rows);
  report.tier = tier;
  pthread_mutex_unlock(&state.rows);
}

void report_budget(uint64_t bytes, const char *limited_by) {
  pthread_mutex_lock(&state.rows);
  report.budget_bytes = bytes;
  snprintf(report.budget_limited_by, sizeof report.budget_limited_by, "%s", limited_by);
  pthread_mutex_unlock(&state.rows);
}

void report_budget_now(uint64_t *bytes, char *limited_by, size_t limited_by_bytes) {
  const bool locked = leaf_lock(&state.rows);
  *bytes = report.budget_bytes;
  snprintf(limited_by, limited_by_bytes, "%.*s", (int)sizeof report.budget_limited_by - 1,
           report.budget_limited_by);
  if (locked)
    pthread_mutex_unlock(&state.rows);
}

static void write_budget(struct json *json) {
  char limited_by[sizeof report.budget_limited_by];
  const bool locked = leaf_lock(&state.rows);
  const char *tier = report.tier ? report.tier : "none";
  const uint64_t bytes = report.budget_bytes;
  memcpy(limited_by, report.budget_limited_by, sizeof limited_by);
  limited_by[sizeof limited_by - 1] = 0;
  if (locked)
    pthread_mutex_unlock(&state.rows);
  json_string(json, "tier", tier);
  json_begin(json, "budget", '{');
  json_number(json, "bytes", bytes);
  json_string(json, "limited_by", limited_by);
  json_end(json, '}');
}

static void write_time(struct json *json) {
  struct timespec now = {0};
  char text[WORDS_BYTES];
  (void)clock_gettime(CLOCK_REALTIME, &now);
  json_string(json, "written",
              words_time((uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000, text));
}

struct writing {
  const struct config *config;
  bool final;
};

static int write_json(int fd, const void *context) {
  const struct writing *writing = context;
  struct json writer, *json = &writer;
  json_open(json, fd);
  json_begin(json, NULL, '{');
  json_number(json, "schema", SCHEMA);
  json_string(json, "version", OFFLOAD_VERSION);
  json_number(json, "pid", (uint64_t)getpid());
  write_time(json);
  json_boolean(json, "final", writing->final);
  write_settings(json, writing->config);
  write_budget(json);
  json_begin(json, "totals", '{');
#define COUNTER(name, help) json_number(json, #name, total(&report.totals.name));
#include "counters.def"
#undef COUNTER
  json_end(json, '}');
  write_functions(json);
  report_drives_json(json);
  report_rates_json(json);
  report_free_json(json, writing->config);
  report_observed_json(json);
  report_advice_json(json, writing->final);
  report_switch_json(json, writing->config);
  report_node_json(json, writing->config);
  report_policy_json(json);
  report_steps_json(json);
  report_memory_json(json);
  json_begin(json, "reasons", '[');
  const unsigned reasons = atomic_load_explicit(&report.reason_count, memory_order_acquire);
  for (unsigned i = 0; i < reasons; i++)
    json_string(json, NULL, report.reasons[i]);
  json_end(json, ']');
  json_end(json, '}');
  return json_close(json);
}

int report_write(const struct config *config, const char *path) {
  const struct writing writing = {config, false};
  return report_file_write(path, &(struct file_contents){write_json, &writing});
}

/* Writes the file that was asked for. Its path, for the caller to drop; NULL when none was, or it could not
 * be written: *error says why. Stacks may be small. */
static char *write_asked_for(const struct config *config, bool final, int *error) {
  const struct writing writing = {config, final};
  *error = 0;
  if (!config->report)
    return NULL;
  char *path = scratch_take(PATH_BYTES);
  if (!path)
    *error = ENOMEM;
  else
    *error = report_file_path(config->report, path, PATH_BYTES)
                 ? report_file_write(path, &(struct file_contents){write_json, &writing})
                 : ENAMETOOLONG;
  if (!*error)
    return path;
  scratch_drop(path, PATH_BYTES);
  return NULL;
}

/* Once, while the program runs or at its end. */
static void say_unwritten(const struct config *config, int error) {
  char shown[REPORT_FILE_SHOWN], reason[WORDS_BYTES];
  if (error && !atomic_exchange_explicit(&state.unwritten_said, true, memory_order_relaxed))
    report_line(LOG_QUIET,
                "OFFLOAD_REPORT=%s could not be written (%s): name a file in a directory that this "
                "process may write to",
                report_file_shown(config->report, shown), words_error(error, reason));
}

void report_now(const struct config *config) {
  int error;
  scratch_drop(write_asked_for(config, false, &error), PATH_BYTES);
  say_unwritten(config, error);
}

void report_finish(const struct config *config) {
  if (idle() && !config->report)
    return;
  note_end(config);
  int error;
  char *path = write_asked_for(config, true, &error);
  report_line_finish();
  exit_line(config, path);
  report_free_lines(config);
  report_advice_lines();
  say_unwritten(config, error);
  scratch_drop(path, PATH_BYTES);
}
