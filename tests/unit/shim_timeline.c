/* Spans of streams (shim/timeline.c) on a driver made here: whose events and stream are whose when a context ends. */
#include "policy/trace.h"
#include "shim/driver.h"
#include "shim/timeline.h"
#include "tests/lib/tap.h"
#include <stdint.h>

struct driver driver;

enum { MOST = 64, SPANS = 5 };
static bool destroyed[MOST];
static unsigned made, gone, streams_made, streams_gone, twice, looked_behind;
static bool over = true;

static unsigned number_of(const void *handle) {
  return (unsigned)(uintptr_t)handle - 1;
}
static CUresult fake_create(CUevent *event, unsigned flags) {
  (void)flags;
  if (made == MOST)
    return CUDA_ERROR_OUT_OF_MEMORY;
  *event = (CUevent)(uintptr_t)(++made);
  return CUDA_SUCCESS;
}
static CUresult fake_destroy(CUevent event) {
  twice += destroyed[number_of(event)];
  destroyed[number_of(event)] = true;
  gone++;
  return CUDA_SUCCESS;
}
static CUresult fake_record(CUevent event, CUstream stream) {
  (void)stream;
  looked_behind += destroyed[number_of(event)];
  return CUDA_SUCCESS;
}
static CUresult fake_query(CUevent event) {
  looked_behind += destroyed[number_of(event)];
  return over ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}
static CUresult fake_elapsed(float *ms, CUevent begin, CUevent end) {
  looked_behind += destroyed[number_of(begin)] || destroyed[number_of(end)];
  *ms = (float)(number_of(end) - number_of(begin));
  return CUDA_SUCCESS;
}
static CUresult fake_stream(CUstream *stream, unsigned flags) {
  (void)flags;
  *stream = (CUstream)(uintptr_t)(1000 + ++streams_made);
  return CUDA_SUCCESS;
}
static CUresult fake_stream_destroy(CUstream stream) {
  (void)stream;
  streams_gone++;
  return CUDA_SUCCESS;
}
static CUresult fake_device(CUdevice *device) {
  *device = 0;
  return CUDA_SUCCESS;
}
static CUresult fake_mode(CUstreamCaptureMode *mode) {
  (void)mode;
  return CUDA_SUCCESS;
}

static const CUcontext context = (CUcontext)(uintptr_t)16, other = (CUcontext)(uintptr_t)32;

static void work(CUcontext in) {
  timeline_launch(in, 1);
  for (unsigned i = 0; i < SPANS; i++) {
    struct timing *timing = timeline_begin(in, NULL);
    timeline_end(timing, NULL, TRACE_STEP, "cpu", 0, 1);
  }
}

int main(void) {
  driver.cuEventCreate = fake_create;
  driver.cuEventDestroy_v2 = fake_destroy;
  driver.cuEventRecord = fake_record;
  driver.cuEventQuery = fake_query;
  driver.cuEventElapsedTime = fake_elapsed;
  driver.cuStreamCreate = fake_stream;
  driver.cuStreamDestroy_v2 = fake_stream_destroy;
  driver.cuCtxGetDevice = fake_device;
  driver.cuThreadExchangeStreamCaptureMode = fake_mode;
  work(context);
  tap_ok(!made && !streams_made, "without a trace nothing is made");
  tap_ok(trace_start(), "a trace begins");
  work(context);
  work(other);
  tap_ok(made == 2 * (2 + 2 * SPANS) && streams_made == 2, "a context has events and a stream");
  timeline_forget(context, false);
  tap_ok(gone == made / 2 && !twice && streams_gone == 1 && !looked_behind,
         "one that goes on without its steps has none of them left");
  timeline_forget(context, false);
  tap_ok(gone == made / 2 && streams_gone == 1, "and is forgotten once");
  over = false;
  work(other);
  timeline_forget(other, true);
  tap_ok(gone == 2 + 2 * SPANS && streams_gone == 1, "what went with its context isn't touched");
  over = true;
  driver.cuEventElapsedTime = NULL;
  work(context);
  const unsigned left = made - gone;
  tap_ok(streams_made == 3 && streams_gone == 2 && !timeline_begin(context, NULL),
         "a driver without times of events keeps no stream");
  timeline_forget(context, false);
  tap_ok(made - gone == left - 2 && streams_gone == 2 && !twice && !looked_behind,
         "nor events behind the context's end");
  return tap_done();
}
