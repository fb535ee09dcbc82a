/* Warp-wide instructions: shuffles, votes, matches, reductions. Called by ptx_run.c once all lanes
   that the member mask names stand at the instruction. Results are computed for all members before
   any is written. */
#include "ptx.h"
#include <string.h>

static uint32_t *cells32(struct ptx_team *t, uint32_t offset) {
  return (uint32_t *)(void *)(t->registers + offset);
}

static uint64_t value_of(struct ptx_team *t, uint32_t offset, uint32_t bytes, uint32_t lane) {
  uint64_t value = 0;
  memcpy(&value, t->registers + offset + (size_t)lane * bytes, bytes);
  return value;
}

static void set_predicate(struct ptx_team *t, uint32_t offset, uint32_t lane, bool value) {
  if (offset != PTX_NONE)
    t->registers[offset + lane] = value;
}

static void set_result(struct ptx_team *t, const struct ptx_instruction *i, uint32_t lane,
                       uint32_t value) {
  if (i->operand[0] != PTX_NONE)
    cells32(t, i->operand[0])[lane] = value;
}

#define EACH_MEMBER(lane)                                                                          \
  for (uint32_t left_##lane = members, lane = 0;                                                   \
       left_##lane && (lane = (uint32_t)__builtin_ctz(left_##lane), true);                         \
       left_##lane &= left_##lane - 1)

/* c holds the bounds of a lane's segment: the last lane in bits 0-4, a mask of the segment in
   bits 8-12. */
static void shuffle(struct ptx_team *t, const struct ptx_instruction *i, uint32_t warp,
                    uint32_t members) {
  uint32_t result[PTX_WARP];
  bool inside[PTX_WARP];
  EACH_MEMBER(lane) {
    int32_t b = (int32_t)(cells32(t, i->operand[2])[warp + lane] & 31), own = (int32_t)lane;
    uint32_t c = cells32(t, i->operand[3])[warp + lane], segment = c >> 8 & 31;
    int32_t last = (int32_t)((lane & segment) | (c & 31 & ~segment));
    int32_t source = i->action == PTX_UP     ? own - b
                     : i->action == PTX_DOWN ? own + b
                     : i->action == PTX_BUTTERFLY
                         ? own ^ b
                         : (int32_t)((lane & segment) | ((uint32_t)b & ~segment));
    inside[lane] = i->action == PTX_UP ? source >= last : source <= last;
    if (!inside[lane])
      source = own;
    result[lane] = cells32(t, i->operand[1])[warp + ((uint32_t)source & 31)];
  }
  EACH_MEMBER(lane) {
    set_result(t, i, warp + lane, result[lane]);
    set_predicate(t, i->operand[5], warp + lane, inside[lane]);
  }
}

static void vote(struct ptx_team *t, const struct ptx_instruction *i, uint32_t warp,
                 uint32_t members) {
  uint32_t ballot = 0;
  const uint8_t flip = i->flags & PTX_M_NEGATE ? 1 : 0;
  EACH_MEMBER(lane)
  ballot |= (uint32_t)(t->registers[i->operand[1] + warp + lane] ^ flip) << lane;
  bool any = ballot != 0, all = ballot == members;
  EACH_MEMBER(lane) {
    if (i->action == PTX_VOTE_BALLOT)
      set_result(t, i, warp + lane, ballot);
    else
      set_predicate(t, i->operand[0], warp + lane,
                    i->action == PTX_VOTE_ANY   ? any
                    : i->action == PTX_VOTE_ALL ? all
                                                : all || !any);
  }
}

static void match(struct ptx_team *t, const struct ptx_instruction *i, uint32_t warp,
                  uint32_t members) {
  uint32_t result[PTX_WARP];
  EACH_MEMBER(lane) {
    uint64_t own = value_of(t, i->operand[1], i->bytes, warp + lane);
    result[lane] = 0;
    EACH_MEMBER(other)
    if (value_of(t, i->operand[1], i->bytes, warp + other) == own)
      result[lane] |= 1u << other;
  }
  EACH_MEMBER(lane) {
    bool all = result[lane] == members;
    if (i->action == PTX_VOTE_ALL)
      set_predicate(t, i->operand[5], warp + lane, all);
    set_result(t, i, warp + lane, i->action == PTX_VOTE_ANY || all ? result[lane] : 0);
  }
}

static uint32_t reduced(const struct ptx_instruction *i, uint32_t a, uint32_t b) {
  bool a_less = ptx_type_class[i->type] == PTX_SIGNED ? (int32_t)a < (int32_t)b : a < b;
  switch (i->action) {
  case PTX_ADD:
    return a + b;
  case PTX_MIN:
    return a_less ? a : b;
  case PTX_MAX:
    return a_less ? b : a;
  case PTX_ATOMIC_AND:
    return a & b;
  case PTX_ATOMIC_OR:
    return a | b;
  default:
    return a ^ b;
  }
}

void ptx_warp_execute(struct ptx_team *t, const struct ptx_instruction *i, uint32_t warp,
                      uint32_t members) {
  uint32_t lowest = (uint32_t)__builtin_ctz(members), total;
  switch (i->opcode) {
  case PTX_OP_shfl:
    shuffle(t, i, warp, members);
    return;
  case PTX_OP_vote:
    vote(t, i, warp, members);
    return;
  case PTX_OP_match:
    match(t, i, warp, members);
    return;
  case PTX_OP_redux:
    total = cells32(t, i->operand[1])[warp + lowest];
    EACH_MEMBER(lane)
    if (lane != lowest)
      total = reduced(i, total, cells32(t, i->operand[1])[warp + lane]);
    EACH_MEMBER(lane)
    set_result(t, i, warp + lane, total);
    return;
  case PTX_OP_elect:
    EACH_MEMBER(lane) {
      set_result(t, i, warp + lane, lowest);
      set_predicate(t, i->operand[5], warp + lane, lane == lowest);
    }
    return;
  case PTX_OP_activemask:
    EACH_MEMBER(lane)
    set_result(t, i, warp + lane, members);
    return;
  default: /* bar.warp.sync: having waited is all */
    return;
  }
}
