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

/* Scratch on the device: step, lr and grad_scale, then the kernel's lists one behind the other, so
 * that one copy brings all of them; words and update (as a ring slot), what the prologue made. A list
 * has room for the offset. */
enum {
  LIST_ELEMENTS = 4160,
  STEP_AT = 0,
  LR_AT = 4,
  SCALE_AT = 8,
  LISTS_AT = 64,
  LIST_BYTES_MOST = LIST_ELEMENTS * ELEMENT_BYTES_MOST,
  SLOT_AT = LISTS_AT + LISTS_MOST * LIST_BYTES_MOST,
  GRADIENT_AT = SLOT_AT + RING_HEAD + LIST_BYTES_MOST,
  SCRATCH_BYTES = GRADIENT_AT + LIST_BYTES_MOST
};
_Static_assert((int)SCRATCH_BYTES <= (int)CALIBRATION_BYTES, "the scratch block holds all of it");
_Static_assert((int)CALIBRATION_ELEMENTS < (int)LIST_ELEMENTS, "a list holds a set and its offset");

/* Host side of one calibration: the lists of a set, of whatever type. */
struct lists {
  double memory[LISTS_MOST][LIST_ELEMENTS];
};
struct bench {
  struct lists in[CALIBRATION_SETS],
      out[CALIBRATION_SETS]; /* before and after the program's kernel */
  struct lists work;
  double gradient[LIST_ELEMENTS];
  unsigned char metadata[METADATA_BYTES_MOST];
  struct {
    struct slot_words words;
    double update[LIST_ELEMENTS];
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
         (arguments->lr_pointer ? BRANCH_LR_POINTER : 0u) |
         (arguments->grad_scale ? BRANCH_SCALE : 0u);
}

/* Lists are in the kernel's order: p, g, m, v and max_v. */
static struct adam_tensors tensors_of(const struct calibration_set *set, struct lists *lists) {
  return (struct adam_tensors){.p = lists->memory[LIST_PARAMETER],
                               .g = lists->memory[LIST_GRADIENT],
                               .m = lists->memory[LIST_EXP_AVG],
                               .v = lists->memory[LIST_EXP_AVG_SQ],
                               .max_v = lists->memory[LIST_MAX_EXP_AVG_SQ],
                               .grad_scale = set->scale != 0 ? &set->scale : NULL};
}

/* Where a list begins; LISTS_MOST: where they end. */
static size_t list_start(const struct run *run, unsigned list) {
  const struct family *family = &run->function->family;
  size_t at = LISTS_AT;
  for (unsigned i = 0; i < list && i < family->lists; i++)
    at += LIST_ELEMENTS * (size_t)element_bytes(family, (enum tensor_list)i);
  return at;
}

static size_t list_offset(const struct run *run, const struct calibration_set *set, unsigned list) {
  return list_start(run, list) +
         set->offset * element_bytes(&run->function->family, (enum tensor_list)list);
}

static CUdeviceptr list_at(const struct run *run, const struct calibration_set *set,
                           unsigned list) {
  return run->ring->calibration + list_offset(run, set, list);
}

static size_t list_bytes(const struct run *run, const struct calibration_set *set, unsigned list) {
  return set->elements * element_bytes(&run->function->family, (enum tensor_list)list);
}

/* The pinned mirror of what lies at an offset of the device's scratch. Copies from and to pageable
   memory would wait in the driver, without a deadline. */
static void *mirror(const struct run *run, size_t at) {
  return (char *)run->ring->calibration_mirror + at;
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

/* The set's scalars and lists. */
static CUresult upload(const struct run *run, const struct calibration_set *set,
                       const struct lists *lists) {
  float *words = mirror(run, STEP_AT);
  words[0] = set->step;
  words[LR_AT / 4] = (float)set->hyper.lr;
  words[SCALE_AT / 4] = set->scale;
  for (unsigned i = 0; i < run->function->family.lists; i++)
    memcpy(mirror(run, list_offset(run, set, i)), lists->memory[i], list_bytes(run, set, i));
  return driver.cuMemcpyHtoDAsync_v2(run->ring->calibration, mirror(run, 0),
                                     list_start(run, LISTS_MOST), run->ring->scratch);
}

/* The lists before `end`. */
static CUresult download(const struct run *run, const struct calibration_set *set, unsigned end,
                         struct lists *lists) {
  const size_t from = list_start(run, 0), bytes = list_start(run, end) - from;
  TRY(driver.cuMemcpyDtoHAsync_v2(mirror(run, from), run->ring->calibration + from, bytes,
                                  run->ring->scratch));
  TRY(finished(run));
  for (unsigned i = 0; i < end; i++)
    memcpy(lists->memory[i], mirror(run, list_offset(run, set, i)), list_bytes(run, set, i));
  return CUDA_SUCCESS;
}

static const float *scale_on_device(const struct run *run) {
  return run->what.scales ? (const float *)(uintptr_t)(run->ring->calibration + SCALE_AT) : NULL;
}

/* The program's kernel over one set. */
static CUresult run_kernel(const struct run *run, unsigned index) {
  const struct calibration_set *set = &run->sets[index];
  const struct family *family = &run->function->family;
  struct lists *in = &run->bench->in[index];
  unsigned char *metadata = run->bench->metadata;
  const CUdeviceptr base = run->ring->calibration;
  uintptr_t addresses[LISTS_MOST];
  for (unsigned i = 0; i < LISTS_MOST; i++)
    addresses[i] = list_at(run, set, i);
  memset(metadata, 0, METADATA_BYTES_MOST);
  metadata_set_tensor(family, metadata, 0, addresses, set->elements, base + STEP_AT);
  metadata_set_block(family, metadata, 0, 0, 0);
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
  arguments.grad_scale = scale_on_device(run);
  const struct adam_tensors filled = tensors_of(set, in);
  calibration_fill(run->api, &run->what, set, index, &filled);
  TRY(upload(run, set, in));
  TRY(arguments_launch(run->function, &arguments, 1, 0, run->ring->scratch));
  return download(run, set, family->lists, &run->bench->out[index]);
}

/* Whether a candidate explains every set. */
static bool explains(struct run *run, const struct adam_candidate *candidate,
                     struct adam_scalars scalars[CALIBRATION_SETS]) {
  for (unsigned i = 0; i < CALIBRATION_SETS; i++) {
    const struct calibration_set *set = &run->sets[i];
    const struct adam_tensors in = tensors_of(set, &run->bench->in[i]),
                              out = tensors_of(set, &run->bench->out[i]),
                              work = tensors_of(set, &run->bench->work);
    bool nudged;
    if (!elements_prove(run->api, candidate, &set->hyper, set->step, set->elements, &in, &out,
                        &work, &scalars[i], &nudged))
      return false;
  }
  return true;
}

/* The CPU's part of it: from the gradient to update and moments. */
static bool step_moments(struct run *run, const struct adam_candidate *candidate, unsigned index,
                         bool prologue) {
  const struct calibration_set *set = &run->sets[index];
  struct bench *bench = run->bench;
  const struct adam_tensors work = tensors_of(set, &bench->work);
  const struct adam_job job = {
      .gradient = bench->gradient,
      .exp_avg = work.m,
      .exp_avg_sq = work.v,
      .max_exp_avg_sq = candidate->amsgrad ? work.max_v : NULL,
      .update = bench->slot.update,
      .elements = set->elements,
      .negate = set->hyper.maximize && !prologue,
      .generation = candidate->generation,
      .form = candidate->form,
      .gradient_type = prologue ? adam_type_opmath(candidate->type) : candidate->type,
      .state_type = candidate->state_type,
      .beta1 = set->hyper.beta1,
      .beta2 = set->hyper.beta2,
      .eps = set->hyper.eps,
      .scalars = run->scalars[index],
  };
  struct slot_words *words = &bench->slot.words;
  words->lr_decay = job.scalars.lr_decay;
  words->lr_decay_double = job.scalars.lr_decay_double;
  return worker_call(run->ring->worker, &job);
}

static bool lists_equal(const struct run *run, const struct calibration_set *set,
                        const struct lists *a, const struct lists *b) {
  for (unsigned i = 0; i < run->function->family.lists; i++)
    if (memcmp(a->memory[i], b->memory[i], list_bytes(run, set, i)) != 0)
      return false;
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
  enum { GENERATION = 1 };
  const struct kernel_run on_device = {
      .candidate = *candidate,
      .p = list_at(run, set, LIST_PARAMETER),
      .g = list_at(run, set, LIST_GRADIENT),
      .grad_scale = scale_on_device(run),
      .elements = set->elements,
  };
  const bool prologue = kernels_need_prologue(candidate, on_device.grad_scale);
  const size_t update_bytes = set->elements * adam_type_bytes(adam_type_opmath(candidate->type));
  const size_t gradient_bytes = prologue ? update_bytes : list_bytes(run, set, LIST_GRADIENT);
  TRY(upload(run, set, &bench->in[index]));
  if (prologue)
    TRY(kernels_prologue(&ring->kernels, &on_device, &set->hyper, base + GRADIENT_AT,
                         ring->scratch));
  TRY(driver.cuMemcpyDtoHAsync_v2(mirror(run, GRADIENT_AT),
                                  prologue ? base + GRADIENT_AT : on_device.g, gradient_bytes,
                                  ring->scratch));
  TRY(finished(run));
  memcpy(bench->gradient, mirror(run, GRADIENT_AT), gradient_bytes);
  bench->work = bench->in[index];
  if (!step_moments(run, candidate, index, prologue)) {
    *same = false;
    return CUDA_SUCCESS;
  }
  atomic_store_explicit(&bench->slot.words.status, slot_status(GENERATION, SLOT_APPLY),
                        memory_order_relaxed);
  memcpy(mirror(run, SLOT_AT), &bench->slot, RING_HEAD + update_bytes);
  TRY(driver.cuMemcpyHtoDAsync_v2(base + SLOT_AT, mirror(run, SLOT_AT), RING_HEAD + update_bytes,
                                  ring->scratch));
  TRY(kernels_apply(&ring->kernels, &on_device, base + SLOT_AT, GENERATION, ring->scratch));
  TRY(download(run, set, LIST_STATE, &bench->work)); /* p, and g as it was written back */
  *same = lists_equal(run, set, &bench->work, &bench->out[index]);
  return CUDA_SUCCESS;
}

static const char *decay_name(enum adam_decay decay) {
  return decay == ADAM_DECAY_NONE ? "none" : decay == ADAM_DECAY_FUSED ? "fused" : "unfused";
}

/* The one candidate that explains the kernel, into the branch; or why there is none. */
static void choose(struct run *run, struct branch *branch) {
  struct adam_candidate candidates[CANDIDATES_MOST];
  const unsigned count = candidates_list(&run->what.shape, run->what.decays, candidates);
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
      .shape = family_shape(&function->family),
      .decays = arguments->weight_decay != 0,
      .lr_is_float = arguments->lr_pointer != NULL,
      .scales = arguments->grad_scale != NULL,
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
