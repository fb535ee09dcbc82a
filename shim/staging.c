/* Slots of the `stream` step (staging.h): their shape, their making and giving back, and the layout of
   what they hold. */
#include "staging.h"
#include "driver.h"
#include "holdings.h"
#include "process.h"
#include "state.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Below so much, a copy costs no more than the calls and the launch around it. */
#define SLOT_BYTES_WORTH ((size_t)4 << 20)
#define SLOT_ALIGNMENT ((size_t)512)

bool staging_shape(size_t bytes, size_t least, unsigned *slots, size_t *slot_bytes) {
  for (unsigned count = STAGING_SLOTS; count >= 2; count /= 2) {
    const size_t each = bytes / count / SLOT_ALIGNMENT * SLOT_ALIGNMENT;
    if (each >= least && (count <= 4 || each >= SLOT_BYTES_WORTH)) {
      *slots = count;
      *slot_bytes = each;
      return true;
    }
  }
  return false;
}

/* ---- making ---- */

static bool make_events(struct staging *staging) {
  for (unsigned i = 0; i < STAGING_SLOTS; i++) {
    struct staging_slot *slot = &staging->slots[i];
    if ((!slot->down && driver.cuEventCreate(&slot->down, CU_EVENT_DISABLE_TIMING)) ||
        (!slot->up && driver.cuEventCreate(&slot->up, CU_EVENT_DISABLE_TIMING)))
      return false;
  }
  return true;
}

static bool make_groups(struct staging *staging) {
  for (unsigned i = 0; i < STAGING_SLOTS; i++) {
    if (!staging->slots[i].group && !(staging->slots[i].group = calloc(1, sizeof(struct group))))
      return false;
  }
  return staging->scratch || (staging->scratch = calloc(1, sizeof(struct group)));
}

/* As large as may be, less where the device has no room for that. */
static CUresult allocate(struct staging *staging, size_t bytes, size_t least) {
  unsigned slots = 0;
  size_t each = 0;
  CUresult result = CUDA_ERROR_OUT_OF_MEMORY;
  for (; staging_shape(bytes, least, &slots, &each); bytes /= 2) {
    result = holding_allocate(&staging->block, slots * each);
    if (result != CUDA_ERROR_OUT_OF_MEMORY)
      break;
  }
  if (result)
    return result;
  staging->slot_count = slots;
  staging->slot_bytes = each;
  staging->next = 0;
  for (unsigned i = 0; i < slots; i++) {
    staging->slots[i].first = staging->block + i * each;
    staging->slots[i].down_used = staging->slots[i].held = staging->slots[i].early = false;
  }
  return CUDA_SUCCESS;
}

/* What it may take: no more than is of use, and of what is free no more than half, but always the
   least shape. */
static size_t spared(const struct staging *staging, size_t bytes, size_t useful, size_t least) {
  size_t free_bytes = 0, total = 0;
  if (bytes > useful)
    bytes = useful;
  if (driver.cuMemGetInfo_v2 && driver.cuMemGetInfo_v2(&free_bytes, &total) == CUDA_SUCCESS &&
      bytes > free_bytes / 2)
    bytes = free_bytes / 2;
  if (staging->limit && bytes > staging->limit)
    bytes = staging->limit;
  return bytes > 2 * least ? bytes : 2 * least;
}

bool staging_make(struct staging *staging, const struct config *config, size_t useful, size_t least,
                  char *why, size_t why_bytes) {
  enum { STEPS_BETWEEN_TRIES = 8 };
  const size_t allowed = config->device_staging.bytes;
  least = (least + SLOT_ALIGNMENT - 1) / SLOT_ALIGNMENT * SLOT_ALIGNMENT;
  if (staging->block && staging->slot_bytes >= least)
    return true;
  if (allowed < 2 * least) {
    snprintf(
        why, why_bytes,
        "OFFLOAD_DEVICE_STAGING=%zu is too small for 2 slots of a chunk: set it to at least %zu",
        allowed, 2 * least);
    return false;
  }
  const uint64_t moved = atomic_load_explicit(&report.totals.pieces_moved, memory_order_relaxed);
  if (state_step() < staging->next_try && moved == staging->moved) {
    if (!why[0])
      snprintf(why, why_bytes, "staging was given back when the device ran out of memory");
    return false;
  }
  snprintf(why, why_bytes, "there is no memory for staging");
  staging->moved = moved;
  CUresult result = CUDA_ERROR_OUT_OF_MEMORY;
  /* Larger slots for a wider kernel: what steps in flight still use stays until the context ends. */
  if (make_groups(staging) && make_events(staging))
    result = allocate(staging, spared(staging, allowed, useful, least), least);
  if (result == CUDA_SUCCESS) {
    why[0] = 0;
    return true;
  }
  staging->next_try = state_step() + STEPS_BETWEEN_TRIES;
  const char *name = NULL;
  if (driver.cuGetErrorName && driver.cuGetErrorName(result, &name) == CUDA_SUCCESS && name)
    snprintf(why, why_bytes, "device memory for staging: %s", name);
  process_note(result, "staging");
  return false;
}

size_t staging_free(struct staging *staging) {
  enum { STEPS_UNTIL_NEXT = 8 };
  const size_t bytes = staging->slot_count * staging->slot_bytes;
  if (!staging->block || holding_free(staging->block) != CUDA_SUCCESS)
    return 0;
  staging->block = 0;
  staging->slot_count = 0;
  staging->slot_bytes = 0;
  staging->limit = bytes / 2;
  staging->next_try = state_step() + STEPS_UNTIL_NEXT;
  staging->moved = atomic_load_explicit(&report.totals.pieces_moved, memory_order_relaxed);
  return bytes;
}

void staging_forget(struct staging *staging) {
  for (unsigned i = 0; i < STAGING_SLOTS; i++)
    free(staging->slots[i].group);
  free(staging->scratch);
  free(staging->last.groups);
  free(staging->last.segments);
  free(staging->present.groups);
  free(staging->present.segments);
  memset(staging, 0, sizeof *staging);
}

/* ---- the layout ---- */

static int by_home(const void *a, const void *b) {
  const struct segment *left = *(const struct segment *const *)a,
                       *right = *(const struct segment *const *)b;
  return (left->home > right->home) - (left->home < right->home);
}

void staging_lay_out(struct group *group) {
  struct segment *sorted[GROUP_SEGMENTS];
  for (unsigned i = 0; i < group->segment_count; i++)
    sorted[i] = &group->segments[i];
  qsort((void *)sorted, group->segment_count, sizeof *sorted, by_home);
  size_t end = 0;
  group->span_count = 0;
  group->tangled = false;
  for (unsigned i = 0; i < group->segment_count; i++) {
    struct segment *segment = sorted[i];
    struct segment *span = group->span_count ? &group->spans[group->span_count - 1] : NULL;
    group->tangled |= span && segment->home < span->home + span->bytes;
    if (span && span->home + span->bytes == segment->home) {
      segment->offset = span->offset + span->bytes;
      span->bytes += segment->bytes;
    } else {
      segment->offset = end + (segment->home - end) % STAGING_ALIGNMENT;
      group->spans[group->span_count++] = *segment;
    }
    end = segment->offset + segment->bytes;
  }
}

bool staging_overlaps(const struct group *group, uintptr_t home, size_t bytes) {
  size_t from = 0, to = group->span_count; /* the first span that ends behind `home` */
  while (from < to) {
    const size_t middle = from + (to - from) / 2;
    if (group->spans[middle].home + group->spans[middle].bytes <= home)
      from = middle + 1;
    else
      to = middle;
  }
  return from < group->span_count && group->spans[from].home < home + bytes;
}
