/* adam-bench: parameters per second of the CPU step over buffers far larger than any cache, for
   every type, instruction set, generation and number of threads, and in the same run, alternating,
   the machine's memory bandwidth by a triad (a = b + s*c). JSON on stdout: "adam", a list of rows,
   and "triad_bytes_per_s" with all threads. Bytes are counted as the triad's are: what is read and
   written, without the reads that stores cause.

     adam-bench [--elements N] [--rounds N] [--threads N] [--denormal] [--staged N] [--processor-time]

   --denormal fills the moments of zero gradients with denormals; --staged N uses gradient and
   update buffers of N elements again and again, as the step's staging does. The best of the rounds
   counts: the machine may be shared. --processor-time counts what the process used, divided by the
   threads, instead of the clock's time: steadier there. */
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

enum { TRIAD_BYTES = 12, ROWS_MOST = 96, WIDEST = 8 };

struct options {
  uint64_t elements, staged;
  unsigned rounds, threads;
  bool denormal, processor_time;
};

/* Room for elements of any type. */
struct buffers {
  void *g, *m, *v, *max_v, *u;
};

static const struct kind {
  const char *name;
  enum adam_type gradient, state;
  bool maxima, everywhere; /* also with scalar code */
  enum adam_generation generations[2];
} kinds[] = {
    {"fp32", ADAM_TYPE_FLOAT, ADAM_TYPE_FLOAT, false, true, {ADAM_DOUBLE, ADAM_FLOAT}},
    {"fp32 amsgrad", ADAM_TYPE_FLOAT, ADAM_TYPE_FLOAT, true, false, {ADAM_DOUBLE, ADAM_FLOAT}},
    {"bf16", ADAM_TYPE_BFLOAT16, ADAM_TYPE_BFLOAT16, false, false, {ADAM_DOUBLE, ADAM_FLOAT}},
    {"fp16", ADAM_TYPE_HALF, ADAM_TYPE_HALF, false, false, {ADAM_DOUBLE, ADAM_FLOAT}},
    {"fp32, bf16 moments",
     ADAM_TYPE_FLOAT,
     ADAM_TYPE_BFLOAT16,
     false,
     false,
     {ADAM_MIXED, ADAM_MIXED}},
    {"fp64", ADAM_TYPE_DOUBLE, ADAM_TYPE_DOUBLE, false, false, {ADAM_DOUBLE, ADAM_FLOAT}},
};
enum { KINDS = sizeof kinds / sizeof *kinds };

struct row {
  const struct kind *kind;
  enum adam_isa isa;
  enum adam_generation generation;
  int threads;
  struct adam_team *team;
  double best_seconds;
};

static double seconds_now(const struct options *o) {
  struct timespec now;
  clock_gettime(o->processor_time ? CLOCK_PROCESS_CPUTIME_ID : CLOCK_MONOTONIC, &now);
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

static void *map(uint64_t elements) {
  void *memory =
      mmap(NULL, elements * WIDEST, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED)
    return NULL;
  madvise(memory, elements * WIDEST, MADV_HUGEPAGE); /* as pinned memory is */
  return memory;
}

/* One array: a row of values, again and again. */
static void fill_array(const struct adam_api *api, enum adam_type type, void *array, uint64_t count,
                       const struct options *o, bool squared, double scale, double denormal) {
  enum { ROW = 8191 };
  const size_t bytes = adam_type_bytes(type);
  static _Alignas(8) char row[ROW * WIDEST];
  for (unsigned i = 0; i < ROW; i++) {
    const double x = (double)i * 1e-5 - 0.04;
    api->store(type, row, i, o->denormal ? denormal : (squared ? x * x : x) * scale);
  }
  const uint64_t rows = (count + ROW - 1) / ROW;
#pragma omp parallel for num_threads((int)o->threads)
  for (uint64_t i = 0; i < rows; i++) {
    const uint64_t first = i * ROW, left = count - first;
    memcpy((char *)array + first * bytes, row, (left < ROW ? left : ROW) * bytes);
  }
}

static void fill(const struct adam_api *api, const struct kind *kind, const struct buffers *b,
                 const struct options *o) {
  const uint64_t staged = o->staged ? o->staged : o->elements;
  fill_array(api, kind->gradient, b->g, staged, o, false, 0.5, 0);
  fill_array(api, adam_type_opmath(kind->state), b->u, staged, o, false, 0, 0);
  fill_array(api, kind->state, b->m, o->elements, o, false, 1, 0x1p-147);
  fill_array(api, kind->state, b->v, o->elements, o, true, 1, 0x1p-140);
  if (kind->maxima)
    fill_array(api, kind->state, b->max_v, o->elements, o, true, 1, 0x1p-140);
}

/* Read and written per parameter. */
static unsigned bytes_per_param(const struct kind *kind) {
  const size_t state = adam_type_bytes(kind->state);
  return (unsigned)(adam_type_bytes(kind->gradient) +
                    adam_type_bytes(adam_type_opmath(kind->state)) +
                    state * (kind->maxima ? 6 : 4));
}

static double triad_seconds(const struct buffers *b, const struct options *o) {
  float *to = b->u;
  const float *left = b->m, *right = b->v;
  const double begin = seconds_now(o);
#pragma omp parallel for num_threads((int)o->threads) schedule(static)
  for (uint64_t i = 0; i < o->elements; i++)
    to[i] = left[i] + 3.0f * right[i];
  return (seconds_now(o) - begin) / (o->processor_time ? o->threads : 1);
}

static double step_seconds(const struct adam_api *api, const struct row *row,
                           const struct buffers *b, const struct options *o) {
  const struct adam_hyper hyper = {1e-3, 0.9, 0.999, 0, 1e-8, false};
  const uint64_t part = o->staged ? o->staged : o->elements;
  const size_t state_bytes = adam_type_bytes(row->kind->state);
  struct adam_job job = {.gradient = b->g,
                         .update = b->u,
                         .generation = row->generation,
                         .gradient_type = row->kind->gradient,
                         .state_type = row->kind->state,
                         .beta1 = hyper.beta1,
                         .beta2 = hyper.beta2,
                         .eps = hyper.eps};
  api->scalars(row->generation, &hyper, 10, 0, 0, &job.scalars);
  const double begin = seconds_now(o);
  for (uint64_t first = 0; first < o->elements; first += part) {
    job.exp_avg = (char *)b->m + first * state_bytes;
    job.exp_avg_sq = (char *)b->v + first * state_bytes;
    job.max_exp_avg_sq = row->kind->maxima ? (char *)b->max_v + first * state_bytes : NULL;
    job.elements = o->elements - first < part ? o->elements - first : part;
    api->step(row->team, &job);
  }
  return (seconds_now(o) - begin) / (o->processor_time ? row->threads : 1);
}

/* Of a kind, one row for each instruction set that is to be had, generation of its own arithmetic,
   and 1 or all threads. */
static size_t make_rows(const struct adam_api *api, const struct kind *kind,
                        const struct options *o, struct row *rows, size_t count) {
  static const enum adam_isa isas[] = {ADAM_ISA_SCALAR, ADAM_ISA_AVX2, ADAM_ISA_AVX512,
                                       ADAM_ISA_NEON};
  for (size_t i = kind->everywhere ? 0 : 1; i < sizeof isas / sizeof *isas; i++)
    for (size_t k = kind->generations[0] == kind->generations[1]; k < 2; k++)
      for (int all = 0; all < 2 && count < ROWS_MOST; all++) {
        char error[256];
        const int threads = all ? (int)o->threads : 1;
        if (all && threads == 1)
          continue;
        struct adam_team *team = api->team_create(threads, isas[i], error, sizeof error);
        if (team)
          rows[count++] = (struct row){kind, isas[i], kind->generations[k], threads, team, 1e30};
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
  static const struct option known[] = {{"elements", required_argument, NULL, 'e'},
                                        {"rounds", required_argument, NULL, 'r'},
                                        {"threads", required_argument, NULL, 't'},
                                        {"staged", required_argument, NULL, 's'},
                                        {"denormal", no_argument, NULL, 'd'},
                                        {"processor-time", no_argument, NULL, 'p'},
                                        {NULL, 0, NULL, 0}};
  cpu_set_t cpus;
  *o = (struct options){.elements = 100000000, .rounds = 3, .threads = 1};
  if (!sched_getaffinity(0, sizeof cpus, &cpus))
    o->threads = (unsigned)CPU_COUNT(&cpus);
  for (int c; (c = getopt_long(argc, argv, "", known, NULL)) != -1;) {
    uint64_t number = 0;
    if (c == '?')
      return false;
    if (c == 'd' || c == 'p') {
      *(c == 'd' ? &o->denormal : &o->processor_time) = true;
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
  const struct buffers b = {map(o.elements), map(o.elements), map(o.elements), map(o.elements),
                            map(o.elements)};
  if (!api || !b.g || !b.m || !b.v || !b.max_v || !b.u) {
    fprintf(stderr, "adam-bench: no companion, or no memory for %llu elements (--elements)\n",
            (unsigned long long)o.elements);
    return 1;
  }
  size_t count = 0;
  double triad_best = 1e30;
  for (size_t kind = 0; kind < KINDS; kind++) {
    const size_t first = count;
    count = make_rows(api, &kinds[kind], &o, rows, count);
    /* Once: the moments of a constant gradient settle, denormal ones stay as they are. */
    fill(api, &kinds[kind], &b, &o);
    for (unsigned round = 0; round < o.rounds; round++)
      for (size_t i = first; i < count; i++) {
        /* Only of floats: other types' bits would be NaN or denormals. */
        const double triad = kinds[kind].state == ADAM_TYPE_FLOAT ? triad_seconds(&b, &o) : 1e30;
        triad_best = triad < triad_best ? triad : triad_best;
        const double step = step_seconds(api, &rows[i], &b, &o);
        rows[i].best_seconds = step < rows[i].best_seconds ? step : rows[i].best_seconds;
      }
  }
  printf("{\"adam\": [");
  for (size_t i = 0; i < count; i++) {
    printf("%s\n  {\"type\": \"%s\", \"isa\": \"%s\", \"threads\": %d, \"generation\": \"%s\", "
           "\"elements\": %llu, "
           "\"params_per_s\": %.0f, \"bytes_per_param\": %u}",
           i ? "," : "", rows[i].kind->name, api->isa_name(rows[i].isa), rows[i].threads,
           api->generation_name(rows[i].generation), (unsigned long long)o.elements,
           (double)o.elements / rows[i].best_seconds, bytes_per_param(rows[i].kind));
    api->team_destroy(rows[i].team);
  }
  printf("\n],\n\"triad_bytes_per_s\": %.0f}\n", (double)o.elements * TRIAD_BYTES / triad_best);
  return 0;
}
