/* adam-bench: parameters per second of the CPU step over buffers far larger than any cache, for
   every instruction set, generation and number of threads, and in the same run, alternating, the
   machine's memory bandwidth by a triad (a = b + s*c). JSON on stdout: "adam", a list of rows, and
   "triad_bytes_per_s" with all threads. Bytes are counted as the triad's are: what is read and
   written, without the reads that stores cause.

     adam-bench [--elements N] [--rounds N] [--threads N] [--denormal] [--staged N]

   --denormal fills the moments of zero gradients with denormals; --staged N uses gradient and
   update buffers of N elements again and again, as the step's staging does. The best of the rounds
   counts: the machine may be shared. */
#define _GNU_SOURCE
#include "adam.h"
#include <dlfcn.h>
#include <errno.h>
#include <getopt.h>
#include <libgen.h>
#include <omp.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum { BYTES_PER_PARAM = 24, TRIAD_BYTES = 12, ROWS_MOST = 64 };

struct options {
  uint64_t elements, staged;
  unsigned rounds, threads;
  bool denormal;
};

struct buffers {
  float *g, *m, *v, *u;
};

struct row {
  enum adam_isa isa;
  enum adam_generation generation;
  int threads;
  struct adam_team *team;
  double best_seconds;
};

static double seconds_now(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static const struct adam_api *load(void) {
  char self[2048], path[4096];
  const ssize_t bytes = readlink("/proc/self/exe", self, sizeof self - 1);
  self[bytes > 0 ? bytes : 0] = 0;
  snprintf(path, sizeof path, "%s/liboffload-adam.so", dirname(self));
  void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  offload_adam_function *entry = NULL;
  if (library)
    *(void **)&entry = dlsym(library, "offload_adam");
  if (!entry)
    fprintf(stderr, "adam-bench: %s\n", dlerror());
  return entry ? entry() : NULL;
}

static float *map(uint64_t elements) {
  void *memory = mmap(NULL, elements * sizeof(float), PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED)
    return NULL;
  madvise(memory, elements * sizeof(float), MADV_HUGEPAGE); /* as pinned memory is */
  return memory;
}

static void fill(const struct buffers *b, const struct options *o) {
#pragma omp parallel for num_threads((int)o->threads)
  for (uint64_t i = 0; i < o->elements; i++) {
    const float x = (float)(i % 8191) * 1e-5f - 0.04f;
    b->m[i] = o->denormal ? 5.6e-45f : x;
    b->v[i] = o->denormal ? 7.0e-43f : x * x;
    if (i < (o->staged ? o->staged : o->elements)) {
      b->g[i] = o->denormal ? 0.0f : x * 0.5f;
      b->u[i] = 0.0f;
    }
  }
}

static double triad_seconds(const struct buffers *b, const struct options *o) {
  float *to = b->u;
  const float *left = b->g, *right = b->m;
  const double begin = seconds_now();
#pragma omp parallel for num_threads((int)o->threads) schedule(static)
  for (uint64_t i = 0; i < o->elements; i++)
    to[i] = left[i] + 3.0f * right[i];
  return seconds_now() - begin;
}

static double step_seconds(const struct adam_api *api, const struct row *row,
                           const struct buffers *b, const struct options *o) {
  const struct adam_hyper hyper = {1e-3, 0.9, 0.999, 0, 1e-8, false};
  const uint64_t part = o->staged ? o->staged : o->elements;
  struct adam_job job = {.gradient = b->g,
                         .update = b->u,
                         .generation = row->generation,
                         .beta1 = hyper.beta1,
                         .beta2 = hyper.beta2,
                         .eps = hyper.eps};
  api->scalars(row->generation, &hyper, 10, 0, 0, &job.scalars);
  const double begin = seconds_now();
  for (uint64_t first = 0; first < o->elements; first += part) {
    job.exp_avg = b->m + first;
    job.exp_avg_sq = b->v + first;
    job.elements = o->elements - first < part ? o->elements - first : part;
    api->step(row->team, &job);
  }
  return seconds_now() - begin;
}

/* One row for each instruction set that is to be had, generation of its own arithmetic, and 1 or
 * all threads. */
static size_t make_rows(const struct adam_api *api, const struct options *o, struct row *rows) {
  static const enum adam_isa isas[] = {ADAM_ISA_SCALAR, ADAM_ISA_AVX2, ADAM_ISA_AVX512,
                                       ADAM_ISA_NEON};
  static const enum adam_generation generations[] = {ADAM_DOUBLE, ADAM_FLOAT};
  size_t count = 0;
  for (size_t i = 0; i < sizeof isas / sizeof *isas; i++)
    for (size_t k = 0; k < 2; k++)
      for (int all = 0; all < 2 && count < ROWS_MOST; all++) {
        char error[256];
        const int threads = all ? (int)o->threads : 1;
        if (all && threads == 1)
          continue;
        struct adam_team *team = api->team_create(threads, isas[i], error, sizeof error);
        if (team)
          rows[count++] = (struct row){isas[i], generations[k], threads, team, 1e30};
      }
  return count;
}

static bool number_of(const char *text, uint64_t most, uint64_t *number) {
  char *end;
  errno = 0;
  *number = strtoull(text, &end, 10);
  return !errno && end != text && !*end && *number >= 1 && *number <= most;
}

static bool parse(int argc, char **argv, struct options *o) {
  static const struct option known[] = {
      {"elements", required_argument, NULL, 'e'}, {"rounds", required_argument, NULL, 'r'},
      {"threads", required_argument, NULL, 't'},  {"staged", required_argument, NULL, 's'},
      {"denormal", no_argument, NULL, 'd'},       {NULL, 0, NULL, 0}};
  cpu_set_t cpus;
  *o = (struct options){.elements = 100000000, .rounds = 3, .threads = 1};
  if (!sched_getaffinity(0, sizeof cpus, &cpus))
    o->threads = (unsigned)CPU_COUNT(&cpus);
  for (int c; (c = getopt_long(argc, argv, "", known, NULL)) != -1;) {
    uint64_t number = 0;
    if (c == '?')
      return false;
    if (c == 'd') {
      o->denormal = true;
      continue;
    }
    const uint64_t most = c == 'e' || c == 's' ? (uint64_t)1 << 36 : 4096;
    if (!number_of(optarg, most, &number)) {
      fprintf(stderr, "adam-bench: '%s' is no number from 1 to %llu\n", optarg,
              (unsigned long long)most);
      return false;
    }
    if (c == 'e')
      o->elements = number;
    else if (c == 's')
      o->staged = number;
    else if (c == 'r')
      o->rounds = (unsigned)number;
    else
      o->threads = (unsigned)number;
  }
  if (o->staged > o->elements)
    o->staged = o->elements;
  return optind == argc;
}

int main(int argc, char **argv) {
  struct options o;
  struct row rows[ROWS_MOST];
  if (!parse(argc, argv, &o))
    return 2;
  const struct adam_api *api = load();
  const struct buffers b = {map(o.elements), map(o.elements), map(o.elements), map(o.elements)};
  if (!api || !b.g || !b.m || !b.v || !b.u) {
    fprintf(stderr, "adam-bench: no companion, or no memory for %llu elements (--elements)\n",
            (unsigned long long)o.elements);
    return 1;
  }
  const size_t count = make_rows(api, &o, rows);
  double triad_best = 1e30;
  fill(&b,
       &o); /* once: the moments of a constant gradient settle, denormal ones stay as they are */
  for (unsigned round = 0; round < o.rounds; round++)
    for (size_t i = 0; i < count; i++) {
      const double triad = triad_seconds(&b, &o);
      triad_best = triad < triad_best ? triad : triad_best;
      const double step = step_seconds(api, &rows[i], &b, &o);
      rows[i].best_seconds = step < rows[i].best_seconds ? step : rows[i].best_seconds;
    }
  printf("{\"adam\": [");
  for (size_t i = 0; i < count; i++) {
    printf("%s\n  {\"isa\": \"%s\", \"threads\": %d, \"generation\": \"%s\", \"elements\": %llu, "
           "\"params_per_s\": %.0f, \"bytes_per_param\": %d}",
           i ? "," : "", api->isa_name(rows[i].isa), rows[i].threads,
           api->generation_name(rows[i].generation), (unsigned long long)o.elements,
           (double)o.elements / rows[i].best_seconds, BYTES_PER_PARAM);
    api->team_destroy(rows[i].team);
  }
  printf("\n],\n\"triad_bytes_per_s\": %.0f}\n", (double)o.elements * TRIAD_BYTES / triad_best);
  return 0;
}
