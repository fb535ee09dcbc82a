/* Checked access to memory: a lane's address becomes a host address. Asynchronous copies, conversions
   between generic addresses and those of a space. Loads and stores, a run of lanes at once, are in
   ptx_exec_access.c, atomics in ptx_atomic.c.

   An access must be aligned to its size (716) and lie in one mapping that the launch's device may
   use, writable for a store (700). Bounds seen lately are kept per worker and dropped when
   gpusim_memory_generation changes. Accesses of different threads may race, as on a GPU: that is
   the GPU program's business, so race detectors don't look here. */
#include "ptx.h"
#include "ptx_exec.h"
#include <string.h>

#define RACY __attribute__((no_sanitize("thread")))

const struct ptx_bounds *ptx_bounds_of(struct ptx_block *block, uint64_t address, uint64_t bytes) {
  for (uint32_t k = 0; k < PTX_BOUNDS; k++) {
    const struct ptx_bounds *b = &block->bounds[k];
    if (address >= b->low && address < b->high && bytes <= b->high - address)
      return b;
  }
  struct ptx_bounds found;
  if (!gpusim_memory_bounds(block->launch->device, address, &found.low, &found.high,
                            &found.writable) ||
      bytes > found.high - address)
    return NULL;
  found.bytes = gpusim_backing(found.low);
  found.on_host = gpusim_memory_on_host(found.low);
  struct ptx_bounds *slot = &block->bounds[block->next_bounds++ % PTX_BOUNDS];
  *slot = found;
  return slot;
}

void ptx_bounds_refresh(struct ptx_block *block) {
  uint64_t generation = gpusim_memory_generation();
  if (generation == block->generation)
    return;
  memset(block->bounds, 0, sizeof block->bounds);
  block->generation = generation;
}

static uint8_t *lane_local(struct ptx_team *t, uint32_t lane) {
  return t->local + (size_t)lane * t->block->program->local_bytes;
}

/* `from` + offset when [offset, offset + bytes) lies in the `size` bytes there. */
static uint8_t *within(struct ptx_team *t, const struct ptx_instruction *i, uint32_t lane,
                       uint8_t *from, uint64_t size, uint64_t offset, uint32_t bytes,
                       const char *space) {
  if (offset <= size && bytes <= size - offset)
    return from + offset;
  ptx_fail(t, i, lane, 700, "illegal address %#llx of %u bytes in %s memory, which has %llu bytes",
           (unsigned long long)offset, bytes, space, (unsigned long long)size);
  return NULL;
}

uint8_t *ptx_resolve(struct ptx_team *t, const struct ptx_instruction *i, uint32_t lane,
                     enum ptx_space space, uint64_t address, uint32_t bytes, bool write) {
  struct ptx_block *block = t->block;
  if (bytes && address % bytes) {
    ptx_fail(t, i, lane, 716, "misaligned address %#llx for %u bytes", (unsigned long long)address,
             bytes);
    return NULL;
  }
  if (space == PTX_GENERIC) {
    if (address - PTX_SHARED_WINDOW < PTX_WINDOW_BYTES) {
      space = PTX_SHARED;
      address -= PTX_SHARED_WINDOW;
    } else if (address - PTX_LOCAL_WINDOW < PTX_WINDOW_BYTES) {
      space = PTX_LOCAL;
      address -= PTX_LOCAL_WINDOW;
    } else if (address - PTX_PARAM_WINDOW < PTX_WINDOW_BYTES) {
      space = PTX_PARAM;
      address -= PTX_PARAM_WINDOW;
    }
  }
  if (space == PTX_PARAM && address >= PTX_LANE_PARAMETER) {
    space = PTX_LOCAL;
    address -= PTX_LANE_PARAMETER;
  }
  switch (space) {
  case PTX_SHARED:
    return within(t, i, lane, block->shared, block->shared_bytes, address, bytes, "shared");
  case PTX_LOCAL:
    return within(t, i, lane, lane_local(t, lane), block->program->local_bytes, address, bytes,
                  "local");
  case PTX_PARAM:
    if (write) {
      ptx_fail(t, i, lane, 700, "write to a kernel parameter");
      return NULL;
    }
    return within(t, i, lane, (uint8_t *)(uintptr_t)block->parameters, block->parameter_bytes,
                  address, bytes, "parameter"); /* not written, see above */
  default:
    break;
  }
  const struct ptx_bounds *b = ptx_bounds_of(block, address, bytes);
  if (b && (!write || b->writable)) {
    block->traffic[b->on_host][write] += bytes;
    return b->bytes + (address - b->low);
  }
  ptx_fail(t, i, lane, 700,
           b ? "illegal address %#llx (%u bytes): the memory is read-only for device %d"
             : "illegal address %#llx (%u bytes): no memory that device %d may access",
           (unsigned long long)address, bytes, block->launch->device);
  return NULL;
}

void ptx_addresses(ARGS, uint64_t *out) {
  addresses(PASS, out);
}

/* ---- the rest ---- */

/* cp.async: `bytes` to shared memory, of which those beyond operand 2 are zeros. */
RACY static void copy_async(ARGS) {
  uint64_t to[PTX_LANES];
  ptx_bounds_refresh(t->block);
  if (i->address != PTX_NONE)
    ptx_addresses(PASS, to);
  for (uint32_t l = first; l < end; l++) {
    uint64_t from = CELLS(uint64_t, 0)[l] + CELLS(uint64_t, 1)[l];
    uint32_t have = i->operand[2] == PTX_NONE ? i->bytes : CELLS(uint32_t, 2)[l];
    uint64_t address = i->address != PTX_NONE ? to[l] : (uint64_t)i->offset;
    uint8_t *d = ptx_resolve(t, i, l, PTX_SHARED, address, i->bytes, true), *s = NULL;
    if (have > i->bytes)
      have = i->bytes;
    if (d && from % i->bytes)
      ptx_fail(t, i, l, 716, "misaligned address %#llx for %u bytes", (unsigned long long)from,
               i->bytes);
    else if (d && have) /* byte by byte: `have` may be any number */
      s = ptx_resolve(t, i, l, PTX_GLOBAL, from, 1, false);
    if (s && !ptx_resolve(t, i, l, PTX_GLOBAL, from + have - 1, 1, false))
      s = NULL;
    if (!d || (have && !s))
      return;
    if (have > 2) /* its ends were counted when they were resolved */
      t->block->traffic[ptx_bounds_of(t->block, from, 1)->on_host][false] += have - 2;
    if (have)
      memcpy(d, s, have);
    memset(d + have, 0, i->bytes - have);
  }
}

static uint64_t window(uint8_t space) {
  return space == PTX_SHARED  ? PTX_SHARED_WINDOW
         : space == PTX_LOCAL ? PTX_LOCAL_WINDOW
         : space == PTX_PARAM ? PTX_PARAM_WINDOW
                              : 0;
}
static void convert_address(ARGS) {
  const uint64_t base = window(i->space), add = i->flags & PTX_M_TO ? 0 - base : base;
  uint64_t *d = CELLS(uint64_t, 0);
  const uint64_t *a = CELLS(uint64_t, 1);
  LANES d[l] = a[l] + add;
}
static void is_space(ARGS) {
  const uint64_t base = window(i->space);
  for (uint32_t l = first; l < end; l++) {
    uint64_t a = CELLS(uint64_t, 1)[l];
    CELLS(uint8_t, 0)
    [l] = base ? a - base < PTX_WINDOW_BYTES
               : a - PTX_PARAM_WINDOW >= PTX_SHARED_WINDOW + PTX_WINDOW_BYTES - PTX_PARAM_WINDOW;
  }
}

void ptx_copy_local(struct ptx_team *t, uint32_t first, uint32_t end, uint32_t to, uint32_t from,
                    uint32_t bytes) {
  for (uint32_t l = first; l < end; l++)
    memcpy(lane_local(t, l) + to, lane_local(t, l) + from, bytes);
}

ptx_handler ptx_select_memory(const struct ptx_instruction *i) {
  switch (i->opcode) {
  case PTX_OP_ld:
  case PTX_OP_ldu:
  case PTX_OP_st:
    return ptx_select_access(i);
  case PTX_OP_atom:
  case PTX_OP_red:
    return ptx_select_atomic(i);
  case PTX_OP_cp:
    return copy_async;
  case PTX_OP_cvta:
    return convert_address;
  default:
    return is_space;
  }
}
