/* Wrappers of beginnings and ends: the driver's start, functions whose handles may be re-used,
   streams and contexts that go away, captures that open and close. */
#include "graphs.h"
#include "hooks.h"
#include "image.h"
#include "lock.h"
#include "state.h"
#include "step.h"
#include "touch.h"

/* Another thread may still be filling the table: what it has yet to come to would look like what an older driver lacks. So this library
   starts with the whole table, which everything that asks process_active may rely on. */
CUresult hook_cuInit(unsigned flags) {
  CUresult result = driver_call(cuInit, (flags));
  if (result == CUDA_SUCCESS && driver_resolve())
    process_started();
  return result;
}

/* ---- functions ---- */

CUresult hook_cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name) {
  CUresult result = hook_pass_known(cuModuleGetFunction, (function, module, name));
  if (result == CUDA_SUCCESS && process_active()) {
    (void)step_kernel_seen(name);
    if (image_wanted())
      image_kernel_found(*function, module, name);
  }
  return result;
}

CUresult hook_cuLibraryGetKernel(CUkernel *kernel, CUlibrary library, const char *name) {
  CUresult result = hook_pass_known(cuLibraryGetKernel, (kernel, library, name));
  if (result == CUDA_SUCCESS && process_active()) {
    (void)step_kernel_seen(name);
    if (image_wanted())
      image_kernel_found(*kernel, library, name);
  }
  return result;
}

static void forget_functions(void) {
  if (process_started_here()) {
    step_forget_functions();
    state_forget_functions();
  }
}

CUresult hook_cuModuleUnload(CUmodule module) {
  forget_functions();
  CUresult result = hook_pass(cuModuleUnload, (module));
  if (result == CUDA_SUCCESS && image_wanted())
    image_unloaded(module);
  return result;
}

CUresult hook_cuLibraryUnload(CUlibrary library) {
  forget_functions();
  CUresult result = hook_pass(cuLibraryUnload, (library));
  if (result == CUDA_SUCCESS && image_wanted())
    image_unloaded(library);
  return result;
}

/* ---- contexts: steps are drained before the real call, and virtual memory, which outlives its
   context, is given back after it: until then the program's other threads may still use it. The
   enqueue lock is held all the time, so that no step begins in between ---- */

static void forget_memory(CUcontext context) {
  for (unsigned ended = graphs_forget_captures(context); ended > 0; ended--)
    process_capture_ended();
  range_forget_context(context);
  forget_functions();
}

static bool primary_active(CUdevice device) {
  unsigned flags;
  int active = 0;
  return driver.cuDevicePrimaryCtxGetState &&
         driver.cuDevicePrimaryCtxGetState(device, &flags, &active) == CUDA_SUCCESS && active;
}

/* The handle of a primary context that exists; holding it costs a reference, which is given back.
 */
static CUcontext primary_context(CUdevice device) {
  CUcontext context = NULL;
  if (!process_started_here() || !primary_active(device) || !driver.cuDevicePrimaryCtxRetain ||
      driver.cuDevicePrimaryCtxRetain(&context, device) != CUDA_SUCCESS)
    return NULL;
  (void)driver.cuDevicePrimaryCtxRelease_v2(device);
  return context;
}

/* Its steps have to be drained before the context goes, so whether the driver will let it go is asked
   first: it refuses primary contexts, and what isn't a context can't be made current. */
static bool may_destroy(CUcontext context) {
  CUdevice device = 0;
  CUcontext popped;
  if (!context || driver.cuCtxPushCurrent_v2(context) != CUDA_SUCCESS)
    return false;
  const bool known = driver.cuCtxGetDevice(&device) == CUDA_SUCCESS;
  (void)driver.cuCtxPopCurrent_v2(&popped);
  return known && primary_context(device) != context;
}

CUresult hook_cuCtxDestroy_v2(CUcontext context) {
  if (!process_started_here() || !may_destroy(context))
    return hook_pass(cuCtxDestroy_v2, (context));
  enqueue_lock();
  step_forget_context(context, false);
  CUresult result = hook_pass(cuCtxDestroy_v2, (context));
  if (result == CUDA_SUCCESS)
    forget_memory(context);
  enqueue_unlock();
  return result;
}

CUresult hook_cuDevicePrimaryCtxReset_v2(CUdevice device) {
  CUcontext context = primary_context(device);
  if (!context)
    return hook_pass(cuDevicePrimaryCtxReset_v2, (device));
  enqueue_lock();
  step_forget_context(context, false);
  CUresult result = hook_pass(cuDevicePrimaryCtxReset_v2, (device));
  if (result == CUDA_SUCCESS)
    forget_memory(context);
  enqueue_unlock();
  return result;
}

/* Whether this release is the last can't be known before: the runtime may hold references of which
   no call tells. So it is looked at afterwards; the driver has then waited for the steps. */
CUresult hook_cuDevicePrimaryCtxRelease_v2(CUdevice device) {
  CUcontext context = primary_context(device);
  if (!context)
    return hook_pass(cuDevicePrimaryCtxRelease_v2, (device));
  enqueue_lock();
  step_context_may_end(context);
  CUresult result = hook_pass(cuDevicePrimaryCtxRelease_v2, (device));
  if (!primary_active(device)) {
    step_forget_context(context, true);
    forget_memory(context);
  }
  enqueue_unlock();
  return result;
}

/* ---- streams and captures ---- */

static bool captures_surely(CUstream stream) {
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  return driver.cuStreamIsCapturing &&
         driver.cuStreamIsCapturing(stream, &status) == CUDA_SUCCESS &&
         status != CU_STREAM_CAPTURE_STATUS_NONE;
}

static void capture_ended(CUstream stream, CUgraph graph) {
  if (process_active())
    graphs_capture_ended(stream, graph);
  process_capture_ended();
}

CUresult hook_cuStreamDestroy_v2(CUstream stream) {
  bool captured = process_capture_open() && captures_surely(stream);
  if (process_active())
    state_stream_destroyed(stream);
  CUresult result = hook_pass(cuStreamDestroy_v2, (stream));
  if (captured && result == CUDA_SUCCESS)
    capture_ended(stream, NULL);
  return result;
}

/* Counted before the real call, so that a move of another thread can't slip in between. */
#define BEGIN_CAPTURE(symbol, parameters, arguments, is_per_thread, target)                        \
  CUresult hook_##symbol parameters {                                                              \
    process_capture_began();                                                                       \
    CUresult result = hook_pass(symbol, arguments);                                                \
    if (result != CUDA_SUCCESS)                                                                    \
      process_capture_ended();                                                                     \
    else if (process_active())                                                                     \
      graphs_capture_began(hook_stream(stream, is_per_thread),                                     \
                           touch_context(hook_stream(stream, is_per_thread)), target);             \
    return result;                                                                                 \
  }
#define BEGIN_TO_GRAPH(symbol, is_per_thread)                                                      \
  BEGIN_CAPTURE(symbol,                                                                            \
                (CUstream stream, CUgraph graph, const CUgraphNode *dependencies,                  \
                 const CUgraphEdgeData *edges, size_t count, CUstreamCaptureMode mode),            \
                (stream, graph, dependencies, edges, count, mode), is_per_thread, graph)
BEGIN_CAPTURE(cuStreamBeginCapture, (CUstream stream), (stream), false, NULL)
BEGIN_CAPTURE(cuStreamBeginCapture_ptsz, (CUstream stream), (stream), true, NULL)
BEGIN_CAPTURE(cuStreamBeginCapture_v2, (CUstream stream, CUstreamCaptureMode mode), (stream, mode),
              false, NULL)
BEGIN_CAPTURE(cuStreamBeginCapture_v2_ptsz, (CUstream stream, CUstreamCaptureMode mode),
              (stream, mode), true, NULL)
BEGIN_TO_GRAPH(cuStreamBeginCaptureToGraph, false)
BEGIN_TO_GRAPH(cuStreamBeginCaptureToGraph_ptsz, true)

/* An invalidated capture ends with an error, and a capture ended from the wrong thread goes on:
   what counts is whether the stream captured before and doesn't afterwards. */
#define END_CAPTURE(symbol, is_per_thread)                                                         \
  CUresult hook_##symbol(CUstream stream, CUgraph *graph) {                                        \
    CUstream on = hook_stream(stream, is_per_thread);                                              \
    bool captured = process_capture_open() && captures_surely(on);                                 \
    CUresult result = hook_pass(symbol, (stream, graph));                                          \
    if (captured && !captures_surely(on))                                                          \
      capture_ended(on, result == CUDA_SUCCESS && graph ? *graph : NULL);                          \
    return result;                                                                                 \
  }
END_CAPTURE(cuStreamEndCapture, false)
END_CAPTURE(cuStreamEndCapture_ptsz, true)
