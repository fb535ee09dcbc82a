/* Events: a recorded event is a (stream, ticket) pair. Waiting for one is an operation of its own,
   so that query and synchronise on the waiting stream see it too. */
#include "tests/gpusim/driver.h"
#include <stdlib.h>
#include <time.h>

struct CUevent_st {
  CUcontext context;
  unsigned flags;
  int references; /* the handle, records that are queued */
  bool recorded;
  struct gpusim_capture *capture; /* it was last recorded in one; what that stands for: */
  struct gpusim_nodes heads;
  struct dependency last;
  double ms; /* when the last record was carried out */
};

static void drop_event(void *argument) {
  CUevent event = argument;
  if (--event->references > 0)
    return;
  if (event->recorded)
    gpusim_stream_drop(event->last.stream);
  gpusim_capture_unmark(&event->capture, &event->heads);
  free(event);
}

CUresult cuEventCreate(CUevent *event, unsigned flags) {
  const unsigned all = CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS;
  CUcontext context;
  CUresult result = gpusim_enter(&context);
  if (result != CUDA_SUCCESS)
    return result;
  if (event == NULL || (flags & ~all) != 0)
    return CUDA_ERROR_INVALID_VALUE;
  *event = gpusim_new(sizeof **event);
  (*event)->context = context;
  (*event)->flags = flags;
  (*event)->references = 1;
  gpusim_handle_add(*event, HANDLE_EVENT, NULL);
  return CUDA_SUCCESS;
}

/* Returns at once, also when the record is still queued. */
CUresult cuEventDestroy_v2(CUevent event) {
  CUresult result = gpusim_ready();
  if (result != CUDA_SUCCESS)
    return result;
  gpusim_lock();
  if (gpusim_handle_is(event, HANDLE_EVENT)) {
    gpusim_handle_remove(event);
    drop_event(event);
  } else {
    result = CUDA_ERROR_INVALID_HANDLE;
  }
  gpusim_unlock();
  return result;
}

static CUresult run_record(void *argument) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  gpusim_lock();
  ((CUevent)argument)->ms = (double)time.tv_sec * 1e3 + (double)time.tv_nsec / 1e6;
  gpusim_unlock();
  return CUDA_SUCCESS;
}

static const struct operation_kind record_kind = {.name = "event record",
                                                  .capturable = true,
                                                  .node = CU_GRAPH_NODE_TYPE_EVENT_RECORD,
                                                  .run = run_record,
                                                  .drop = drop_event};

/* The event stands for what the stream was given last. */
void gpusim_event_recorded(CUevent event, struct CUstream_st *stream) {
  gpusim_capture_unmark(&event->capture, &event->heads);
  gpusim_stream_hold(stream);
  if (event->recorded)
    gpusim_stream_drop(event->last.stream);
  event->last = (struct dependency){stream, stream->submitted};
  event->recorded = true;
}

const struct dependency *gpusim_event_last(CUevent event) {
  return event->recorded ? &event->last : NULL;
}

static CUresult record(CUevent event, struct CUstream_st *stream, unsigned flags) {
  bool external = (flags & CU_EVENT_RECORD_EXTERNAL) != 0;
  if (stream->capture == NULL && external)
    return CUDA_ERROR_INVALID_VALUE;
  if (stream->capture != NULL && !external) {
    gpusim_capture_mark(stream, &event->capture, &event->heads);
    return CUDA_SUCCESS;
  }
  event->references += 2; /* the record's, and ours: the event may be destroyed meanwhile */
  CUresult result = gpusim_submit(stream, &record_kind, event, NULL);
  if (result == CUDA_SUCCESS && !external)
    gpusim_event_recorded(event, stream);
  drop_event(event);
  return result;
}

CUresult cuEventRecordWithFlags(CUevent event, CUstream handle, unsigned flags) {
  struct CUstream_st *stream;
  if ((flags & ~(unsigned)CU_EVENT_RECORD_EXTERNAL) != 0)
    return CUDA_ERROR_INVALID_VALUE;
  CUresult result = gpusim_enter_submit(handle, &stream);
  if (result != CUDA_SUCCESS)
    return result;
  if (!gpusim_handle_is(event, HANDLE_EVENT) || event->context != stream->context) {
    gpusim_unlock();
    return CUDA_ERROR_INVALID_HANDLE;
  }
  gpusim_stream_hold(stream); /* a full queue lets go of the lock */
  result = record(event, stream, flags);
  gpusim_stream_drop(stream);
  gpusim_unlock();
  return result;
}

CUresult cuEventRecord(CUevent event, CUstream stream) {
  return cuEventRecordWithFlags(event, stream, CU_EVENT_RECORD_DEFAULT);
}

static CUresult run_wait(void *argument) {
  (void)argument;
  return CUDA_SUCCESS;
}

static const struct operation_kind wait_kind = {.name = "event wait", .run = run_wait};
/* In a graph the event is looked at when the graph is launched. */
static const struct operation_kind node_wait_kind = {.name = "event wait",
                                                     .capturable = true,
                                                     .node = CU_GRAPH_NODE_TYPE_WAIT_EVENT,
                                                     .run = run_wait,
                                                     .drop = drop_event};

const struct operation_kind *gpusim_event_operation(CUevent event, bool is_record) {
  event->references++;
  return is_record ? &record_kind : &node_wait_kind;
}

static CUresult wait_for(CUevent event, struct CUstream_st *stream, unsigned flags) {
  bool external = (flags & CU_EVENT_WAIT_EXTERNAL) != 0;
  if (external && stream->capture == NULL)
    return CUDA_ERROR_INVALID_VALUE;
  if (external) {
    const struct operation_kind *kind = gpusim_event_operation(event, false);
    return gpusim_submit(stream, kind, event, NULL);
  }
  if (event->capture != NULL)
    return gpusim_capture_join(stream, event->capture, &event->heads);
  if (!event->recorded)
    return CUDA_SUCCESS;
  if (stream->capture != NULL) { /* a dependency on work outside of the capture */
    gpusim_capture_invalidate(stream->capture);
    return CUDA_ERROR_STREAM_CAPTURE_ISOLATION;
  }
  /* what the event stands for now: a later record changes nothing for this wait */
  struct dependency last = event->last;
  gpusim_stream_hold(last.stream);
  CUresult result = gpusim_submit(stream, &wait_kind, NULL, &last);
  gpusim_stream_drop(last.stream);
  return result;
}

CUresult cuStreamWaitEvent(CUstream handle, CUevent event, unsigned flags) {
  struct CUstream_st *stream;
  if ((flags & ~(unsigned)CU_EVENT_WAIT_EXTERNAL) != 0)
    return CUDA_ERROR_INVALID_VALUE;
  CUresult result = gpusim_enter_submit(handle, &stream);
  if (result != CUDA_SUCCESS)
    return result;
  result = gpusim_handle_is(event, HANDLE_EVENT) ? wait_for(event, stream, flags)
                                                 : CUDA_ERROR_INVALID_HANDLE;
  gpusim_unlock();
  return result;
}

/* On success gpusim_mutex is held. */
static CUresult enter_event(CUevent event) {
  CUresult result = gpusim_ready();
  if (result != CUDA_SUCCESS)
    return result;
  gpusim_lock();
  if (!gpusim_handle_is(event, HANDLE_EVENT))
    result = CUDA_ERROR_INVALID_HANDLE;
  else if (!event->context->alive)
    result = CUDA_ERROR_CONTEXT_IS_DESTROYED;
  else
    result = (CUresult)event->context->sticky;
  if (result != CUDA_SUCCESS)
    gpusim_unlock();
  return result;
}

/* The same, for calls that ask about the device or wait for it: unsafe during captures, and an
 * event of a capture never happens. */
static CUresult enter_event_wait(CUevent event) {
  CUresult result = gpusim_ready();
  if (result == CUDA_SUCCESS)
    result = gpusim_capture_unsafe();
  if (result == CUDA_SUCCESS)
    result = enter_event(event);
  if (result != CUDA_SUCCESS || event->capture == NULL)
    return result;
  gpusim_capture_invalidate(event->capture);
  gpusim_unlock();
  return CUDA_ERROR_CAPTURED_EVENT;
}

CUresult cuEventQuery(CUevent event) {
  CUresult result = enter_event_wait(event);
  if (result != CUDA_SUCCESS)
    return result;
  if (event->recorded && !gpusim_done(&event->last))
    result = CUDA_ERROR_NOT_READY;
  gpusim_unlock();
  return result;
}

CUresult cuEventSynchronize(CUevent event) {
  CUresult result = enter_event_wait(event);
  if (result != CUDA_SUCCESS)
    return result;
  if (event->recorded) {
    CUcontext context = event->context;
    struct dependency last = event->last;
    gpusim_wait_ticket(last.stream, last.ticket);
    result = (CUresult)context->sticky;
  }
  gpusim_unlock();
  return result;
}

CUresult cuEventElapsedTime_v2(float *ms, CUevent start, CUevent end) {
  CUresult result = enter_event(start);
  if (result != CUDA_SUCCESS)
    return result;
  if (ms == NULL)
    result = CUDA_ERROR_INVALID_VALUE;
  else if (!gpusim_handle_is(end, HANDLE_EVENT) || !start->recorded || !end->recorded ||
           ((start->flags | end->flags) & CU_EVENT_DISABLE_TIMING) != 0)
    result = CUDA_ERROR_INVALID_HANDLE;
  else if (!gpusim_done(&start->last) || !gpusim_done(&end->last))
    result = CUDA_ERROR_NOT_READY;
  else
    *ms = (float)(end->ms - start->ms);
  gpusim_unlock();
  return result;
}

CUresult cuEventElapsedTime(float *ms, CUevent start, CUevent end) {
  return cuEventElapsedTime_v2(ms, start, end);
}
