/* See calibrate_bench.h. */
#define _GNU_SOURCE
#include "calibrate_bench.h"
#include "../nvme/clock.h"
#include "drain.h"
#include <string.h>
#include <time.h>

/* Scratch on the device: step, lr and grad_scale, then the kernel's lists one behind the other, so
 * that one copy brings all of them; words and update (as a ring slot), what the prologue made. */
enum {
  STEP_AT = 0,
  LR_AT = 4,
  SCALE_AT = 8,
  LISTS_AT = 64,
  LIST_BYTES_MOST = BENCH_ELEMENTS * ELEMENT_BYTES_MOST,
  SLOT_AT = LISTS_AT + LISTS_MOST * LIST_BYTES_MOST,
  GRADIENT_AT = SLOT_AT + RING_HEAD + LIST_BYTES_MOST,
  SCRATCH_BYTES = GRADIENT_AT + LIST_BYTES_MOST
};
_Static_assert((int)SCRATCH_BYTES <= (int)CALIBRATION_BYTES, "the scratch block holds all of it");
_Static_assert((int)CALIBRATION_ELEMENTS < (int)BENCH_ELEMENTS,
               "a list holds a set and its offset");

struct adam_tensors bench_tensors(const struct calibration_set *set, struct lists *lists) {
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
    at += BENCH_ELEMENTS * (size_t)element_bytes(family, (enum tensor_list)i);
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
  const uint64_t soon = clock_now_ns() + CALIBRATION_WAIT_NS;
  const uint64_t deadline = soon < run->deadline_ns ? soon : run->deadline_ns;
  CUresult result;
  while ((result = driver.cuStreamQuery(run->ring->scratch)) == CUDA_ERROR_NOT_READY) {
    if (clock_now_ns() > deadline)
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
  DRIVER_TRY(driver.cuMemcpyDtoHAsync_v2(mirror(run, from), run->ring->calibration + from, bytes,
                                         run->ring->scratch));
  DRIVER_TRY(finished(run));
  for (unsigned i = 0; i < end; i++)
    memcpy(lists->memory[i], mirror(run, list_offset(run, set, i)), list_bytes(run, set, i));
  return CUDA_SUCCESS;
}

static const float *scale_on_device(const struct run *run) {
  return run->what.scales ? (const float *)(uintptr_t)(run->ring->calibration + SCALE_AT) : NULL;
}

/* The program's kernel over one set. */
CUresult bench_kernel(const struct run *run, unsigned index) {
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
  const struct adam_tensors filled = bench_tensors(set, in);
  calibration_fill(run->api, &run->what, set, index, &filled);
  DRIVER_TRY(upload(run, set, in));
  DRIVER_TRY(arguments_launch(run->function, &arguments, 1, 0, run->ring->scratch));
  return download(run, set, family->lists, &run->bench->out[index]);
}

/* The CPU's part of it: from the gradient to update and moments. */
static bool step_moments(struct run *run, const struct adam_candidate *candidate, unsigned index,
                         bool prologue) {
  const struct calibration_set *set = &run->sets[index];
  struct bench *bench = run->bench;
  const struct adam_tensors work = bench_tensors(set, &bench->work);
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
CUresult bench_replacement(struct run *run, const struct adam_candidate *candidate, unsigned index,
                           bool *same) {
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
  DRIVER_TRY(upload(run, set, &bench->in[index]));
  if (prologue)
    DRIVER_TRY(kernels_prologue(&ring->kernels, &on_device, &set->hyper, base + GRADIENT_AT,
                                ring->scratch));
  DRIVER_TRY(driver.cuMemcpyDtoHAsync_v2(mirror(run, GRADIENT_AT),
                                         prologue ? base + GRADIENT_AT : on_device.g,
                                         gradient_bytes, ring->scratch));
  DRIVER_TRY(finished(run));
  memcpy(bench->gradient, mirror(run, GRADIENT_AT), gradient_bytes);
  bench->work = bench->in[index];
  if (!step_moments(run, candidate, index, prologue)) {
    *same = false;
    return CUDA_SUCCESS;
  }
  atomic_store_explicit(&bench->slot.words.status, slot_status(GENERATION, SLOT_APPLY),
                        memory_order_relaxed);
  memcpy(mirror(run, SLOT_AT), &bench->slot, RING_HEAD + update_bytes);
  DRIVER_TRY(driver.cuMemcpyHtoDAsync_v2(base + SLOT_AT, mirror(run, SLOT_AT),
                                         RING_HEAD + update_bytes, ring->scratch));
  DRIVER_TRY(kernels_apply(&ring->kernels, &on_device, base + SLOT_AT, GENERATION, ring->scratch));
  DRIVER_TRY(download(run, set, LIST_STATE, &bench->work)); /* p, and g as it was written back */
  *same = lists_equal(run, set, &bench->work, &bench->out[index]);
  return CUDA_SUCCESS;
}
