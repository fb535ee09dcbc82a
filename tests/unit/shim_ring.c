/* The ring's making: shapes, halving where the device is short, and that a stage that fails leaves nothing behind. The
   driver is a table of counting functions that fail at a chosen call. Longer than most rooms: all stages are made on that table. */
#include "shim/process.h"
#include "shim/ring.h"
#include "shim/state.h"
#include "tests/lib/tap.h"
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct driver driver;

/* ---- what ring.c asks of other rooms ---- */

static uint64_t step_now = 1;
uint64_t state_step(void) {
  return step_now;
}
/* No other rank has a part in this node's memory. */
const struct config *process_config(void) {
  static const struct config settings = {.sysroot = "/nonexistent",
                                         .host_memory = {.bytes = 1u << 30, .set = true}};
  return &settings;
}

CUresult process_note_failure(CUresult result, const char *where) {
  (void)where;
  return result;
}

static unsigned early_forgotten;
void early_forget(struct ring *ring) {
  (void)ring;
  early_forgotten++;
}

/* ---- the driver ---- */

static size_t device_room, device_used, device_blocks, host_blocks;
static unsigned host_allocations, fail_host_at, modules_fail;
static void *pinned[64];
/* What fp32 without amsgrad needs. */
#define LEAST ring_slot_bytes(CHUNK_ELEMENTS, 2, sizeof(float))

static CUcontext current = (CUcontext)0x1000;

static struct {
  CUdeviceptr at;
  size_t bytes;
} blocks[64];

static CUresult mem_alloc(CUdeviceptr *pointer, size_t bytes) {
  if (device_used + bytes > device_room)
    return CUDA_ERROR_OUT_OF_MEMORY;
  for (unsigned i = 0; i < 64; i++)
    if (!blocks[i].at) {
      *pointer = blocks[i].at = 0x700000000000 + i * (CUdeviceptr)0x100000000;
      blocks[i].bytes = bytes;
      device_used += bytes;
      device_blocks++;
      return CUDA_SUCCESS;
    }
  return CUDA_ERROR_OUT_OF_MEMORY;
}
static CUresult mem_free(CUdeviceptr pointer) {
  for (unsigned i = 0; i < 64; i++)
    if (blocks[i].at == pointer) {
      device_used -= blocks[i].bytes;
      device_blocks--;
      blocks[i].at = 0;
      return CUDA_SUCCESS;
    }
  return CUDA_ERROR_INVALID_VALUE;
}
static CUresult host_alloc(void **pointer, size_t bytes, unsigned flags) {
  (void)flags;
  if (++host_allocations == fail_host_at)
    return CUDA_ERROR_OUT_OF_MEMORY;
  for (unsigned i = 0; i < 64; i++)
    if (!pinned[i]) {
      *pointer = pinned[i] = aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
      host_blocks++;
      return CUDA_SUCCESS;
    }
  return CUDA_ERROR_OUT_OF_MEMORY;
}
static CUresult host_free(void *pointer) {
  for (unsigned i = 0; i < 64; i++)
    if (pinned[i] == pointer) {
      pinned[i] = NULL;
      host_blocks--;
    }
  free(pointer);
  return CUDA_SUCCESS;
}
/* A context's end takes all memory with it. */
static void context_ends(void) {
  for (unsigned i = 0; i < 64; i++) {
    free(pinned[i]);
    pinned[i] = NULL;
  }
  host_blocks = 0;
}
static CUresult get_current(CUcontext *context) {
  *context = current;
  return CUDA_SUCCESS;
}
static CUresult stream_create(CUstream *stream, unsigned flags, int priority) {
  (void)priority;
  static uintptr_t last = 0x2000;
  *stream = (CUstream)(last += 0x10);
  return flags == CU_STREAM_NON_BLOCKING ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
static CUresult event_create(CUevent *event, unsigned flags) {
  (void)flags;
  static uintptr_t last = 0x8000;
  *event = (CUevent)(last += 0x10);
  return CUDA_SUCCESS;
}
static CUstream used[8]; /* by an event that was recorded there or waited for */
static unsigned use_count;
static CUresult use(CUstream stream) {
  if (use_count < 8)
    used[use_count++] = stream;
  return CUDA_SUCCESS;
}
static CUresult event_record(CUevent event, CUstream stream) {
  (void)event;
  return use(stream);
}
static CUresult wait_event(CUstream stream, CUevent event, unsigned flags) {
  (void)event, (void)flags;
  return use(stream);
}
static CUresult query_answer; /* of every stream and event */
static CUresult stream_query(CUstream stream) {
  (void)stream;
  return query_answer;
}
static CUresult event_query(CUevent event) {
  (void)event;
  return query_answer;
}
static CUresult module_load(CUmodule *module, const void *image) {
  *module = (CUmodule)0x9000;
  return modules_fail || !strstr(image, "off_apply") ? CUDA_ERROR_INVALID_PTX : CUDA_SUCCESS;
}
static CUresult module_function(CUfunction *function, CUmodule module, const char *name) {
  (void)module;
  *function = (CUfunction)(uintptr_t)name;
  return CUDA_SUCCESS;
}
static CUresult write_value(CUstream stream, CUdeviceptr address, cuuint32_t value,
                            unsigned flags) {
  (void)stream, (void)address, (void)value, (void)flags;
  return CUDA_SUCCESS;
}

static unsigned launched_blocks;
static unsigned char launched_parameters[6][2100];
static CUresult launch(CUfunction function, unsigned x, unsigned y, unsigned z, unsigned bx,
                       unsigned by, unsigned bz, unsigned shared, CUstream stream,
                       void **parameters, void **extra) {
  (void)function, (void)y, (void)z, (void)bx, (void)by, (void)bz, (void)shared, (void)stream,
      (void)extra;
  static const size_t sizes[6] = {8, 8, 8, 4, 4, 4};
  launched_blocks = x;
  for (unsigned i = 0; i < 6; i++)
    memcpy(launched_parameters[i], parameters[i], sizes[i]);
  return CUDA_SUCCESS;
}

/* ---- tests ---- */

static void test_shapes(void) {
  bool within = true, whole = true, fits = true;
  for (size_t bytes = 1000; bytes < (size_t)64 << 20; bytes += 77777) {
    unsigned slots;
    size_t elements;
    if (!ring_shape(bytes, CHUNK_ELEMENTS, &slots, &elements)) {
      fits = fits && bytes < ring_bytes(2, CHUNK_ELEMENTS);
      continue;
    }
    within = within && ring_bytes(slots, elements) <= bytes;
    whole = whole && elements % CHUNK_ELEMENTS == 0 && elements > 0 && (slots == 2 || slots == 4);
  }
  tap_ok(within, "a ring never takes more than it was allowed");
  tap_ok(whole, "a slot holds whole chunks, in two or four slots");
  tap_ok(fits, "it is refused only where two slots of a chunk don't fit");
  unsigned slots = 0;
  size_t elements = 0;
  ring_shape((size_t)16 << 20, CHUNK_ELEMENTS, &slots, &elements);
  tap_ok(slots == 4 && elements >= 7u * CHUNK_ELEMENTS, "16 MiB are four slots of %zu chunks each",
         elements / CHUNK_ELEMENTS);
}

static void test_stages(const struct adam_api *api) {
  struct config config = {.threads = 1, .isa = ADAM_ISA_SCALAR};
  config.device_staging.bytes = (size_t)16 << 20;
  device_room = (size_t)5 << 20;
  struct ring *ring = ring_of_context();
  tap_ok(ring && ring_of_context() == ring && ring_find(current) == ring, "a context has one ring");
  tap_ok(ring_open(ring) && ring->kernels.gather && ring->kernels.apply[ADAM_TYPE_BFLOAT16],
         "streams, events and kernels are made");
  unsigned touched = 0;
  for (unsigned i = 0; i < use_count; i++)
    touched |= (used[i] == ring->down ? 1u : 0u) | (used[i] == ring->up ? 2u : 0u) |
               (used[i] == ring->scratch ? 4u : 0u);
  tap_ok(touched == 7, "each side stream was used once before a step is in it");
  const bool staged = ring_stage(ring, &config, SIZE_MAX, LEAST);
  tap_ok(staged && device_used <= device_room && device_used > device_room / 4 &&
             ring->slot_count >= 2,
         "where the device is short the ring is halved until it fits: %zu of %zu bytes",
         device_used, device_room);
  const size_t staged_bytes = device_used, staged_blocks = device_blocks;
  device_room = (size_t)64 << 20;

  unsigned kept = 0, tries = 0;
  for (fail_host_at = 1; fail_host_at < 40; fail_host_at++) {
    host_allocations = 0;
    ring->cannot_prepare = false;
    if (ring_prepare(ring, &config, api))
      break;
    tries++;
    kept += host_blocks != 0 || device_used != staged_bytes || device_blocks != staged_blocks ||
            ring->worker || !ring->why[0];
  }
  tap_ok(tries >= 9 && kept == 0, "a failure at any of %u allocations leaves nothing behind",
         tries);
  tap_ok(ring->prepared && ring->worker, "then it is prepared whole");

  query_answer = CUDA_ERROR_NOT_READY;
  const bool free_first = !ring_taken(ring, (CUstream)0x10);
  ring_took(ring, (CUstream)0x10, ring->up_last);
  const bool own = !ring_taken(ring, (CUstream)0x10), others = ring_taken(ring, (CUstream)0x20);
  query_answer = CUDA_SUCCESS;
  tap_ok(free_first && own && others && !ring_taken(ring, (CUstream)0x20),
         "the ring is taken for other streams until its last step is done");

  char why[256] = "";
  struct staging *staging = &ring->staging;
  config.device_staging.bytes = (size_t)8 << 20;
  const bool slots = staging_make(staging, &config, SIZE_MAX, LEAST, why, sizeof why);
  const size_t with_slots = device_used;
  query_answer = CUDA_ERROR_NOT_READY;
  const size_t busy = ring_give_back(ring);
  query_answer = CUDA_SUCCESS;
  const unsigned forgotten = early_forgotten;
  const size_t freed = ring_give_back(ring);
  tap_ok(slots && !busy && freed >= (size_t)7 << 20 && device_used == with_slots - freed &&
             early_forgotten == forgotten + 1 && !ring_give_back(ring),
         "staging is given back when the side streams are done with it, and only then");

  /* A step whose gradients never come, on a GPU that is lost. */
  _Atomic uint32_t never = 0;
  worker_prove(ring->worker, &(struct proof_job){.ready = &never, .generation = 1});
  query_answer = CUDA_ERROR_ILLEGAL_ADDRESS;
  const time_t before = time(NULL);
  ring_drain(ring, "a test");
  tap_ok(worker_wait_idle(ring->worker, 5000000000u) && time(NULL) - before < 4,
         "nobody waits for steps on a GPU that is lost");
  ring_forget(current, false);
  context_ends();
  tap_ok(!ring_find(current), "a context that ends is forgotten, its worker too");
}

static void test_refusals(const struct adam_api *api) {
  struct config config = {.threads = 1, .isa = ADAM_ISA_SCALAR};
  config.device_staging.bytes = 4096;
  current = (CUcontext)0x1100;
  modules_fail = 1;
  struct ring *ring = ring_of_context();
  tap_ok(ring_open(ring) && !ring->kernels.gather,
         "without our kernels streaming is still possible");
  tap_ok(!ring_stage(ring, &config, SIZE_MAX, LEAST) &&
             strstr(ring->why, "OFFLOAD_DEVICE_STAGING=4096"),
         "staging too small is a sentence: %s", ring->why);
  config.device_staging.bytes = (size_t)16 << 20;
  device_room = device_used;
  step_now = 100;
  tap_ok(!ring_stage(ring, &config, SIZE_MAX, LEAST) && strstr(ring->why, "memory"),
         "so is a full device: %s", ring->why);
  device_room = (size_t)64 << 20;
  tap_ok(!ring_stage(ring, &config, SIZE_MAX, LEAST), "which is not asked again at once");
  step_now = 120;
  tap_ok(ring_stage(ring, &config, SIZE_MAX, LEAST), "but some steps later");
  tap_ok(!ring_prepare(ring, &config, api) && ring->why[0], "the CPU step needs our kernels: %s",
         ring->why);
  ring_forget(current, false);
  current = NULL;
  tap_ok(!ring_of_context(), "without a context there is no ring");
}

static void test_little_state(void) {
  struct config config = {.threads = 1, .isa = ADAM_ISA_SCALAR};
  config.device_staging.bytes = (size_t)16 << 20;
  device_room = device_used + ((size_t)64 << 20);
  static const size_t useful[] = {100, (size_t)3 << 20, (size_t)40 << 20};
  size_t taken[3];
  bool staged = true;
  for (unsigned i = 0; i < 3; i++) {
    current = (CUcontext)(uintptr_t)(0x1200 + i * 0x100);
    struct ring *ring = ring_of_context();
    const size_t before = device_used;
    config.step = STEP_STREAM;
    staged = staged && ring_open(ring) && ring_stage(ring, &config, useful[i], LEAST);
    taken[i] = device_used - before;
    ring_forget(current, false);
  }
  tap_ok(
      staged && taken[0] == ring_bytes(2, CHUNK_ELEMENTS) && taken[1] <= (size_t)3 << 20 &&
          taken[1] >= taken[0] && taken[2] > (size_t)12 << 20 && taken[2] <= (size_t)16 << 20,
      "staging is no larger than a step's state, nor smaller than two slots of a chunk: %zu, %zu, "
      "%zu bytes",
      taken[0], taken[1], taken[2]);
}

/* Slots that were made for fp32, then a kernel whose chunk they don't hold. */
static void test_larger_kernel(void) {
  struct config config = {.threads = 1, .isa = ADAM_ISA_SCALAR};
  config.device_staging.bytes = (size_t)16 << 20;
  config.step = STEP_STREAM;
  device_room = device_used + ((size_t)64 << 20);
  current = (CUcontext)0x1600;
  struct ring *ring = ring_of_context();
  const size_t wide = ring_slot_bytes(CHUNK_ELEMENTS, 3, ELEMENT_BYTES_MOST);
  bool made = ring_open(ring) && ring_stage(ring, &config, 100, LEAST);
  const size_t elements = ring->slot_elements, blocks_before = device_blocks;
  const CUdeviceptr first = ring->slots[0].first;
  tap_ok(made && ring_elements(ring, 2, sizeof(float)) == CHUNK_ELEMENTS &&
             ring_elements(ring, 3, ELEMENT_BYTES_MOST) == 0,
         "slots for little fp32 state hold no chunk of three lists of doubles");
  made = ring_stage(ring, &config, 100, wide);
  tap_ok(made && ring->slot_bytes >= wide && ring_elements(ring, 3, ELEMENT_BYTES_MOST) > 0 &&
             ring->slots[0].first != first && ring->slot_elements == elements,
         "slots are made anew for a kernel that needs larger ones");
  tap_ok(ring->slots[0].second - ring->slots[0].first == ring_part_bytes(elements, sizeof(float)),
         "the CPU step's half stays what was pinned for it");
  tap_ok(device_blocks == blocks_before + ring->slot_count &&
             ring_stage(ring, &config, 100, LEAST) &&
             device_blocks == blocks_before + ring->slot_count,
         "nothing is freed that a step may still use, and nothing is made twice");
  config.device_staging.bytes = (size_t)1100 << 10;
  current = (CUcontext)0x1700;
  ring = ring_of_context();
  made = ring_open(ring) && ring_stage(ring, &config, 100, LEAST);
  tap_ok(made && !ring_stage(ring, &config, 100, wide) &&
             strstr(ring->why, "OFFLOAD_DEVICE_STAGING") && ring->slot_bytes >= LEAST,
         "staging that can't hold a larger chunk is a sentence: %s", ring->why);
}

/* The same with the CPU step's pinned half of a slot: doubles come after it was made for floats. */
static void test_growth(const struct adam_api *api) {
  struct config config = {.threads = 1, .isa = ADAM_ISA_SCALAR};
  config.device_staging.bytes = (size_t)16 << 20;
  device_room = device_used + ((size_t)64 << 20);
  modules_fail = fail_host_at = 0;
  current = (CUcontext)0x1800;
  struct ring *ring = ring_of_context();
  const size_t wide = ring_slot_bytes(CHUNK_ELEMENTS, 3, ELEMENT_BYTES_MOST);
  bool made =
      ring_open(ring) && ring_stage(ring, &config, 100, LEAST) && ring_prepare(ring, &config, api);
  made = made && ring_piece_elements(ring, ADAM_TYPE_FLOAT) == CHUNK_ELEMENTS &&
         !ring_piece_elements(ring, ADAM_TYPE_DOUBLE);
  const struct ring before = *ring;
  const size_t blocks_before = host_blocks;
  made = made && ring_stage(ring, &config, 100, wide);

  unsigned tries = 0, kept = 0, asked_again = 0, told = 0;
  for (fail_host_at = 1; made && fail_host_at < 40; fail_host_at++) {
    host_allocations = 0;
    ring->ungrown_bytes = 0;
    made = ring_prepare(ring, &config, api);
    if (ring_piece_elements(ring, ADAM_TYPE_DOUBLE))
      break;
    tries++;
    bool same = host_blocks == blocks_before && ring->slot_elements == before.slot_elements &&
                ring_piece_elements(ring, ADAM_TYPE_FLOAT) == CHUNK_ELEMENTS;
    for (unsigned i = 0; i < ring->slot_count; i++)
      same = same && ring->slots[i].words == before.slots[i].words &&
             ring->slots[i].update == before.slots[i].update &&
             ring->slots[i].gradient == before.slots[i].gradient;
    kept += same;
    told += strstr(ring->small, "staging was made for smaller types") &&
            strstr(ring->small, "pinned memory");
    const unsigned asked = host_allocations;
    made = made && ring_prepare(ring, &config, api);
    asked_again += host_allocations != asked;
  }
  tap_ok(made && tries == 2 * ring->slot_count && kept == tries,
         "pinned slots that can't grow, at any of %u allocations, stay what they were for floats",
         tries);
  tap_ok(told == tries && !asked_again, "it is told, and not asked for at every launch: %s",
         ring->small);
  bool apart = ring_piece_elements(ring, ADAM_TYPE_DOUBLE) >= CHUNK_ELEMENTS;
  const size_t half_bytes = ring->slot_elements * sizeof(float);
  for (unsigned i = 0; i < ring->slot_count && apart; i++) {
    const struct ring_slot *slot = &ring->slots[i];
    apart = slot->words != before.slots[i].words && slot->gradient != before.slots[i].gradient &&
            slot->second - slot->first == RING_HEAD + half_bytes &&
            slot->second + half_bytes <= slot->first + ring->slot_bytes;
    memset(slot->update, 1, half_bytes);
    memset(slot->gradient, 2, half_bytes);
    apart = apart && slot->words->ready == 0 && slot->words->done == 0;
  }
  tap_ok(apart, "then they grow to hold a chunk of doubles, and both halves fit their slot");
  tap_ok(host_blocks == blocks_before + 2 * ring->slot_count,
         "what a step in flight may still use is not given back");
  ring_forget(current, false);
  context_ends();
}

static void test_launches(void) {
  const struct adam_candidate candidates[] = {
      {.generation = ADAM_FLOAT, .mode = ADAM_W, .decay = ADAM_DECAY_NONE},
      {.generation = ADAM_FLOAT, .mode = ADAM_W, .decay = ADAM_DECAY_FUSED},
      {.generation = ADAM_MIXED, .mode = ADAM_W, .decay = ADAM_DECAY_UNFUSED},
      {.generation = ADAM_DOUBLE, .mode = ADAM_W, .decay = ADAM_DECAY_FUSED},
      {.generation = ADAM_OLD, .mode = ADAM_W, .decay = ADAM_DECAY_UNFUSED}};
  const struct kernels kernels = {.apply = {(CUfunction)0x10}};
  struct kernel_run run = {.p = 0x100, .elements = 1025};
  bool right = true;
  for (unsigned i = 0; i < 5; i++) {
    uint32_t decay, expected, count;
    CUdeviceptr update;
    run.candidate = candidates[i];
    kernels_apply(&kernels, &run, 0x2000, 7, NULL);
    memcpy(&update, launched_parameters[1], 8);
    memcpy(&count, launched_parameters[3], 4);
    memcpy(&expected, launched_parameters[4], 4);
    memcpy(&decay, launched_parameters[5], 4);
    right = right && decay == i && expected == 28 && count == 1025 && update == 0x2000 + 64 &&
            launched_blocks == 5;
  }
  tap_ok(right,
         "the apply kernel is told the candidate's decay, the slot's status and its elements");
  run.candidate =
      (struct adam_candidate){.generation = ADAM_FLOAT, .mode = ADAM_L2, .decay = ADAM_DECAY_FUSED};
  uint32_t decay;
  kernels_apply(&kernels, &run, 0x2000, 1, NULL);
  memcpy(&decay, launched_parameters[5], 4);
  tap_ok(decay == KERNEL_NONE, "L2 decay is in the gradient, not in the apply kernel");
  run.candidate.type = ADAM_TYPE_DOUBLE;
  tap_ok(kernel_decay(&run.candidate) == KERNEL_DOUBLE_FUSED,
         "doubles decay in double, whatever the generation");
}

int main(void) {
  driver.cuMemAlloc_v2 = mem_alloc;
  driver.cuMemFree_v2 = mem_free;
  driver.cuMemHostAlloc = host_alloc;
  driver.cuMemFreeHost = host_free;
  driver.cuCtxGetCurrent = get_current;
  driver.cuStreamCreateWithPriority = stream_create;
  driver.cuEventCreate = event_create;
  driver.cuEventRecord = event_record;
  driver.cuStreamWaitEvent = wait_event;
  driver.cuStreamQuery = stream_query;
  driver.cuEventQuery = event_query;
  driver.cuModuleLoadData = module_load;
  driver.cuModuleGetFunction = module_function;
  driver.cuStreamWriteValue32_v2 = driver.cuStreamWaitValue32_v2 = write_value;
  driver.cuLaunchKernel = launch;
  test_shapes();
  test_stages(offload_adam());
  test_refusals(offload_adam());
  modules_fail = 0;
  current = (CUcontext)0x1200;
  test_little_state();
  test_larger_kernel();
  test_growth(offload_adam());
  test_launches();
  return tap_done();
}
