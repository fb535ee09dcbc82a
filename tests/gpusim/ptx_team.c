/* States of teams: register files with their constants and special registers. Called by
   ptx_run.c. A state is used for one team after another; constants are written once, special
   registers as they change. */
#include "ptx_run.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void fill(struct ptx_team *t, uint32_t offset, uint32_t bytes, uint64_t value) {
  uint8_t *cells = t->registers + offset;
  for (uint32_t l = 0; l < PTX_LANES; l++)
    memcpy(cells + (size_t)l * bytes, &value, bytes);
}

static uint64_t launch_special(const struct ptx_block *block, enum ptx_special id) {
  const struct gpusim_launch *launch = block->launch;
  switch (id) {
  case PTX_NTID_X:
  case PTX_NTID_Y:
  case PTX_NTID_Z:
    return launch->block[id - PTX_NTID_X];
  case PTX_NCTAID_X:
  case PTX_NCTAID_Y:
  case PTX_NCTAID_Z:
    return launch->grid[id - PTX_NCTAID_X];
  case PTX_NWARPID:
    return (block->threads + PTX_WARP - 1) / PTX_WARP;
  case PTX_NSMID:
    return 1;
  case PTX_DYNAMIC_SMEM_SIZE:
    return launch->dynamic_shared_bytes;
  case PTX_TOTAL_SMEM_SIZE:
    return block->shared_bytes;
  case PTX_WARP_SZ:
    return PTX_WARP;
  default: /* %smid, %gridid */
    return 0;
  }
}

static uint32_t thread_special(const struct ptx_team *t, enum ptx_special id, uint32_t lane) {
  uint32_t in_warp = lane % PTX_WARP, bit = 1u << in_warp;
  switch (id) {
  case PTX_LANEID:
    return in_warp;
  case PTX_WARPID:
    return (t->first + lane) / PTX_WARP;
  case PTX_LANEMASK_EQ:
    return bit;
  case PTX_LANEMASK_LT:
    return bit - 1;
  case PTX_LANEMASK_LE:
    return bit | (bit - 1);
  case PTX_LANEMASK_GT:
    return ~(bit | (bit - 1));
  default: /* lanemask_ge */
    return ~(bit - 1);
  }
}

static void fill_thread_index(struct ptx_team *t, uint32_t axis, uint32_t *cells) {
  const uint32_t *size = t->block->launch->block;
  uint32_t index[3];
  ptx_thread_index(t->block, t->first, index);
  for (uint32_t l = 0; l < t->count; l++) {
    cells[l] = index[axis];
    if (++index[0] == size[0]) {
      index[0] = 0;
      if (++index[1] == size[1]) {
        index[1] = 0;
        index[2]++;
      }
    }
  }
}

static struct ptx_team *state_new(struct ptx_worker *w) {
  const struct ptx_program *program = w->block.program;
  struct ptx_team *t = calloc(1, sizeof *t);
  size_t register_bytes = ptx_align(program->register_bytes + 1u, 64);
  size_t local_bytes = ptx_align((size_t)program->local_bytes * PTX_LANES + 1, 64);
  uint8_t *memory = t ? aligned_alloc(64, register_bytes + local_bytes) : NULL;
  if (!memory) {
    free(t);
    return NULL;
  }
  memset(memory, 0, register_bytes + local_bytes);
  t->block = &w->block;
  t->registers = memory;
  t->local = memory + register_bytes;
  uint32_t dynamic_at =
      (uint32_t)ptx_align(program->static_shared_bytes, program->dynamic_alignment);
  for (uint32_t k = 0; k < program->constant_count; k++) {
    const struct ptx_constant *c = &program->constants[k];
    fill(t, c->offset, c->bytes, c->value + (c->dynamic_shared ? dynamic_at : 0));
  }
  for (uint32_t k = 0; k < program->special_count; k++) {
    const struct ptx_special_use *s = &program->specials[k];
    if (ptx_special_kinds[s->id] == PTX_PER_LAUNCH)
      fill(t, s->offset, ptx_special_bytes[s->id], launch_special(&w->block, s->id));
  }
  t->first = PTX_NONE; /* thread registers aren't filled yet */
  w->state_count++;
  return t;
}

/* Team `index` of the block at hand, its lanes ready at the entry's first instruction. */
bool ptx_team_start(struct ptx_worker *w, uint32_t index) {
  struct ptx_block *block = &w->block;
  struct ptx_team *t = w->spare_count ? w->spare[--w->spare_count] : state_new(w);
  if (!t) {
    block->result = 2;
    snprintf(block->error, block->error_bytes, "no memory for the threads of kernel %s",
             block->kernel->name);
    return false;
  }
  uint32_t start = index * PTX_LANES, left = block->threads - start;
  bool moved = t->first != start;
  t->first = start;
  t->count = left < PTX_LANES ? left : PTX_LANES;
  t->exited = 0;
  ptx_stacks_empty(t);
  memset(t->state, PTX_READY, t->count);
  memset(t->state + t->count, PTX_EXITED, PTX_LANES - t->count);
  for (uint32_t l = 0; l < t->count; l++)
    t->pc[l] = block->program->start;
  for (uint32_t k = 0; k < block->program->special_count; k++) {
    const struct ptx_special_use *s = &block->program->specials[k];
    uint32_t *cells = (uint32_t *)(void *)(t->registers + s->offset);
    if (ptx_special_kinds[s->id] == PTX_PER_BLOCK)
      fill(t, s->offset, 4, block->index[s->id - PTX_CTAID_X]);
    if (ptx_special_kinds[s->id] != PTX_PER_THREAD || !moved)
      continue;
    if (s->id <= PTX_TID_Z)
      fill_thread_index(t, s->id - PTX_TID_X, cells);
    else
      for (uint32_t l = 0; l < t->count; l++)
        cells[l] = thread_special(t, s->id, l);
  }
  w->teams[index] = t;
  return true;
}
