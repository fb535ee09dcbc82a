/* Stream capture: what a stream says while it captures and what that forbids. */
#include "tests/unit/gpusim_driver.h"
#include <pthread.h>

static CUstreamCaptureStatus status_of(CUstream stream) {
  CUstreamCaptureStatus status = (CUstreamCaptureStatus)-1;
  MUST(cuStreamIsCapturing(stream, &status));
  return status;
}

static void end(CUstream stream) {
  CUgraph graph;
  if (cuStreamEndCapture(stream, &graph) == CUDA_SUCCESS)
    MUST(cuGraphDestroy(graph));
}

static void test_status(CUstream stream, CUdeviceptr memory) {
  CUgraph graph;
  size_t nodes = 9;
  tap_ok(status_of(stream) == CU_STREAM_CAPTURE_STATUS_NONE, "a stream begins not capturing");
  MUST(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
  tap_ok(status_of(stream) == CU_STREAM_CAPTURE_STATUS_ACTIVE, "then says that it is capturing");
  tap_ok(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED) == CUDA_ERROR_ILLEGAL_STATE,
         "a capture can't begin twice");
  MUST(cuStreamEndCapture(stream, &graph));
  MUST(cuGraphGetNodes(graph, NULL, &nodes));
  tap_ok(nodes == 0 && status_of(stream) == CU_STREAM_CAPTURE_STATUS_NONE,
         "a capture of nothing is an empty graph");
  MUST(cuGraphDestroy(graph));
  tap_ok(cuStreamEndCapture(stream, &graph) == CUDA_ERROR_ILLEGAL_STATE,
         "a capture can't end twice");

  MUST(cuMemsetD8(memory, 0, 16));
  MUST(cuCtxSynchronize());
  MUST(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
  MUST(cuMemsetD8Async(memory, 1, 16, stream));
  MUST(cuStreamEndCapture(stream, &graph));
  nodes = 9;
  MUST(cuGraphGetNodes(graph, NULL, &nodes));
  MUST(cuStreamSynchronize(stream));
  tap_ok(nodes == 1 && device_word(memory) == 0,
         "what is captured is a node, and isn't carried out");
  MUST(cuGraphDestroy(graph));

  MUST(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
  tap_ok(cuStreamQuery(stream) == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED &&
             status_of(stream) == CU_STREAM_CAPTURE_STATUS_INVALIDATED,
         "querying a capturing stream is refused and invalidates, in relaxed mode too");
  tap_ok(cuMemsetD8Async(memory, 1, 16, stream) == CUDA_ERROR_STREAM_CAPTURE_INVALIDATED,
         "more work says so");
  tap_ok(cuStreamEndCapture(stream, &graph) == CUDA_ERROR_STREAM_CAPTURE_INVALIDATED &&
             graph == NULL,
         "its end is an error and no graph");
  MUST(cuMemsetD8Async(memory, 1, 16, stream));
  MUST(cuStreamSynchronize(stream));
  tap_ok(device_word(memory) == 0x01010101, "afterwards the stream works again");

  MUST(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
  tap_ok(cuStreamSynchronize(stream) == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED &&
             status_of(stream) == CU_STREAM_CAPTURE_STATUS_INVALIDATED,
         "synchronising a capturing stream invalidates");
  end(stream);
  MUST(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
  tap_ok(cuCtxSynchronize() == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED &&
             status_of(stream) == CU_STREAM_CAPTURE_STATUS_INVALIDATED,
         "so does synchronising the context");
  end(stream);
}

static void test_legacy(CUstream blocking, CUstream free_one, CUdeviceptr memory) {
  CUstreamCaptureStatus status;
  tap_ok(cuStreamBeginCapture(NULL, CU_STREAM_CAPTURE_MODE_RELAXED) ==
             CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
         "the legacy stream can't capture");
  MUST(cuStreamBeginCapture(free_one, CU_STREAM_CAPTURE_MODE_RELAXED));
  tap_ok(cuStreamIsCapturing(NULL, &status) == CUDA_SUCCESS &&
             status == CU_STREAM_CAPTURE_STATUS_NONE,
         "a non-blocking capture means nothing to it");
  end(free_one);
  MUST(cuStreamBeginCapture(blocking, CU_STREAM_CAPTURE_MODE_RELAXED));
  tap_ok(cuStreamIsCapturing(NULL, &status) == CUDA_ERROR_STREAM_CAPTURE_IMPLICIT,
         "a blocking one makes it answer IMPLICIT");
  tap_ok(status_of(blocking) == CU_STREAM_CAPTURE_STATUS_ACTIVE, "asking invalidates nothing");
  tap_ok(cuMemsetD8Async(memory, 1, 16, NULL) == CUDA_ERROR_STREAM_CAPTURE_IMPLICIT &&
             status_of(blocking) == CU_STREAM_CAPTURE_STATUS_INVALIDATED,
         "using it invalidates the blocking capture");
  end(blocking);
  MUST(cuMemsetD8Async(memory, 1, 16, NULL));
}

static void *allocate_elsewhere(void *context) {
  CUdeviceptr memory;
  MUST(cuCtxSetCurrent(context));
  CUresult result = cuMemAlloc(&memory, 16);
  return (void *)(uintptr_t)result;
}

static CUresult elsewhere(CUcontext context) {
  pthread_t thread;
  void *result;
  pthread_create(&thread, NULL, allocate_elsewhere, context);
  pthread_join(thread, &result);
  return (CUresult)(uintptr_t)result;
}

static void test_unsafe_calls(CUcontext context, CUstream stream) {
  CUdeviceptr memory;
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
  MUST(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
  tap_ok(elsewhere(context) == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED &&
             status_of(stream) == CU_STREAM_CAPTURE_STATUS_INVALIDATED,
         "a global capture forbids allocations to other threads");
  end(stream);
  MUST(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
  tap_ok(elsewhere(context) == CUDA_SUCCESS, "a thread-local one doesn't");
  tap_ok(cuMemAlloc(&memory, 16) == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "but to its own thread");
  end(stream);
  MUST(cuThreadExchangeStreamCaptureMode(&mode));
  MUST(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
  tap_ok(cuMemAlloc(&memory, 16) == CUDA_SUCCESS &&
             status_of(stream) == CU_STREAM_CAPTURE_STATUS_ACTIVE,
         "a thread in relaxed mode may allocate");
  tap_ok(mode == CU_STREAM_CAPTURE_MODE_GLOBAL, "threads begin in global mode");
  end(stream);
  MUST(cuThreadExchangeStreamCaptureMode(&mode));
}

/* Calls that need the device now, in a thread that captures something else. */
static void test_unsafe_waits(CUstream stream, CUstream other) {
  CUevent event;
  MUST(cuEventCreate(&event, 0));
  MUST(cuEventRecord(event, other));
  MUST(cuEventSynchronize(event));
  struct {
    const char *name;
    CUresult result;
  } calls[5];
  for (int i = 0; i < 5; i++) {
    static const char *const names[] = {"querying any event is unsafe under a global capture",
                                        "so is synchronising one",
                                        "so is synchronising another stream",
                                        "so is loading a module", "so is pinning host memory"};
    CUmodule module;
    void *pinned;
    MUST(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    calls[i].name = names[i];
    calls[i].result = i == 0   ? cuEventQuery(event)
                      : i == 1 ? cuEventSynchronize(event)
                      : i == 2 ? cuStreamSynchronize(other)
                      : i == 3 ? cuModuleLoadData(&module, TEST_PTX)
                               : cuMemHostAlloc(&pinned, 4096, 0);
    tap_ok(calls[i].result == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED &&
               status_of(stream) == CU_STREAM_CAPTURE_STATUS_INVALIDATED,
           "%s", calls[i].name);
    end(stream);
  }
  MUST(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
  tap_ok(cuEventQuery(event) == CUDA_SUCCESS && cuStreamSynchronize(other) == CUDA_SUCCESS &&
             status_of(stream) == CU_STREAM_CAPTURE_STATUS_ACTIVE,
         "under a relaxed one all of this is allowed");
  end(stream);
  MUST(cuEventDestroy(event));
}

/* Events carry a capture to other streams, and back. */
static void test_forks(CUstream origin, CUstream side, CUdeviceptr memory) {
  CUevent fork, join, outside;
  CUgraph graph;
  CUgraphNode nodes[4], from[4], to[4];
  size_t count = 4, edges = 4;
  cuuint64_t id, side_id;
  CUstreamCaptureStatus status;
  MUST(cuEventCreate(&fork, 0));
  MUST(cuEventCreate(&join, 0));
  MUST(cuEventCreate(&outside, 0));
  MUST(cuStreamBeginCapture(origin, CU_STREAM_CAPTURE_MODE_RELAXED));
  MUST(cuMemsetD8Async(memory, 1, 16, origin));
  MUST(cuEventRecord(fork, origin));
  MUST(cuStreamWaitEvent(side, fork, 0));
  tap_ok(status_of(side) == CU_STREAM_CAPTURE_STATUS_ACTIVE,
         "waiting for an event of a capture draws a stream into it");
  MUST(cuStreamGetCaptureInfo(origin, &status, &id, NULL, NULL, NULL, NULL));
  MUST(cuStreamGetCaptureInfo(side, &status, &side_id, NULL, NULL, NULL, NULL));
  tap_ok(id == side_id && id != 0, "with the same id");
  MUST(cuMemsetD8Async(memory + 16, 2, 16, side));
  MUST(cuMemsetD8Async(memory + 32, 3, 16, origin));
  MUST(cuEventRecord(join, side));
  MUST(cuStreamWaitEvent(origin, join, 0));
  MUST(cuMemsetD8Async(memory + 48, 4, 16, origin));
  MUST(cuStreamEndCapture(origin, &graph));
  MUST(cuGraphGetNodes(graph, nodes, &count));
  MUST(cuGraphGetEdges(graph, from, to, NULL, &edges));
  tap_ok(count == 4 && edges == 4 && from[0] == nodes[0] && to[0] == nodes[1] &&
             from[1] == nodes[0] && to[1] == nodes[2] && to[2] == nodes[3] && to[3] == nodes[3] &&
             status_of(side) == CU_STREAM_CAPTURE_STATUS_NONE,
         "a fork and its join are edges, and both streams are free again");
  MUST(cuGraphDestroy(graph));
  tap_ok(cuStreamWaitEvent(side, fork, 0) == CUDA_ERROR_CAPTURED_EVENT,
         "an event of a capture that ended can't be waited for");

  MUST(cuStreamBeginCapture(origin, CU_STREAM_CAPTURE_MODE_RELAXED));
  MUST(cuEventRecord(fork, origin));
  tap_ok(cuEventQuery(fork) == CUDA_ERROR_CAPTURED_EVENT &&
             status_of(origin) == CU_STREAM_CAPTURE_STATUS_INVALIDATED,
         "an event of a capture can't be queried, in relaxed mode either");
  end(origin);

  MUST(cuStreamBeginCapture(origin, CU_STREAM_CAPTURE_MODE_RELAXED));
  MUST(cuEventRecord(fork, origin));
  MUST(cuStreamWaitEvent(side, fork, 0));
  MUST(cuMemsetD8Async(memory, 1, 16, side));
  tap_ok(cuStreamEndCapture(origin, &graph) == CUDA_ERROR_STREAM_CAPTURE_UNJOINED && graph == NULL,
         "a fork that isn't joined is UNJOINED");

  MUST(cuStreamBeginCapture(origin, CU_STREAM_CAPTURE_MODE_RELAXED));
  MUST(cuEventRecord(fork, origin));
  MUST(cuStreamWaitEvent(side, fork, 0));
  tap_ok(cuStreamEndCapture(side, &graph) == CUDA_ERROR_STREAM_CAPTURE_UNMATCHED,
         "a capture ends in the stream it began in");
  end(origin);

  MUST(cuEventRecord(outside, side));
  MUST(cuStreamBeginCapture(origin, CU_STREAM_CAPTURE_MODE_RELAXED));
  tap_ok(cuStreamWaitEvent(origin, outside, 0) == CUDA_ERROR_STREAM_CAPTURE_ISOLATION &&
             status_of(origin) == CU_STREAM_CAPTURE_STATUS_INVALIDATED,
         "waiting inside a capture for work outside breaks its isolation");
  end(origin);

  MUST(cuStreamBeginCapture(origin, CU_STREAM_CAPTURE_MODE_RELAXED));
  MUST(cuStreamBeginCapture(side, CU_STREAM_CAPTURE_MODE_RELAXED));
  MUST(cuEventRecord(fork, origin));
  tap_ok(cuStreamWaitEvent(side, fork, 0) == CUDA_ERROR_STREAM_CAPTURE_MERGE &&
             status_of(origin) == CU_STREAM_CAPTURE_STATUS_INVALIDATED &&
             status_of(side) == CU_STREAM_CAPTURE_STATUS_INVALIDATED,
         "two captures can't merge");
  end(origin);
  end(side);
  tap_ok(cuEventRecordWithFlags(outside, side, CU_EVENT_RECORD_EXTERNAL) ==
             CUDA_ERROR_INVALID_VALUE,
         "external records exist in captures only");
  MUST(cuEventDestroy(fork));
  MUST(cuEventDestroy(join));
  MUST(cuEventDestroy(outside));
}

static void *end_elsewhere(void *stream) {
  CUgraph graph;
  return (void *)(uintptr_t)cuStreamEndCapture(stream, &graph);
}

static void test_threads(CUstream stream) {
  pthread_t thread;
  void *result;
  MUST(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
  pthread_create(&thread, NULL, end_elsewhere, stream);
  pthread_join(thread, &result);
  tap_ok((CUresult)(uintptr_t)result == CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD,
         "a capture ends in the thread that began it");
  end(stream);
  MUST(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
  pthread_create(&thread, NULL, end_elsewhere, stream);
  pthread_join(thread, &result);
  tap_ok((CUresult)(uintptr_t)result == CUDA_SUCCESS, "a relaxed one in any");
}

static void test_destroyed(CUdeviceptr memory) {
  CUstream stream, other;
  MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  MUST(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
  MUST(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
  MUST(cuMemsetD8Async(memory, 1, 16, stream));
  MUST(cuStreamDestroy(stream));
  tap_ok(cuStreamSynchronize(other) == CUDA_SUCCESS, "a stream that is destroyed ends its capture");
  MUST(cuStreamDestroy(other));
}

int main(void) {
  CUcontext context = start();
  CUdeviceptr memory;
  CUstream blocking, free_one;
  MUST(cuMemAlloc(&memory, 4096));
  MUST(cuStreamCreate(&blocking, CU_STREAM_DEFAULT));
  MUST(cuStreamCreate(&free_one, CU_STREAM_NON_BLOCKING));
  test_status(free_one, memory);
  test_legacy(blocking, free_one, memory);
  test_unsafe_calls(context, blocking);
  test_threads(free_one);
  test_unsafe_waits(free_one, blocking);
  CUstream side;
  MUST(cuStreamCreate(&side, CU_STREAM_NON_BLOCKING));
  test_forks(free_one, side, memory);
  test_destroyed(memory);
  return tap_done();
}
