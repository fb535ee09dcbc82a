/* The driver's lock: which calls keep other threads out, and what becomes of a thread that calls
   CUDA to release what the others wait for. Each check runs in a process of its own. */
#include "tests/unit/gpusim_driver.h"
#include <pthread.h>

static CUcontext context;
static CUstream stream, other;
static CUdeviceptr memory;
static CUfunction function;
static CUmodule module;
static struct gate gate;
static _Atomic bool returned;
static bool worker_calls_cuda;

/* A stream held at the gate with work behind it. */
static void prepare(void) {
  setenv("GPUSIM_DEADLOCK_MS", worker_calls_cuda ? "500" : "10000", 1);
  context = start();
  MUST(cuMemAlloc(&memory, 4096));
  MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  MUST(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
  function = load_kernel(&module, "store");
  gate = new_gate();
  hold(gate, stream);
}

static void *ask(void *unused) {
  CUdevice device;
  MUST(cuCtxSetCurrent(context));
  MUST(cuCtxGetDevice(&device));
  returned = true;
  return unused;
}

static void *free_memory(void *unused) {
  MUST(cuCtxSetCurrent(context));
  MUST(cuMemFree(memory));
  return unused;
}

static void *unload(void *unused) {
  MUST(cuCtxSetCurrent(context));
  MUST(cuModuleUnload(module));
  return unused;
}

static void *fill_queue(void *unused) {
  MUST(cuCtxSetCurrent(context));
  for (int i = 0; i < 8; i++)
    MUST(cuMemsetD8Async(memory, 1, 16, stream));
  return unused;
}

static void *synchronise(void *unused) {
  MUST(cuCtxSetCurrent(context));
  MUST(cuStreamSynchronize(stream));
  return unused;
}

static void *reset(void *unused) {
  MUST(cuDevicePrimaryCtxReset(0));
  return unused;
}

/* Whether a harmless question of a third thread has to wait while `call` waits for the device. */
static bool keeps_out(void *(*call)(void *)) {
  pthread_t caller, asker;
  prepare();
  pthread_create(&caller, NULL, call, NULL);
  pause_ms(50);
  pthread_create(&asker, NULL, ask, NULL);
  pause_ms(50);
  bool kept = !returned;
  open_gate(gate);
  pthread_join(caller, NULL);
  pthread_join(asker, NULL);
  return kept && returned;
}

static int frees(void) {
  return keeps_out(free_memory) && gpusim_counter_by_name("lock_waits") == 1 ? 0 : 1;
}

static int frees_without_lock(void) {
  setenv("GPUSIM_DRIVER_LOCK", "0", 1);
  return keeps_out(free_memory) ? 1 : 0;
}

static int unloading(void) {
  return keeps_out(unload) ? 0 : 1;
}

static int resets(void) {
  return keeps_out(reset) ? 0 : 1;
}

static int full_queues(void) {
  setenv("GPUSIM_DEPTH", "4", 1);
  return keeps_out(fill_queue) ? 0 : 1;
}

static int synchronising(void) {
  return keeps_out(synchronise) ? 1 : 0;
}

/* ---- a worker that releases a value wait ---- */

static void *work(void *unused) {
  pause_ms(50);
  if (worker_calls_cuda) {
    MUST(cuCtxSetCurrent(context));
    cuStreamQuery(other);
  }
  open_gate(gate);
  return unused;
}

static int released_by_worker(void) {
  pthread_t worker;
  prepare();
  pthread_create(&worker, NULL, work, NULL);
  MUST(cuMemFree(memory));
  pthread_join(worker, NULL);
  return 0;
}

static int worker_with_cuda(void) {
  worker_calls_cuda = true;
  return released_by_worker();
}

static int synchronised_worker_with_cuda(void) {
  pthread_t worker;
  prepare();
  worker_calls_cuda = true;
  pthread_create(&worker, NULL, work, NULL);
  MUST(cuStreamSynchronize(stream));
  pthread_join(worker, NULL);
  return 0;
}

static CUresult from_host_function;

static void call_cuda(void *unused) {
  CUdeviceptr made;
  (void)unused;
  pause_ms(50); /* by now the free below holds the lock */
  from_host_function = cuMemAlloc(&made, 16);
}

static int host_function(void) {
  context = start();
  MUST(cuMemAlloc(&memory, 4096));
  MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  MUST(cuLaunchHostFunc(stream, call_cuda, NULL));
  MUST(cuMemFree(memory));
  return from_host_function == CUDA_ERROR_NOT_PERMITTED ? 0 : 1;
}

/* ---- GPUSIM_DRIVER_LOCK=2 ---- */

static void *create_stream(void *unused) {
  CUstream made;
  MUST(cuCtxSetCurrent(context));
  MUST(cuStreamCreate(&made, CU_STREAM_NON_BLOCKING));
  returned = true;
  return unused;
}

static void *allocate(void *unused) {
  CUdeviceptr made;
  MUST(cuCtxSetCurrent(context));
  MUST(cuMemAlloc(&made, 4096));
  returned = true;
  return unused;
}

static void *load(void *unused) {
  CUmodule made;
  MUST(cuCtxSetCurrent(context));
  MUST(cuModuleLoadData(&made, TEST_PTX));
  returned = true;
  return unused;
}

static bool waits_for_device(void *(*call)(void *), const char *lock) {
  pthread_t caller;
  setenv("GPUSIM_DRIVER_LOCK", lock, 1);
  prepare();
  pthread_create(&caller, NULL, call, NULL);
  pause_ms(50);
  bool waited = !returned;
  open_gate(gate);
  pthread_join(caller, NULL);
  return waited;
}

static int settled_stream(void) {
  return waits_for_device(create_stream, "2") ? 0 : 1;
}

static int settled_allocation(void) {
  return waits_for_device(allocate, "2") ? 0 : 1;
}

static int settled_load(void) {
  return waits_for_device(load, "2") ? 0 : 1;
}

static int unsettled(void) {
  return waits_for_device(create_stream, "1") ? 1 : 0;
}

int main(void) {
  tap_ok(in_child(frees) == 0, "a free that waits keeps every other thread's calls out");
  tap_ok(in_child(frees_without_lock) == 0, "GPUSIM_DRIVER_LOCK=0 lets them in");
  tap_ok(in_child(unloading) == 0, "unloading a module keeps them out too");
  tap_ok(in_child(resets) == 0, "and so does resetting a context");
  tap_ok(in_child(full_queues) == 0, "and a submit to a full queue");
  tap_ok(in_child(synchronising) == 0, "synchronising doesn't");
  tap_ok(in_child(released_by_worker) == 0, "a worker that writes the word releases a free");
  tap_ok(in_child(worker_with_cuda) == 86,
         "a worker that calls CUDA to release a value wait is a deadlock, and found");
  tap_ok(in_child(synchronised_worker_with_cuda) == 0,
         "while others only synchronise, such a worker gets through");
  tap_ok(in_child(host_function) == 0, "a host function that calls CUDA is refused, not blocked");
  tap_ok(in_child(settled_stream) == 0, "stream creation can wait for the device");
  tap_ok(in_child(settled_allocation) == 0, "so can allocations");
  tap_ok(in_child(settled_load) == 0, "and module loads");
  tap_ok(in_child(unsettled) == 0, "by default they don't");
  return tap_done();
}
