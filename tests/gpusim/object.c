/* Contexts: each thread's stack of them, primary and created ones, their limits and peers, sticky
   errors, and what dies with a context. */
#include "tests/gpusim/driver.h"
#include <stdatomic.h>
#include <string.h>

static struct CUctx_st primaries[GPUSIM_MAX_DEVICES];
/* Created contexts too, dead ones included: a thread may still have one on its stack. */
static CUcontext contexts;
static uint64_t next_context_id = 1;
/* A bit per owner whose memory the device's contexts may touch. */
static _Atomic uint32_t peers_of[GPUSIM_MAX_DEVICES];
void gpusim_contexts_start(void) {
  for (int i = gpusim_settings.devices - 1; i >= 0; i--) {
    primaries[i].device = i;
    primaries[i].primary = true;
    primaries[i].next = contexts;
    contexts = &primaries[i];
    gpusim_handle_add(&primaries[i], HANDLE_CONTEXT, NULL);
  }
}

CUcontext gpusim_current(void) {
  const struct gpusim_thread *thread = gpusim_this_thread();
  return thread->depth > 0 ? thread->stack[thread->depth - 1] : NULL;
}

CUresult gpusim_enter(CUcontext *context) {
  CUresult result = gpusim_ready();
  if (result != CUDA_SUCCESS)
    return result;
  *context = gpusim_current();
  if (*context == NULL)
    return CUDA_ERROR_INVALID_CONTEXT;
  if (!(*context)->alive)
    return CUDA_ERROR_CONTEXT_IS_DESTROYED;
  return (CUresult)atomic_load_explicit(&(*context)->sticky, memory_order_acquire);
}

CUcontext gpusim_primary(int device) {
  return &primaries[device];
}

CUcontext gpusim_next_context(CUcontext previous) {
  return previous == NULL ? contexts : previous->next;
}

void gpusim_fail(CUcontext context, CUresult result) {
  int none = CUDA_SUCCESS;
  if (atomic_compare_exchange_strong_explicit(&context->sticky, &none, (int)result,
                                              memory_order_release, memory_order_relaxed))
    gpusim_trace(1, "context %llu: %s, and so for every further call",
                 (unsigned long long)context->id, gpusim_error_name(result));
  gpusim_wake_all();
}

/* ---- life and death of a context; gpusim_mutex held ---- */

static void collect_peers(int device);

static void revive(CUcontext context) {
  context->alive = true;
  context->id = next_context_id++;
  atomic_store_explicit(&context->sticky, CUDA_SUCCESS, memory_order_release);
  context->peers = 0;
  memset(context->limits, 0, sizeof context->limits);
  context->legacy = gpusim_stream_open(context, 0, 0);
  context->legacy->legacy = true;
}

static pthread_cond_t ended = PTHREAD_COND_INITIALIZER;

/* With the driver's lock, which lets others in until it is had: the context is asked about after that. */
static void hold_for_end(CUcontext context) {
  gpusim_driver_hold("the end of a context");
  while (context->ending)
    pthread_cond_wait(&ended, &gpusim_mutex);
}

/* First nothing enters any more, also not a thread that passed the checks or waits for room in a queue:
   what it submitted during the wait would run into freed kernels and memory, and its errors would
   be the next context's. Then waits for the work, and frees streams, memory and modules. Events
   outlive it as empty handles. */
static void bury(CUcontext context) {
  context->alive = false;
  context->ending = true;
  gpusim_wake_all();
  gpusim_drain_context(context);
  context->blocking_captures = 0;
  gpusim_streams_close(context);
  gpusim_modules_free(context);
  gpusim_free_context(context);
  collect_peers(context->device);
  context->ending = false;
  pthread_cond_broadcast(&ended);
}

CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device) {
  CUresult result = gpusim_ready_device(device);
  if (result != CUDA_SUCCESS || context == NULL)
    return result != CUDA_SUCCESS ? result : CUDA_ERROR_INVALID_VALUE;
  gpusim_lock();
  while (primaries[device].ending)
    pthread_cond_wait(&ended, &gpusim_mutex);
  if (!primaries[device].alive)
    revive(&primaries[device]);
  primaries[device].retained++;
  gpusim_unlock();
  *context = &primaries[device];
  return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device) {
  CUresult result = gpusim_ready_device(device);
  if (result != CUDA_SUCCESS)
    return result;
  gpusim_lock();
  hold_for_end(&primaries[device]);
  if (primaries[device].retained == 0)
    result = CUDA_ERROR_INVALID_CONTEXT;
  else if (--primaries[device].retained == 0 && primaries[device].alive)
    bury(&primaries[device]);
  gpusim_driver_let_go();
  gpusim_unlock();
  return result;
}

CUresult cuDevicePrimaryCtxRelease(CUdevice device) {
  return cuDevicePrimaryCtxRelease_v2(device);
}

/* cuda.h: the context object stays retained by whoever retained it; its contents go. */
CUresult cuDevicePrimaryCtxReset_v2(CUdevice device) {
  CUresult result = gpusim_ready_device(device);
  if (result != CUDA_SUCCESS)
    return result;
  gpusim_lock();
  hold_for_end(&primaries[device]);
  if (primaries[device].alive) {
    bury(&primaries[device]);
    if (primaries[device].retained > 0)
      revive(&primaries[device]);
  }
  gpusim_driver_let_go();
  gpusim_unlock();
  return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxReset(CUdevice device) {
  return cuDevicePrimaryCtxReset_v2(device);
}

CUresult cuDevicePrimaryCtxSetFlags_v2(CUdevice device, unsigned flags) {
  CUresult result = gpusim_ready_device(device);
  if (result != CUDA_SUCCESS)
    return result;
  gpusim_lock();
  primaries[device].flags = flags;
  gpusim_unlock();
  return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxSetFlags(CUdevice device, unsigned flags) {
  return cuDevicePrimaryCtxSetFlags_v2(device, flags);
}

CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned *flags, int *active) {
  CUresult result = gpusim_ready_device(device);
  if (result != CUDA_SUCCESS || flags == NULL || active == NULL)
    return result != CUDA_SUCCESS ? result : CUDA_ERROR_INVALID_VALUE;
  gpusim_lock();
  *flags = primaries[device].flags;
  *active = primaries[device].alive;
  gpusim_unlock();
  return CUDA_SUCCESS;
}

static CUresult push(CUcontext context) {
  struct gpusim_thread *thread = gpusim_this_thread();
  if (thread->depth == (int)(sizeof thread->stack / sizeof *thread->stack))
    return CUDA_ERROR_OUT_OF_MEMORY;
  thread->stack[thread->depth++] = context;
  return CUDA_SUCCESS;
}

CUresult cuCtxCreate_v2(CUcontext *context, unsigned flags, CUdevice device) {
  CUresult result = gpusim_ready_device(device);
  if (result != CUDA_SUCCESS || context == NULL)
    return result != CUDA_SUCCESS ? result : CUDA_ERROR_INVALID_VALUE;
  CUcontext made = gpusim_new(sizeof *made);
  made->device = device;
  made->flags = flags;
  gpusim_handle_add(made, HANDLE_CONTEXT, NULL);
  gpusim_lock();
  made->next = contexts;
  contexts = made;
  revive(made);
  gpusim_unlock();
  *context = made;
  return push(made);
}

CUresult cuCtxCreate_v4(CUcontext *context, CUctxCreateParams *parameters, unsigned flags,
                        CUdevice device) {
  (void)parameters;
  return cuCtxCreate_v2(context, flags, device);
}

static CUresult check_context(CUcontext context) {
  CUresult result = gpusim_ready();
  if (result != CUDA_SUCCESS)
    return result;
  return gpusim_handle_is(context, HANDLE_CONTEXT) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}

CUresult cuCtxDestroy_v2(CUcontext context) {
  CUresult result = check_context(context);
  if (result != CUDA_SUCCESS || context->primary)
    return result != CUDA_SUCCESS ? result : CUDA_ERROR_INVALID_CONTEXT;
  gpusim_lock();
  hold_for_end(context);
  if (gpusim_handle_is(context, HANDLE_CONTEXT)) {
    gpusim_handle_remove(context);
    bury(context);
  } else {
    result = CUDA_ERROR_INVALID_CONTEXT; /* another thread destroyed it meanwhile */
  }
  gpusim_driver_let_go();
  gpusim_unlock();
  if (result != CUDA_SUCCESS)
    return result;
  struct gpusim_thread *thread = gpusim_this_thread();
  if (thread->depth > 0 && thread->stack[thread->depth - 1] == context)
    thread->depth--;
  return CUDA_SUCCESS;
}

CUresult cuCtxPushCurrent_v2(CUcontext context) {
  CUresult result = check_context(context);
  return result == CUDA_SUCCESS ? push(context) : result;
}

CUresult cuCtxPopCurrent_v2(CUcontext *context) {
  CUresult result = gpusim_ready();
  if (result != CUDA_SUCCESS)
    return result;
  struct gpusim_thread *thread = gpusim_this_thread();
  if (thread->depth == 0)
    return CUDA_ERROR_INVALID_CONTEXT;
  thread->depth--;
  if (context != NULL)
    *context = thread->stack[thread->depth];
  return CUDA_SUCCESS;
}

CUresult cuCtxSetCurrent(CUcontext context) {
  CUresult result = context != NULL ? check_context(context) : gpusim_ready();
  if (result != CUDA_SUCCESS)
    return result;
  struct gpusim_thread *thread = gpusim_this_thread();
  if (thread->depth > 0)
    thread->depth--;
  return context != NULL ? push(context) : CUDA_SUCCESS;
}

CUresult cuCtxGetCurrent(CUcontext *context) {
  CUresult result = gpusim_ready();
  if (result == CUDA_SUCCESS)
    *context = gpusim_current();
  return result;
}

/* A context given or current, for the questions below; sticky errors don't matter to them. */
static CUresult resolve(CUcontext *context) {
  CUresult result = gpusim_ready();
  if (result != CUDA_SUCCESS)
    return result;
  if (*context == NULL)
    *context = gpusim_current();
  return *context != NULL && gpusim_handle_is(*context, HANDLE_CONTEXT)
             ? CUDA_SUCCESS
             : CUDA_ERROR_INVALID_CONTEXT;
}

CUresult cuCtxGetDevice_v2(CUdevice *device, CUcontext context) {
  CUresult result = resolve(&context);
  if (result == CUDA_SUCCESS)
    *device = context->device;
  return result;
}

CUresult cuCtxGetDevice(CUdevice *device) {
  return cuCtxGetDevice_v2(device, NULL);
}

CUresult cuCtxGetFlags(unsigned *flags) {
  CUcontext context = NULL;
  CUresult result = resolve(&context);
  if (result != CUDA_SUCCESS)
    return result;
  gpusim_lock();
  *flags = context->flags;
  gpusim_unlock();
  return CUDA_SUCCESS;
}

CUresult cuCtxSetFlags(unsigned flags) {
  CUcontext context = NULL;
  CUresult result = resolve(&context);
  if (result != CUDA_SUCCESS)
    return result;
  gpusim_lock();
  context->flags = flags;
  gpusim_unlock();
  return CUDA_SUCCESS;
}

CUresult cuCtxGetId(CUcontext context, unsigned long long *id) {
  CUresult result = resolve(&context);
  if (result != CUDA_SUCCESS)
    return result;
  gpusim_lock();
  *id = context->id;
  gpusim_unlock();
  return CUDA_SUCCESS;
}

CUresult cuCtxGetApiVersion(CUcontext context, unsigned *version) {
  CUresult result = resolve(&context);
  if (result == CUDA_SUCCESS)
    *version = 3020;
  return result;
}

CUresult cuCtxSetLimit(CUlimit limit, size_t value) {
  CUcontext context;
  CUresult result = gpusim_enter(&context);
  if (result != CUDA_SUCCESS)
    return result;
  if ((unsigned)limit >= CU_LIMIT_MAX)
    return CUDA_ERROR_UNSUPPORTED_LIMIT;
  gpusim_lock();
  context->limits[limit] = value;
  gpusim_unlock();
  return CUDA_SUCCESS;
}

CUresult cuCtxGetLimit(size_t *value, CUlimit limit) {
  CUcontext context;
  CUresult result = gpusim_enter(&context);
  if (result != CUDA_SUCCESS)
    return result;
  if ((unsigned)limit >= CU_LIMIT_MAX)
    return CUDA_ERROR_UNSUPPORTED_LIMIT;
  gpusim_lock();
  *value = context->limits[limit];
  gpusim_unlock();
  if (*value == 0)
    *value = limit == CU_LIMIT_STACK_SIZE         ? 1024
             : limit == CU_LIMIT_MALLOC_HEAP_SIZE ? (size_t)8 << 20
                                                  : (size_t)1 << 20;
  return CUDA_SUCCESS;
}

CUresult cuCtxGetCacheConfig(CUfunc_cache *config) {
  CUcontext context;
  CUresult result = gpusim_enter(&context);
  if (result == CUDA_SUCCESS)
    *config = CU_FUNC_CACHE_PREFER_NONE;
  return result;
}

CUresult cuCtxSetCacheConfig(CUfunc_cache config) {
  CUcontext context;
  (void)config;
  return gpusim_enter(&context);
}

CUresult cuCtxResetPersistingL2Cache(void) {
  CUcontext context;
  return gpusim_enter(&context);
}

CUresult cuCtxGetStreamPriorityRange(int *least, int *greatest) {
  CUcontext context;
  CUresult result = gpusim_enter(&context);
  if (result != CUDA_SUCCESS)
    return result;
  if (least != NULL)
    *least = 0;
  if (greatest != NULL)
    *greatest = -5;
  return CUDA_SUCCESS;
}

/* ---- waiting for everything, and peers ---- */

static CUresult synchronize(CUcontext context) {
  CUresult result = gpusim_capture_unsafe();
  if (result != CUDA_SUCCESS)
    return result;
  gpusim_lock();
  for (struct CUstream_st *s = context->streams; s != NULL && result == CUDA_SUCCESS; s = s->next)
    if (s->capture != NULL)
      result = gpusim_capture_forbids(s);
  if (result == CUDA_SUCCESS) {
    gpusim_drain_context(context);
    result = (CUresult)atomic_load_explicit(&context->sticky, memory_order_acquire);
  }
  gpusim_unlock();
  return result;
}

CUresult cuCtxSynchronize(void) {
  CUcontext context;
  CUresult result = gpusim_enter(&context);
  return result == CUDA_SUCCESS ? synchronize(context) : result;
}

CUresult cuCtxSynchronize_v2(CUcontext context) {
  CUresult result = resolve(&context);
  return result == CUDA_SUCCESS ? synchronize(context) : result;
}

bool gpusim_peer_enabled(int device, int owner) {
  return (atomic_load_explicit(&peers_of[device], memory_order_acquire) >> owner & 1) != 0;
}

/* Launches carry a device, not a context: any live context's peers count. gpusim_mutex held. */
static void collect_peers(int device) {
  uint32_t peers = 0;
  for (CUcontext c = contexts; c != NULL; c = c->next)
    if (c->device == device && c->alive)
      peers |= c->peers;
  atomic_store_explicit(&peers_of[device], peers, memory_order_release);
  gpusim_memory_lock();
  gpusim_memory_changed();
  gpusim_memory_unlock();
}

static CUresult set_peer(CUcontext peer, bool enable) {
  CUcontext context;
  CUresult result = gpusim_enter(&context);
  if (result != CUDA_SUCCESS)
    return result;
  if (!gpusim_handle_is(peer, HANDLE_CONTEXT) || peer->device == context->device)
    return CUDA_ERROR_INVALID_CONTEXT;
  uint32_t bit = UINT32_C(1) << peer->device;
  gpusim_lock();
  if (!context->alive)
    result = CUDA_ERROR_CONTEXT_IS_DESTROYED;
  else if (((context->peers & bit) != 0) == enable)
    result = enable ? CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED : CUDA_ERROR_PEER_ACCESS_NOT_ENABLED;
  else
    context->peers ^= bit;
  collect_peers(context->device);
  gpusim_unlock();
  return result;
}

CUresult cuCtxEnablePeerAccess(CUcontext peer, unsigned flags) {
  return flags == 0 ? set_peer(peer, true) : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuCtxDisablePeerAccess(CUcontext peer) {
  return set_peer(peer, false);
}
