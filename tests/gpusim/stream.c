/* Streams as the program sees them: the three default streams, creation and destruction, questions,
   and host functions. How their work is carried out is queue.c's.

   Ids count from 1 in the order of creation; a context's legacy stream is created with the context.
   Id modulo GPUSIM_QUEUES is the hardware queue. */
#include "tests/gpusim/clock.h"
#include "tests/gpusim/driver.h"
#include <stdlib.h>

static uint64_t next_stream_id = 1;

struct CUstream_st *gpusim_stream_open(CUcontext context, unsigned flags, int priority) {
  struct CUstream_st *stream = gpusim_new(sizeof *stream);
  stream->context = context;
  stream->flags = flags;
  stream->nonblocking = (flags & CU_STREAM_NON_BLOCKING) != 0;
  stream->priority = priority;
  stream->id = next_stream_id++;
  stream->queue = gpusim_queue_of(context->device, stream->id);
  stream->tail = &stream->head;
  stream->references = 1;
  pthread_cond_init(&stream->wake, NULL);
  pthread_cond_init(&stream->ended, NULL);
  stream->next = context->streams;
  context->streams = stream;
  return stream;
}

/* The handle ends; the thread ends when it has nothing left to do. */
static void close_stream(struct CUstream_st *stream) {
  struct CUstream_st **link = &stream->context->streams;
  while (*link != stream)
    link = &(*link)->next;
  *link = stream->next;
  gpusim_capture_forget(stream);
  stream->stopping = true;
  pthread_cond_signal(&stream->wake);
  gpusim_wake_all();
  gpusim_stream_drop(stream);
}

void gpusim_streams_close(CUcontext context) {
  while (context->recent != NULL) {
    struct CUstream_st *stream = context->recent;
    context->recent = stream->next_recent;
    stream->recent = false;
    gpusim_stream_drop(stream);
  }
  while (context->streams != NULL) {
    gpusim_handle_remove(context->streams);
    close_stream(context->streams);
  }
  context->legacy = NULL;
}

/* ---- default streams ---- */

static pthread_key_t thread_end;

/* The streams of a thread that ended serve the next thread that wants one. */
static void give_up_streams(void *id) {
  gpusim_lock();
  for (CUcontext c = gpusim_next_context(NULL); c != NULL; c = gpusim_next_context(c))
    for (struct CUstream_st *s = c->streams; s != NULL; s = s->next)
      if (s->per_thread && s->owner == (uint64_t)(uintptr_t)id)
        s->owner = 0;
  gpusim_unlock();
}

static void make_key(void) {
  pthread_key_create(&thread_end, give_up_streams);
}

/* A blocking stream of its own for each thread and context; cuda.h, CU_STREAM_PER_THREAD. */
static struct CUstream_st *per_thread_stream(CUcontext context) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  uint64_t id = gpusim_this_thread()->id;
  struct CUstream_st *spare = NULL;
  for (struct CUstream_st *s = context->streams; s != NULL; s = s->next) {
    if (s->per_thread && s->owner == id)
      return s;
    if (s->per_thread && s->owner == 0)
      spare = s;
  }
  pthread_once(&once, make_key);
  pthread_setspecific(thread_end, (void *)(uintptr_t)id);
  if (spare == NULL) {
    spare = gpusim_stream_open(context, 0, 0);
    spare->per_thread = true;
  }
  spare->owner = id;
  return spare;
}

static CUresult find_stream(CUstream handle, struct CUstream_st **stream) {
  if (handle == NULL || handle == CU_STREAM_LEGACY || handle == CU_STREAM_PER_THREAD) {
    CUcontext context = gpusim_current();
    if (context == NULL)
      return CUDA_ERROR_INVALID_CONTEXT;
    if (!context->alive)
      return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    *stream = handle == CU_STREAM_PER_THREAD ? per_thread_stream(context) : context->legacy;
    return CUDA_SUCCESS;
  }
  *stream = handle;
  if (!gpusim_handle_is(handle, HANDLE_STREAM))
    return CUDA_ERROR_INVALID_HANDLE;
  return handle->context->alive ? CUDA_SUCCESS : CUDA_ERROR_CONTEXT_IS_DESTROYED;
}

CUresult gpusim_enter_stream(CUstream handle, struct CUstream_st **stream) {
  CUresult result = gpusim_ready();
  if (result != CUDA_SUCCESS)
    return result;
  gpusim_lock();
  result = find_stream(handle, stream);
  if (result == CUDA_SUCCESS)
    result = (CUresult)(*stream)->context->sticky;
  if (result != CUDA_SUCCESS)
    gpusim_unlock();
  return result;
}

CUresult gpusim_enter_submit(CUstream handle, struct CUstream_st **stream) {
  CUresult result = gpusim_enter_stream(handle, stream);
  if (result != CUDA_SUCCESS)
    return result;
  result = gpusim_capture_refuses(*stream);
  if (result != CUDA_SUCCESS)
    gpusim_unlock();
  return result;
}

CUresult gpusim_enter_wait(CUstream handle, struct CUstream_st **stream) {
  CUresult result = gpusim_enter_stream(handle, stream);
  if (result != CUDA_SUCCESS)
    return result;
  result = gpusim_capture_forbids(*stream);
  if (result != CUDA_SUCCESS)
    gpusim_unlock();
  return result;
}

CUresult gpusim_submit_leave(struct CUstream_st *stream, const struct operation_kind *kind,
                             void *argument) {
  CUresult result = gpusim_submit(stream, kind, argument, NULL);
  gpusim_unlock();
  return result;
}

/* ---- creation and destruction ---- */

CUresult cuStreamCreateWithPriority(CUstream *handle, unsigned flags, int priority) {
  CUcontext context;
  CUresult result = gpusim_enter(&context);
  if (result != CUDA_SUCCESS)
    return result;
  if (handle == NULL || (flags & ~(unsigned)CU_STREAM_NON_BLOCKING) != 0)
    return CUDA_ERROR_INVALID_VALUE;
  gpusim_driver_settle(context, "stream creation");
  gpusim_lock();
  if (context->alive) {
    *handle = gpusim_stream_open(context, flags, priority > 0 ? 0 : priority < -5 ? -5 : priority);
    gpusim_handle_add(*handle, HANDLE_STREAM, NULL);
  } else {
    result = CUDA_ERROR_CONTEXT_IS_DESTROYED;
  }
  gpusim_unlock();
  return result;
}

CUresult cuStreamCreate(CUstream *handle, unsigned flags) {
  return cuStreamCreateWithPriority(handle, flags, 0);
}

/* Returns at once; what is queued is still carried out. */
CUresult cuStreamDestroy_v2(CUstream handle) {
  CUresult result = gpusim_ready();
  if (result != CUDA_SUCCESS)
    return result;
  gpusim_lock();
  if (!gpusim_handle_is(handle, HANDLE_STREAM)) {
    result = CUDA_ERROR_INVALID_HANDLE;
  } else {
    gpusim_handle_remove(handle);
    close_stream(handle);
  }
  gpusim_unlock();
  return result;
}

/* ---- waiting and questions ---- */

static CUresult run_nothing(void *argument) {
  (void)argument;
  return CUDA_SUCCESS;
}

/* The legacy stream has waited only when all blocking streams have: a marker in it carries their
 * order. */
static CUresult join_blocking_streams(struct CUstream_st *stream) {
  static const struct operation_kind marker = {.name = "marker", .run = run_nothing};
  if (!stream->legacy || stream->context->recent == NULL)
    return CUDA_SUCCESS;
  return gpusim_submit(stream, &marker, NULL, NULL);
}

CUresult cuStreamSynchronize(CUstream handle) {
  struct CUstream_st *stream;
  CUresult result = gpusim_capture_unsafe();
  if (result == CUDA_SUCCESS)
    result = gpusim_enter_wait(handle, &stream);
  if (result != CUDA_SUCCESS)
    return result;
  gpusim_stream_hold(stream); /* a full queue lets go of the lock */
  result = join_blocking_streams(stream);
  if (result == CUDA_SUCCESS)
    result = gpusim_drain(stream);
  gpusim_stream_drop(stream);
  gpusim_unlock();
  return result;
}

CUresult cuStreamQuery(CUstream handle) {
  struct CUstream_st *stream;
  CUresult result = gpusim_enter_wait(handle, &stream);
  if (result != CUDA_SUCCESS)
    return result;
  gpusim_stream_hold(stream);
  result = join_blocking_streams(stream);
  if (result == CUDA_SUCCESS && stream->completed < stream->submitted)
    result = CUDA_ERROR_NOT_READY;
  gpusim_stream_drop(stream);
  gpusim_unlock();
  return result;
}

CUresult cuStreamGetPriority(CUstream handle, int *priority) {
  struct CUstream_st *stream;
  CUresult result = gpusim_enter_stream(handle, &stream);
  if (result != CUDA_SUCCESS)
    return result;
  *priority = stream->priority;
  gpusim_unlock();
  return CUDA_SUCCESS;
}

CUresult cuStreamGetFlags(CUstream handle, unsigned *flags) {
  struct CUstream_st *stream;
  CUresult result = gpusim_enter_stream(handle, &stream);
  if (result != CUDA_SUCCESS)
    return result;
  *flags = stream->flags;
  gpusim_unlock();
  return CUDA_SUCCESS;
}

CUresult cuStreamGetId(CUstream handle, unsigned long long *id) {
  struct CUstream_st *stream;
  CUresult result = gpusim_enter_stream(handle, &stream);
  if (result != CUDA_SUCCESS)
    return result;
  *id = stream->id;
  gpusim_unlock();
  return CUDA_SUCCESS;
}

CUresult cuStreamGetDevice(CUstream handle, CUdevice *device) {
  struct CUstream_st *stream;
  CUresult result = gpusim_enter_stream(handle, &stream);
  if (result != CUDA_SUCCESS)
    return result;
  *device = stream->context->device;
  gpusim_unlock();
  return CUDA_SUCCESS;
}

CUresult cuStreamGetCtx(CUstream handle, CUcontext *context) {
  struct CUstream_st *stream;
  CUresult result = gpusim_enter_stream(handle, &stream);
  if (result != CUDA_SUCCESS)
    return result;
  *context = stream->context;
  gpusim_unlock();
  return CUDA_SUCCESS;
}

CUresult cuStreamGetCtx_v2(CUstream handle, CUcontext *context, CUgreenCtx *green) {
  if (green != NULL)
    *green = NULL;
  return cuStreamGetCtx(handle, context);
}

/* ---- host functions: no CUDA call may be made from one (cuda.h, cuLaunchHostFunc) ---- */

struct host_call {
  CUhostFn function;
  CUstreamCallback callback; /* instead of function, for cuStreamAddCallback */
  CUstream stream;
  void *data;
};

static CUresult run_host_call(void *argument) {
  struct host_call *call = argument;
  struct gpusim_thread *thread = gpusim_this_thread();
  thread->in_host_function = true;
  if (call->callback != NULL)
    call->callback(call->stream, CUDA_SUCCESS, call->data);
  else
    call->function(call->data);
  thread->in_host_function = false;
  return CUDA_SUCCESS;
}

static void cost_of_host_call(void *argument, struct clock_cost *cost) {
  (void)argument;
  cost->kind = CLOCK_HOST_FUNCTION; /* lasts as long as the work it declares: gpusim.h */
}

static const struct operation_kind host_kind = {.name = "host function",
                                                .capturable = true,
                                                .node = CU_GRAPH_NODE_TYPE_HOST,
                                                .run = run_host_call,
                                                .drop = free,
                                                .cost = cost_of_host_call};

static const struct operation_kind callback_kind = {
    .name = "callback", .run = run_host_call, .drop = free, .cost = cost_of_host_call};

static CUresult submit_host_call(CUstream handle, const struct operation_kind *kind,
                                 struct host_call call) {
  struct CUstream_st *stream;
  CUresult result = gpusim_enter_submit(handle, &stream);
  if (result != CUDA_SUCCESS)
    return result;
  struct host_call *copy = gpusim_new(sizeof *copy);
  *copy = call;
  return gpusim_submit_leave(stream, kind, copy);
}

CUresult cuLaunchHostFunc(CUstream stream, CUhostFn function, void *data) {
  if (function == NULL)
    return CUDA_ERROR_INVALID_VALUE;
  return submit_host_call(stream, &host_kind,
                          (struct host_call){.function = function, .data = data});
}

CUresult gpusim_host_node(const CUDA_HOST_NODE_PARAMS *parameters,
                          const struct operation_kind **kind, void **argument) {
  if (parameters == NULL || parameters->fn == NULL)
    return CUDA_ERROR_INVALID_VALUE;
  struct host_call *call = gpusim_new(sizeof *call);
  call->function = parameters->fn;
  call->data = parameters->userData;
  *kind = &host_kind;
  *argument = call;
  return CUDA_SUCCESS;
}

/* Deprecated, and not capturable: cuda.h, cuStreamAddCallback. */
CUresult cuStreamAddCallback(CUstream stream, CUstreamCallback callback, void *data,
                             unsigned flags) {
  if (callback == NULL || flags != 0)
    return CUDA_ERROR_INVALID_VALUE;
  return submit_host_call(stream, &callback_kind,
                          (struct host_call){.callback = callback, .stream = stream, .data = data});
}
