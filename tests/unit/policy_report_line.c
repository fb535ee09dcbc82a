/* Lines on stderr: the prefix with and without ranks, and no kind of line more often than it may be, from several threads too. */
#include "policy/report.h"
#include "policy/report_line.h"
#include "tests/lib/tap.h"
#include <fcntl.h>
#include <pthread.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static char name[] = "/tmp/policy_report_line.XXXXXX";
static int file, saved;
static char text[1 << 16];

static void capture(void) {
  fflush(stderr);
  (void)ftruncate(file, 0);
  dup2(file, STDERR_FILENO);
}

static unsigned lines_with(const char *part) {
  unsigned count = 0;
  for (const char *at = text; (at = strstr(at, part)); at += strlen(part))
    count++;
  return count;
}

static void captured(void) {
  dup2(saved, STDERR_FILENO);
  const ssize_t bytes = pread(file, text, sizeof text - 1, 0);
  text[bytes > 0 ? bytes : 0] = 0;
}

static void configure(unsigned ranks, int rank, enum config_log log) {
  struct config config;
  config_load(&config, NULL);
  config.log = log;
  config.local_ranks = ranks;
  config.local_rank = rank;
  dup2(file, STDERR_FILENO);
  report_reset();
  report_configure(&config);
  dup2(saved, STDERR_FILENO);
  config_free(&config);
}

static void one_kind(unsigned i) {
  report_line(LOG_NORMAL, "moved %u bytes", i);
}

static void *many(void *unused) {
  for (unsigned i = 0; i < 500; i++)
    one_kind(i);
  return unused;
}

/* At the beginning of a window, so that what follows lies in it. */
static void next_window(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  const uint64_t ns = (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
  const uint64_t left = report_line_window_ns - ns % report_line_window_ns + 1000000;
  const struct timespec nap = {(time_t)(left / 1000000000u), (long)(left % 1000000000u)};
  nanosleep(&nap, NULL);
}

int main(void) {
  file = mkstemp(name);
  saved = dup(STDERR_FILENO);
  (void)unlink(name);
  (void)fcntl(file, F_SETFL, O_APPEND);

  configure(1, 0, LOG_NORMAL);
  capture();
  one_kind(1);
  captured();
  tap_ok(!strcmp(text, "liboffload: moved 1 bytes\n"), "a rank alone on its node has no number");
  configure(4, 3, LOG_NORMAL);
  capture();
  one_kind(1);
  report_sentence(LOG_NORMAL, "a sentence");
  captured();
  tap_ok(!strcmp(text, "liboffload[3]: moved 1 bytes\nliboffload[3]: a sentence\n"),
         "one of several has its number in every line");
  configure(4, -1, LOG_NORMAL);
  capture();
  one_kind(1);
  captured();
  tap_ok(!strcmp(text, "liboffload: moved 1 bytes\n"), "one that isn't told its number has none");

  report_line_window_ns = 400000000;
  configure(1, 0, LOG_VERBOSE);
  next_window();
  capture();
  for (unsigned i = 0; i < 100; i++)
    one_kind(i);
  report_line(LOG_VERBOSE, "of another kind");
  for (unsigned i = 0; i < 50; i++)
    report_sentence(LOG_NORMAL, "a sentence");
  captured();
  tap_ok(lines_with("moved ") == REPORT_LINES_A_MINUTE && lines_with("moved 0 bytes") == 1,
         "of a hundred lines of a kind the first come");
  tap_ok(lines_with("of another kind") == 1 && lines_with("a sentence") == 50,
         "other kinds, and what is told but once, are not held back by it");
  next_window();
  capture();
  one_kind(7);
  captured();
  tap_ok(!strcmp(text, "liboffload: ... 80 more like the next line\nliboffload: moved 7 bytes\n"),
         "the next one says how many were left out");

  pthread_t threads[4];
  configure(1, 0, LOG_NORMAL);
  report_line_window_ns = 3600000000000;
  capture();
  for (unsigned i = 0; i < 4; i++)
    pthread_create(&threads[i], NULL, many, NULL);
  for (unsigned i = 0; i < 4; i++)
    pthread_join(threads[i], NULL);
  report_line_finish();
  captured();
  tap_ok(lines_with("moved ") == REPORT_LINES_A_MINUTE + 1 &&
             strstr(text, "liboffload: ... 1980 more like \"moved %u bytes\"\n"),
         "several threads together have no more, and the end tells what was left out");
  capture();
  report_line_finish();
  captured();
  tap_ok(!*text, "once");
  configure(1, 0, LOG_QUIET);
  capture();
  for (unsigned i = 0; i < 100; i++)
    one_kind(i);
  report_line_finish();
  captured();
  tap_ok(!*text, "OFFLOAD_LOG=quiet leaves all out, and says nothing of it");
  return tap_done();
}
