/* How far the steps of each context are. A process may train on several devices, one context each,
   and each at its own pace: a step of one says nothing about the state of another. Caller: state.c,
   under the enqueue lock. */
#ifndef OFFLOAD_PACE_H
#define OFFLOAD_PACE_H
#include <cuda.h>
#include <stdbool.h>
#include <stdint.h>

struct pace {
  CUcontext context; /* NULL: free */
  uint64_t step;     /* of this context, from 1 */
  uint64_t put_off_until, put_off_steps;
  uint64_t unreadable; /* touch_unreadable_count when the last step was settled */
  bool readable;       /* and whether it was the same a step before */
  uint64_t evicted_step, grown_step,
      wait_steps; /* of the last eviction and of what came back after it; how long it waits (amount.c) */
};

/* The pace of the current context, begun if there is none; NULL without a context, or (a reason is
   reported) when too many step. */
struct pace *pace_current(void);

/* The current context's launch begins a step: counted here and in state_step. */
void pace_step(struct pace *);

/* After a move that could not wait for its streams: none for some steps, twice as many each time.
 */
void pace_put_off(struct pace *);

void pace_forget(CUcontext context);
#endif
