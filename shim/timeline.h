/* Spans of OFFLOAD_TRACE (policy/trace.h) whose begin and end are on a stream: timed by events, which are looked at when they are done,
   at later launches, and never waited for but at the process's end. Everything under the enqueue lock; nothing, and no driver call, unless
   a trace was asked for. A failure here costs a span, not the step. */
#ifndef OFFLOAD_TIMELINE_H
#define OFFLOAD_TIMELINE_H
#include "../policy/trace.h"
#include <cuda.h>
#include <stdbool.h>

struct timing;

/* A recognised launch begins in this context, in that step of its device: what is done by now is kept, and the device's clock is set beside
   ours where that was long ago. */
void timeline_launch(CUcontext context, uint64_t step);

/* That step; 0 without a trace. */
uint64_t timeline_step(CUcontext context);

/* Where the stream is now. NULL: there is no trace, or no event to be had. */
struct timing *timeline_begin(CUcontext context, CUstream stream);
/* And now. */
void timeline_end(struct timing *, CUstream stream, enum trace_track, const char *name,
                  uint64_t bytes, uint64_t elements);

/* The process ends: what is done is kept, after a moment's wait for the rest. Where the driver may not be asked, the rest is lost. */
void timeline_finish(bool ask);
/* The context ends, or is `gone` with its events: what is done is kept if these can still be asked. */
void timeline_forget(CUcontext context, bool gone);
#endif
