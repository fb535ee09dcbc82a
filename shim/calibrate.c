/* Calibration's decision: see calibrate.h. The data and its scalars are calibrate_data.c's, what runs on the device is
   calibrate_bench.c's. */
#define _GNU_SOURCE
#include "calibrate.h"
#include "../nvme/clock.h"
#include "calibrate_bench.h"
#include "process.h"
#include "state.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* How many steps later a calibration that found the device busy is tried again. */
enum { STEPS_BETWEEN_TRIES = 8 };

unsigned branch_bits(const struct arguments *arguments) {
  return (arguments->weight_decay != 0 ? BRANCH_DECAY : 0u) |
         (arguments->maximize ? BRANCH_MAXIMIZE : 0u) |
         (arguments->lr_pointer ? BRANCH_LR_POINTER : 0u) |
         (arguments->grad_scale ? BRANCH_SCALE : 0u);
}

/* Whether a candidate explains every set. */
static bool explains(struct run *run, const struct adam_candidate *candidate,
                     struct adam_scalars scalars[CALIBRATION_SETS]) {
  for (unsigned i = 0; i < CALIBRATION_SETS; i++) {
    const struct calibration_set *set = &run->sets[i];
    const struct adam_tensors in = bench_tensors(set, &run->bench->in[i]),
                              out = bench_tensors(set, &run->bench->out[i]),
                              work = bench_tensors(set, &run->bench->work);
    bool nudged;
    if (!elements_prove(run->api, candidate, &set->hyper, set->step, set->elements, &in, &out,
                        &work, &scalars[i], &nudged))
      return false;
  }
  return true;
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
    DRIVER_TRY(bench_kernel(run, i));
  choose(run, branch);
  for (unsigned i = 0; i < CALIBRATION_SETS && branch->usable; i++) {
    bool same = false;
    DRIVER_TRY(bench_replacement(run, &branch->candidate, i, &same));
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
  run.deadline_ns = clock_now_ns() + CALIBRATION_ALL_NS;
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
  const CUresult result = worker_wait_idle(ring->worker, CALIBRATION_WAIT_NS)
                              ? run_all(&run, branch)
                              : CUDA_ERROR_NOT_READY;
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
