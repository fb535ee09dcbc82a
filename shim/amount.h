/* How much of the state that may move does: OFFLOAD_FREE, and how state comes back to a device that was short and is no more
   (OFFLOAD_MODE=pressure). Which: what the step names first stays longest and comes back first, since backward makes its gradients last.
   Caller: state.c, under the enqueue lock. */
#ifndef OFFLOAD_AMOUNT_H
#define OFFLOAD_AMOUNT_H
#include "pace.h"
#include "view.h"

/* Leaves so many of the listed pieces, from the first on, as OFFLOAD_FREE asks for beyond what is off their device already: the fewest
   whole ones, with their partners. All of them where it asks for nothing. */
void amount_limit(const struct view *, struct items *);

/* What was asked for and is free on the current context's device, for the report. `left`: listed pieces that found no room elsewhere. */
void amount_tell(const struct view *, size_t left);

/* State of the context was evicted, in its present step. */
void amount_evicted(struct pace *);

/* Pieces to bring home in this step: none before the device was long enough without pressure and has room for more than they need. So
   long is AMOUNT_WAIT_LEAST steps, doubled each time that what came back was evicted soon after, at most AMOUNT_WAIT_MOST. The caller
   frees the list. */
enum { AMOUNT_WAIT_LEAST = 16, AMOUNT_WAIT_MOST = 4096 };
struct items amount_regrow(const struct view *, struct pace *);
#endif
