/* Launches: blocks are taken in order by one thread or, with GPUSIM_THREADS, several; a block's
   threads run as teams of lanes in lockstep. Called by the launch room; entered with no lock held.

   Scheduling of a team: of its ready lanes those at the lowest instruction form the group that
   runs, until it branches apart, waits, or reaches the instruction where other lanes are ready
   (then they join). Code is laid out so that this brings lanes together again after branches, loops
   and calls. Lanes that jump back very often are set aside for a while, so that a lane that spins
   on another's flag can't starve it. */
#include "ptx.h"
#include <fenv.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BACKWARD_JUMPS 65536u /* a group makes before it is set aside */
#define BARRIERS 16u

struct job { /* a launch */
  struct gpusim_kernel *kernel;
  const struct ptx_program *program;
  const uint8_t *parameters;
  const struct gpusim_launch *launch;
  uint64_t next, total; /* blocks; `next` is atomic */
  int result;           /* atomic; of the first block that failed */
  uint64_t instructions;
  char *error;
  size_t error_bytes;
  pthread_mutex_t lock; /* protects result, error, instructions when a worker ends */
};
struct worker {
  struct job *job;
  struct ptx_block block;
  struct ptx_team **teams, **spare; /* of the block at hand; unused states, `spare_count` of them */
  uint32_t team_count, spare_count, state_count;
  uint32_t arrived[BARRIERS]; /* threads that passed bar.arrive */
};

/* ---- errors ---- */

static void thread_index(const struct ptx_block *block, uint32_t thread, uint32_t index[3]) {
  const uint32_t *size = block->launch->block;
  index[0] = thread % size[0];
  index[1] = thread / size[0] % size[1];
  index[2] = thread / size[0] / size[1];
}

void ptx_fail(struct ptx_team *t, const struct ptx_instruction *i, uint32_t lane, int result,
              const char *format, ...) {
  struct ptx_block *block = t->block;
  char what[512];
  uint32_t thread[3];
  if (block->result)
    return;
  block->result = result;
  va_list args;
  va_start(args, format);
  vsnprintf(what, sizeof what, format, args);
  va_end(args);
  thread_index(block, t->first + lane, thread);
  snprintf(block->error, block->error_bytes,
           "block %u,%u,%u thread %u,%u,%u: %s; PTX line %u: %.*s; kernel %s", block->index[0],
           block->index[1], block->index[2], thread[0], thread[1], thread[2], what, i->line,
           (int)strcspn(i->text, ";\n"), i->text, block->kernel->name);
}

/* ---- states of teams ---- */

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
  thread_index(t->block, t->first, index);
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

static struct ptx_team *state_new(struct worker *w) {
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
static bool team_start(struct worker *w, uint32_t index) {
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

/* ---- groups ---- */

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
static bool barrier(struct worker *w, struct ptx_team *t, const struct ptx_instruction *i,
                    uint32_t pc) {
  EACH_LANE(l) {
    uint32_t id = cell32(t, i->operand[0], l);
    uint32_t threads = i->operand[1] == PTX_NONE ? 0 : cell32(t, i->operand[1], l);
    if (id >= BARRIERS || threads % PTX_WARP || (i->operand[1] != PTX_NONE && !threads)) {
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
static bool control(struct worker *w, struct ptx_team *t, const struct ptx_instruction *i,
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

static void group_run(struct worker *w, struct ptx_team *t, uint32_t pc, uint32_t limit) {
  struct ptx_block *block = t->block;
  const struct ptx_instruction *code = block->program->code;
  uint32_t active = 0, jumps = 0;
  EACH_RUN(r) active += r->end - r->first;
  for (; pc < limit; pc++) {
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

/* ---- blocks ---- */

static void team_run(struct worker *w, struct ptx_team *t) {
  uint32_t pc, limit;
  for (uint32_t l = 0; l < t->count; l++)
    if (t->state[l] == PTX_YIELDED)
      t->state[l] = PTX_READY;
  while (!w->block.result && group_pick(t, &pc, &limit))
    group_run(w, t, pc, limit);
}

#define EACH_TEAM_LANE(w, t, l)                                                                    \
  for (uint32_t k_ = 0; k_ < (w)->team_count; k_++)                                                \
    for (struct ptx_team *t = (w)->teams[k_]; t; t = NULL)                                         \
      for (uint32_t l = 0; l < t->count; l++)

static const struct ptx_instruction *waiting_at(const struct ptx_team *t, uint32_t lane) {
  return &t->block->program->code[t->pc[lane]];
}

/* bar.red: the predicates of all that waited, combined. */
static uint32_t barrier_reduced(struct worker *w, uint32_t id) {
  uint32_t true_count = 0, count = 0;
  uint8_t combine = 0;
  EACH_TEAM_LANE(w, t, l) {
    if (t->state[l] != PTX_AT_BARRIER || t->wait[l].id != id)
      continue;
    const struct ptx_instruction *i = waiting_at(t, l);
    if (!(i->flags & PTX_M_RED))
      continue;
    combine = i->combine;
    count++;
    true_count += t->registers[i->operand[2] + l] != ((i->flags & PTX_M_NEGATE) != 0);
  }
  return combine == PTX_POPC  ? true_count
         : combine == PTX_AND ? true_count == count
                              : true_count != 0;
}

static void barrier_release(struct worker *w, uint32_t id) {
  uint32_t value = barrier_reduced(w, id);
  EACH_TEAM_LANE(w, t, l) {
    if (t->state[l] != PTX_AT_BARRIER || t->wait[l].id != id)
      continue;
    const struct ptx_instruction *i = waiting_at(t, l);
    if (i->flags & PTX_M_RED && i->operand[3] != PTX_NONE) {
      if (i->combine == PTX_POPC)
        ((uint32_t *)(void *)(t->registers + i->operand[3]))[l] = value;
      else
        t->registers[i->operand[3] + l] = (uint8_t)value;
    }
    t->state[l] = PTX_READY;
    t->pc[l]++;
  }
  w->arrived[id] = 0;
}

/* Opens every barrier that all it waits for have reached. Threads that have exited are not waited
 * for. */
static bool barriers_open(struct worker *w, uint32_t alive) {
  uint32_t waiting[BARRIERS] = {0}, wanted[BARRIERS] = {0};
  bool opened = false;
  EACH_TEAM_LANE(w, t, l) {
    if (t->state[l] != PTX_AT_BARRIER)
      continue;
    uint32_t id = t->wait[l].id;
    waiting[id]++;
    if (t->wait[l].threads > wanted[id])
      wanted[id] = t->wait[l].threads;
  }
  for (uint32_t id = 0; id < BARRIERS; id++) {
    if (!waiting[id] || waiting[id] + w->arrived[id] < (wanted[id] ? wanted[id] : alive))
      continue;
    barrier_release(w, id);
    opened = true;
  }
  return opened;
}

static void deadlock(struct worker *w) {
  EACH_TEAM_LANE(w, t, l) {
    if (t->state[l] != PTX_AT_BARRIER && t->state[l] != PTX_AT_WARP)
      continue;
    const struct ptx_instruction *i = waiting_at(t, l);
    ptx_fail(t, i, l, 719, "deadlock: %s that the others never reach",
             t->state[l] == PTX_AT_BARRIER ? "waits at a barrier" : "waits for lanes of its warp");
  }
}

static bool team_can_run(const struct ptx_team *t) {
  return memchr(t->state, PTX_READY, t->count) || memchr(t->state, PTX_YIELDED, t->count);
}

static void team_end(struct worker *w, uint32_t index) {
  w->spare[w->spare_count++] = w->teams[index];
  w->teams[index] = NULL;
}

/* Teams start one after the other, so that those that never wait can share one state, which stays
 * in cache. */
static void block_run(struct worker *w) {
  struct ptx_block *block = &w->block;
  uint32_t started = 0;
  memset(w->arrived, 0, sizeof w->arrived);
  memset(block->shared, gpusim_settings.poison ? 0xcc : 0, block->shared_bytes);
  for (;;) {
    bool progress = false;
    uint32_t alive = 0;
    if (started < w->team_count) {
      while (started < w->team_count && !block->result) {
        if (!team_start(w, started))
          return;
        team_run(w, w->teams[started]);
        if (w->teams[started]->exited == w->teams[started]->count)
          team_end(w, started);
        started++;
      }
      progress = true;
    }
    for (uint32_t k = 0; k < w->team_count && !block->result; k++) {
      struct ptx_team *t = w->teams[k];
      if (t && team_can_run(t)) {
        team_run(w, t);
        progress = true;
      }
      if (t && t->exited == t->count)
        team_end(w, k);
      else if (t)
        alive += t->count - t->exited;
    }
    if (block->result || !alive)
      break;
    if (!barriers_open(w, alive) && !progress)
      deadlock(w);
  }
  for (uint32_t k = 0; k < w->team_count; k++)
    if (w->teams[k])
      team_end(w, k);
}

static bool worker_ready(struct worker *w, struct job *job, char *error, size_t error_bytes) {
  const struct gpusim_launch *launch = job->launch;
  const struct ptx_program *program = job->program;
  struct ptx_block *block = &w->block;
  memset(w, 0, sizeof *w);
  w->job = job;
  *block = (struct ptx_block){.program = program,
                              .launch = launch,
                              .kernel = job->kernel,
                              .parameters = job->parameters,
                              .parameter_bytes = job->kernel->parameter_bytes,
                              .threads = launch->block[0] * launch->block[1] * launch->block[2],
                              .generation = gpusim_memory_generation(),
                              .error = error,
                              .error_bytes = error_bytes};
  block->shared_bytes =
      (uint32_t)ptx_align(program->static_shared_bytes, program->dynamic_alignment) +
      launch->dynamic_shared_bytes;
  w->team_count = (block->threads + PTX_LANES - 1) / PTX_LANES;
  block->shared = aligned_alloc(128, ptx_align(block->shared_bytes + 1u, 128));
  w->teams = calloc(w->team_count, sizeof *w->teams);
  w->spare = calloc(w->team_count, sizeof *w->spare);
  return block->shared && w->teams && w->spare;
}

static void worker_free(struct worker *w) {
  for (uint32_t k = 0; w->spare && k < w->spare_count; k++) {
    free(w->spare[k]->registers);
    free(w->spare[k]);
  }
  free(w->block.shared);
  free(w->teams);
  free(w->spare);
}

static void *work(void *argument) {
  struct job *job = argument;
  struct worker worker;
  struct ptx_block *block = &worker.block;
  char error[1024] = "out of memory";
  fenv_t environment;
  /* A program may have set flushing of subnormals for its threads, which threads made by it
   * inherit. */
  fegetenv(&environment);
  fesetenv(FE_DFL_ENV);
  if (!worker_ready(&worker, job, error, sizeof error))
    block->result = 2;
  while (!block->result && !__atomic_load_n(&job->result, __ATOMIC_RELAXED)) {
    uint64_t next = __atomic_fetch_add(&job->next, 1, __ATOMIC_RELAXED);
    if (next >= job->total)
      break;
    const uint32_t *grid = job->launch->grid;
    block->index[0] = (uint32_t)(next % grid[0]);
    block->index[1] = (uint32_t)(next / grid[0] % grid[1]);
    block->index[2] = (uint32_t)(next / grid[0] / grid[1]);
    block_run(&worker);
  }
  pthread_mutex_lock(&job->lock);
  job->instructions += block->instructions;
  if (block->result && !job->result) {
    __atomic_store_n(&job->result, block->result, __ATOMIC_RELAXED);
    snprintf(job->error, job->error_bytes, "%s", error);
  }
  pthread_mutex_unlock(&job->lock);
  worker_free(&worker);
  fesetenv(&environment);
  return NULL;
}

static int refuse(char *error, size_t error_bytes, int result, const char *why, const char *name) {
  snprintf(error, error_bytes, "%s; kernel %s", why, name);
  return result;
}

int gpusim_kernel_run(struct gpusim_kernel *kernel, const uint8_t *parameters,
                      const struct gpusim_launch *launch, char *error, size_t error_bytes) {
  if (!kernel->ptx)
    return refuse(error, error_bytes, 209,
                  "the image has no PTX for this device, and GPUSIM_PTX names none", kernel->name);
  const struct ptx_program *program = ptx_program_of(kernel->ptx, error, error_bytes);
  if (!program)
    return 218;
  uint64_t threads = (uint64_t)launch->block[0] * launch->block[1] * launch->block[2];
  const uint32_t *required = kernel->ptx->required_block;
  if (!threads || threads > 1024 || !launch->grid[0] || !launch->grid[1] || !launch->grid[2])
    return refuse(error, error_bytes, 1, "a block has 1 to 1024 threads, a grid at least one block",
                  kernel->name);
  if (required[0] && memcmp(required, launch->block, sizeof kernel->ptx->required_block) != 0)
    return refuse(error, error_bytes, 1, "the block isn't of the size that .reqntid demands",
                  kernel->name);
  struct job job = {.kernel = kernel,
                    .program = program,
                    .parameters = parameters,
                    .launch = launch,
                    .total = (uint64_t)launch->grid[0] * launch->grid[1] * launch->grid[2],
                    .error = error,
                    .error_bytes = error_bytes,
                    .lock = PTHREAD_MUTEX_INITIALIZER};
  pthread_t helpers[64];
  uint64_t wanted = gpusim_settings.threads > 1 ? (uint64_t)gpusim_settings.threads : 1;
  uint32_t running = 0;
  if (wanted > job.total)
    wanted = job.total;
  while (running + 1 < wanted && running < 64 &&
         !pthread_create(&helpers[running], NULL, work, &job))
    running++;
  work(&job);
  while (running)
    pthread_join(helpers[--running], NULL);
  gpusim_count(GPUSIM_COUNT_interpreted_instructions, job.instructions);
  return job.result;
}
