/* The timeline's ring and file: bounded, the last spans, whole from several threads, lanes for what overlaps on the host, one line of an
   error. tests/lib/trace.py checks what is written. */
#include "policy/report.h"
#include "policy/trace.h"
#include "tests/lib/tap.h"
#include <pthread.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char directory[] = "/tmp/policy_trace.XXXXXX";
static char path[64], sums[64];
static struct config config;

static bool checks(void) {
  char command[256];
  trace_write(&config);
  snprintf(command, sizeof command, "python3 tests/lib/trace.py %s > %s", path, sums);
  fflush(stdout);
  return system(command) == 0;
}

static bool says(const char *filter) {
  char command[512];
  snprintf(command, sizeof command, "jq -e '%s' %s > /dev/null", filter, sums);
  return system(command) == 0;
}

static void add(enum trace_track track, int device, uint64_t begin_us, uint64_t end_us,
                uint64_t bytes) {
  trace_add(&(struct trace_span){.track = track,
                                 .device = device,
                                 .name = "span",
                                 .begin_ns = begin_us * 1000,
                                 .end_ns = end_us * 1000,
                                 .step = 3,
                                 .bytes = bytes,
                                 .elements = bytes / 4});
}

static void test_tracks(void) {
  add(TRACE_DOWN, 0, 1, 2, 1000);
  trace_write(&config);
  tap_ok(access(path, F_OK) != 0 && !trace_on(), "nothing is kept or written before it begins");
  tap_ok(trace_start() && trace_start() && trace_on(), "it begins once");
  add(TRACE_DOWN, 0, 100, 200, 1000);
  add(TRACE_DOWN, 1, 150, 250, 2000);
  add(TRACE_DOWN, 0, 200, 300, 4000);
  add(TRACE_DRIVE_READ, 0, 100, 200, 8000);
  add(TRACE_DRIVE_READ, 0, 110, 190, 8000);
  add(TRACE_DRIVE_READ, 0, 120, 130, 8000);
  add(TRACE_DRIVE_READ, 0, 130, 180, 8000);
  add(TRACE_UP, 0, 500, 400, 16);
  trace_lost(2);
  tap_ok(checks(), "what is written is a timeline without overlaps");
  tap_ok(says(".spans == 8 and .dropped == 0 and .lost == 2"), "it says how many there are");
  tap_ok(says(".tracks[\"copy down\"] | .spans == 3 and .bytes == 7000 and .threads == 2"),
         "each device has a track of its own");
  tap_ok(says(".tracks[\"drive read\"] | .spans == 4 and .threads == 3"),
         "what overlaps on the host has as many lanes as it takes");
  tap_ok(says(".tracks[\"copy up\"] | .begin_us == .end_us"),
         "a span that ends before it begins has no length");
  tap_ok(says(".steps[\"3\"][\"copy down\"] == 7000"), "spans name their step");
}

enum { THREADS = 4, EACH = 40000 };

static void *add_many(void *argument) {
  const uint64_t thread = (uint64_t)(uintptr_t)argument;
  for (uint64_t i = 0; i < EACH; i++)
    add(TRACE_DOWN, (int)thread, 1000 + i, 1001 + i, 1);
  return NULL;
}

static void test_bounds(void) {
  pthread_t threads[THREADS];
  for (uintptr_t i = 0; i < THREADS; i++)
    pthread_create(&threads[i], NULL, add_many, (void *)i);
  for (unsigned i = 0; i < 3; i++)
    trace_write(&config);
  for (unsigned i = 0; i < THREADS; i++)
    pthread_join(threads[i], NULL);
  tap_ok(checks(), "spans that several threads add while it is written are whole");
  char filter[128];
  snprintf(filter, sizeof filter, ".spans == %d and .dropped == %d", (int)TRACE_SPANS,
           THREADS * EACH + 8 - (int)TRACE_SPANS);
  tap_ok(says(filter), "of too many the last are kept and the others counted");
  add(TRACE_UP, 0, 1u << 30, (1u << 30) + 1, 77);
  tap_ok(checks() && says(".tracks[\"copy up\"].bytes == 77"), "the last one is among them");
  struct stat file;
  tap_ok(stat(path, &file) == 0 && file.st_size < 16 << 20, "the file is bounded");
}

static void test_errors(void) {
  config.trace = "/nowhere/at/all/trace.json";
  const int saved = dup(STDERR_FILENO);
  char name[64], text[512] = "";
  snprintf(name, sizeof name, "%s/stderr", directory);
  FILE *file = fopen(name, "w+");
  fflush(stderr);
  dup2(fileno(file), STDERR_FILENO);
  report_configure(&config);
  trace_write(&config);
  trace_write(&config);
  dup2(saved, STDERR_FILENO);
  const ssize_t bytes = pread(fileno(file), text, sizeof text - 1, 0);
  text[bytes > 0 ? bytes : 0] = 0;
  fclose(file);
  const char *line = "liboffload: OFFLOAD_TRACE=/nowhere/at/all/trace.json could not be written "
                     "(No such file or directory): name a file";
  tap_ok(!strncmp(text, line, strlen(line)) && strchr(text, '\n') == text + strlen(text) - 1,
         "a file that can't be written is told once");
}

int main(void) {
  if (!mkdtemp(directory))
    return 1;
  snprintf(path, sizeof path, "%s/trace.json", directory);
  snprintf(sums, sizeof sums, "%s/sums.json", directory);
  config_load(&config, NULL);
  config.trace = path;
  config.local_rank = 2;
  test_tracks();
  test_bounds();
  test_errors();
  char command[96];
  snprintf(command, sizeof command, "rm -rf %s", directory);
  return system(command) == 0 ? tap_done() : 1;
}
