/* The team: every element done once whatever the number of threads, floating-point modes of the
   caller kept out of the numbers and put back, and what is refused. */
#define _GNU_SOURCE
#include "adam/team.h"
#include "adam_support.h"
#include "tests/lib/tap.h"
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>
#if defined __x86_64__
#include <xmmintrin.h>
#endif

enum { MOST = 300001, SPECIAL_BITS = 0x5eed5eed };
static float g[MOST], m[MOST], v[MOST], u[MOST], expected_m[MOST], expected_v[MOST],
    expected_u[MOST];
static const struct adam_hyper hyper = {1e-3, 0.9, 0.999, 0, 1e-8, false};

static struct adam_job job_of(enum adam_generation generation, uint64_t elements) {
  struct adam_job job = {.gradient = g,
                         .exp_avg = m,
                         .exp_avg_sq = v,
                         .update = u,
                         .elements = elements,
                         .generation = generation,
                         .beta1 = hyper.beta1,
                         .beta2 = hyper.beta2,
                         .eps = hyper.eps};
  scalars_by_libm(generation, &hyper, 7, 0, 0, &job.scalars);
  return job;
}

/* Fresh inputs, and what must come of them. Elements beyond the job must stay. */
static void prepare(const struct adam_job *job, uint64_t seed) {
  for (size_t i = 0; i < MOST; i++) {
    g[i] = hostile(&seed);
    m[i] = expected_m[i] = hostile(&seed);
    v[i] = expected_v[i] = hostile(&seed);
    u[i] = expected_u[i] = float_of(SPECIAL_BITS);
  }
  struct adam_job expected = *job;
  expected.exp_avg = expected_m;
  expected.exp_avg_sq = expected_v;
  expected.update = expected_u;
  restated_step(&expected);
}

static bool as_expected(void) {
  return !memcmp(m, expected_m, sizeof m) && !memcmp(v, expected_v, sizeof v) &&
         !memcmp(u, expected_u, sizeof u);
}

static size_t threads_of_process(void) {
  size_t count = 0;
  DIR *tasks = opendir("/proc/self/task");
  for (struct dirent *entry; tasks && (entry = readdir(tasks));)
    count += entry->d_name[0] != '.';
  if (tasks)
    closedir(tasks);
  return count;
}

/* A limit of processes, which root isn't held to: for the team's probe and for its runtime. */
static size_t threads_most = SIZE_MAX;

int pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*start)(void *),
                   void *argument) {
  static int (*real)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);
  if (!real)
    *(void **)&real = dlsym(RTLD_NEXT, "pthread_create");
  return threads_of_process() < threads_most ? real(thread, attributes, start, argument) : EAGAIN;
}

/* In a child that has no team yet. */
static bool works_under_limit(void) {
  char error[256] = "";
  threads_most = threads_of_process() + 4;
  struct adam_team *team = team_create(8, ADAM_ISA_AUTO, error, sizeof error);
  if (!team || team_threads(team) != 3 || !strstr(error, "ulimit -u"))
    return false;
  threads_most = 0; /* its threads are there already */
  const struct adam_job job = job_of(ADAM_FLOAT, MOST);
  prepare(&job, 11);
  team_step(team, &job);
  return as_expected() && threads_of_process() >= 3;
}

static bool works_without_any(void) {
  char error[256] = "";
  threads_most = 0;
  struct adam_team *team = team_create(8, ADAM_ISA_AUTO, error, sizeof error);
  const struct adam_job job = job_of(ADAM_FLOAT, MOST);
  prepare(&job, 12);
  if (team)
    team_step(team, &job);
  return team && team_threads(team) == 1 && *error && as_expected();
}

static void test_limits(void) {
  bool (*const cases[])(void) = {works_under_limit, works_without_any};
  bool good[2] = {false, false};
  fflush(stdout);
  for (size_t i = 0; i < 2; i++) {
    int status = 1;
    const pid_t child = fork();
    if (!child)
      _exit(cases[i]() ? 0 : 2);
    good[i] = child > 0 && waitpid(child, &status, 0) == child && status == 0;
  }
#ifndef __SANITIZE_THREAD__ /* whose own threads count as the process's */
  tap_ok(good[0], "where 4 more threads can be started a team of 8 has 3, says so, and works");
#endif
  tap_ok(good[1], "where no thread can be started a team has one, says so, and works");
}

static void test_splitting(void) {
  static const uint64_t sizes[] = {0, 1, 1023, 32767, 32768, 32769, 65537, MOST - 1, MOST};
  char error[256] = "";
  for (int threads = 1; threads <= 5; threads++) {
    size_t wrong = 0;
    struct adam_team *team = team_create(threads, ADAM_ISA_AUTO, error, sizeof error);
    for (size_t i = 0; team && i < sizeof sizes / sizeof *sizes; i++)
      for (int generation = 0; generation < ADAM_GENERATIONS; generation++) {
        const struct adam_job job = job_of((enum adam_generation)generation, sizes[i]);
        prepare(&job, sizes[i] + (uint64_t)generation + 1);
        team_step(team, &job);
        wrong += !as_expected();
      }
    tap_ok(team && !wrong && team_threads(team) == threads,
           "a team of %d does every element once, for jobs of 0 to %d elements", threads, MOST);
    team_destroy(team);
  }
  tap_ok(threads_of_process() >= 5, "a team of 5 did its work with 5 threads");
}

/* Jobs of one call: small and large, of no element, with scalars of their own and shared, two kinds
   of types. Each has its place in the arrays, with elements between them that must stay. */
static void test_lists(void) {
  enum { JOBS = 400, GAP = 3, LARGE = 70001 };
  static struct adam_job jobs[JOBS];
  static uint16_t halves[2][JOBS], expected_halves[2][JOBS];
  char error[256] = "";
  for (int threads = 1; threads <= 5; threads += 2) {
    struct adam_team *team = team_create(threads, ADAM_ISA_AUTO, error, sizeof error);
    const struct adam_job whole = job_of(ADAM_FLOAT, 0);
    prepare(&whole, 21);
    uint64_t seed = 22, at = 0, stepped = 0;
    for (size_t i = 0; i < JOBS; i++) {
      struct adam_job *job = &jobs[i];
      const uint64_t elements =
          i == 7 || i == 300 ? LARGE : random_bits(&seed) % 500 * (i % 9 != 0);
      *job = job_of(i % 50 < 25 ? ADAM_FLOAT : ADAM_DOUBLE, elements);
      scalars_by_libm(job->generation, &hyper, (float)(1 + i / 3 % 4), 0, 0, &job->scalars);
      job->negate = i % 10 < 5;
      job->gradient = g + at;
      job->exp_avg = m + at;
      job->exp_avg_sq = v + at;
      job->update = u + at;
      if (i % 31 == 30) { /* half moments, in arrays of their own */
        job->state_type = ADAM_TYPE_HALF;
        job->exp_avg = &halves[0][i];
        job->exp_avg_sq = &halves[1][i];
        job->elements = 1;
        for (size_t k = 0; k < 2; k++)
          halves[k][i] = expected_halves[k][i] = (uint16_t)random_bits(&seed);
      }
      struct adam_job expected = *job;
      expected.exp_avg = job->state_type ? (void *)&expected_halves[0][i] : expected_m + at;
      expected.exp_avg_sq = job->state_type ? (void *)&expected_halves[1][i] : expected_v + at;
      expected.update = expected_u + at;
      restated_step(&expected);
      at += job->elements + GAP;
      stepped += job->elements;
    }
    const bool done = team && at <= MOST && team_step_many(team, jobs, JOBS);
    tap_ok(done && stepped > 2 * LARGE && as_expected() &&
               !memcmp(halves, expected_halves, sizeof halves),
           "a team of %d does a list of %d jobs with scalars and types of their own, every element "
           "once",
           threads, JOBS);
    jobs[JOBS - 1].gradient_type = ADAM_TYPE_DOUBLE;
    tap_ok(team && !team_step_many(team, jobs, JOBS) && as_expected() &&
               team_step_many(team, jobs, 0),
           "a list with a job whose types don't go together is refused whole by a team of %d",
           threads);
    team_destroy(team);
  }
}

#if defined __x86_64__
enum { FTZ_DAZ = 0x8040, TOWARDS_ZERO = 0x6000, EXCEPTION_FLAGS = 0x3f };

/* In a thread of its own: what the runtime makes threads of inherits these modes. */
static void *step_with_odd_modes(void *argument) {
  bool *good = argument;
  char error[256];
  struct adam_team *team = team_create(3, ADAM_ISA_AUTO, error, sizeof error);
  if (!team)
    return NULL;
  for (int generation = 0; generation < ADAM_GENERATIONS; generation++) {
    const struct adam_job job = job_of((enum adam_generation)generation, MOST);
    prepare(&job, 99);
    const unsigned odd = (_mm_getcsr() & ~(unsigned)EXCEPTION_FLAGS) | FTZ_DAZ | TOWARDS_ZERO;
    _mm_setcsr(odd);
    team_step(team, &job);
    const unsigned left = _mm_getcsr();
    _mm_setcsr(0x1f80);
    good[0] = good[0] && as_expected();
    good[1] = good[1] && (left & ~(unsigned)EXCEPTION_FLAGS) == odd;
  }
  team_destroy(team);
  good[2] = true;
  return NULL;
}

/* Every types that go together, in ranges of several threads: each array is split in its own bytes. */
static void test_types(void) {
  enum { COUNT = 70001 };
  static double arrays[5][COUNT], expected[5][COUNT];
  static const enum adam_type types[][2] = {{ADAM_TYPE_HALF, ADAM_TYPE_FLOAT},
                                            {ADAM_TYPE_HALF, ADAM_TYPE_HALF},
                                            {ADAM_TYPE_FLOAT, ADAM_TYPE_BFLOAT16},
                                            {ADAM_TYPE_BFLOAT16, ADAM_TYPE_BFLOAT16},
                                            {ADAM_TYPE_DOUBLE, ADAM_TYPE_DOUBLE}};
  char error[256] = "";
  struct adam_team *team = team_create(3, ADAM_ISA_AUTO, error, sizeof error);
  unsigned right = 0, cases = 0;
  for (size_t k = 0; k < sizeof types / sizeof *types && team; k++)
    for (int maxima = 0; maxima < 2; maxima++) {
      uint64_t seed = k + 5;
      struct adam_job job = job_of(ADAM_DOUBLE, COUNT);
      job.gradient_type = types[k][0];
      job.state_type = types[k][1];
      memset(arrays, 0, sizeof arrays);
      for (size_t q = 0; q < 4; q++)
        for (size_t i = 0; i < COUNT; i++)
          restated_store(types[k][q > 0], arrays[q], i, (double)hostile(&seed));
      memcpy(expected, arrays, sizeof expected);
      for (int restated = 1; restated >= 0; restated--) {
        double(*const a)[COUNT] = restated ? expected : arrays;
        job.gradient = a[0];
        job.exp_avg = a[1];
        job.exp_avg_sq = a[2];
        job.max_exp_avg_sq = maxima ? a[3] : NULL;
        job.update = a[4];
        if (restated)
          restated_step(&job);
        else
          cases += team_step(team, &job);
      }
      right += !memcmp(arrays, expected, sizeof arrays);
    }
  tap_ok(cases == 10 && right == cases,
         "three threads split jobs of every type, with and without maxima");
  struct adam_job job = job_of(ADAM_DOUBLE, 100);
  prepare(&job, 9);
  job.gradient_type = ADAM_TYPE_DOUBLE;
  memcpy(expected, m, sizeof m);
  tap_ok(team && !team_step(team, &job) && !memcmp(expected, m, sizeof m),
         "a job whose types don't go together is refused, with nothing done");
  team_destroy(team);
}

static void test_modes(void) {
  bool good[3] = {true, true, false};
  pthread_t thread;
  if (!pthread_create(&thread, NULL, step_with_odd_modes, good))
    pthread_join(thread, NULL);
  tap_ok(good[0] && good[2],
         "flush-to-zero and rounding towards zero in the caller and its threads change no bit");
  tap_ok(good[1] && good[2], "the caller's floating-point modes are as before");
}
#else
static void test_modes(void) {}
#endif

static void test_places(void) {
  char error[256];
  cpu_set_t all, one, now;
  CPU_ZERO(&one);
  sched_getaffinity(0, sizeof all, &all);
  for (size_t cpu = 0; cpu < CPU_SETSIZE && !CPU_COUNT(&one); cpu++)
    if (CPU_ISSET(cpu, &all))
      CPU_SET(cpu, &one);
  struct adam_team *team = team_create(2, ADAM_ISA_AUTO, error, sizeof error);
  /* As OMP_PROC_BIND would do between the team's creation and its first job. */
  sched_setaffinity(0, sizeof one, &one);
  const struct adam_job job = job_of(ADAM_FLOAT, MOST);
  prepare(&job, 3);
  team_step(team, &job);
  sched_getaffinity(0, sizeof now, &now);
  tap_ok(CPU_EQUAL(&now, &all), "a thread of the team takes the CPUs its creator was allowed");
  team_destroy(team);

  sched_setaffinity(0, sizeof one, &one);
  team = team_create(2, ADAM_ISA_AUTO, error, sizeof error);
  prepare(&job, 4);
  team_step(team, &job);
  DIR *tasks = opendir("/proc/self/task");
  size_t bound = 0;
  for (struct dirent *entry; tasks && (entry = readdir(tasks));) {
    if (entry->d_name[0] == '.')
      continue;
    sched_getaffinity((pid_t)atoi(entry->d_name), sizeof now, &now);
    bound += CPU_EQUAL(&now, &one) != 0;
  }
  if (tasks)
    closedir(tasks);
  tap_ok(bound >= 2 && as_expected(), "a team made on one CPU keeps to it with all its threads");
  team_destroy(team);
  sched_setaffinity(0, sizeof all, &all);
}

static void test_refusals(void) {
  char error[256] = "";
  tap_ok(!team_create(0, ADAM_ISA_AUTO, error, sizeof error) && strstr(error, "OFFLOAD_THREADS"),
         "a team of no thread is refused in a sentence");
  error[0] = 0;
#if defined __x86_64__
  const enum adam_isa foreign = ADAM_ISA_NEON;
#else
  const enum adam_isa foreign = ADAM_ISA_AVX512;
#endif
  tap_ok(!team_create(1, foreign, error, sizeof error) && strstr(error, "OFFLOAD_ISA"),
         "a team with an instruction set that isn't there is refused in a sentence");
}

int main(void) {
  test_limits(); /* first: a child of a process with a team has none */
  test_splitting();
  test_lists();
  test_types();
  test_modes();
  test_places();
  test_refusals();
  return tap_done();
}
