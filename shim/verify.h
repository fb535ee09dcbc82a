/* OFFLOAD_VERIFY: pieces of a `cpu` step are done by the program's own kernel as well, on copies, with
   the launch's real scalars, step counters and pointers, and the worker compares (compare.h). What it
   adds to a piece:

     down stream   ... gradient down, ready | p, g, m, v copied; the program's kernel on them; results down; copied
     worker        steps, compares m and v; done | compares p; checked
     up stream     update up, apply | p down, applied; wait checked; status up, keep

   OFFLOAD_VERIFY=N looks afterwards: the CPU works in place, `apply` on the parameter itself, and `keep`
   keeps nothing but traps where a difference ends the job, so that the program's stream gets past no
   difference. `all` looks before: the CPU and `apply` work on copies, and `keep` makes the kernel's
   results the parameter's, where the launch was not refused.

   Scratch, all made before the first driver call of a launch: VERIFY_SLOTS blocks on the device (the
   kernel's lists, then a parameter and a gradient of ours), as many pinned (words, the kernel's lists,
   ours; for `all` the state that the CPU works on). Where the device has no room, N goes on without and
   counts, and `all` leaves the step to `stream`.

   Which pieces: with turns t = 0, 1, ... (a function's CPU steps) and i = 0, 1, ... (its pieces in that
   step) those with (i + t) mod N == 0: each piece once in N steps, N-th parts of a step in each.

   All under the enqueue lock; called by step_cpu.c. */
#ifndef OFFLOAD_VERIFY_H
#define OFFLOAD_VERIFY_H
#include "plan.h"

/* Marks the runs whose turn it is and makes the scratch that they need. False with why when the launch
   can't be verified and must be: the step then goes by `stream`. */
bool verify_ready(struct plan *, const char **why);

/* The function whose pieces the worker keeps account of; without a doubt when nothing is verified. */
struct checked_function verify_function(const struct plan *);

/* A run that is verified: what the worker needs for it, where `apply` works, and the work on either
   stream, before the events that the slot is recorded with. It lasts until the next run but one begins;
   one whose `up` is not enqueued yet may be in front. What fails has gone through plan_broken. */
struct verification {
  struct piece_check check;
  struct verify_slot *slot;
  CUdeviceptr lists[LISTS_MOST];   /* the kernel's copies on the device */
  CUdeviceptr parameter, gradient; /* where `apply` works */
};
const struct verification *verify_begin(struct plan *, const struct run_of_blocks *);
CUresult verify_down(struct plan *, const struct run_of_blocks *, const struct verification *);
CUresult verify_up(struct plan *, const struct run_of_blocks *, const struct verification *);

/* At the end: functions of which nothing could be verified, in the report. */
void verify_finish(void);
#endif
