/* Staging: shapes, how much it takes of a device, giving it back, and the layout of what a slot holds. The driver is a table
   of counting functions. */
#include "shim/driver.h"
#include "shim/process.h"
#include "shim/staging.h"
#include "shim/state.h"
#include "tests/lib/tap.h"
#include <string.h>

#define MiB ((size_t)1 << 20)

struct driver driver;
static uint64_t step_now = 10;
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

static size_t device_free, taken;
static CUresult mem_alloc(CUdeviceptr *pointer, size_t bytes) {
  if (bytes > device_free)
    return CUDA_ERROR_OUT_OF_MEMORY;
  *pointer = 0x700000000000;
  device_free -= bytes;
  taken = bytes;
  return CUDA_SUCCESS;
}
static CUresult mem_free(CUdeviceptr pointer) {
  device_free += taken;
  taken = 0;
  return pointer == 0x700000000000 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
static CUresult mem_info(size_t *free_bytes, size_t *total) {
  *free_bytes = device_free;
  *total = 1024 * MiB;
  return CUDA_SUCCESS;
}
static CUresult context_current(CUcontext *context) {
  *context = (CUcontext)0x9000;
  return CUDA_SUCCESS;
}
static CUresult event_create(CUevent *event, unsigned flags) {
  static uintptr_t last = 0x8000;
  (void)flags;
  *event = (CUevent)(last += 0x10);
  return CUDA_SUCCESS;
}

/* What fp32 without amsgrad needs. */
#define LEAST (staging_bytes((size_t)2 * CHUNK_ELEMENTS * 4, 2))

static struct config config;
static char why[256];

/* Bytes that a new staging takes. */
static size_t made(size_t allowed, size_t useful, size_t free_bytes, struct staging *staging) {
  config.device_staging.bytes = allowed;
  device_free = free_bytes;
  taken = 0;
  return staging_make(staging, &config, useful, LEAST, why, sizeof why) ? taken : 0;
}

static void test_shapes(void) {
  unsigned slots = 0, wrong = 0;
  size_t each = 0;
  for (size_t bytes = 1000; bytes < 300 * MiB; bytes += 777777) {
    const bool shaped = staging_shape(bytes, LEAST, &slots, &each);
    wrong += shaped != (bytes / 2 / 512 * 512 >= LEAST);
    wrong += shaped && (slots * each > bytes || each < LEAST || each % 512 || slots < 2 ||
                        slots > STAGING_SLOTS || slots * each + slots * (size_t)512 <= bytes);
  }
  tap_ok(!wrong, "every shape is within its bytes, uses them, and holds a chunk in each slot");
  tap_ok(staging_shape(256 * MiB, LEAST, &slots, &each) && slots == 16 && each == 16 * MiB,
         "256 MiB are 16 slots of 16 MiB");
  tap_ok(staging_shape(16 * MiB, LEAST, &slots, &each) && slots == 4,
         "little staging has fewer slots rather than tiny ones");
}

static void test_taking(void) {
  static struct staging a, b, c, d;
  tap_ok(made(256 * MiB, SIZE_MAX, 1024 * MiB, &a) == 256 * MiB, "all that is allowed");
  tap_ok(made(256 * MiB, 40 * MiB, 1024 * MiB, &b) <= 40 * MiB && b.slot_count >= 4,
         "no more than a step's state");
  tap_ok(made(256 * MiB, SIZE_MAX, 100 * MiB, &c) <= 50 * MiB && taken > 40 * MiB,
         "no more than half of what the device has free: %zu of 100 MiB", taken / MiB);
  tap_ok(made(256 * MiB, SIZE_MAX, 2 * MiB, &d) >= 2 * LEAST,
         "two slots of a chunk on a device that is nearly full");
  staging_forget(&b);
  staging_forget(&c);
  staging_forget(&d);

  device_free = 512 * MiB;
  taken = 256 * MiB;
  tap_ok(staging_free(&a) == 256 * MiB && !a.block && !a.slot_count && device_free == 768 * MiB,
         "it is given back whole");
  tap_ok(!made(256 * MiB, SIZE_MAX, 768 * MiB, &a) && strstr(why, "given back"),
         "then not asked for at once: %s", why);
  step_now += 20;
  tap_ok(made(256 * MiB, SIZE_MAX, 768 * MiB, &a) == 128 * MiB,
         "some steps later it takes half of what it had");
  device_free = 0;
  taken = 128 * MiB;
  staging_free(&a);
  step_now += 20;
  tap_ok(!made(256 * MiB, SIZE_MAX, 0, &a) && strstr(why, "memory"), "a full device: %s", why);
  step_now += 20;
  tap_ok(!made(1000, SIZE_MAX, 768 * MiB, &a) && strstr(why, "OFFLOAD_DEVICE_STAGING=1000"),
         "too little allowed is a sentence: %s", why);
  staging_forget(&a);
}

/* ---- layout ---- */

static struct group group;

static void lay_out(const struct segment *segments, unsigned count) {
  group.segment_count = count;
  memcpy(group.segments, segments, count * sizeof *segments);
  staging_lay_out(&group);
}

static void test_layout(void) {
  /* m0 v0 m1 v1 end to end, as an allocator lays them out, named m0 v0 m1 v1; then others apart. */
  static const struct segment lists[] = {
      {.home = 0x10000, .bytes = 512},  {.home = 0x10200, .bytes = 512},
      {.home = 0x10400, .bytes = 1024}, {.home = 0x10800, .bytes = 1024},
      {.home = 0x90004, .bytes = 12},   {.home = 0x20018, .bytes = 40}};
  lay_out(lists, 6);
  bool aligned = true, apart = true;
  for (unsigned i = 0; i < 6; i++) {
    aligned = aligned &&
              group.segments[i].offset % STAGING_ALIGNMENT == lists[i].home % STAGING_ALIGNMENT;
    for (unsigned k = 0; k < i; k++)
      apart = apart && (group.segments[i].offset >= group.segments[k].offset + lists[k].bytes ||
                        group.segments[k].offset >= group.segments[i].offset + lists[i].bytes);
  }
  tap_ok(aligned && apart && !group.tangled, "addresses keep their low bits, and nothing overlaps");
  tap_ok(group.span_count == 3 && group.spans[0].bytes == 3072 && group.spans[1].bytes == 40,
         "neighbours are one copy");
  tap_ok(staging_overlaps(&group, 0x10bff, 1) && !staging_overlaps(&group, 0x10c00, 0xf418) &&
             staging_overlaps(&group, 0x10c00, 0xf419) &&
             staging_overlaps(&group, 0, SIZE_MAX / 2) && !staging_overlaps(&group, 0x90010, 100) &&
             !staging_overlaps(&group, 0xfff0, 16),
         "bytes that it shares with others are found, to the byte");
  size_t total = 0, end = 0;
  for (unsigned i = 0; i < 6; i++)
    total += lists[i].bytes;
  for (unsigned i = 0; i < group.span_count; i++)
    if (group.spans[i].offset + group.spans[i].bytes > end)
      end = group.spans[i].offset + group.spans[i].bytes;
  tap_ok(end <= staging_bytes(total, 6), "it is no longer than was reckoned");

  static const struct segment shared[] = {{.home = 0x1000, .bytes = 64},
                                          {.home = 0x1020, .bytes = 64}};
  lay_out(shared, 2);
  tap_ok(group.tangled, "state that shares bytes is told");

  static struct segment many[GROUP_SEGMENTS];
  for (unsigned i = 0; i < GROUP_SEGMENTS; i++)
    many[i] = (struct segment){.home = 0x100000 - i * 0x100 + i % 7 * 4, .bytes = 4 + i % 5 * 4};
  lay_out(many, GROUP_SEGMENTS);
  total = 0;
  aligned = true;
  for (unsigned i = 0; i < GROUP_SEGMENTS; i++) {
    total += many[i].bytes;
    aligned = aligned && (group.segments[i].offset ^ many[i].home) % STAGING_ALIGNMENT == 0 &&
              group.segments[i].offset + many[i].bytes <= staging_bytes(total, i + 1) + 0x10000;
  }
  const struct segment *top = &group.spans[group.span_count - 1];
  tap_ok(aligned && group.span_count == GROUP_SEGMENTS &&
             top->offset + top->bytes <= staging_bytes(total, GROUP_SEGMENTS),
         "as many small tensors as a group has, whatever their alignment");
}

int main(void) {
  driver.cuMemAlloc_v2 = mem_alloc;
  driver.cuMemFree_v2 = mem_free;
  driver.cuMemGetInfo_v2 = mem_info;
  driver.cuEventCreate = event_create;
  driver.cuCtxGetCurrent = context_current;
  test_shapes();
  test_taking();
  test_layout();
  return tap_done();
}
