/* offload-probe: measures what rates.def lists, in a process of its own, so that nothing of it happens to the program that wants to
   know. Started by the library (shim/measure.c) and by `offload bench`; both read the rates that it prints.

     offload-probe [--gpu NUMBER|BUS-ID] [--ranks N] [--nvme DIRECTORIES] [--cached | --again] [--verbose] [--as NAME]

   --as: what its messages begin with.
   --ranks: of this node, that share its memory: then all CPUs that may be had measure it, not this one's alone.
   --cached: what is kept for this boot, driver and GPU is printed as it is; else measured and kept. --again: measured and kept.
   Exit status: 0 measured; 1 nothing can be measured, with a sentence on stderr; 2 wrong options; 3 out of time. */
#define _GNU_SOURCE
#include "probe.h"
#include "../nvme/clock.h"
#include "rates_cache.h"
#include "version.h"
#include <errno.h>
#include <getopt.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
  EXIT_NOTHING = 1,
  EXIT_OPTIONS = 2,
  EXIT_LATE = 3,
  DEADLINE_SECONDS = 20,
  LOCK_SECONDS = 10
};

struct options {
  const char *gpu;
  unsigned ranks;
  const char *nvme;
  bool cached, again, verbose;
};

static const char *called = "offload-probe"; /* what messages begin with */

void probe_say(const struct probe *probe, const char *format, ...) {
  if (!probe->verbose)
    return;
  va_list arguments;
  va_start(arguments, format);
  fprintf(stderr, "%s: ", called);
  vfprintf(stderr, format, arguments);
  fputc('\n', stderr);
  va_end(arguments);
}

static int usage(void) {
  fputs("usage: offload-probe [--gpu NUMBER|BUS-ID] [--ranks N] [--nvme DIRECTORIES] [--cached | "
        "--again] [--verbose] [--as NAME]\n",
        stderr);
  return EXIT_OPTIONS;
}

static int parse(int count, char **words, struct options *options) {
  static const struct option known[] = {{"gpu", 1, NULL, 'g'},   {"ranks", 1, NULL, 'r'},
                                        {"nvme", 1, NULL, 'n'},  {"cached", 0, NULL, 'c'},
                                        {"again", 0, NULL, 'a'}, {"verbose", 0, NULL, 'v'},
                                        {"as", 1, NULL, 's'},    {NULL, 0, NULL, 0}};
  for (int word; (word = getopt_long(count, words, "", known, NULL)) != -1;) {
    char *end = "";
    if (word == 'g')
      options->gpu = optarg;
    else if (word == 'r')
      options->ranks = (unsigned)strtoul(optarg, &end, 10);
    else if (word == 'n')
      options->nvme = *optarg ? optarg : NULL;
    else if (word == 'c')
      options->cached = true;
    else if (word == 'a')
      options->again = true;
    else if (word == 'v')
      options->verbose = true;
    else if (word == 's')
      called = optarg;
    else
      return usage();
    if (*end || (word == 'r' && !options->ranks))
      return usage();
  }
  return optind < count ? usage() : 0;
}

/* A driver may hang; SIGALRM can't be held up by it. */
static void bound_time(void) {
  sigset_t all;
  sigemptyset(&all);
  sigprocmask(SIG_SETMASK, &all, NULL); /* whoever started us may have had signals blocked */
  signal(SIGALRM, SIG_DFL);
  alarm(DEADLINE_SECONDS);
}

static int print(const struct rates_key *key, const struct rates *rates) {
  char text[4096];
  const int length = rates_text(key, rates, text, sizeof text);
  return length < (int)sizeof text && fwrite(text, 1, (size_t)length, stdout) == (size_t)length &&
                 !fflush(stdout)
             ? EXIT_SUCCESS
             : EXIT_NOTHING;
}

/* A rank that has CPUs of its own would find its share alone, of which others would be taken again: all that the process's set of
   CPUs allows are asked for. Their memory is all nodes' then. */
static void widen(struct probe *probe, unsigned ranks) {
  cpu_set_t set;
  if (ranks > 1) {
    memset(&set, 0xff, sizeof set);
    (void)sched_setaffinity(0, sizeof set, &set);
    probe->node = -1;
  }
  probe->threads = sched_getaffinity(0, sizeof set, &set) ? 1 : (unsigned)CPU_COUNT(&set);
}

/* Ranks with GPUs of their own measure at the same time; host memory they share, so one after another. */
static void measure_host(struct probe *probe, const struct rates_key *key, uint64_t until_ns) {
  char why[256];
  const int lock = rates_cache_lock(key, "host-memory", until_ns, why, sizeof why);
  probe_host_memory(probe);
  probe_elements(probe);
  if (lock >= 0)
    close(lock);
}

static bool measure(struct probe *probe, struct probe_gpu *gpu, const struct rates_key *key,
                    unsigned ranks, uint64_t until_ns) {
  char why[300];
  if (!probe_gpu_measure(gpu, probe, why, sizeof why)) {
    fprintf(stderr, "%s: %s\n", called, why);
    return false;
  }
  const double distance = probe_distance(probe->root, probe->node);
  if (distance > 0)
    probe->rates.numa_distance = distance;
  widen(probe, ranks);
  measure_host(probe, key, until_ns);
  probe_drives(probe);
  probe->rates.source = RATES_MEASURED;
  return true;
}

int main(int count, char **words) {
  struct options options = {.gpu = "0"};
  int status = parse(count, words, &options);
  if (status)
    return status;
  bound_time();
  umask(077);
  /* For what this process loads and starts: no library of ours stands before its driver, and modules are loaded as they are used. */
  (void)unsetenv("LD_PRELOAD");
  (void)setenv("OFFLOAD_MODE", "off", 1);
  (void)setenv("CUDA_MODULE_LOADING", "LAZY", 1);

  const char *root = getenv("OFFLOAD_SYSROOT");
  char why[4400], path[RATES_PATH_BYTES];
  struct rates_key key;
  int version = 0;
  struct probe probe = {
      .root = root ? root : "", .drives = options.nvme, .verbose = options.verbose};
  struct rates_key of_gpu = {.drives = NULL};
  struct probe_gpu *gpu = probe_gpu_open(options.gpu, &of_gpu, &version, why, sizeof why);
  if (!gpu) {
    fprintf(stderr, "%s: %s\n", called, why);
    return EXIT_NOTHING;
  }
  bool keep = (options.cached || options.again) && rates_key_here(&key, root, version);
  if (!keep)
    (void)rates_key_here(&key, root, version);
  memcpy(key.gpu, of_gpu.gpu, sizeof key.gpu);
  memcpy(key.name, of_gpu.name, sizeof key.name);
  key.drives = options.nvme;
  const uint64_t until = clock_now_ns() + (uint64_t)LOCK_SECONDS * 1000000000u;
  if (keep && rates_cache_lock(&key, NULL, until, why, sizeof why) < 0) {
    fprintf(stderr, "%s: %s\n", called, why);
    keep = false;
  }
  rates_assume(&probe.rates);
  if (keep && !options.again && rates_cached(&key, &probe.rates, path))
    return print(&key, &probe.rates); /* who had the lock before has measured */
  probe.node = probe_node_of(probe.root, key.gpu);
  if (!measure(&probe, gpu, &key, options.ranks, until))
    return EXIT_NOTHING;
  if (keep && !rates_cache_store(&key, &probe.rates, why, sizeof why))
    fprintf(stderr, "%s: %s\n", called, why);
  return print(&key, &probe.rates);
}
