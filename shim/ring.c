/* A context's side of the steps: see ring.h. Every stage is made whole or not at all; what a failed
   stage had made is given back, so that a later try starts clean. Longer than most rooms: stages and what
   they give back share the layout of slots. */
#define _GNU_SOURCE
#include "ring.h"
#include "early.h"
#include "holdings.h"
#include "process.h"
#include "state.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "kernels_ptx.h" /* static const char kernels_ptx[] */

enum { CONTEXTS_MOST = 16 };
static struct ring *rings[CONTEXTS_MOST];

/* How long a context's end, or the process's, waits for steps in flight. */
#define DRAIN_NS 10000000000u

#define TRY(call)                                                                                  \
  do {                                                                                             \
    const CUresult try_result = (call);                                                            \
    if (try_result != CUDA_SUCCESS)                                                                \
      return fail(ring, try_result, #call);                                                        \
  } while (0)

static bool fail(struct ring *ring, CUresult result, const char *call) {
  const char *name = NULL;
  if (!driver.cuGetErrorName || driver.cuGetErrorName(result, &name) != CUDA_SUCCESS || !name)
    name = "an unknown error";
  /* Only the function's name, not its arguments. */
  const char *function = strncmp(call, "driver.", 7) == 0 ? call + 7 : call;
  snprintf(ring->why, sizeof ring->why, "%.*s: %s", (int)strcspn(function, "("), function, name);
  process_note(result, "staging");
  return false;
}

struct ring *ring_find(CUcontext context) {
  for (unsigned i = 0; i < CONTEXTS_MOST; i++)
    if (rings[i] && rings[i]->context == context)
      return rings[i];
  return NULL;
}

struct ring *ring_of_context(void) {
  CUcontext context = NULL;
  if (driver.cuCtxGetCurrent(&context) != CUDA_SUCCESS || !context)
    return NULL;
  struct ring *ring = ring_find(context);
  for (unsigned i = 0; !ring && i < CONTEXTS_MOST; i++)
    if (!rings[i] && (rings[i] = ring = calloc(1, sizeof *ring)))
      ring->context = context;
  return ring;
}

void ring_each(void (*visit)(struct ring *, void *), void *argument) {
  for (unsigned i = 0; i < CONTEXTS_MOST; i++)
    if (rings[i])
      visit(rings[i], argument);
}

/* ---- opening ---- */

static bool names_missing(struct ring *ring) {
#define NEED(name)                                                                                 \
  if (!driver.name) {                                                                              \
    snprintf(ring->why, sizeof ring->why, "this driver lacks " #name);                             \
    return true;                                                                                   \
  }
  NEED(cuStreamWriteValue32_v2)
  NEED(cuStreamWaitValue32_v2)
  NEED(cuStreamCreateWithPriority)
  NEED(cuMemHostAlloc)
  NEED(cuModuleLoadData)
#undef NEED
  return false;
}

static bool open_streams(struct ring *ring) {
  /* Non-blocking: the program may compute on the legacy stream, which every blocking stream would
     wait for. The highest priority: what the program's stream waits for should not queue behind
     other kernels. */
  int least = 0, greatest = 0;
  if (!driver.cuCtxGetStreamPriorityRange ||
      driver.cuCtxGetStreamPriorityRange(&least, &greatest) != CUDA_SUCCESS)
    greatest = 0;
  TRY(driver.cuStreamCreateWithPriority(&ring->down, CU_STREAM_NON_BLOCKING, greatest));
  TRY(driver.cuStreamCreateWithPriority(&ring->up, CU_STREAM_NON_BLOCKING, greatest));
  TRY(driver.cuStreamCreateWithPriority(&ring->scratch, CU_STREAM_NON_BLOCKING, 0));
  for (unsigned i = 0; i < AHEAD_LAUNCHES; i++)
    TRY(driver.cuEventCreate(&ring->begins[i], CU_EVENT_DISABLE_TIMING));
  TRY(driver.cuEventCreate(&ring->kernel, CU_EVENT_DISABLE_TIMING));
  TRY(driver.cuEventCreate(&ring->down_last, CU_EVENT_DISABLE_TIMING));
  TRY(driver.cuEventCreate(&ring->up_last, CU_EVENT_DISABLE_TIMING));
  for (unsigned i = 0; i < RING_SLOTS; i++) {
    TRY(driver.cuEventCreate(&ring->slots[i].down, CU_EVENT_DISABLE_TIMING));
    TRY(driver.cuEventCreate(&ring->slots[i].up, CU_EVENT_DISABLE_TIMING));
  }
  /* A first use may still have something to make, which must not fail in the middle of a step. */
  TRY(driver.cuEventRecord(ring->kernel, ring->down));
  TRY(driver.cuStreamWaitEvent(ring->up, ring->kernel, 0));
  TRY(driver.cuEventRecord(ring->up_last, ring->up));
  TRY(driver.cuStreamWaitEvent(ring->scratch, ring->up_last, 0));
  TRY(driver.cuStreamWaitEvent(ring->down, ring->up_last, 0));
  for (unsigned i = 0; i < RING_PROOFS; i++)
    TRY(driver.cuEventCreate(&ring->proofs[i].read, CU_EVENT_DISABLE_TIMING));
  return true;
}

static bool open_kernels(struct ring *ring) {
  TRY(driver.cuModuleLoadData(&ring->module, kernels_ptx));
  const CUresult result = kernels_find(ring->module, &ring->kernels);
  return result == CUDA_SUCCESS || fail(ring, result, "cuModuleGetFunction");
}

bool ring_open(struct ring *ring) {
  if (ring->opened)
    return true;
  if (ring->why[0]) /* streams and modules that can't be had once are not asked for again */
    return false;
  if (names_missing(ring) || !open_streams(ring))
    return false;
  if (!open_kernels(ring)) {
    report_reason("the CPU step is not to be had: its kernels can't be loaded (%s)", ring->why);
    /* `stream` needs none of them */
  }
  ring->opened = true;
  return true;
}

/* ---- device slots ---- */

size_t ring_part_bytes(size_t elements, size_t element_bytes) {
  return RING_HEAD + elements * element_bytes;
}

size_t ring_slot_bytes(size_t elements, unsigned states, size_t state_bytes) {
  return states * ring_part_bytes(elements, state_bytes);
}

size_t ring_bytes(unsigned slots, size_t elements) {
  return slots * ring_slot_bytes(elements, 2, sizeof(float));
}

/* Whole chunks whose parts fit `bytes`, in elements. */
static size_t fitting(size_t bytes, unsigned states, size_t state_bytes) {
  const size_t part = bytes / states;
  const size_t elements = part > RING_HEAD ? (part - RING_HEAD) / state_bytes : 0;
  return elements / CHUNK_ELEMENTS * CHUNK_ELEMENTS;
}

size_t ring_elements(const struct ring *ring, unsigned states, size_t state_bytes) {
  return fitting(ring->slot_bytes, states, state_bytes);
}

size_t ring_piece_elements(const struct ring *ring, enum adam_type opmath) {
  return ring->slot_elements * sizeof(float) / adam_type_bytes(opmath) / CHUNK_ELEMENTS *
         CHUNK_ELEMENTS;
}

bool ring_shape(size_t bytes, size_t least, unsigned *slots, size_t *elements) {
  for (unsigned count = RING_SLOTS; count >= 2; count /= 2) {
    const size_t each = fitting(bytes / count, 2, sizeof(float));
    if (each >= (count > 2 ? 2 * least : least)) {
      *slots = count;
      *elements = each;
      return true;
    }
  }
  return false;
}

static CUresult stage(struct ring *ring, unsigned slots, size_t elements) {
  const size_t bytes = ring_slot_bytes(elements, 2, sizeof(float));
  CUdeviceptr blocks[RING_SLOTS] = {0};
  for (unsigned i = 0; i < slots; i++) {
    const CUresult result = holding_allocate(&blocks[i], bytes);
    if (result == CUDA_SUCCESS)
      continue;
    while (i)
      holding_free(blocks[--i]);
    return result;
  }
  /* Smaller blocks that were there before go with the context: giving them back would wait for
     whatever the device is doing. The CPU step's pinned half of a slot follows (grow). */
  if (!ring->staged) {
    ring->slot_count = slots;
    ring->slot_elements = elements;
  }
  ring->slot_bytes = bytes;
  for (unsigned i = 0; i < slots; i++) {
    ring->slots[i].first = blocks[i];
    ring->slots[i].second = blocks[i] + ring_part_bytes(ring->slot_elements, sizeof(float));
  }
  return CUDA_SUCCESS;
}

/* The CPU step's own device memory: the probe's tensors, its inputs, the verdicts, calibration's scratch. */
enum {
  INPUTS_AT = (sizeof(struct proof_results) + 63) / 64 * 64,
  VERDICTS_AT = INPUTS_AT + RING_INPUTS * (size_t)PROBE_BYTES_MOST,
  CALIBRATION_AT = (VERDICTS_AT + RING_PROOFS * sizeof(float) + 63) / 64 * 64,
  CPU_BLOCK_BYTES = CALIBRATION_AT + CALIBRATION_BYTES
};

static CUresult allocate_cpu_block(struct ring *ring) {
  if (ring->device_results)
    return CUDA_SUCCESS;
  CUdeviceptr block = 0;
  const CUresult result = holding_allocate(&block, CPU_BLOCK_BYTES);
  if (result != CUDA_SUCCESS)
    return result;
  ring->device_results = block;
  ring->calibration = block + CALIBRATION_AT;
  for (unsigned i = 0; i < RING_INPUTS; i++)
    ring->inputs[i].device = block + INPUTS_AT + i * (size_t)PROBE_BYTES_MOST;
  for (unsigned i = 0; i < RING_PROOFS; i++)
    ring->proofs[i].device_verdict = block + VERDICTS_AT + i * sizeof(float);
  return CUDA_SUCCESS;
}

/* Elements of the least slot: two parts of so many floats are at least `bytes`. */
static size_t least_elements(size_t bytes) {
  const size_t floats = (bytes + 2 * sizeof(float) - 1) / (2 * sizeof(float));
  const size_t chunks = (floats - RING_HEAD / sizeof(float) + CHUNK_ELEMENTS - 1) / CHUNK_ELEMENTS;
  return (chunks ? chunks : 1) * CHUNK_ELEMENTS;
}

/* What the CPU step has of it: gradient and update of a piece should stay in its caches. */
#define CPU_STAGING_MOST ((size_t)16 << 20)
static size_t cpu_staging(const struct config *config) {
  const size_t bytes = config->device_staging.bytes;
  return bytes < CPU_STAGING_MOST ? bytes : CPU_STAGING_MOST;
}

size_t ring_piece_asked(const struct config *config, enum adam_type opmath) {
  struct ring ring = {0};
  unsigned slots = 0;
  return ring_shape(cpu_staging(config), CHUNK_ELEMENTS, &slots, &ring.slot_elements)
             ? ring_piece_elements(&ring, opmath)
             : 0;
}

/* The first slots, as large as is allowed, useful and to be had. */
static CUresult stage_first(struct ring *ring, const struct config *config, size_t useful,
                            size_t least) {
  size_t bytes = cpu_staging(config), elements = 0;
  unsigned slots = 0;
  /* More than the state that passes through in a step would be of no use; the least shape always is. */
  if (useful < ring_bytes(2, least))
    useful = ring_bytes(2, least);
  if (bytes > useful)
    bytes = useful;
  /* Before the slots, which take the last of a full device. Without it, `stream` remains. */
  if (config->step != STEP_STREAM && ring->kernels.gather)
    (void)allocate_cpu_block(ring);
  CUresult result = CUDA_SUCCESS;
  for (; ring_shape(bytes, least, &slots, &elements); bytes /= 2) {
    result = stage(ring, slots, elements);
    if (result != CUDA_ERROR_OUT_OF_MEMORY)
      break;
  }
  return result;
}

bool ring_stage(struct ring *ring, const struct config *config, size_t useful, size_t least_bytes) {
  enum { STEPS_BETWEEN_TRIES = 8 };
  if (ring->staged && ring->slot_bytes >= least_bytes)
    return true;
  /* Not at every step, unless state has left the device since. */
  const uint64_t moved = atomic_load_explicit(&report.totals.pieces_moved, memory_order_relaxed);
  if (ring->staging_failed_step && moved == ring->staging_failed_moved &&
      state_step() < ring->staging_failed_step + STEPS_BETWEEN_TRIES)
    return false;
  ring->staging_failed_moved = moved;
  const size_t bytes = cpu_staging(config), least = least_elements(least_bytes);
  const unsigned slots = ring->staged ? ring->slot_count : 2;
  if (bytes < ring_bytes(slots, least)) {
    snprintf(ring->why, sizeof ring->why,
             "OFFLOAD_DEVICE_STAGING=%zu is too small for %u slots of a chunk: set it to at least "
             "%zu",
             bytes, slots, ring_bytes(slots, least));
    ring->staging_failed_step = state_step() + 1;
    return false;
  }
  const CUresult result =
      ring->staged ? stage(ring, slots, least) : stage_first(ring, config, useful, least);
  if (result != CUDA_SUCCESS) {
    ring->staging_failed_step = state_step() + 1;
    return fail(ring, result, "device memory for staging");
  }
  ring->staged = true;
  return true;
}

/* ---- pinned memory and worker ---- */

static bool pin(struct ring *ring, void **memory, size_t bytes) {
  const CUresult result = holding_pin(memory, bytes);
  return result == CUDA_SUCCESS || fail(ring, result, "pinned memory");
}

static void unprepare(struct ring *ring) {
  for (unsigned i = 0; i < RING_SLOTS; i++) {
    struct ring_slot *slot = &ring->slots[i];
    if (slot->words)
      holding_unpin(slot->words);
    if (slot->gradient)
      holding_unpin(slot->gradient);
    slot->words = NULL;
    slot->gradient = slot->update = NULL;
  }
  for (unsigned i = 0; i < RING_PROOFS; i++) {
    if (ring->proofs[i].results)
      holding_unpin(ring->proofs[i].results);
    ring->proofs[i].results = NULL;
  }
  if (ring->calibration_mirror)
    holding_unpin(ring->calibration_mirror);
  ring->calibration_mirror = NULL;
  if (ring->inputs[0].pinned)
    holding_unpin(ring->inputs[0].pinned);
  ring->inputs[0].pinned = NULL;
}

/* What is behind a proof's results in its pinned block. */
struct proof_words {
  _Atomic uint32_t ready;
  float verdict;
};

static bool pin_slots(struct ring *ring) {
  const size_t slot_bytes = ring->slot_elements * sizeof(float);
  for (unsigned i = 0; i < ring->slot_count; i++) {
    struct ring_slot *slot = &ring->slots[i];
    void *memory = NULL;
    if (!pin(ring, &memory, RING_HEAD + slot_bytes))
      return false;
    slot->words = memory;
    slot->update = (char *)memory + RING_HEAD;
    if (!pin(ring, &memory, slot_bytes))
      return false;
    slot->gradient = memory;
  }
  return true;
}

/* Larger device slots were made since the pinned ones: they follow. What the old ones are in use for
   goes on, so they are kept until the context ends. On failure they stay, for the types that they
   are large enough for (ring_piece_elements), and are asked for once. */
static void grow(struct ring *ring) {
  const size_t elements = fitting(ring->slot_bytes, 2, sizeof(float));
  if (elements <= ring->slot_elements || ring->ungrown_bytes == ring->slot_bytes)
    return;
  struct ring larger = *ring;
  larger.slot_elements = elements;
  if (!pin_slots(&larger)) {
    for (unsigned i = 0; i < ring->slot_count; i++) {
      if (larger.slots[i].words != ring->slots[i].words)
        holding_unpin(larger.slots[i].words);
      if (larger.slots[i].gradient != ring->slots[i].gradient)
        holding_unpin(larger.slots[i].gradient);
    }
    ring->ungrown_bytes = ring->slot_bytes;
    snprintf(ring->small, sizeof ring->small,
             "staging was made for smaller types, and larger slots are not to be had (%.100s)",
             larger.why);
    return;
  }
  ring->slot_elements = elements;
  for (unsigned i = 0; i < ring->slot_count; i++) {
    struct ring_slot *slot = &ring->slots[i];
    slot->words = larger.slots[i].words;
    slot->gradient = larger.slots[i].gradient;
    slot->update = larger.slots[i].update;
    slot->second = slot->first + ring_part_bytes(elements, sizeof(float));
  }
}

static bool prepare(struct ring *ring) {
  if (!pin_slots(ring))
    return false;
  for (unsigned i = 0; i < RING_PROOFS; i++) {
    struct ring_proof *proof = &ring->proofs[i];
    void *memory = NULL;
    if (!pin(ring, &memory, sizeof(struct proof_results) + sizeof(struct proof_words)))
      return false;
    proof->results = memory;
    struct proof_words *words = (struct proof_words *)(void *)(proof->results + 1);
    proof->ready = &words->ready;
    proof->verdict = &words->verdict;
  }
  if (!pin(ring, &ring->calibration_mirror, CALIBRATION_BYTES))
    return false;
  void *inputs = NULL;
  if (!pin(ring, &inputs, RING_INPUTS * (size_t)PROBE_BYTES_MOST))
    return false;
  for (unsigned i = 0; i < RING_INPUTS; i++)
    ring->inputs[i].pinned = (char *)inputs + i * (size_t)PROBE_BYTES_MOST;
  return true;
}

bool ring_prepare(struct ring *ring, const struct config *config, const struct adam_api *api) {
  CUresult result;
  if (ring->prepared) {
    grow(ring);
    return true;
  }
  if (ring->cannot_prepare)
    return false;
  ring->why[0] = 0;
  if (!ring->kernels.gather)
    snprintf(ring->why, sizeof ring->why, "the kernels of the CPU step could not be loaded");
  else if ((result = allocate_cpu_block(ring)) != CUDA_SUCCESS)
    return fail(ring, result,
                "device memory for the CPU step's proof"); /* another launch may find it */
  else if (prepare(ring))
    ring->worker = worker_start(api, config, ring->why, sizeof ring->why);
  ring->prepared = ring->worker != NULL;
  ring->cannot_prepare = !ring->prepared;
  if (!ring->prepared)
    unprepare(ring);
  return ring->prepared;
}

bool ring_taken(const struct ring *ring, CUstream stream) {
  const bool same =
      ring->last_stream == stream &&
      (stream != CU_STREAM_PER_THREAD || pthread_equal(ring->last_thread, pthread_self()));
  return ring->last_done && !same && driver.cuEventQuery(ring->last_done) != CUDA_SUCCESS;
}

void ring_took(struct ring *ring, CUstream stream, CUevent done) {
  ring->last_stream = stream;
  ring->last_thread = pthread_self();
  ring->last_done = done;
}

size_t ring_give_back(struct ring *ring) {
  enum { POLLS = 200, POLL_NS = 1000000 };
  if (!ring->staging.block)
    return 0;
  for (unsigned i = 0; i < POLLS; i++) {
    CUresult result = driver.cuStreamQuery(ring->up);
    if (result == CUDA_SUCCESS) /* a copy down is behind the kernel that used its slot */
      result = driver.cuStreamQuery(ring->down);
    if (result == CUDA_SUCCESS) {
      early_forget(ring);
      return staging_free(&ring->staging);
    }
    if (result != CUDA_ERROR_NOT_READY)
      return 0;
    nanosleep(&(struct timespec){.tv_nsec = POLL_NS}, NULL);
  }
  return 0;
}

struct ring_slot *ring_next(struct ring *ring) {
  struct ring_slot *slot = &ring->slots[ring->next_slot];
  ring->next_slot = (ring->next_slot + 1) % ring->slot_count;
  return slot;
}

enum settled { IDLE, LOST, LATE };

static enum settled settle(const struct ring *ring) {
  enum { POLLS_PER_SECOND = 50 };
  for (uint64_t waited = 0; waited < DRAIN_NS; waited += 1000000000u / POLLS_PER_SECOND) {
    if (!ring->worker || worker_wait_idle(ring->worker, 1000000000u / POLLS_PER_SECOND))
      return IDLE;
    const CUresult result = driver.cuStreamQuery(ring->down);
    if (result != CUDA_SUCCESS && result != CUDA_ERROR_NOT_READY)
      return LOST;
  }
  return LATE;
}

void ring_settle(const struct ring *ring) {
  if (settle(ring) != LOST)
    return;
  worker_fail(ring->worker);
  /* It sees that within microseconds; until then it reads words that the context may take along. */
  (void)worker_wait_idle(ring->worker, DRAIN_NS);
}

void ring_drain(struct ring *ring, const char *what) {
  const enum settled settled = settle(ring);
  if (settled == IDLE)
    return;
  report_line(LOG_NORMAL,
              "%s ends while optimizer steps are still in flight %s: they end as failed", what,
              settled == LOST ? "on a GPU that no longer answers" : "after 10 seconds");
  worker_fail(ring->worker);
}

void ring_leave(struct ring *ring, bool whole) {
  const uint64_t limit_ns = 4000000000;
  if (!ring->worker || (whole && worker_wait_idle(ring->worker, limit_ns)))
    return;
  report_line(LOG_NORMAL, "a signal's handler ends the process while optimizer steps are still in "
                          "flight: they end as failed");
  worker_fail(ring->worker);
}

void ring_forget(CUcontext context, bool gone) {
  for (unsigned i = 0; i < CONTEXTS_MOST; i++) {
    struct ring *ring = rings[i];
    if (!ring || ring->context != context)
      continue;
    if (!gone)
      ring_drain(ring, "a context");
    else if (ring->worker)
      worker_fail(ring->worker); /* what it had to do was waited for with the context */
    if (ring->worker)
      worker_stop(ring->worker);
    free(ring->verifier);
    free(ring->gates);
    rings[i] = NULL;
    staging_forget(&ring->staging);
    free(ring);
  }
}
