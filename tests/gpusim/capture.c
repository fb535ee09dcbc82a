/* Stream capture: what is submitted to a capturing stream becomes a node of a graph. A capture
   spreads to the streams that wait for its events, and must be joined to the stream that began it
   before it ends there. Whatever would need the device now, or would leave the graph wrong when it
   is replayed, is refused and invalidates the capture; cuda.h, CUstreamCaptureMode and the errors
   900 to 908.

   Each stream of a capture has heads: the nodes its next one waits for. All under gpusim_mutex. */
#include "tests/gpusim/graph.h"
#include <stdlib.h>

static uint64_t next_capture_id = 1;
static struct gpusim_capture *open_captures;

static bool active(const struct CUstream_st *stream) {
  return stream->capture != NULL && !stream->capture->invalid;
}

static CUstreamCaptureStatus status_of(const struct CUstream_st *stream) {
  return stream->capture == NULL ? CU_STREAM_CAPTURE_STATUS_NONE
         : active(stream)        ? CU_STREAM_CAPTURE_STATUS_ACTIVE
                                 : CU_STREAM_CAPTURE_STATUS_INVALIDATED;
}

void gpusim_capture_invalidate(struct gpusim_capture *capture) {
  capture->invalid = true;
}

static void release(struct gpusim_capture *capture) {
  if (--capture->references == 0)
    free(capture);
}

static void attach(struct CUstream_st *stream, struct gpusim_capture *capture) {
  stream->capture = capture;
  capture->references++;
  stream->context->blocking_captures += !stream->nonblocking;
}

static void detach(struct CUstream_st *stream) {
  stream->context->blocking_captures -= !stream->nonblocking;
  gpusim_nodes_clear(&stream->heads);
  release(stream->capture);
  stream->capture = NULL;
}

/* All streams stop capturing. What was captured is the caller's. */
static void end(struct gpusim_capture *capture) {
  struct gpusim_capture **link = &open_captures;
  while (*link != capture)
    link = &(*link)->next;
  *link = capture->next;
  capture->ended = true;
  capture->references++;
  for (CUcontext c = gpusim_next_context(NULL); c != NULL; c = gpusim_next_context(c))
    for (struct CUstream_st *s = c->streams; s != NULL; s = s->next)
      if (s->capture == capture)
        detach(s);
  release(capture);
}

/* A stream that is destroyed takes the capture it began with it; one that had joined leaves a
 * fork that nobody can join. */
void gpusim_capture_forget(struct CUstream_st *stream) {
  struct gpusim_capture *capture = stream->capture;
  if (capture == NULL)
    return;
  if (capture->origin != stream) {
    gpusim_capture_invalidate(capture);
    detach(stream);
    return;
  }
  CUgraph graph = capture->given_graph ? NULL : capture->graph;
  capture->references++; /* the stream's may be the last */
  detach(stream);        /* it is no longer among its context's streams */
  end(capture);
  release(capture);
  gpusim_graph_free(graph);
}

/* ---- begin and end ---- */

static CUresult begin(CUstream handle, CUstreamCaptureMode mode, CUgraph graph,
                      const CUgraphNode *after, size_t count) {
  struct CUstream_st *stream;
  if (mode != CU_STREAM_CAPTURE_MODE_GLOBAL && mode != CU_STREAM_CAPTURE_MODE_THREAD_LOCAL &&
      mode != CU_STREAM_CAPTURE_MODE_RELAXED)
    return CUDA_ERROR_INVALID_VALUE;
  CUresult result = gpusim_enter_stream(handle, &stream);
  if (result != CUDA_SUCCESS)
    return result;
  if (stream->legacy) {
    result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  } else if (stream->capture != NULL) {
    result = CUDA_ERROR_ILLEGAL_STATE;
  } else {
    struct gpusim_capture *capture = gpusim_new(sizeof *capture);
    capture->id = next_capture_id++;
    capture->thread = gpusim_this_thread()->id;
    capture->mode = mode;
    capture->origin = stream;
    capture->given_graph = graph != NULL;
    capture->graph = graph != NULL ? graph : gpusim_graph_new();
    capture->graph->inner = true;
    capture->next = open_captures;
    open_captures = capture;
    attach(stream, capture);
    for (size_t i = 0; i < count; i++)
      gpusim_nodes_add(&stream->heads, after[i]);
  }
  gpusim_unlock();
  return result;
}

CUresult cuStreamBeginCapture_v2(CUstream stream, CUstreamCaptureMode mode) {
  return begin(stream, mode, NULL, NULL, 0);
}

CUresult cuStreamBeginCapture(CUstream stream) {
  return begin(stream, CU_STREAM_CAPTURE_MODE_GLOBAL, NULL, NULL, 0);
}

static bool nodes_of(CUgraph graph, const CUgraphNode *nodes, size_t count) {
  for (size_t i = 0; i < count; i++)
    if (!gpusim_handle_is(nodes[i], HANDLE_GRAPH_NODE) || nodes[i]->graph != graph)
      return false;
  return true;
}

CUresult cuStreamBeginCaptureToGraph(CUstream stream, CUgraph graph, const CUgraphNode *after,
                                     const CUgraphEdgeData *edges, size_t count,
                                     CUstreamCaptureMode mode) {
  (void)edges;
  CUresult result = gpusim_ready();
  if (result != CUDA_SUCCESS)
    return result;
  if (!gpusim_handle_is(graph, HANDLE_GRAPH) || graph->inner || (count > 0 && after == NULL) ||
      !nodes_of(graph, after, count))
    return CUDA_ERROR_INVALID_VALUE;
  return begin(stream, mode, graph, after, count);
}

static void reach(CUgraphNode node, bool *seen) {
  if (seen[node->place])
    return;
  seen[node->place] = true;
  for (size_t i = 0; i < node->after.count; i++)
    reach(node->after.items[i], seen);
}

/* Whether everything that other streams captured comes before the origin's last nodes. */
static bool joined(const struct gpusim_capture *capture) {
  bool *seen = gpusim_new(capture->graph->nodes.count + 1);
  bool all = true;
  for (size_t i = 0; i < capture->origin->heads.count; i++)
    reach(capture->origin->heads.items[i], seen);
  for (CUcontext c = gpusim_next_context(NULL); c != NULL; c = gpusim_next_context(c))
    for (struct CUstream_st *s = c->streams; s != NULL; s = s->next)
      for (size_t i = 0; s->capture == capture && i < s->heads.count; i++)
        all = all && seen[s->heads.items[i]->place];
  free(seen);
  return all;
}

CUresult cuStreamEndCapture(CUstream handle, CUgraph *graph) {
  struct CUstream_st *stream;
  CUresult result = gpusim_enter_stream(handle, &stream);
  if (result != CUDA_SUCCESS)
    return result;
  struct gpusim_capture *capture = stream->capture;
  if (graph == NULL) {
    result = CUDA_ERROR_INVALID_VALUE;
  } else if (capture == NULL) {
    result = CUDA_ERROR_ILLEGAL_STATE;
  } else if (capture->origin != stream) {
    gpusim_capture_invalidate(capture);
    result = CUDA_ERROR_STREAM_CAPTURE_UNMATCHED;
  } else if (capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED &&
             capture->thread != gpusim_this_thread()->id) {
    result = CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
  } else {
    if (capture->invalid)
      result = CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    else if (!joined(capture))
      result = CUDA_ERROR_STREAM_CAPTURE_UNJOINED;
    CUgraph captured = capture->graph;
    bool given = capture->given_graph;
    end(capture);
    *graph = NULL;
    captured->inner = false;
    if (result == CUDA_SUCCESS)
      *graph = captured;
    else if (!given)
      gpusim_graph_free(captured);
  }
  gpusim_unlock();
  return result;
}

/* ---- what is captured ---- */

CUresult gpusim_capture_add(struct CUstream_st *stream, const struct operation_kind *kind,
                            void *argument) {
  struct gpusim_payload *payload = gpusim_payload_new(kind, argument);
  if (!active(stream) || !kind->capturable) {
    CUresult result = active(stream) ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED
                                     : CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    gpusim_trace(1, "%s can't be captured", kind->name);
    gpusim_capture_invalidate(stream->capture);
    gpusim_payload_drop(payload);
    return result;
  }
  CUgraphNode node = gpusim_graph_append(stream->capture->graph, kind->node, payload, NULL,
                                         stream->heads.items, stream->heads.count);
  gpusim_nodes_clear(&stream->heads);
  gpusim_nodes_add(&stream->heads, node);
  gpusim_count(GPUSIM_COUNT_captured_operations, 1);
  return CUDA_SUCCESS;
}

CUresult gpusim_capture_child(struct CUstream_st *stream, CUgraph child) {
  CUgraphNode node = gpusim_graph_append(stream->capture->graph, CU_GRAPH_NODE_TYPE_GRAPH, NULL,
                                         child, stream->heads.items, stream->heads.count);
  gpusim_nodes_clear(&stream->heads);
  gpusim_nodes_add(&stream->heads, node);
  return CUDA_SUCCESS;
}

void gpusim_capture_unmark(struct gpusim_capture **capture, struct gpusim_nodes *nodes) {
  if (*capture != NULL)
    release(*capture);
  *capture = NULL;
  gpusim_nodes_clear(nodes);
}

void gpusim_capture_mark(struct CUstream_st *stream, struct gpusim_capture **capture,
                         struct gpusim_nodes *nodes) {
  gpusim_capture_unmark(capture, nodes);
  *capture = stream->capture;
  stream->capture->references++;
  for (size_t i = 0; i < stream->heads.count; i++)
    gpusim_nodes_add(nodes, stream->heads.items[i]);
}

CUresult gpusim_capture_join(struct CUstream_st *stream, struct gpusim_capture *capture,
                             const struct gpusim_nodes *nodes) {
  if (capture->ended)
    return CUDA_ERROR_CAPTURED_EVENT;
  if (capture->invalid)
    return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  if (stream->legacy) { /* it can't capture, and so can't be drawn into one */
    gpusim_capture_invalidate(capture);
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  }
  if (stream->capture != NULL && stream->capture != capture) {
    gpusim_capture_invalidate(capture);
    gpusim_capture_invalidate(stream->capture);
    return CUDA_ERROR_STREAM_CAPTURE_MERGE;
  }
  if (stream->capture == NULL)
    attach(stream, capture);
  for (size_t i = 0; i < nodes->count; i++)
    gpusim_nodes_add(&stream->heads, nodes->items[i]);
  return CUDA_SUCCESS;
}

/* ---- what is refused ---- */

CUresult gpusim_capture_refuses(struct CUstream_st *stream) {
  if (stream->legacy && stream->context->blocking_captures > 0) {
    for (struct CUstream_st *s = stream->context->streams; s != NULL; s = s->next)
      if (s->capture != NULL && !s->nonblocking)
        gpusim_capture_invalidate(s->capture);
    return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
  }
  return stream->capture == NULL || active(stream) ? CUDA_SUCCESS
                                                   : CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
}

CUresult gpusim_capture_forbids(struct CUstream_st *stream) {
  CUresult result = gpusim_capture_refuses(stream);
  if (result != CUDA_SUCCESS || stream->capture == NULL)
    return result;
  gpusim_capture_invalidate(stream->capture);
  return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
}

/* Whether a capture prohibits this thread's unsafe calls; cuda.h,
 * cuThreadExchangeStreamCaptureMode. */
static bool prohibits(const struct gpusim_capture *capture, const struct gpusim_thread *thread) {
  if (capture->mode == CU_STREAM_CAPTURE_MODE_RELAXED ||
      thread->capture_mode == CU_STREAM_CAPTURE_MODE_RELAXED)
    return false;
  return capture->thread == thread->id || (thread->capture_mode == CU_STREAM_CAPTURE_MODE_GLOBAL &&
                                           capture->mode == CU_STREAM_CAPTURE_MODE_GLOBAL);
}

CUresult gpusim_capture_unsafe(void) {
  const struct gpusim_thread *thread = gpusim_this_thread();
  CUresult result = CUDA_SUCCESS;
  gpusim_lock();
  for (struct gpusim_capture *c = open_captures; c != NULL; c = c->next)
    if (prohibits(c, thread)) {
      gpusim_capture_invalidate(c);
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

struct answer {
  CUstreamCaptureStatus *status;
  cuuint64_t *id;
  CUgraph *graph;
  const CUgraphNode **nodes;
  const CUgraphEdgeData **edges;
  size_t *count;
};

static CUresult ask(CUstream handle, struct answer out) {
  struct CUstream_st *stream;
  if (out.status == NULL)
    return CUDA_ERROR_INVALID_VALUE;
  CUresult result = gpusim_enter_stream(handle, &stream);
  if (result != CUDA_SUCCESS)
    return result;
  *out.status = status_of(stream);
  bool valid = active(stream);
  if (out.id != NULL)
    *out.id = stream->capture != NULL ? stream->capture->id : 0;
  if (out.graph != NULL)
    *out.graph = valid ? stream->capture->graph : NULL;
  if (out.nodes != NULL)
    *out.nodes = valid ? stream->heads.items : NULL;
  if (out.edges != NULL)
    *out.edges = NULL; /* all edges are plain ones */
  if (out.count != NULL)
    *out.count = valid ? stream->heads.count : 0;
  if (stream->legacy && stream->context->blocking_captures > 0)
    result = CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
  gpusim_unlock();
  return result;
}

CUresult cuStreamIsCapturing(CUstream stream, CUstreamCaptureStatus *status) {
  return ask(stream, (struct answer){.status = status});
}

CUresult cuStreamGetCaptureInfo_v3(CUstream stream, CUstreamCaptureStatus *status, cuuint64_t *id,
                                   CUgraph *graph, const CUgraphNode **nodes,
                                   const CUgraphEdgeData **edges, size_t *count) {
  return ask(stream, (struct answer){status, id, graph, nodes, edges, count});
}

CUresult cuStreamGetCaptureInfo_v2(CUstream stream, CUstreamCaptureStatus *status, cuuint64_t *id,
                                   CUgraph *graph, const CUgraphNode **nodes, size_t *count) {
  return ask(stream, (struct answer){status, id, graph, nodes, NULL, count});
}

CUresult cuStreamGetCaptureInfo(CUstream stream, CUstreamCaptureStatus *status, cuuint64_t *id) {
  return ask(stream, (struct answer){.status = status, .id = id});
}

CUresult cuStreamUpdateCaptureDependencies_v2(CUstream handle, CUgraphNode *nodes,
                                              const CUgraphEdgeData *edges, size_t count,
                                              unsigned flags) {
  struct CUstream_st *stream;
  (void)edges;
  if ((count > 0 && nodes == NULL) || flags > CU_STREAM_SET_CAPTURE_DEPENDENCIES)
    return CUDA_ERROR_INVALID_VALUE;
  CUresult result = gpusim_enter_stream(handle, &stream);
  if (result != CUDA_SUCCESS)
    return result;
  if (!active(stream)) {
    result = CUDA_ERROR_ILLEGAL_STATE;
  } else if (!nodes_of(stream->capture->graph, nodes, count)) {
    result = CUDA_ERROR_INVALID_VALUE;
  } else {
    if (flags == CU_STREAM_SET_CAPTURE_DEPENDENCIES)
      gpusim_nodes_clear(&stream->heads);
    for (size_t i = 0; i < count; i++)
      gpusim_nodes_add(&stream->heads, nodes[i]);
  }
  gpusim_unlock();
  return result;
}

CUresult cuStreamUpdateCaptureDependencies(CUstream stream, CUgraphNode *nodes, size_t count,
                                           unsigned flags) {
  return cuStreamUpdateCaptureDependencies_v2(stream, nodes, NULL, count, flags);
}
