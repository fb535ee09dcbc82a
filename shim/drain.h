/* Waiting on the host for the work queued on single streams: those that touched some ranges since
   they were last waited for. Under the enqueue lock, while no capture is open. */
#ifndef OFFLOAD_DRAIN_H
#define OFFLOAD_DRAIN_H
#include "range.h"

enum { DRAIN_RANGES = 16 }; /* most in one call */

/* Polls an event; CUDA_ERROR_NOT_READY when the time is over. */
CUresult drain_event(CUevent event, uint64_t deadline_ns);

/* Waits for what touched these ranges (of the current context `context`), for destroyed streams
   that did, and, if `wait`, for `stream`. On any error (CUDA_ERROR_NOT_READY: too late) they count
   as still to be waited for. Ranges may repeat. */
CUresult drain_ranges(CUcontext context, struct range *const *ranges, size_t count, CUstream stream,
                      bool wait, uint64_t deadline_ns);
#endif
