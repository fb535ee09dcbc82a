/* Who touches watched ranges (those with state or host pieces): streams, for what a move must wait
   for, and foreign use, for what goes home. Implements the state_foreign_*, state_stream_destroyed
   and state_forget_functions parts of state.h. Called from any thread; takes the range table's lock
   only. */
#ifndef OFFLOAD_TOUCH_H
#define OFFLOAD_TOUCH_H
#include "range.h"

/* A stream is about to work on the range. 0 counts as the legacy stream. */
void touch_stream(struct range *, CUstream stream);

/* Streams destroyed while work of theirs on watched ranges may be pending: one event each. The
   caller waits for them and gives them back with touch_orphan_done; at most `limit` are handed out.
 */
size_t touch_orphans(CUcontext context, CUevent *events, size_t limit);
void touch_orphan_done(CUevent event);
void touch_forget_context(CUcontext context);
#endif
