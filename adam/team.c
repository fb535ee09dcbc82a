/* The worker team: splits jobs into a share of blocks per OpenMP thread.

   The threads belong to the OpenMP runtime and to the thread that calls team_step; the team only
   says how many, which kernels, and on which CPUs. Nothing of OpenMP's environment decides here:
   the number of threads is explicit, and each thread takes the CPUs that the creator of the team
   was allowed, whatever OMP_PROC_BIND or OMP_PLACES would have it do. Should the runtime give fewer
   threads than asked for (OMP_THREAD_LIMIT), the shares follow what it gave. They are all started
   when the team is made, which finds out before how many can be (threads.h). */
#define _GNU_SOURCE /* cpu_set_t */
#include "team.h"
#include "float_environment.h"
#include "isa.h"
#include "threads.h"
#include <errno.h>
#include <omp.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
  /* Below this a job is done by the caller alone: waking a team costs some microseconds. */
  ELEMENTS_WORTH_A_TEAM = 32768,
  /* Shares begin at multiples of this within a job: no cache line is written by two threads, few tails. */
  RANGE_ELEMENTS = 1024,
  CPUS_MOST = 65536,
  THREADS_MOST = 4096,
};

struct adam_team {
  const struct adam_kernels *kernels;
  enum adam_isa isa;
  int threads;
  uint64_t id; /* never used twice in a process */
  cpu_set_t *cpus;
  size_t cpus_bytes;
  /* What orders the job's memory between caller and team. The runtime's own barriers do so too, but
     tools that check for races don't see them. */
  _Atomic unsigned begun, ended;
};

/* A running number, so that a thread knows whether it has this team's CPUs already. */
static _Atomic uint64_t teams_created;
static _Thread_local uint64_t placed_for;

/* The CPUs this thread may run on, in a set as large as the kernel wants it. */
static bool cpus_allowed(cpu_set_t **cpus, size_t *cpus_bytes) {
  for (int count = 1024; count <= CPUS_MOST; count *= 2) {
    cpu_set_t *set = CPU_ALLOC((size_t)count);
    if (!set)
      return false;
    const size_t set_bytes = CPU_ALLOC_SIZE((size_t)count);
    if (sched_getaffinity(0, set_bytes, set) == 0) {
      *cpus = set;
      *cpus_bytes = set_bytes;
      return true;
    }
    const int failure = errno;
    CPU_FREE(set);
    if (failure != EINVAL) /* EINVAL: the kernel's set is larger */
      return false;
  }
  return false;
}

enum adam_isa team_isa(const struct adam_team *team) {
  return team->isa;
}

int team_threads(const struct adam_team *team) {
  return team->threads;
}

/* This thread's own settings, not the process's: OMP_DYNAMIC may not shrink the team,
   OMP_MAX_ACTIVE_LEVELS=0 not forbid it. */
static void allow_threads(void) {
  omp_set_dynamic(0);
  if (omp_get_max_active_levels() < 1)
    omp_set_max_active_levels(1);
}

/* Now, so that no step can meet a limit of processes; and from under the places of the runtime. */
__attribute__((no_sanitize("thread"))) static void start_threads(struct adam_team *team) {
  allow_threads();
#pragma omp parallel num_threads(team->threads) default(none) shared(team)
  sched_setaffinity(0, team->cpus_bytes, team->cpus);
}

struct adam_team *team_create(int threads, enum adam_isa isa, char *error, size_t error_bytes) {
  enum adam_isa chosen = ADAM_ISA_SCALAR;
  if (threads < 1 || threads > THREADS_MOST) {
    snprintf(error, error_bytes, "%d threads for the CPU step: set OFFLOAD_THREADS to 1 to %d",
             threads, THREADS_MOST);
    return NULL;
  }
  const struct adam_kernels *kernels =
      isa_choose(isa, isa_available(), &chosen, error, error_bytes);
  if (!kernels)
    return NULL;
  struct adam_team *team = calloc(1, sizeof *team);
  if (!team || !cpus_allowed(&team->cpus, &team->cpus_bytes)) {
    free(team);
    snprintf(error, error_bytes, "no memory for the CPU step's team of threads");
    return NULL;
  }
  team->kernels = kernels;
  team->isa = chosen;
  team->threads = threads_to_be_had(threads, team->cpus, team->cpus_bytes, error, error_bytes);
  team->id = atomic_fetch_add_explicit(&teams_created, 1, memory_order_relaxed) + 1;
  if (team->threads > 1)
    start_threads(team);
  return team;
}

void team_destroy(struct adam_team *team) {
  if (team)
    CPU_FREE(team->cpus);
  free(team);
}

/* The jobs of one call. */
struct work {
  const struct adam_job *jobs;
  size_t count;
  uint64_t blocks, elements; /* of all */
};

static uint64_t blocks_of(const struct adam_job *job) {
  return (job->elements + RANGE_ELEMENTS - 1) / RANGE_ELEMENTS;
}

/* Elements of the jobs that begin alike, as far as it matters. */
static uint64_t elements_alike(const struct adam_job *jobs, size_t count) {
  uint64_t elements = 0;
  for (size_t i = 0; i < count && elements < ELEMENTS_WORTH_A_RECIPROCAL; i++) {
    if (i && !adam_jobs_alike(jobs, &jobs[i]))
      break;
    elements += jobs[i].elements;
  }
  return elements;
}

/* Elements [first, end) of a job. */
static void do_elements(adam_kernel *kernel, const struct adam_constants *constants,
                        const struct adam_job *job, uint64_t first, uint64_t end) {
  const size_t gradient_bytes = adam_type_bytes(job->gradient_type);
  const size_t state_bytes = adam_type_bytes(job->state_type);
  const size_t update_bytes = adam_type_bytes(adam_type_opmath(job->state_type));
  char *const larger = job->max_exp_avg_sq;
  kernel(constants, (const char *)job->gradient + first * gradient_bytes,
         (char *)job->exp_avg + first * state_bytes, (char *)job->exp_avg_sq + first * state_bytes,
         larger ? larger + first * state_bytes : NULL, (char *)job->update + first * update_bytes,
         end - first);
}

/* Thread `index` of `threads` does its share: a run of blocks, over as many jobs as they are from.
   Failing to take the CPUs only costs speed. */
static void do_share(struct adam_team *team, const struct work *work, int index, int threads) {
  if (placed_for != team->id) {
    sched_setaffinity(0, team->cpus_bytes, team->cpus);
    placed_for = team->id;
  }
  const uint64_t first = work->blocks * (uint64_t)index / (uint64_t)threads;
  const uint64_t end = work->blocks * ((uint64_t)index + 1) / (uint64_t)threads;
  const float_environment found = float_environment_enter();
  const struct adam_job *known = NULL; /* whose these are */
  adam_kernel *kernel = NULL;
  struct adam_constants constants;
  uint64_t before = 0; /* blocks of the jobs before this one */
  for (size_t i = 0; i < work->count && before < end; i++) {
    const struct adam_job *job = &work->jobs[i];
    const uint64_t blocks = blocks_of(job), from = before > first ? before : first;
    const uint64_t to = before + blocks < end ? before + blocks : end;
    if (from < to) {
      if (!known || !adam_jobs_alike(known, job)) {
        kernel = adam_kernel_of(team->kernels, job);
        adam_constants_of(job, elements_alike(job, work->count - i), work->elements, &constants);
        known = job;
      }
      const uint64_t last = (to - before) * RANGE_ELEMENTS;
      do_elements(kernel, &constants, job, (from - before) * RANGE_ELEMENTS,
                  last < job->elements ? last : job->elements);
    }
    before += blocks;
  }
  team->kernels->stream_end();
  float_environment_leave(found);
}

/* One thread's part, ordered with the caller's by the two counters. */
static __attribute__((noinline)) void take_part(struct adam_team *team, const struct work *work,
                                                int index, int threads) {
  atomic_load_explicit(&team->begun,
                       memory_order_acquire); /* sees the jobs as the caller wrote them */
  do_share(team, work, index, threads);
  atomic_fetch_add_explicit(&team->ended, 1, memory_order_release); /* shows the results to it */
}

/* The region's own variables travel through the runtime, which race checkers can't follow: what it
 * calls is checked. */
__attribute__((no_sanitize("thread"))) static void run_team(struct adam_team *team,
                                                            const struct work *work) {
#pragma omp parallel num_threads(team->threads) default(none) shared(team, work)
  take_part(team, work, omp_get_thread_num(), omp_get_num_threads());
}

bool team_step_many(struct adam_team *team, const struct adam_job *jobs, size_t count) {
  struct work work = {.jobs = jobs, .count = count};
  for (size_t i = 0; i < count; i++) {
    if (!adam_kernel_of(team->kernels, &jobs[i]))
      return false;
    work.blocks += blocks_of(&jobs[i]);
    work.elements += jobs[i].elements;
  }
  if (team->threads == 1 || work.elements < ELEMENTS_WORTH_A_TEAM) {
    do_share(team, &work, 0, 1);
    return true;
  }
  allow_threads();
  atomic_fetch_add_explicit(&team->begun, 1, memory_order_release);
  run_team(team, &work);
  atomic_load_explicit(&team->ended, memory_order_acquire);
  return true;
}

bool team_step(struct adam_team *team, const struct adam_job *job) {
  return team_step_many(team, job, 1);
}
