/* Calibration on the device: see calibrate.h; the data and its scalars are probe.c's. Everything
   runs on the scratch stream, which the host polls with a deadline: the device may be waiting for
   what the program does next, with streams of one hardware queue behind it. What was given up keeps
   its scratch, on both sides, until the stream is done. */
#define _GNU_SOURCE
#include "calibrate.h"
#include "drain.h"
#include "process.h"
#include "state.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* Scratch on the device: p, g, m, v, then words and update (as a ring slot), g', step and lr. A
 * list has room for the offset. */
enum {
  LIST_FLOATS = 4160,
  LIST_BYTES = LIST_FLOATS * 4,
  SLOT_AT = 4 * LIST_BYTES,
  GPRIME_AT = SLOT_AT + RING_HEAD + LIST_BYTES,
  STEP_AT = GPRIME_AT + LIST_BYTES,
  LR_AT = STEP_AT + 4
};
_Static_assert((int)LR_AT + 4 <= (int)CALIBRATION_BYTES, "the scratch block holds all of it");
_Static_assert((int)CALIBRATION_ELEMENTS < (int)LIST_FLOATS, "a list holds a set and its offset");

/* Host side of one calibration. */
struct lists {
  float p[LIST_FLOATS], g[LIST_FLOATS], m[LIST_FLOATS], v[LIST_FLOATS];
};
_Static_assert(sizeof(struct lists) == 4 * (size_t)LIST_BYTES, "as on the device");
struct bench {
  struct lists in[CALIBRATION_SETS],
      out[CALIBRATION_SETS]; /* before and after the program's kernel */
  struct lists work;
  float gradient[LIST_FLOATS];
  unsigned char metadata[METADATA_BYTES_MOST];
  struct {
    struct slot_words words;
    float update[LIST_FLOATS];
  } slot;
};

struct run {
  struct ring *ring;
  const struct adam_api *api;
  const struct function *function;
  struct calibration_case what;
  struct calibration_set sets[CALIBRATION_SETS];
  struct adam_scalars scalars[CALIBRATION_SETS]; /* of the candidate that is left */
  struct bench *bench;
  uint64_t deadline_ns;
};

/* How long calibration may keep a launch waiting, and how many steps later it is tried again. */
#define CALIBRATION_NS 2000000000u
enum { STEPS_BETWEEN_TRIES = 8 };

#define TRY(call)                                                                                  \
  do {                                                                                             \
    const CUresult try_result = (call);                                                            \
    if (try_result != CUDA_SUCCESS)                                                                \
      return try_result;                                                                           \
  } while (0)

unsigned branch_bits(const struct arguments *arguments) {
  return (arguments->weight_decay != 0 ? BRANCH_DECAY : 0u) |
         (arguments->maximize ? BRANCH_MAXIMIZE : 0u) |
         (arguments->lr_pointer ? BRANCH_LR_POINTER : 0u);
}

static struct elements elements_of(struct lists *lists) {
  return (struct elements){lists->p, lists->g, lists->m, lists->v};
}

static CUdeviceptr list_at(const struct run *run, const struct calibration_set *set,
                           unsigned list) {
  return run->ring->calibration + list * LIST_BYTES + set->offset * sizeof(float);
}

/* The pinned mirror of what lies at an offset of the device's scratch. Copies from and to pageable
   memory would wait in the driver, without a deadline. */
static void *mirror(const struct run *run, size_t at) {
  return (char *)run->ring->calibration_mirror + at;
}

static size_t list_offset(const struct calibration_set *set, unsigned list) {
  return list * (size_t)LIST_BYTES + set->offset * sizeof(float);
}

static CUresult finished(const struct run *run) {
  CUresult result;
  while ((result = driver.cuStreamQuery(run->ring->scratch)) == CUDA_ERROR_NOT_READY) {
    if (drain_now_ns() > run->deadline_ns)
      return result;
    const struct timespec pause = {.tv_nsec = 20000};
    nanosleep(&pause, NULL);
  }
  return result;
}

static CUresult upload(const struct run *run, const struct calibration_set *set,
                       const struct lists *lists) {
  const float *const from[] = {lists->p, lists->g, lists->m, lists->v};
  const size_t bytes = set->elements * sizeof(float);
  for (unsigned i = 0; i < 4; i++) {
    float *pinned = mirror(run, list_offset(set, i));
    memcpy(pinned, from[i], bytes);
    TRY(driver.cuMemcpyHtoDAsync_v2(list_at(run, set, i), pinned, bytes, run->ring->scratch));
  }
  return CUDA_SUCCESS;
}

static CUresult download(const struct run *run, const struct calibration_set *set,
                         struct lists *lists) {
  float *const to[] = {lists->p, lists->g, lists->m, lists->v};
  const size_t bytes = set->elements * sizeof(float);
  for (unsigned i = 0; i < 4; i++)
    TRY(driver.cuMemcpyDtoHAsync_v2(mirror(run, list_offset(set, i)), list_at(run, set, i), bytes,
                                    run->ring->scratch));
  TRY(finished(run));
  for (unsigned i = 0; i < 4; i++)
    memcpy(to[i], mirror(run, list_offset(set, i)), bytes);
  return CUDA_SUCCESS;
}

/* The program's kernel over one set. */
static CUresult run_kernel(const struct run *run, unsigned index) {
  const struct calibration_set *set = &run->sets[index];
  const struct family *family = &run->function->family;
  struct lists *in = &run->bench->in[index];
  unsigned char *metadata = run->bench->metadata;
  const CUdeviceptr base = run->ring->calibration;
  const uintptr_t addresses[4] = {list_at(run, set, 0), list_at(run, set, 1), list_at(run, set, 2),
                                  list_at(run, set, 3)};
  memset(metadata, 0, METADATA_BYTES_MOST);
  metadata_set_tensor(family, metadata, 0, addresses, set->elements, base + STEP_AT);
  metadata_set_block(family, metadata, 0, 0, 0);
  float *words = mirror(run, STEP_AT);
  words[0] = set->step;
  words[1] = (float)set->hyper.lr;
  struct arguments arguments = arguments_of(family);
  arguments.metadata = metadata;
  if (run->what.lr_is_float)
    arguments.lr_pointer = (const float *)(uintptr_t)(base + LR_AT);
  arguments.lr = set->hyper.lr;
  arguments.beta1 = set->hyper.beta1;
  arguments.beta2 = set->hyper.beta2;
  arguments.weight_decay = set->hyper.weight_decay;
  arguments.eps = set->hyper.eps;
  arguments.maximize = set->hyper.maximize;
  calibration_fill(&run->what, set, index, elements_of(in));
  TRY(upload(run, set, in));
  TRY(driver.cuMemcpyHtoDAsync_v2(base + STEP_AT, words, 2 * sizeof *words, run->ring->scratch));
  TRY(arguments_launch(run->function, &arguments, 1, 0, run->ring->scratch));
  return download(run, set, &run->bench->out[index]);
}

/* Whether a candidate explains every set. */
static bool explains(struct run *run, const struct adam_candidate *candidate,
                     struct adam_scalars scalars[CALIBRATION_SETS]) {
  for (unsigned i = 0; i < CALIBRATION_SETS; i++) {
    bool nudged;
    if (!elements_prove(run->api, candidate, &run->sets[i].hyper, run->sets[i].step,
                        run->sets[i].elements, elements_of(&run->bench->in[i]),
                        elements_of(&run->bench->out[i]), elements_of(&run->bench->work),
                        &scalars[i], &nudged))
      return false;
  }
  return true;
}

/* The path that would replace the kernel, over one set; *same tells whether it gave the kernel's
 * results. */
static CUresult run_replacement(struct run *run, const struct adam_candidate *candidate,
                                unsigned index, bool *same) {
  const struct calibration_set *set = &run->sets[index];
  struct bench *bench = run->bench;
  struct ring *ring = run->ring;
  const CUdeviceptr base = ring->calibration;
  const size_t bytes = set->elements * sizeof(float);
  const bool ships_decay = candidate->mode == ADAM_L2 && candidate->decay != ADAM_DECAY_NONE;
  enum { GENERATION = 1 };
  TRY(upload(run, set, &bench->in[index]));
  if (ships_decay)
    TRY(ring_gprime(ring, list_at(run, set, LIST_PARAMETER), list_at(run, set, LIST_GRADIENT),
                    base + GPRIME_AT, set->elements, candidate, &set->hyper, ring->scratch));
  TRY(driver.cuMemcpyDtoHAsync_v2(mirror(run, GPRIME_AT),
                                  ships_decay ? base + GPRIME_AT : list_at(run, set, LIST_GRADIENT),
                                  bytes, ring->scratch));
  TRY(finished(run));
  memcpy(bench->gradient, mirror(run, GPRIME_AT), bytes);
  bench->work = bench->in[index];
  const struct adam_job job = {
      .gradient = bench->gradient,
      .exp_avg = bench->work.m,
      .exp_avg_sq = bench->work.v,
      .update = bench->slot.update,
      .elements = set->elements,
      .negate = set->hyper.maximize && !ships_decay,
      .generation = candidate->generation,
      .beta1 = set->hyper.beta1,
      .beta2 = set->hyper.beta2,
      .eps = set->hyper.eps,
      .scalars = run->scalars[index],
  };
  worker_call(ring->worker, &job);
  struct slot_words *words = &bench->slot.words;
  atomic_store_explicit(&words->status, slot_status(GENERATION, SLOT_APPLY), memory_order_relaxed);
  words->lr_decay = job.scalars.lr_decay;
  words->lr_decay_double = job.scalars.lr_decay_double;
  memcpy(mirror(run, SLOT_AT), &bench->slot, RING_HEAD + bytes);
  TRY(driver.cuMemcpyHtoDAsync_v2(base + SLOT_AT, mirror(run, SLOT_AT), RING_HEAD + bytes,
                                  ring->scratch));
  TRY(ring_apply(ring, list_at(run, set, LIST_PARAMETER), base + SLOT_AT, set->elements, GENERATION,
                 candidate, ring->scratch));
  float *p = mirror(run, list_offset(set, LIST_PARAMETER));
  TRY(driver.cuMemcpyDtoHAsync_v2(p, list_at(run, set, LIST_PARAMETER), bytes, ring->scratch));
  TRY(finished(run));
  memcpy(bench->work.p, p, bytes);
  const struct lists *out = &bench->out[index];
  *same = memcmp(bench->work.p, out->p, bytes) == 0 && memcmp(bench->work.m, out->m, bytes) == 0 &&
          memcmp(bench->work.v, out->v, bytes) == 0;
  return CUDA_SUCCESS;
}

static const char *decay_name(enum adam_decay decay) {
  return decay == ADAM_DECAY_NONE ? "none" : decay == ADAM_DECAY_FUSED ? "fused" : "unfused";
}

/* The one candidate that explains the kernel, into the branch; or why there is none. */
static void choose(struct run *run, struct branch *branch) {
  struct adam_candidate candidates[CANDIDATES_MOST];
  const unsigned count = candidates_list(run->what.mode, run->what.decays, candidates);
  unsigned left = 0, chosen = 0;
  for (unsigned i = 0; i < count; i++) {
    struct adam_scalars scalars[CALIBRATION_SETS];
    if (!explains(run, &candidates[i], scalars))
      continue;
    left++;
    chosen = i;
    memcpy(run->scalars, scalars, sizeof scalars);
  }
  if (left == 0) {
    snprintf(branch->why, sizeof branch->why,
             "calibration: none of the %u known arithmetics gives this kernel's results", count);
    return;
  }
  if (left > 1) {
    snprintf(branch->why, sizeof branch->why,
             "calibration: %u arithmetics give this kernel's results, and it takes one", left);
    return;
  }
  /* The data must be able to tell: what the others compute differs from what was found. */
  for (unsigned i = 0; i < count; i++) {
    size_t different = 0;
    for (unsigned k = 0; k < CALIBRATION_SETS && i != chosen; k++)
      different += calibration_differences(run->api, &run->what, &run->sets[k], k,
                                           &candidates[chosen], &candidates[i]);
    if (i != chosen && different < TOLD_APART) {
      snprintf(branch->why, sizeof branch->why,
               "calibration: its data shows %s with %s decay in %zu elements only",
               run->api->generation_name(candidates[i].generation), decay_name(candidates[i].decay),
               different);
      return;
    }
  }
  branch->candidate = candidates[chosen];
  branch->usable = true;
}

static CUresult run_all(struct run *run, struct branch *branch) {
  for (unsigned i = 0; i < CALIBRATION_SETS; i++)
    TRY(run_kernel(run, i));
  choose(run, branch);
  for (unsigned i = 0; i < CALIBRATION_SETS && branch->usable; i++) {
    bool same = false;
    TRY(run_replacement(run, &branch->candidate, i, &same));
    if (!same) {
      branch->usable = false;
      snprintf(branch->why, sizeof branch->why,
               "calibration: the replacement's results differ from the kernel's in set %u", i);
    }
  }
  return CUDA_SUCCESS;
}

static void describe(const struct function *function, const struct branch *branch,
                     const struct adam_api *api) {
  struct report_function *row = function->row;
  if (!row)
    return;
  if (!branch->usable) {
    report_set(row->why, sizeof row->why, "%s", branch->why);
    return;
  }
  report_set(row->generation, sizeof row->generation, "%s",
             api->generation_name(branch->candidate.generation));
  /* One function may have several branches; "none" gives way, two different ones are "mixed". */
  const char *name = decay_name(branch->candidate.decay);
  if (branch->candidate.decay != ADAM_DECAY_NONE && strcmp(row->decay, name) != 0)
    report_set(row->decay, sizeof row->decay, "%s",
               strcmp(row->decay, "none") == 0 ? name : "mixed");
}

struct branch *calibrate(struct ring *ring, const struct adam_api *api, struct function *function,
                         const struct arguments *arguments, const char **why) {
  const unsigned bits = branch_bits(arguments);
  for (struct branch *known = function->branches; known; known = known->next)
    if (known->context == ring->context && known->bits == bits)
      return known;
  if (process_capture_open()) {
    *why = "calibration waits until no capture is open";
    return NULL;
  }
  struct run run = {.ring = ring, .api = api, .function = function};
  *why = "calibration waits: the device is busy with what was queued before";
  if (ring->calibration_given_up && (state_step() < ring->calibration_next_step ||
                                     driver.cuStreamQuery(ring->scratch) == CUDA_ERROR_NOT_READY))
    return NULL;
  run.deadline_ns = drain_now_ns() + CALIBRATION_NS;
  struct branch *branch = calloc(1, sizeof *branch);
  run.bench = calloc(1, sizeof *run.bench);
  if (!branch || !run.bench) {
    free(branch);
    free(run.bench);
    *why = "calibration finds no memory";
    return NULL;
  }
  run.what = (struct calibration_case){
      .mode = function->family.mode,
      .decays = arguments->weight_decay != 0,
      .lr_is_float = arguments->lr_pointer != NULL,
      .hyper = {.lr = arguments->lr_pointer ? 1e-3 : arguments->lr,
                .beta1 = arguments->beta1,
                .beta2 = arguments->beta2,
                .weight_decay = arguments->weight_decay,
                .eps = arguments->eps,
                .maximize = arguments->maximize},
  };
  calibration_sets(api, &run.what, run.sets);
  branch->context = ring->context;
  branch->bits = bits;
  /* The worker, too, may be waiting for something queued: nobody else hands it jobs meanwhile. */
  const CUresult result =
      worker_wait_idle(ring->worker, CALIBRATION_NS) ? run_all(&run, branch) : CUDA_ERROR_NOT_READY;
  free(run.bench);
  ring->calibration_given_up = result == CUDA_ERROR_NOT_READY;
  if (ring->calibration_given_up) {
    ring->calibration_next_step = state_step() + STEPS_BETWEEN_TRIES;
    free(branch);
    return NULL;
  }
  if (result != CUDA_SUCCESS) {
    branch->usable = false;
    snprintf(branch->why, sizeof branch->why, "calibration: the driver answered error %d",
             (int)result);
    process_note(result, "calibration");
  }
  report_add(calibrations, 1);
  describe(function, branch, api);
  branch->next = function->branches;
  function->branches = branch;
  return branch;
}
