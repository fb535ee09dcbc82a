/* Launches: blocks are taken in order by one thread or, with GPUSIM_THREADS, several; a block's
   threads run as teams of lanes in lockstep. Called by the launch room; entered with no lock
   held. */
#include "ptx_run.h"
#include <fenv.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct ptx_job { /* a launch */
  struct gpusim_kernel *kernel;
  const struct ptx_program *program;
  const struct ptx_native *native;
  const uint8_t *parameters;
  const struct gpusim_launch *launch;
  uint64_t next, total; /* blocks; `next` is atomic */
  int result;           /* atomic; of the first block that failed */
  uint64_t instructions;
  struct gpusim_traffic traffic;
  char *error;
  size_t error_bytes;
  pthread_mutex_t lock; /* protects result, error, instructions, traffic when a worker ends */
};

/* ---- errors ---- */

void ptx_thread_index(const struct ptx_block *block, uint32_t thread, uint32_t index[3]) {
  const uint32_t *size = block->launch->block;
  index[0] = thread % size[0];
  index[1] = thread / size[0] % size[1];
  index[2] = thread / size[0] / size[1];
}

void ptx_fail(struct ptx_team *t, const struct ptx_instruction *i, uint32_t lane, int result,
              const char *format, ...) {
  struct ptx_block *block = t->block;
  char what[512];
  uint32_t thread[3];
  if (block->result)
    return;
  block->result = result;
  va_list args;
  va_start(args, format);
  vsnprintf(what, sizeof what, format, args);
  va_end(args);
  ptx_thread_index(block, t->first + lane, thread);
  snprintf(block->error, block->error_bytes,
           "block %u,%u,%u thread %u,%u,%u: %s; PTX line %u: %.*s; kernel %s", block->index[0],
           block->index[1], block->index[2], thread[0], thread[1], thread[2], what, i->line,
           (int)strcspn(i->text, ";\n"), i->text, block->kernel->name);
}

/* ---- blocks ---- */

#define EACH_TEAM_LANE(w, t, l)                                                                    \
  for (uint32_t k_ = 0; k_ < (w)->team_count; k_++)                                                \
    for (struct ptx_team *t = (w)->teams[k_]; t; t = NULL)                                         \
      for (uint32_t l = 0; l < t->count; l++)

static const struct ptx_instruction *waiting_at(const struct ptx_team *t, uint32_t lane) {
  return &t->block->program->code[t->pc[lane]];
}

/* bar.red: the predicates of all that waited, combined. */
static uint32_t barrier_reduced(struct ptx_worker *w, uint32_t id) {
  uint32_t true_count = 0, count = 0;
  uint8_t combine = 0;
  EACH_TEAM_LANE(w, t, l) {
    if (t->state[l] != PTX_AT_BARRIER || t->wait[l].id != id)
      continue;
    const struct ptx_instruction *i = waiting_at(t, l);
    if (!(i->flags & PTX_M_RED))
      continue;
    combine = i->combine;
    count++;
    true_count += t->registers[i->operand[2] + l] != ((i->flags & PTX_M_NEGATE) != 0);
  }
  return combine == PTX_POPC  ? true_count
         : combine == PTX_AND ? true_count == count
                              : true_count != 0;
}

static void barrier_release(struct ptx_worker *w, uint32_t id) {
  uint32_t value = barrier_reduced(w, id);
  EACH_TEAM_LANE(w, t, l) {
    if (t->state[l] != PTX_AT_BARRIER || t->wait[l].id != id)
      continue;
    const struct ptx_instruction *i = waiting_at(t, l);
    if (i->flags & PTX_M_RED && i->operand[3] != PTX_NONE) {
      if (i->combine == PTX_POPC)
        ((uint32_t *)(void *)(t->registers + i->operand[3]))[l] = value;
      else
        t->registers[i->operand[3] + l] = (uint8_t)value;
    }
    t->state[l] = PTX_READY;
    t->pc[l]++;
  }
  w->arrived[id] = 0;
}

/* Opens every barrier that all it waits for have reached. Threads that have exited are not
   waited for. */
static bool barriers_open(struct ptx_worker *w, uint32_t alive) {
  uint32_t waiting[PTX_BARRIERS] = {0}, wanted[PTX_BARRIERS] = {0};
  bool opened = false;
  EACH_TEAM_LANE(w, t, l) {
    if (t->state[l] != PTX_AT_BARRIER)
      continue;
    uint32_t id = t->wait[l].id;
    waiting[id]++;
    if (t->wait[l].threads > wanted[id])
      wanted[id] = t->wait[l].threads;
  }
  for (uint32_t id = 0; id < PTX_BARRIERS; id++) {
    if (!waiting[id] || waiting[id] + w->arrived[id] < (wanted[id] ? wanted[id] : alive))
      continue;
    barrier_release(w, id);
    opened = true;
  }
  return opened;
}

static void deadlock(struct ptx_worker *w) {
  EACH_TEAM_LANE(w, t, l) {
    if (t->state[l] != PTX_AT_BARRIER && t->state[l] != PTX_AT_WARP)
      continue;
    const struct ptx_instruction *i = waiting_at(t, l);
    ptx_fail(t, i, l, 719, "deadlock: %s that the others never reach",
             t->state[l] == PTX_AT_BARRIER ? "waits at a barrier" : "waits for lanes of its warp");
  }
}

static bool team_can_run(const struct ptx_team *t) {
  return memchr(t->state, PTX_READY, t->count) || memchr(t->state, PTX_YIELDED, t->count);
}

static void team_end(struct ptx_worker *w, uint32_t index) {
  w->spare[w->spare_count++] = w->teams[index];
  w->teams[index] = NULL;
}

/* Teams start one after the other, so that those that never wait can share one state, which
   stays in cache. */
static void block_run(struct ptx_worker *w) {
  struct ptx_block *block = &w->block;
  uint32_t started = 0;
  memset(w->arrived, 0, sizeof w->arrived);
  memset(block->shared, gpusim_settings.poison ? 0xcc : 0, block->shared_bytes);
  for (;;) {
    bool progress = false;
    uint32_t alive = 0;
    if (started < w->team_count) {
      while (started < w->team_count && !block->result) {
        if (!ptx_team_start(w, started))
          break;
        ptx_team_run(w, w->teams[started]);
        if (w->teams[started]->exited == w->teams[started]->count)
          team_end(w, started);
        started++;
      }
      progress = true;
    }
    for (uint32_t k = 0; k < w->team_count && !block->result; k++) {
      struct ptx_team *t = w->teams[k];
      if (t && team_can_run(t)) {
        ptx_team_run(w, t);
        progress = true;
      }
      if (t && t->exited == t->count)
        team_end(w, k);
      else if (t)
        alive += t->count - t->exited;
    }
    if (block->result || !alive)
      break;
    if (!barriers_open(w, alive) && !progress)
      deadlock(w);
  }
  for (uint32_t k = 0; k < w->team_count; k++)
    if (w->teams[k])
      team_end(w, k);
}

static bool worker_ready(struct ptx_worker *w, struct ptx_job *job, char *error,
                         size_t error_bytes) {
  const struct gpusim_launch *launch = job->launch;
  const struct ptx_program *program = job->program;
  struct ptx_block *block = &w->block;
  memset(w, 0, sizeof *w);
  *block = (struct ptx_block){.program = program,
                              .native = job->native,
                              .launch = launch,
                              .kernel = job->kernel,
                              .parameters = job->parameters,
                              .parameter_bytes = job->kernel->parameter_bytes,
                              .threads = launch->block[0] * launch->block[1] * launch->block[2],
                              .generation = gpusim_memory_generation(),
                              .error = error,
                              .error_bytes = error_bytes};
  block->shared_bytes =
      (uint32_t)ptx_align(program->static_shared_bytes, program->dynamic_alignment) +
      launch->dynamic_shared_bytes;
  w->team_count = (block->threads + PTX_LANES - 1) / PTX_LANES;
  block->shared = aligned_alloc(128, ptx_align(block->shared_bytes + 1u, 128));
  w->teams = calloc(w->team_count, sizeof *w->teams);
  w->spare = calloc(w->team_count, sizeof *w->spare);
  return block->shared && w->teams && w->spare;
}

static void worker_free(struct ptx_worker *w) {
  for (uint32_t k = 0; w->spare && k < w->spare_count && w->spare[k]; k++) {
    ptx_stacks_free(w->spare[k]);
    free(w->spare[k]->registers);
    free(w->spare[k]);
  }
  free(w->block.shared);
  free(w->teams);
  free(w->spare);
}

static void *work(void *argument) {
  struct ptx_job *job = argument;
  struct ptx_worker worker;
  struct ptx_block *block = &worker.block;
  char error[1024] = "out of memory";
  fenv_t environment;
  /* A program may have set flushing of subnormals for its threads, which threads made by it
     inherit. */
  fegetenv(&environment);
  fesetenv(FE_DFL_ENV);
  if (!worker_ready(&worker, job, error, sizeof error))
    block->result = 2;
  while (!block->result && !__atomic_load_n(&job->result, __ATOMIC_RELAXED)) {
    uint64_t next = __atomic_fetch_add(&job->next, 1, __ATOMIC_RELAXED);
    if (next >= job->total)
      break;
    const uint32_t *grid = job->launch->grid;
    block->index[0] = (uint32_t)(next % grid[0]);
    block->index[1] = (uint32_t)(next / grid[0] % grid[1]);
    block->index[2] = (uint32_t)(next / grid[0] / grid[1]);
    block_run(&worker);
  }
  pthread_mutex_lock(&job->lock);
  job->instructions += block->instructions;
  job->traffic.device_read += block->traffic[false][false];
  job->traffic.device_written += block->traffic[false][true];
  job->traffic.host_read += block->traffic[true][false];
  job->traffic.host_written += block->traffic[true][true];
  if (block->result && !job->result) {
    __atomic_store_n(&job->result, block->result, __ATOMIC_RELAXED);
    snprintf(job->error, job->error_bytes, "%s", error);
  }
  pthread_mutex_unlock(&job->lock);
  worker_free(&worker);
  fesetenv(&environment);
  return NULL;
}

static int refuse(char *error, size_t error_bytes, int result, const char *why, const char *name) {
  snprintf(error, error_bytes, "%s; kernel %s", why, name);
  return result;
}

int gpusim_kernel_run(struct gpusim_kernel *kernel, const uint8_t *parameters,
                      const struct gpusim_launch *launch, char *error, size_t error_bytes) {
  if (!kernel->ptx)
    return refuse(error, error_bytes, 209,
                  "the image has no PTX for this device, and GPUSIM_PTX names none", kernel->name);
  struct ptx_program *program = ptx_program_of(kernel->ptx, error, error_bytes);
  if (!program)
    return 218;
  uint64_t threads = (uint64_t)launch->block[0] * launch->block[1] * launch->block[2];
  const uint32_t *required = kernel->ptx->required_block;
  if (!threads || threads > 1024 || !launch->grid[0] || !launch->grid[1] || !launch->grid[2])
    return refuse(error, error_bytes, 1, "a block has 1 to 1024 threads, a grid at least one block",
                  kernel->name);
  if (required[0] && memcmp(required, launch->block, sizeof kernel->ptx->required_block) != 0)
    return refuse(error, error_bytes, 1, "the block isn't of the size that .reqntid demands",
                  kernel->name);
  struct ptx_job job = {.kernel = kernel,
                        .program = program,
                        .native = ptx_native_of(program),
                        .parameters = parameters,
                        .launch = launch,
                        .total = (uint64_t)launch->grid[0] * launch->grid[1] * launch->grid[2],
                        .error = error,
                        .error_bytes = error_bytes,
                        .lock = PTHREAD_MUTEX_INITIALIZER};
  pthread_t helpers[64];
  uint64_t wanted = gpusim_settings.threads > 1 ? (uint64_t)gpusim_settings.threads : 1;
  uint32_t running = 0;
  if (wanted > job.total)
    wanted = job.total;
  while (running + 1 < wanted && running < 64 &&
         !pthread_create(&helpers[running], NULL, work, &job))
    running++;
  work(&job);
  while (running)
    pthread_join(helpers[--running], NULL);
  if (job.native) {
    gpusim_count(GPUSIM_COUNT_native_launches, 1);
  } else {
    gpusim_count(GPUSIM_COUNT_interpreted_launches, 1);
    __atomic_fetch_add(&program->interpreted, job.instructions, __ATOMIC_RELAXED);
  }
  gpusim_count(GPUSIM_COUNT_interpreted_instructions, job.instructions);
  if (launch->traffic != NULL) {
    *launch->traffic = job.traffic;
    launch->traffic->instructions = job.instructions;
    launch->traffic->measured = true;
  }
  return job.result;
}
