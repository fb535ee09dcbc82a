/* Ends under submits: contexts, modules, streams and events that go while another thread is inside of
   a call. It gets an error or what it asked for, and nothing of it is left for whoever comes after.
   The driver's lock is off, so that calls meet. Each check runs in a process of its own. */
#include "tests/unit/gpusim_driver.h"
#include <pthread.h>

enum { DEPTH = 4, STRESS_ROUNDS = 25, STRESS_THREADS = 2, WAIT_MS = 3000 };

static CUcontext context;
static CUstream stream, other;
static CUdeviceptr memory;
static CUfunction function;
static CUmodule module;
static CUevent event;
static struct gate gate;
static _Atomic int succeeded;
static CUresult answer;

static void prepare(const char *depth) {
  setenv("GPUSIM_DRIVER_LOCK", "0", 1);
  setenv("GPUSIM_DEPTH", depth, 1);
  context = start();
}

/* In the present context: work that is held at the gate. */
static void fill(void) {
  gate = new_gate();
  MUST(cuMemAlloc(&memory, 4096));
  MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  MUST(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
  MUST(cuEventCreate(&event, 0));
  function = load_kernel(&module, "store");
  hold(gate, stream);
  MUST(launch_store(function, stream, memory, 1));
}

static void *reset(void *unused) {
  MUST(cuDevicePrimaryCtxReset(0));
  return unused;
}

static void *destroy(void *unused) {
  if (cuCtxDestroy(context) == CUDA_SUCCESS)
    succeeded++;
  return unused;
}

static void *unload(void *unused) {
  MUST(cuCtxSetCurrent(context));
  MUST(cuModuleUnload(module));
  return unused;
}

static void *launch(void *unused) {
  MUST(cuCtxSetCurrent(context));
  answer = launch_store(function, stream, memory, 2);
  return unused;
}

static void *record(void *unused) {
  MUST(cuCtxSetCurrent(context));
  answer = cuEventRecord(event, stream);
  return unused;
}

/* Until a launch is refused; the first answer that isn't success. */
static CUresult refusal(void) {
  CUresult result = CUDA_SUCCESS;
  for (int ms = 0; ms < WAIT_MS && result == CUDA_SUCCESS; ms++) {
    result = launch_store(function, other, memory + 256, 7);
    pause_ms(1);
  }
  return result;
}

/* Calls of every kind that would leave something behind in a context that is ending. */
static bool all_refused(void) {
  CUdeviceptr more;
  CUstream made;
  CUmodule loaded;
  void *host = NULL;
  static uint64_t page[512];
  const CUresult answers[] = {launch_store(function, other, memory, 3),
                              cuMemsetD8Async(memory, 1, 16, stream),
                              cuEventRecord(event, other),
                              cuStreamSynchronize(stream),
                              cuMemAlloc(&more, 4096),
                              cuMemHostAlloc(&host, 4096, 0),
                              cuMemHostRegister(page, sizeof page, 0),
                              cuStreamCreate(&made, 0),
                              cuMemAllocAsync(&more, 4096, stream),
                              cuModuleLoadData(&loaded, TEST_PTX),
                              cuEventCreate(&event, 0)};
  for (size_t i = 0; i < sizeof answers / sizeof *answers; i++)
    if (answers[i] != CUDA_ERROR_CONTEXT_IS_DESTROYED) {
      printf("# call %zu answers %d\n", i, (int)answers[i]);
      return false;
    }
  return true;
}

/* The primary context works and is empty. */
static bool anew(void) {
  size_t free_bytes, total;
  MUST(cuMemGetInfo(&free_bytes, &total));
  const bool empty = free_bytes == total;
  MUST(cuMemAlloc(&memory, 4096));
  MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  function = load_kernel(&module, "store");
  MUST(launch_store(function, stream, memory, 11));
  MUST(cuStreamSynchronize(stream));
  return empty && device_word(memory) == 11 && gpusim_counter_by_name("violations") == 0;
}

/* ---- contexts ---- */

static int reset_refuses(void) {
  pthread_t thread;
  prepare("64");
  fill();
  pthread_create(&thread, NULL, reset, NULL);
  const CUresult first = refusal();
  const bool refused = first == CUDA_ERROR_CONTEXT_IS_DESTROYED && all_refused();
  open_gate(gate);
  pthread_join(thread, NULL);
  return refused && anew() ? 0 : 1;
}

static int destroy_refuses(void) {
  pthread_t threads[2];
  prepare("64");
  const CUcontext primary = context;
  MUST(cuCtxCreate(&context, NULL, 0, 0));
  fill();
  for (int i = 0; i < 2; i++)
    pthread_create(&threads[i], NULL, destroy, NULL);
  const CUresult first = refusal();
  const bool refused = first == CUDA_ERROR_CONTEXT_IS_DESTROYED && all_refused();
  open_gate(gate);
  for (int i = 0; i < 2; i++)
    pthread_join(threads[i], NULL);
  MUST(cuCtxSetCurrent(primary));
  return refused && succeeded == 1 && anew() ? 0 : 1;
}

static void *retain(void *unused) {
  MUST(cuDevicePrimaryCtxRetain(&context, 0));
  succeeded++;
  return unused;
}

static void *let_go(void *unused) {
  MUST(cuDevicePrimaryCtxRelease(0));
  return unused;
}

/* Whoever wants it, or its end, while it ends waits, and finds it whole. */
static int others_wait_for_the_end(void) {
  pthread_t ends[2], wants;
  prepare("64");
  fill();
  pthread_create(&ends[0], NULL, let_go, NULL);
  const bool refused = refusal() == CUDA_ERROR_CONTEXT_IS_DESTROYED;
  pthread_create(&wants, NULL, retain, NULL);
  pthread_create(&ends[1], NULL, reset, NULL);
  pause_ms(30);
  const bool waited = succeeded == 0;
  open_gate(gate);
  for (int i = 0; i < 2; i++)
    pthread_join(ends[i], NULL);
  pthread_join(wants, NULL);
  return refused && waited && succeeded == 1 && anew() ? 0 : 1;
}

/* A thread that waits for room in a queue is let go of before anything of it gets into the queue. */
static int reset_under_full_queue(void) {
  pthread_t thread, blocked;
  prepare("4");
  fill();
  for (int i = 0; i < DEPTH - 2; i++)
    MUST(launch_store(function, stream, memory, 1));
  pthread_create(&blocked, NULL, launch, NULL);
  for (int ms = 0; ms < WAIT_MS && gpusim_counter_by_name("blocked_submits") == 0; ms++)
    pause_ms(1);
  pthread_create(&thread, NULL, reset, NULL);
  pause_ms(30);
  open_gate(gate);
  pthread_join(blocked, NULL);
  pthread_join(thread, NULL);
  return answer == CUDA_ERROR_CONTEXT_IS_DESTROYED &&
                 gpusim_counter_by_name("launches") == DEPTH - 1 && anew()
             ? 0
             : 1;
}

/* ---- modules, streams, events ---- */

/* No kernel of it can be launched from then on, those of others can. */
static int unload_refuses(void) {
  pthread_t thread;
  CUmodule second;
  prepare("4096");
  fill();
  const CUfunction kept = load_kernel(&second, "store");
  pthread_create(&thread, NULL, unload, NULL);
  const CUresult first = refusal();
  const CUresult of_other = launch_store(kept, other, memory + 512, 9);
  open_gate(gate);
  pthread_join(thread, NULL);
  MUST(cuCtxSynchronize());
  return first == CUDA_ERROR_INVALID_HANDLE && of_other == CUDA_SUCCESS &&
                 device_word(memory) == 1 && device_word(memory + 512) == 9
             ? 0
             : 1;
}

/* What goes while a thread waits for room: it gets in, or an error, and the rest of the queue is carried out. */
static int goes_under_full_queue(void *(*caller)(void *), void (*go)(void), CUresult expected) {
  pthread_t blocked;
  prepare("4");
  fill();
  for (int i = 0; i < DEPTH - 2; i++)
    MUST(launch_store(function, stream, memory, 1));
  pthread_create(&blocked, NULL, caller, NULL);
  for (int ms = 0; ms < WAIT_MS && gpusim_counter_by_name("blocked_submits") == 0; ms++)
    pause_ms(1);
  go();
  pthread_join(blocked, NULL);
  MUST(cuCtxSynchronize());
  const uint32_t word = expected == CUDA_SUCCESS && caller == launch ? 2 : 1;
  return answer == expected && device_word(memory) == word ? 0 : 1;
}

static void unload_at_the_gate(void) {
  pthread_t thread;
  pthread_create(&thread, NULL, unload, NULL);
  pause_ms(30);
  open_gate(gate);
  pthread_join(thread, NULL);
}
static void destroy_stream(void) {
  MUST(cuStreamDestroy(stream));
  open_gate(gate);
}
static void destroy_event(void) {
  MUST(cuEventDestroy(event));
  open_gate(gate);
}
static int unload_under_full_queue(void) {
  return goes_under_full_queue(launch, unload_at_the_gate, CUDA_SUCCESS);
}
static int destroy_stream_under_full_queue(void) {
  return goes_under_full_queue(launch, destroy_stream, CUDA_ERROR_INVALID_HANDLE);
}
static int destroy_event_under_record(void) {
  return goes_under_full_queue(record, destroy_event, CUDA_SUCCESS);
}

/* ---- by chance ---- */

static _Atomic int launched;

/* Launches, copies and records, as a training makes them, until one is refused. */
static void *train(void *number) {
  CUstream own;
  CUevent mark;
  CUresult result = cuCtxSetCurrent(context);
  const CUdeviceptr bytes = memory + 1024u * (unsigned)(uintptr_t)number;
  const CUfunction store = function;
  if (result == CUDA_SUCCESS)
    result = cuStreamCreate(&own, CU_STREAM_NON_BLOCKING);
  if (result == CUDA_SUCCESS)
    result = cuEventCreate(&mark, 0);
  for (uint32_t i = 0; result == CUDA_SUCCESS; i++) {
    result = launch_store(store, own, bytes, i);
    if (result == CUDA_SUCCESS)
      result = cuMemcpyDtoDAsync(bytes + 512, bytes, 512, own);
    if (result == CUDA_SUCCESS)
      result = cuEventRecord(mark, own);
    if (result == CUDA_SUCCESS && i % 64 == 63)
      result = cuStreamSynchronize(own);
    launched++;
  }
  return NULL;
}

static int resets(void) {
  setenv("GPUSIM_DELAY_US", "100", 1);
  prepare("16");
  for (int round = 0; round < STRESS_ROUNDS; round++) {
    pthread_t threads[STRESS_THREADS];
    if (!anew())
      return 1;
    launched = 0;
    for (int i = 0; i < STRESS_THREADS; i++)
      pthread_create(&threads[i], NULL, train, (void *)(uintptr_t)i);
    while (launched < 8 + round)
      pause_ms(1);
    MUST(cuDevicePrimaryCtxReset(0));
    for (int i = 0; i < STRESS_THREADS; i++)
      pthread_join(threads[i], NULL);
    /* a thread that began after the reset may have left its stream, nothing else */
    MUST(cuCtxSynchronize());
  }
  return anew() ? 0 : 1;
}

int main(void) {
  tap_ok(in_child(reset_refuses) == 0,
         "while a context is reset every call in it is refused, and the next one begins empty");
  tap_ok(in_child(destroy_refuses) == 0,
         "while a context is destroyed every call in it is refused, a second destruction too");
  tap_ok(in_child(others_wait_for_the_end) == 0,
         "whoever retains or resets a primary context that ends waits until it has ended");
  tap_ok(in_child(reset_under_full_queue) == 0,
         "a thread that waits for room in a queue of a context that ends gets an error");
  tap_ok(in_child(unload_refuses) == 0,
         "while a module is unloaded its kernels are refused, and those of others are not");
  tap_ok(in_child(unload_under_full_queue) == 0,
         "a launch that waits for room when its module is unloaded still has its code");
  tap_ok(in_child(destroy_stream_under_full_queue) == 0,
         "a launch that waits for room in a stream that is destroyed gets an error");
  tap_ok(in_child(destroy_event_under_record) == 0,
         "an event that is destroyed under its record is there until the record is in the queue");
  tap_ok(in_child(resets) == 0,
         "threads that train until their context is reset leave no error to the next one");
  return tap_done();
}
