/* Lines on stderr (report.h). Each is written with one write, so that lines of several processes don't mix. Nothing here takes a lock:
   a line may come from a signal's handler that calls exit on top of another line. */
#define _GNU_SOURCE
#include "report_line.h"
#include "../nvme/clock.h"
#include "report.h"
#include "report_file.h"
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { LINE_BYTES = 1024, KINDS = 64, PREFIX_BYTES = 32 };

uint64_t report_line_window_ns = 60000000000;

/* A kind of line. `window` and how many of it came in that window are one number, so that whoever begins a new window knows what the
   last one left out. */
struct kind {
  const char *_Atomic format; /* NULL: free */
  _Atomic uint64_t count;     /* window << 32 | lines */
};

static struct {
  _Atomic bool may_print;    /* report_configure was called: cuInit has succeeded */
  _Atomic int log;           /* enum config_log */
  char prefix[PREFIX_BYTES]; /* written before may_print is */
  struct kind kinds[KINDS];
  /* What descriptor 2 was when we first looked; written once, by one thread. */
  _Atomic enum { STDERR_UNSEEN, STDERR_CLOSED, STDERR_OPEN } stderr_seen;
  struct stat stderr_file;
} state;

static bool look_at_stderr(struct stat *file) {
  return file_look(STDERR_FILENO, "", AT_EMPTY_PATH, file);
}

/* Whoever is started with descriptor 2 closed gets it for the next file it opens. What a program
   inherited is never close-on-exec. */
void report_see_stderr(void) {
  if (atomic_load_explicit(&state.stderr_seen, memory_order_acquire) != STDERR_UNSEEN)
    return;
  const int error = errno, flags = fcntl(STDERR_FILENO, F_GETFD);
  const bool inherited = flags >= 0 && !(flags & FD_CLOEXEC) && look_at_stderr(&state.stderr_file);
  atomic_store_explicit(&state.stderr_seen, inherited ? STDERR_OPEN : STDERR_CLOSED,
                        memory_order_release);
  errno = error;
}

/* Whether descriptor 2 is standard error still and not a file of the program's: what it was at
   first, or what logs are redirected to later. */
static bool stderr_is_ours(void) {
  const struct stat *seen = &state.stderr_file;
  struct stat now;
  if (atomic_load_explicit(&state.stderr_seen, memory_order_acquire) != STDERR_OPEN ||
      !look_at_stderr(&now))
    return false;
  return file_same(&now, seen) || S_ISCHR(now.st_mode) || fcntl(STDERR_FILENO, F_GETFL) & O_APPEND;
}

void report_configure(const struct config *config) {
  report_see_stderr();
  atomic_store_explicit(&state.log, (int)config->log, memory_order_relaxed);
  if (config->local_ranks > 1 && config->local_rank >= 0)
    snprintf(state.prefix, sizeof state.prefix, "liboffload[%d]: ", config->local_rank);
  else
    snprintf(state.prefix, sizeof state.prefix, "liboffload: ");
  atomic_store_explicit(&state.may_print, true, memory_order_release);
}

void report_line_forget(void) {
  memset(&state, 0, sizeof state);
}

/* ---- how many ---- */

static uint32_t window_now(void) {
  return (uint32_t)(clock_now_ns() / report_line_window_ns) +
         1; /* never 0, which is a kind's beginning */
}

static struct kind *kind_of(const char *format) {
  for (unsigned i = 0; i < KINDS; i++) {
    const char *there = NULL;
    if (atomic_compare_exchange_strong_explicit(&state.kinds[i].format, &there, format,
                                                memory_order_relaxed, memory_order_relaxed) ||
        there == format)
      return &state.kinds[i];
  }
  return NULL;
}

static uint32_t beyond(uint64_t count) {
  const uint32_t lines = (uint32_t)count;
  return lines > REPORT_LINES_A_MINUTE ? lines - REPORT_LINES_A_MINUTE : 0;
}

/* Whether the kind may have another line now; *left_out: how many of its last window had none. */
static bool allowed(struct kind *kind, uint32_t *left_out) {
  const uint32_t window = window_now();
  uint64_t count = atomic_load_explicit(&kind->count, memory_order_relaxed), next;
  do {
    const bool fresh = (uint32_t)(count >> 32) != window;
    *left_out = fresh ? beyond(count) : 0;
    next = fresh ? (uint64_t)window << 32 | 1 : count + 1;
  } while (!atomic_compare_exchange_weak_explicit(&kind->count, &count, next, memory_order_relaxed,
                                                  memory_order_relaxed));
  return !beyond(next);
}

/* ---- lines ---- */

/* Writes the line whole; stderr may be closed or full, which is nobody's error but stderr's. */
static void __attribute__((format(printf, 1, 0)))
print_line(const char *format, va_list arguments) {
  char line[LINE_BYTES];
  const size_t used = strlen(state.prefix);
  memcpy(line, state.prefix, used);
  const int length = vsnprintf(line + used, sizeof line - used - 1, format, arguments);
  size_t end = length < 0 ? used : used + (size_t)length;
  if (end > sizeof line - 2)
    end = sizeof line - 2;
  line[end++] = '\n';
  struct write_hold hold;
  ssize_t written;
  write_hold(&hold);
  do
    written = write(STDERR_FILENO, line, end);
  while (written < 0 && errno == EINTR);
  write_release(&hold);
}

static void __attribute__((format(printf, 1, 2))) print(const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  print_line(format, arguments);
  va_end(arguments);
}

static bool wanted(enum config_log least) {
  return atomic_load_explicit(&state.may_print, memory_order_acquire) &&
         atomic_load_explicit(&state.log, memory_order_relaxed) >= (int)least && stderr_is_ours();
}

void report_line(enum config_log least, const char *format, ...) {
  /* Callers stand inside the program's calls, which are no places to be cancelled at, either. */
  const int error = errno;
  int cancel = PTHREAD_CANCEL_ENABLE;
  (void)pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel);
  va_list arguments;
  va_start(arguments, format);
  if (wanted(least)) {
    struct kind *kind = kind_of(format);
    uint32_t left_out = 0;
    const bool may = !kind || allowed(kind, &left_out);
    if (left_out)
      print("... %u more like the next line", (unsigned)left_out);
    if (may)
      print_line(format, arguments);
  }
  va_end(arguments);
  (void)pthread_setcancelstate(cancel, NULL);
  errno = error;
}

void report_sentence(enum config_log least, const char *sentence) {
  const int error = errno;
  int cancel = PTHREAD_CANCEL_ENABLE;
  (void)pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel);
  if (wanted(least))
    print("%s", sentence);
  (void)pthread_setcancelstate(cancel, NULL);
  errno = error;
}

/* The format stands for its lines. */
static void say_left_out(const char *format, uint32_t lines) {
  enum { SHOWN = 60 };
  print("... %u more like \"%.*s%s\"", (unsigned)lines, SHOWN, format,
        strlen(format) > SHOWN ? "..." : "");
}

void report_line_finish(void) {
  for (unsigned i = 0; i < KINDS; i++) {
    const char *format = atomic_load_explicit(&state.kinds[i].format, memory_order_relaxed);
    if (!format)
      return;
    const uint32_t lines =
        beyond(atomic_exchange_explicit(&state.kinds[i].count, 0, memory_order_relaxed));
    if (lines && wanted(LOG_NORMAL))
      say_left_out(format, lines);
  }
}
