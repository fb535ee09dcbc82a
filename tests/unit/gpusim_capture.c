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

  MUST(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
  tap_ok(cuMemsetD8Async(memory, 1, 16, stream) == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
         "work on a capturing stream is refused");
  tap_ok(status_of(stream) == CU_STREAM_CAPTURE_STATUS_INVALIDATED, "and invalidates the capture");
  tap_ok(cuMemsetD8Async(memory, 1, 16, stream) == CUDA_ERROR_STREAM_CAPTURE_INVALIDATED,
         "more work says so");
  tap_ok(cuStreamEndCapture(stream, &graph) == CUDA_ERROR_STREAM_CAPTURE_INVALIDATED &&
             graph == NULL,
         "its end is an error and no graph");
  MUST(cuMemsetD8Async(memory, 1, 16, stream));
  MUST(cuStreamSynchronize(stream));
  tap_ok(true, "afterwards the stream works again");

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
  return tap_done();
}
