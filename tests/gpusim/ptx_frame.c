/* Recursion: a lane's stack of what running functions have in registers and local memory. Handlers
   of what ptx_instruction.c puts around a call of a function that is running already. Local memory
   keeps its addresses, so a function may reach the variables of those above it, but not, through
   a pointer, those of an earlier call of itself. */
#include "ptx.h"
#include <stdlib.h>
#include <string.h>

#define STACK_BYTES (UINT64_C(1) << 20) /* of a lane; a device's own limit is 512 KiB */

struct ptx_stack {
  uint8_t *bytes;
  size_t used, capacity;
};

/* The instruction's operands: registers from, to, local memory from, to, the result's place in it
   and its size. */
enum { REGISTERS_FROM, REGISTERS_TO, LOCAL_FROM, LOCAL_TO, RESULT_AT, RESULT_BYTES };

static uint8_t *lane_local(struct ptx_team *t, uint32_t lane) {
  return t->local + (size_t)lane * t->block->program->local_bytes;
}

/* Registers are arrays over lanes, of cells of different size: a part of the file holds, for one
   lane, 1/PTX_LANES of it. Which cells begin where isn't known here: the part is copied cell by
   cell from the program's list. */
static size_t each_cell(struct ptx_team *t, const struct ptx_instruction *i, uint32_t lane,
                        uint8_t *stack, bool save) {
  const struct ptx_program *program = t->block->program;
  size_t at = 0;
  for (uint32_t k = 0; k < program->cell_count; k++) {
    const struct ptx_cell *c = &program->cells[k];
    if (c->offset < i->operand[REGISTERS_FROM] || c->offset >= i->operand[REGISTERS_TO])
      continue;
    uint8_t *cell = t->registers + c->offset + (size_t)lane * c->bytes;
    if (stack && save)
      memcpy(stack + at, cell, c->bytes);
    else if (stack)
      memcpy(cell, stack + at, c->bytes);
    at += c->bytes;
  }
  return at;
}

void ptx_frame_save(struct ptx_team *t, const struct ptx_instruction *i, uint32_t first,
                    uint32_t end) {
  const size_t local = i->operand[LOCAL_TO] - i->operand[LOCAL_FROM];
  const size_t bytes = each_cell(t, i, first, NULL, true) + local;
  if (!t->stacks)
    t->stacks = calloc(PTX_LANES, sizeof *t->stacks);
  for (uint32_t l = first; l < end; l++) {
    struct ptx_stack *stack = t->stacks ? &t->stacks[l] : NULL;
    if (!stack || stack->used + bytes > STACK_BYTES) {
      ptx_fail(t, i, l, 700, "the stack of recursive calls exceeds %llu bytes",
               (unsigned long long)STACK_BYTES);
      return;
    }
    if (!stack->bytes || stack->used + bytes > stack->capacity) {
      size_t capacity = 2 * stack->capacity + bytes + 1;
      uint8_t *grown = realloc(stack->bytes, capacity);
      if (!grown) {
        ptx_fail(t, i, l, 2, "no memory for the stack of recursive calls");
        return;
      }
      stack->bytes = grown;
      stack->capacity = capacity;
    }
    uint8_t *top = stack->bytes + stack->used;
    memcpy(top, lane_local(t, l) + i->operand[LOCAL_FROM], local);
    each_cell(t, i, l, top + local, true);
    stack->used += bytes;
  }
}

/* All but the result, which the caller takes next. */
void ptx_frame_restore(struct ptx_team *t, const struct ptx_instruction *i, uint32_t first,
                       uint32_t end) {
  const uint32_t from = i->operand[LOCAL_FROM], to = i->operand[LOCAL_TO];
  const uint32_t result = i->operand[RESULT_AT], after = result + i->operand[RESULT_BYTES];
  const size_t local = to - from, bytes = each_cell(t, i, first, NULL, true) + local;
  for (uint32_t l = first; l < end; l++) {
    struct ptx_stack *stack = &t->stacks[l];
    stack->used -= bytes;
    const uint8_t *top = stack->bytes + stack->used;
    memcpy(lane_local(t, l) + from, top, result - from);
    memcpy(lane_local(t, l) + after, top + (after - from), to - after);
    each_cell(t, i, l, stack->bytes + stack->used + local, false);
  }
}

void ptx_stacks_empty(struct ptx_team *t) {
  for (uint32_t l = 0; t->stacks && l < PTX_LANES; l++)
    t->stacks[l].used = 0;
}

void ptx_stacks_free(struct ptx_team *t) {
  for (uint32_t l = 0; t->stacks && l < PTX_LANES; l++)
    free(t->stacks[l].bytes);
  free(t->stacks);
  t->stacks = NULL;
}
