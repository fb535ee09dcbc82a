/* Which lanes of a team run: of the ready ones those at the lowest instruction form the group
   that runs, until it branches apart, waits, or reaches the instruction where other lanes are
   ready (then they join). Code is laid out so that this brings lanes together again after
   branches, loops and calls. Lanes that jump back very often are set aside for a while, so that
   a lane that spins on another's flag can't starve it. Called by ptx_run.c. */
#include "ptx_native.h"
#include "ptx_run.h"
#include <string.h>

#define BACKWARD_JUMPS 65536u /* a group makes before it is set aside */

/* The ready lanes at the lowest instruction become the group; `limit` is where others are ready. */
static bool group_pick(struct ptx_team *t, uint32_t *pc, uint32_t *limit) {
  uint32_t lowest = PTX_NONE, next = PTX_NONE;
  for (uint32_t l = 0; l < t->count; l++) {
    uint32_t at = t->state[l] == PTX_READY ? t->pc[l] : PTX_NONE;
    if (at < lowest) {
      next = lowest;
      lowest = at;
    } else if (at > lowest && at < next) {
      next = at;
    }
  }
  t->run_count = 0;
  for (uint32_t l = 0; l < t->count && lowest != PTX_NONE; l++) {
    if (t->state[l] != PTX_READY || t->pc[l] != lowest)
      continue;
    if (t->run_count && t->runs[t->run_count - 1].end == l)
      t->runs[t->run_count - 1].end++;
    else
      t->runs[t->run_count++] = (struct ptx_run){l, l + 1};
  }
  *pc = lowest;
  *limit = next;
  return lowest != PTX_NONE;
}

#define EACH_RUN(r)                                                                                \
  for (const struct ptx_run *r = t->runs, *last_ = t->runs + t->run_count; r < last_; r++)
#define EACH_LANE(l)                                                                               \
  EACH_RUN(run_)                                                                                   \
  for (uint32_t l = run_->first; l < run_->end; l++)

static void group_park(struct ptx_team *t, uint32_t pc, enum ptx_lane_state state) {
  EACH_RUN(r) {
    memset(t->state + r->first, (int)state, r->end - r->first);
    for (uint32_t l = r->first; l < r->end; l++)
      t->pc[l] = pc;
  }
}

/* Where in [l, end) predicate bytes, each 0 or 1, first have the value `want`. */
static uint32_t find(const uint8_t *predicate, uint8_t want, uint32_t l, uint32_t end) {
  const uint8_t *place = memchr(predicate + l, want, end - l);
  return place ? (uint32_t)(place - predicate) : end;
}

/* Runs a guarded instruction on those lanes of the group whose guard holds. */
static void guarded(struct ptx_team *t, const struct ptx_instruction *i) {
  const uint8_t *guard = t->registers + i->guard, yes = !i->guard_negated;
  EACH_RUN(r) {
    for (uint32_t l = find(guard, yes, r->first, r->end); l < r->end;) {
      uint32_t end = find(guard, !yes, l, r->end);
      i->run(t, i, l, end);
      l = find(guard, yes, end, r->end);
    }
  }
}

enum agreement { NONE_HOLDS, ALL_HOLD, MIXED };
static enum agreement guard_agreement(const struct ptx_team *t, const struct ptx_instruction *i) {
  const uint8_t *guard = t->registers + i->guard;
  uint8_t value = guard[t->runs[0].first];
  EACH_RUN(r)
  if (find(guard, !value, r->first, r->end) < r->end)
    return MIXED;
  return value != i->guard_negated ? ALL_HOLD : NONE_HOLDS;
}

/* Lanes whose guard holds go to `yes`, the others to `no`. */
static void group_split(struct ptx_team *t, const struct ptx_instruction *i, uint32_t yes,
                        uint32_t no) {
  const uint8_t *guard = t->registers + i->guard;
  EACH_LANE(l) t->pc[l] = guard[l] != i->guard_negated ? yes : no;
}

/* ---- waiting ---- */

static uint32_t warp_mask(const struct ptx_team *t, uint32_t warp, enum ptx_lane_state state,
                          uint32_t pc) {
  uint32_t mask = 0;
  for (uint32_t l = 0; l < PTX_WARP; l++)
    if (t->state[warp + l] == state && (pc == PTX_NONE || t->pc[warp + l] == pc))
      mask |= 1u << l;
  return mask;
}

/* One warp of the group arrives, the lanes `arriving`; returns true when exactly these have passed.
 */
static bool warp_arrive(struct ptx_team *t, const struct ptx_instruction *i, uint32_t warp,
                        uint32_t arriving, uint32_t pc) {
  const uint32_t *member = (const uint32_t *)(const void *)(t->registers + i->member) + warp;
  uint32_t here = arriving | warp_mask(t, warp, PTX_AT_WARP, pc), done = 0;
  uint32_t gone = warp_mask(t, warp, PTX_EXITED, PTX_NONE);
  for (uint32_t left = here; left; left &= left - 1) {
    uint32_t lane = (uint32_t)__builtin_ctz(left), members = member[lane];
    if (done >> lane & 1)
      continue;
    if (!(members >> lane & 1)) {
      ptx_fail(t, i, warp + lane, 715, "the thread isn't in its own member mask %#x", members);
      return false;
    }
    if (members & ~gone & ~here)
      continue;
    ptx_warp_execute(t, i, warp, members & here);
    done |= members & here;
  }
  if (done == arriving && here == arriving)
    return true;
  for (uint32_t l = 0; l < PTX_WARP; l++) {
    if (!(here >> l & 1))
      continue;
    bool passed = done >> l & 1;
    t->state[warp + l] = passed ? PTX_READY : PTX_AT_WARP;
    t->pc[warp + l] = passed ? pc + 1 : pc;
  }
  return false;
}

/* True when the whole group has passed and may go on together. */
static bool warpwide(struct ptx_team *t, const struct ptx_instruction *i, uint32_t pc) {
  uint32_t active[PTX_LANES / PTX_WARP] = {0}, passed = 0, warps = 0;
  EACH_LANE(l) active[l / PTX_WARP] |= 1u << l % PTX_WARP;
  for (uint32_t w = 0; w < PTX_LANES / PTX_WARP; w++) {
    if (!active[w])
      continue;
    warps++;
    if (i->member == PTX_NONE) { /* activemask doesn't wait */
      ptx_warp_execute(t, i, w * PTX_WARP, active[w]);
      passed++;
    } else if (warp_arrive(t, i, w * PTX_WARP, active[w], pc)) {
      passed++;
    } else {
      active[w] = 0;
    }
  }
  if (passed == warps)
    return true;
  for (uint32_t w = 0; w < PTX_LANES / PTX_WARP; w++)
    for (uint32_t l = 0; l < PTX_WARP; l++)
      if (active[w] >> l & 1)
        t->pc[w * PTX_WARP + l] = pc + 1;
  return false;
}

static uint32_t cell32(const struct ptx_team *t, uint32_t offset, uint32_t lane) {
  return ((const uint32_t *)(const void *)(t->registers + offset))[lane];
}

/* True when the group goes on (bar.arrive); else its lanes wait. */
static bool barrier(struct ptx_worker *w, struct ptx_team *t, const struct ptx_instruction *i,
                    uint32_t pc) {
  EACH_LANE(l) {
    uint32_t id = cell32(t, i->operand[0], l);
    uint32_t threads = i->operand[1] == PTX_NONE ? 0 : cell32(t, i->operand[1], l);
    if (id >= PTX_BARRIERS || threads % PTX_WARP || (i->operand[1] != PTX_NONE && !threads)) {
      ptx_fail(t, i, l, 715,
               "barrier %u of %u threads: the number is 0 to 15, threads come in warps", id,
               threads);
      return false;
    }
    if (i->flags & PTX_M_ARRIVE)
      w->arrived[id]++;
    else
      t->wait[l] = (struct ptx_barrier_wait){(uint8_t)id, threads};
  }
  if (i->flags & PTX_M_ARRIVE)
    return true;
  group_park(t, pc, PTX_AT_BARRIER);
  return false;
}

static void group_exit(struct ptx_team *t) {
  EACH_RUN(r) {
    memset(t->state + r->first, PTX_EXITED, r->end - r->first);
    t->exited += r->end - r->first;
  }
  for (uint32_t l = 0; l < t->count; l++) /* may have waited for these only */
    if (t->state[l] == PTX_AT_WARP)
      t->state[l] = PTX_READY;
}

/* ---- running a group ---- */

static bool indexed_target(struct ptx_team *t, const struct ptx_instruction *i, uint32_t lane,
                           uint32_t *target) {
  uint32_t index = cell32(t, i->operand[0], lane);
  if (index >= i->target_count) {
    ptx_fail(t, i, lane, 718, "branch to target %u of %u", index, i->target_count);
    return false;
  }
  *target = t->block->program->targets[i->target + index];
  return true;
}

/* Lanes go where their own cell says; true when all go to *pc. */
static bool group_scatter(struct ptx_team *t, const struct ptx_instruction *i, uint32_t *pc) {
  bool together = true;
  uint32_t target = 0, leader = t->runs[0].first;
  EACH_LANE(l) {
    if (i->kind == PTX_RETURN)
      target = cell32(t, i->operand[0], l);
    else if (!indexed_target(t, i, l, &target))
      return false;
    t->pc[l] = target;
    together &= target == t->pc[leader];
  }
  *pc = t->pc[leader];
  return together;
}

/* A control instruction at *pc; true when the group goes on at the new *pc. */
static bool control(struct ptx_worker *w, struct ptx_team *t, const struct ptx_instruction *i,
                    uint32_t *pc, uint32_t *jumps) {
  uint32_t at = *pc;
  if (i->guard != PTX_NONE) {
    enum agreement agreement = guard_agreement(t, i);
    if (agreement == NONE_HOLDS) {
      ++*pc;
      return true;
    }
    if (agreement == MIXED) { /* those that hold come back to this instruction alone, unless it is a
                                 plain jump */
      group_split(t, i, i->kind == PTX_BRANCH ? i->target : at, at + 1);
      return false;
    }
  }
  switch ((enum ptx_kind)i->kind) {
  case PTX_BRANCH:
    *pc = i->target;
    break;
  case PTX_CALL:
    EACH_LANE(l)
    ((uint32_t *)(void *)(t->registers + i->operand[0]))[l] = at + 1;
    *pc = i->target;
    return true;
  case PTX_RETURN:
  case PTX_BRANCH_INDEXED:
    if (!group_scatter(t, i, pc))
      return false;
    break;
  case PTX_EXIT:
    group_exit(t);
    return false;
  case PTX_BARRIER:
    ++*pc;
    return barrier(w, t, i, at);
  default:
    ++*pc;
    return warpwide(t, i, at);
  }
  if (*pc <= at && ++*jumps == BACKWARD_JUMPS) {
    group_park(t, *pc, PTX_YIELDED);
    return false;
  }
  return true;
}

static void group_run(struct ptx_worker *w, struct ptx_team *t, uint32_t pc, uint32_t limit) {
  struct ptx_block *block = t->block;
  const struct ptx_instruction *code = block->program->code;
  const struct ptx_segment *native = block->native ? block->native->segments : NULL;
  uint32_t active = 0, jumps = 0;
  EACH_RUN(r) active += r->end - r->first;
  for (; pc < limit; pc++) {
    if (native && native[pc].run) { /* no lane can be ready inside a piece */
      EACH_RUN(r) native[pc].run(t->registers, r->first, r->end);
      block->instructions += (uint64_t)active * native[pc].count;
      pc += native[pc].count - 1;
      continue;
    }
    const struct ptx_instruction *i = &code[pc];
    block->instructions += active;
    if (i->kind <= PTX_ACCESS) {
      if (i->guard != PTX_NONE)
        guarded(t, i);
      else
        EACH_RUN(r) i->run(t, i, r->first, r->end);
      if (i->kind == PTX_ACCESS && block->result)
        return;
      continue;
    }
    if (!control(w, t, i, &pc, &jumps))
      return;
    pc--; /* the loop's step */
  }
  group_park(t, pc, PTX_READY);
}

void ptx_team_run(struct ptx_worker *w, struct ptx_team *t) {
  uint32_t pc, limit;
  for (uint32_t l = 0; l < t->count; l++)
    if (t->state[l] == PTX_YIELDED)
      t->state[l] = PTX_READY;
  while (!w->block.result && group_pick(t, &pc, &limit))
    group_run(w, t, pc, limit);
}
