/* Stream capture, as much as a shim must see: a stream can be capturing, says so, and forbids what
   cuda.h forbids. Nothing can be captured yet: work submitted to a capturing stream is refused with
   STREAM_CAPTURE_UNSUPPORTED and invalidates the capture. A capture of nothing ends in an empty
   graph. */
#include "tests/gpusim/driver.h"
#include <stdlib.h>

static uint64_t next_capture_id = 1;
static int open_captures; /* gpusim_mutex */

static bool capturing(const struct CUstream_st *stream) {
  return stream->capture != CU_STREAM_CAPTURE_STATUS_NONE;
}

static void invalidate(struct CUstream_st *stream) {
  stream->capture = CU_STREAM_CAPTURE_STATUS_INVALIDATED;
}

CUresult cuStreamBeginCapture_v2(CUstream handle, CUstreamCaptureMode mode) {
  struct CUstream_st *stream;
  if (mode != CU_STREAM_CAPTURE_MODE_GLOBAL && mode != CU_STREAM_CAPTURE_MODE_THREAD_LOCAL &&
      mode != CU_STREAM_CAPTURE_MODE_RELAXED)
    return CUDA_ERROR_INVALID_VALUE;
  CUresult result = gpusim_enter_stream(handle, &stream);
  if (result != CUDA_SUCCESS)
    return result;
  if (stream->legacy) {
    result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  } else if (capturing(stream)) {
    result = CUDA_ERROR_ILLEGAL_STATE;
  } else {
    struct gpusim_thread *thread = gpusim_this_thread();
    stream->capture = CU_STREAM_CAPTURE_STATUS_ACTIVE;
    stream->capture_mode = mode;
    stream->capture_id = next_capture_id++;
    stream->capture_thread = thread->id;
    stream->context->blocking_captures += !stream->nonblocking;
    open_captures++;
  }
  gpusim_unlock();
  return result;
}

void gpusim_capture_forget(struct CUstream_st *stream) {
  if (!capturing(stream))
    return;
  stream->capture = CU_STREAM_CAPTURE_STATUS_NONE;
  stream->context->blocking_captures -= !stream->nonblocking;
  open_captures--;
}

CUresult cuStreamEndCapture(CUstream handle, CUgraph *graph) {
  struct CUstream_st *stream;
  CUresult result = gpusim_enter_stream(handle, &stream);
  if (result != CUDA_SUCCESS)
    return result;
  if (graph == NULL) {
    result = CUDA_ERROR_INVALID_VALUE;
  } else if (!capturing(stream)) {
    result = CUDA_ERROR_ILLEGAL_STATE;
  } else if (stream->capture_mode != CU_STREAM_CAPTURE_MODE_RELAXED &&
             stream->capture_thread != gpusim_this_thread()->id) {
    result = CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
  } else {
    bool valid = stream->capture == CU_STREAM_CAPTURE_STATUS_ACTIVE;
    gpusim_capture_forget(stream);
    *graph = NULL;
    if (valid) {
      *graph = gpusim_new(1);
      gpusim_handle_add(*graph, HANDLE_GRAPH, NULL);
    } else {
      result = CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    }
  }
  gpusim_unlock();
  return result;
}

CUresult cuGraphDestroy(CUgraph graph) {
  CUresult result = gpusim_ready();
  if (result != CUDA_SUCCESS)
    return result;
  if (!gpusim_handle_is(graph, HANDLE_GRAPH))
    return CUDA_ERROR_INVALID_VALUE;
  gpusim_handle_remove(graph);
  free(graph);
  return CUDA_SUCCESS;
}

CUresult cuGraphGetNodes(CUgraph graph, CUgraphNode *nodes, size_t *count) {
  (void)nodes;
  CUresult result = gpusim_ready();
  if (result != CUDA_SUCCESS)
    return result;
  if (!gpusim_handle_is(graph, HANDLE_GRAPH) || count == NULL)
    return CUDA_ERROR_INVALID_VALUE;
  *count = 0;
  return CUDA_SUCCESS;
}

CUresult gpusim_capture_refuses(struct CUstream_st *stream) {
  if (stream->legacy && stream->context->blocking_captures > 0) {
    for (struct CUstream_st *s = stream->context->streams; s != NULL; s = s->next)
      if (capturing(s) && !s->nonblocking)
        invalidate(s);
    return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
  }
  if (!capturing(stream))
    return CUDA_SUCCESS;
  bool active = stream->capture == CU_STREAM_CAPTURE_STATUS_ACTIVE;
  invalidate(stream);
  return active ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED : CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
}

/* Whether the capture on a stream prohibits this thread's unsafe calls; cuda.h,
 * cuThreadExchangeStreamCaptureMode. */
static bool prohibits(const struct CUstream_st *stream, const struct gpusim_thread *thread) {
  if (!capturing(stream) || stream->capture_mode == CU_STREAM_CAPTURE_MODE_RELAXED ||
      thread->capture_mode == CU_STREAM_CAPTURE_MODE_RELAXED)
    return false;
  return stream->capture_thread == thread->id ||
         (thread->capture_mode == CU_STREAM_CAPTURE_MODE_GLOBAL &&
          stream->capture_mode == CU_STREAM_CAPTURE_MODE_GLOBAL);
}

CUresult gpusim_capture_unsafe(void) {
  const struct gpusim_thread *thread = gpusim_this_thread();
  CUresult result = CUDA_SUCCESS;
  gpusim_lock();
  CUcontext first = open_captures > 0 ? gpusim_next_context(NULL) : NULL;
  for (CUcontext c = first; c != NULL; c = gpusim_next_context(c))
    for (struct CUstream_st *s = c->streams; s != NULL; s = s->next)
      if (prohibits(s, thread)) {
        invalidate(s);
        result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
      }
  gpusim_unlock();
  return result;
}

CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode *mode) {
  CUresult result = gpusim_ready();
  if (result != CUDA_SUCCESS)
    return result;
  if (mode == NULL || *mode < CU_STREAM_CAPTURE_MODE_GLOBAL ||
      *mode > CU_STREAM_CAPTURE_MODE_RELAXED)
    return CUDA_ERROR_INVALID_VALUE;
  struct gpusim_thread *thread = gpusim_this_thread();
  CUstreamCaptureMode before = thread->capture_mode;
  thread->capture_mode = *mode;
  *mode = before;
  return CUDA_SUCCESS;
}

/* ---- questions: they never invalidate ---- */

static CUresult ask(CUstream handle, CUstreamCaptureStatus *status, cuuint64_t *id) {
  struct CUstream_st *stream;
  if (status == NULL)
    return CUDA_ERROR_INVALID_VALUE;
  CUresult result = gpusim_enter_stream(handle, &stream);
  if (result != CUDA_SUCCESS)
    return result;
  *status = stream->capture;
  if (id != NULL)
    *id = capturing(stream) ? stream->capture_id : 0;
  if (stream->legacy && stream->context->blocking_captures > 0)
    result = CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
  gpusim_unlock();
  return result;
}

CUresult cuStreamIsCapturing(CUstream stream, CUstreamCaptureStatus *status) {
  return ask(stream, status, NULL);
}

CUresult cuStreamGetCaptureInfo_v2(CUstream stream, CUstreamCaptureStatus *status, cuuint64_t *id,
                                   CUgraph *graph, const CUgraphNode **dependencies,
                                   size_t *count) {
  if (graph != NULL)
    *graph = NULL;
  if (dependencies != NULL)
    *dependencies = NULL;
  if (count != NULL)
    *count = 0;
  return ask(stream, status, id);
}

CUresult cuStreamGetCaptureInfo_v3(CUstream stream, CUstreamCaptureStatus *status, cuuint64_t *id,
                                   CUgraph *graph, const CUgraphNode **dependencies,
                                   const CUgraphEdgeData **edges, size_t *count) {
  if (edges != NULL)
    *edges = NULL;
  return cuStreamGetCaptureInfo_v2(stream, status, id, graph, dependencies, count);
}

CUresult cuStreamGetCaptureInfo(CUstream stream, CUstreamCaptureStatus *status, cuuint64_t *id) {
  return cuStreamGetCaptureInfo_v2(stream, status, id, NULL, NULL, NULL);
}
