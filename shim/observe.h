/* OFFLOAD_MODE=observe: nothing moves and every allocation stays the driver's own. From the addresses that launches name and from how
   allocations lie it is foretold what would move and what that would cost (choose.h); the report's "observed". Caller: state.c, choose.c,
   under the enqueue lock. */
#ifndef OFFLOAD_OBSERVE_H
#define OFFLOAD_OBSERVE_H
#include "view.h"

/* A step of the current context is over and named these moments. Looks at them when they are others than the last time. */
void observe_step(const struct view *);

/* The share of the state that would move, between 0 and 1. Any thread. */
double observe_share(void);
#endif
