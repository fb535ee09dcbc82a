/* Waiting for streams (drain.h). Events are recorded now, not at the touch: a touch is told before
   the program enqueues it. So more is waited for than is needed, and a stream may be found busy
   with what depends on this very thread: hence the deadline. */
#include "drain.h"
#include "../nvme/clock.h"
#include "driver.h"
#include "process.h"
#include "touch.h"
#include <time.h>

enum { EVENTS = 64 };

struct drain {
  CUevent events[EVENTS];
  size_t count;
  uint64_t deadline_ns;
};

CUresult drain_event(CUevent event, uint64_t deadline_ns) {
  struct timespec pause = {.tv_nsec = 10000};
  for (;;) {
    CUresult result = driver.cuEventQuery(event);
    if (result != CUDA_ERROR_NOT_READY)
      return process_note(result, "cuEventQuery");
    if (clock_now_ns() >= deadline_ns)
      return result;
    nanosleep(&pause, NULL);
    if (pause.tv_nsec < 500000)
      pause.tv_nsec *= 2;
  }
}

static CUresult wait_all(struct drain *drain, CUresult result) {
  for (size_t i = 0; i < drain->count; i++) {
    if (!result)
      result = drain_event(drain->events[i], drain->deadline_ns);
    (void)driver.cuEventDestroy_v2(drain->events[i]);
  }
  drain->count = 0;
  return result;
}

/* An event after what the stream has queued. A per-thread default stream means another stream in
   this thread than in the one that touched the range: the legacy stream joins them all. */
static CUresult record_here(struct drain *drain, uintptr_t handle) {
  CUresult result = drain->count == EVENTS ? wait_all(drain, CUDA_SUCCESS) : CUDA_SUCCESS;
  CUevent event;
  if (!result)
    result = driver.cuEventCreate(&event, CU_EVENT_DISABLE_TIMING);
  if (result)
    return process_note(result, "cuEventCreate");
  if (handle == (uintptr_t)CU_STREAM_PER_THREAD)
    handle = (uintptr_t)CU_STREAM_LEGACY;
  drain->events[drain->count++] = event;
  /* NOLINTNEXTLINE(performance-no-int-to-ptr): kept as an integer so that it can be an atomic */
  return process_note(driver.cuEventRecord(event, (CUstream)handle), "cuEventRecord");
}

/* An event and the stream that it is recorded in must be of one context. */
static CUresult record(struct drain *drain, uintptr_t handle, uintptr_t context) {
  CUcontext popped;
  /* NOLINTNEXTLINE(performance-no-int-to-ptr): the same */
  if (context && driver.cuCtxPushCurrent_v2((CUcontext)context))
    return CUDA_ERROR_INVALID_CONTEXT;
  CUresult result = record_here(drain, handle);
  if (context)
    (void)driver.cuCtxPopCurrent_v2(&popped);
  return result;
}

static CUresult record_range(struct drain *drain, struct range *range, uint32_t *taken) {
  CUresult result = CUDA_SUCCESS;
  for (size_t k = 0; k < RANGE_STREAMS && !result; k++) {
    uintptr_t handle = atomic_load_explicit(&range->streams[k].stream, memory_order_acquire);
    if (!handle || handle == RANGE_STREAM_CLAIMED ||
        !atomic_exchange(&range->streams[k].since_wait, false))
      continue;
    *taken |= 1u << k;
    result = record(drain, handle,
                    atomic_load_explicit(&range->streams[k].context, memory_order_relaxed));
  }
  return result;
}

static CUresult wait_orphans(CUcontext context, uint64_t deadline_ns) {
  CUevent events[8];
  for (size_t count; (count = touch_orphans(context, events, 8));)
    for (size_t i = 0; i < count; i++) {
      CUresult result = drain_event(events[i], deadline_ns);
      if (result)
        return result;
      touch_orphan_done(events[i]);
    }
  return CUDA_SUCCESS;
}

CUresult drain_ranges(CUcontext context, struct range *const *ranges, size_t count, CUstream stream,
                      bool wait, uint64_t deadline_ns) {
  struct drain drain = {.deadline_ns = deadline_ns};
  uint32_t taken[DRAIN_RANGES] = {0};
  CUresult result = CUDA_SUCCESS;
  for (size_t i = 0; i < count && !result; i++)
    result = record_range(&drain, ranges[i], &taken[i]);
  if (!result && wait)
    result = record(&drain, stream ? (uintptr_t)stream : (uintptr_t)CU_STREAM_LEGACY, 0);
  result = wait_all(&drain, result);
  if (!result)
    result = wait_orphans(context, deadline_ns);
  for (size_t i = 0; result && i < count; i++)
    for (size_t k = 0; k < RANGE_STREAMS; k++)
      if (taken[i] >> k & 1)
        atomic_store(&ranges[i]->streams[k].since_wait, true);
  return result;
}
