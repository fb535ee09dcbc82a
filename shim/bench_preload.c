/* What the preload costs a process from outside: start-up of whole programs, and single calls as bench_calls.c measures them.
   Every program runs with the library and without in turns, which one first changes from pair to
   pair; medians of the pairs are printed as JSON. The processor's time is told beside the clock's:
   on a machine that does other things too, it is the steadier one. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <limits.h>
#include <spawn.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { PAIRS_MOST = 1001, CALLS_MOST = 32, NAME_BYTES = 64 };

static const char usage[] =
    "usage: preload-bench LIBRARY PYTHON SIMULATOR HELLO DRIVER CALLS [PAIRS]\n"
    "LIBRARY: liboffload.so. PYTHON: an interpreter, no script that starts one. SIMULATOR: folder "
    "of\n"
    "the simulated libcuda.so.1, on which HELLO runs. DRIVER: folder of the empty libcuda.so.1, "
    "on\n"
    "which CALLS runs. PAIRS: of runs, an odd number (default 41)\n";

static _Noreturn void fail(const char *what) {
  fprintf(stderr, "preload-bench: %s\n", what);
  exit(EXIT_FAILURE);
}

static double now_ns(void) {
  struct timespec now;
  (void)clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec * 1e9 + (double)now.tv_nsec;
}

static int ascending(const void *a, const void *b) {
  const double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

static double median(double *values, size_t count) {
  qsort(values, count, sizeof *values, ascending);
  return values[count / 2];
}

/* Of a run, in nanoseconds: from spawn to end, and of the processor. */
struct cost {
  double clock, processor;
};

static double of(const struct timeval *time) {
  return (double)time->tv_sec * 1e9 + (double)time->tv_usec * 1e3;
}

/* Runs a program with this library (NULL: none) in front and `libraries` to look in, its output
   into `out`. */
static struct cost run(char *const *command, const char *library, const char *libraries, int out) {
  char preload[PATH_MAX + 16], path[PATH_MAX + 32], quiet[] = "OFFLOAD_LOG=quiet";
  char *environment[] = {quiet, path, preload, NULL};
  posix_spawn_file_actions_t actions;
  pid_t child;
  int status = 0;
  struct rusage used;
  snprintf(path, sizeof path, "LD_LIBRARY_PATH=%s", libraries);
  snprintf(preload, sizeof preload, "LD_PRELOAD=%s", library ? library : "");
  if (!library)
    environment[2] = NULL;
  if (posix_spawn_file_actions_init(&actions) ||
      posix_spawn_file_actions_adddup2(&actions, out, STDOUT_FILENO))
    fail("no memory");
  const double start = now_ns();
  if (posix_spawn(&child, command[0], &actions, NULL, command, environment) ||
      wait4(child, &status, 0, &used) != child || status)
    fail(command[0]);
  const double end = now_ns();
  posix_spawn_file_actions_destroy(&actions);
  return (struct cost){end - start, of(&used.ru_utime) + of(&used.ru_stime)};
}

/* Medians of the pairs, of one kind of time: `"hooked_NAME": ..., "unhooked_NAME": ..., "NAME_ratio": ...`. */
static void medians(const char *name, double *hooked, double *bare, size_t pairs) {
  static double ratio[PAIRS_MOST];
  for (size_t i = 0; i < pairs; i++)
    ratio[i] = hooked[i] / bare[i];
  printf(", \"hooked_%s_ms\": %.3f, \"unhooked_%s_ms\": %.3f, \"%s_ratio\": %.4f", name,
         median(hooked, pairs) * 1e-6, name, median(bare, pairs) * 1e-6, name,
         median(ratio, pairs));
}

static void startup(const char *name, char *const *command, const char *library,
                    const char *libraries, size_t pairs, bool last) {
  static double clock_hooked[PAIRS_MOST], clock_bare[PAIRS_MOST];
  static double processor_hooked[PAIRS_MOST], processor_bare[PAIRS_MOST];
  const int nowhere = open("/dev/null", O_WRONLY | O_CLOEXEC);
  struct cost hooked = {0}, bare = {0};
  (void)run(command, library, libraries, nowhere); /* files come into memory */
  for (size_t i = 0; i < pairs; i++) {
    if (i % 2)
      bare = run(command, NULL, libraries, nowhere);
    hooked = run(command, library, libraries, nowhere);
    if (i % 2 == 0)
      bare = run(command, NULL, libraries, nowhere);
    clock_hooked[i] = hooked.clock, clock_bare[i] = bare.clock;
    processor_hooked[i] = hooked.processor, processor_bare[i] = bare.processor;
  }
  close(nowhere);
  printf("{\"program\": \"%s\", \"pairs\": %zu", name, pairs);
  medians("clock", clock_hooked, clock_bare, pairs);
  medians("processor", processor_hooked, processor_bare, pairs);
  printf("}%s", last ? "" : ",\n ");
}

/* The lines "ns name" that bench_calls prints, into column `turn` of `ns`; how many. */
static size_t read_calls(char *const *command, const char *library, const char *libraries,
                         char names[][NAME_BYTES], double (*ns)[PAIRS_MOST], size_t turn) {
  char path[] = "/tmp/preload-bench-XXXXXX", line[128];
  const int fd = mkostemp(path, O_CLOEXEC);
  if (fd < 0)
    fail("no file in /tmp");
  (void)unlink(path);
  (void)run(command, library, libraries, fd);
  FILE *lines = fdopen(fd, "r");
  if (!lines || fseek(lines, 0, SEEK_SET))
    fail("no memory");
  size_t count = 0;
  for (; count < CALLS_MOST && fgets(line, sizeof line, lines); count++) {
    char *end;
    ns[count][turn] = strtod(line, &end);
    if (end == line)
      fail("the calls' bench printed something else than its lines");
    snprintf(names[count], NAME_BYTES, "%.*s", (int)strcspn(end + 1, "\n"), end + 1);
  }
  (void)fclose(lines);
  return count;
}

static void calls(char *const *command, const char *library, const char *libraries, size_t pairs) {
  static char names[CALLS_MOST][NAME_BYTES];
  static double hooked[CALLS_MOST][PAIRS_MOST], bare[CALLS_MOST][PAIRS_MOST];
  size_t count = 0;
  for (size_t i = 0; i < pairs; i++) {
    if (i % 2)
      (void)read_calls(command, NULL, libraries, names, bare, i);
    count = read_calls(command, library, libraries, names, hooked, i);
    if (i % 2 == 0)
      (void)read_calls(command, NULL, libraries, names, bare, i);
  }
  for (size_t i = 0; i < count; i++)
    printf("{\"call\": \"%s\", \"hooked_ns\": %.1f, \"unhooked_ns\": %.1f}%s", names[i],
           median(hooked[i], pairs), median(bare[i], pairs), i + 1 < count ? ",\n " : "");
}

int main(int count, char **words) {
  if (count != 7 && count != 8) {
    fputs(usage, stderr);
    return 2;
  }
  const size_t pairs = count == 8 ? strtoul(words[7], NULL, 10) : 41;
  if (pairs % 2 == 0 || pairs >= PAIRS_MOST)
    fail("PAIRS is an odd number below 1001");
  char option[] = "-c", pass[] = "pass";
  char *const python[] = {words[2], option, pass, NULL};
  char *const hello[] = {words[4], NULL}, *const call[] = {words[6], NULL};
  printf("{\"startup\": [\n ");
  startup("python3 -c pass", python, words[1], "/nonexistent", pairs, false);
  startup("CUDA hello", hello, words[1], words[3], pairs, true);
  printf("],\n\"calls\": [\n ");
  calls(call, words[1], words[5], pairs < 9 ? pairs : 9);
  printf("]}\n");
  return EXIT_SUCCESS;
}
