/* Streams, default streams, events, host functions. */
#include "tests/unit/gpusim_driver.h"
#include <pthread.h>

static CUstream new_stream(unsigned flags) {
  CUstream stream;
  MUST(cuStreamCreate(&stream, flags));
  return stream;
}

static bool done(CUstream stream) {
  return cuStreamQuery(stream) == CUDA_SUCCESS;
}

/* Whether work on `second` waits for work held up on `first`. */
static bool waits(CUstream first, CUstream second, CUdeviceptr memory) {
  struct gate gate = new_gate();
  hold(gate, first);
  MUST(cuMemsetD8Async(memory, 1, 16, second));
  pause_ms(20);
  bool waited = !done(second);
  open_gate(gate);
  MUST(cuCtxSynchronize());
  return waited && done(second);
}

/* With one hardware queue whatever is held up holds up everything. */
static bool independent(CUstream first, CUstream second, CUdeviceptr memory) {
  return waits(first, second, memory) == with_one_queue();
}

static void test_default_streams(CUdeviceptr memory) {
  CUstream blocking = new_stream(CU_STREAM_DEFAULT);
  CUstream other = new_stream(CU_STREAM_DEFAULT);
  CUstream free_one = new_stream(CU_STREAM_NON_BLOCKING);
  tap_ok(waits(blocking, NULL, memory), "the legacy stream waits for blocking streams");
  tap_ok(waits(NULL, blocking, memory), "and they for it");
  tap_ok(waits(CU_STREAM_LEGACY, blocking, memory), "also by its name");
  tap_ok(independent(NULL, free_one, memory), "a non-blocking stream doesn't wait for it");
  tap_ok(independent(free_one, NULL, memory), "nor it for a non-blocking stream");
  tap_ok(independent(blocking, other, memory), "two blocking streams don't wait for each other");
  tap_ok(independent(CU_STREAM_PER_THREAD, blocking, memory) &&
             independent(blocking, CU_STREAM_PER_THREAD, memory),
         "the per-thread stream is a stream of its own");
  tap_ok(waits(CU_STREAM_PER_THREAD, NULL, memory) && waits(NULL, CU_STREAM_PER_THREAD, memory),
         "and a blocking one");
  MUST(cuStreamDestroy(blocking));
  MUST(cuStreamDestroy(other));
  MUST(cuStreamDestroy(free_one));
}

/* blocking -> legacy -> another blocking stream: the order is carried through the legacy stream */
static void test_through_legacy(CUdeviceptr memory) {
  CUstream first = new_stream(CU_STREAM_DEFAULT), last = new_stream(CU_STREAM_DEFAULT);
  struct gate gate = new_gate();
  hold(gate, first);
  MUST(cuMemsetD8Async(memory, 1, 16, NULL));
  MUST(cuMemsetD8Async(memory, 2, 16, last));
  pause_ms(20);
  tap_ok(!done(last), "work after legacy work waits for what the legacy work waits for");
  open_gate(gate);
  MUST(cuStreamSynchronize(last));
  tap_ok((device_word(memory) & 0xff) == 2, "and comes last");
  close_gate(gate);
  hold(gate, first);
  tap_ok(cuStreamQuery(NULL) == CUDA_ERROR_NOT_READY,
         "the legacy stream isn't ready while a blocking stream isn't");
  open_gate(gate);
  MUST(cuStreamSynchronize(NULL));
  tap_ok(done(first), "synchronising it synchronises blocking streams");
  MUST(cuStreamDestroy(first));
  MUST(cuStreamDestroy(last));
}

struct thread_ids {
  CUcontext context;
  unsigned long long id;
};

static void *ask_id(void *argument) {
  struct thread_ids *ids = argument;
  MUST(cuCtxSetCurrent(ids->context));
  MUST(cuStreamGetId(CU_STREAM_PER_THREAD, &ids->id));
  return NULL;
}

typedef CUresult (*get_id_function)(CUstream, unsigned long long *);

static void test_per_thread_names(CUcontext context) {
  unsigned long long own, legacy, by_name;
  struct thread_ids other = {context, 0};
  pthread_t thread;
  void *function;
  MUST(cuStreamGetId(CU_STREAM_PER_THREAD, &own));
  MUST(cuStreamGetId(NULL, &legacy));
  pthread_create(&thread, NULL, ask_id, &other);
  pthread_join(thread, NULL);
  tap_ok(own != legacy && other.id != own && other.id != legacy,
         "each thread has a per-thread stream of its own");
  MUST(cuGetProcAddress("cuStreamGetId", &function, 13000,
                        CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM, NULL));
  MUST(((get_id_function)function)(NULL, &by_name));
  tap_ok(by_name == own, "the per-thread form of a call takes that stream for null");
  MUST(
      cuGetProcAddress("cuStreamGetId", &function, 13000, CU_GET_PROC_ADDRESS_LEGACY_STREAM, NULL));
  MUST(((get_id_function)function)(NULL, &by_name));
  tap_ok(by_name == legacy, "the legacy form the legacy stream");
}

static void test_events(CUdeviceptr memory) {
  CUstream a = new_stream(CU_STREAM_NON_BLOCKING), b = new_stream(CU_STREAM_NON_BLOCKING);
  CUevent event, later;
  struct gate gate = new_gate();
  float ms = -1;
  MUST(cuEventCreate(&event, CU_EVENT_DEFAULT));
  MUST(cuEventCreate(&later, CU_EVENT_DEFAULT));
  tap_ok(cuEventQuery(event) == CUDA_SUCCESS && cuStreamWaitEvent(b, event, 0) == CUDA_SUCCESS &&
             done(b),
         "an event that was never recorded is waited for by nobody");
  tap_ok(cuEventElapsedTime(&ms, event, later) == CUDA_ERROR_INVALID_HANDLE, "and has no time");
  hold(gate, a);
  MUST(cuEventRecord(event, a));
  MUST(cuStreamWaitEvent(b, event, 0));
  tap_ok(cuStreamQuery(b) == CUDA_ERROR_NOT_READY && cuEventQuery(event) == CUDA_ERROR_NOT_READY,
         "a wait for an event alone makes a stream not ready");
  MUST(cuEventRecord(later, b));
  MUST(cuEventRecord(event, b)); /* recorded anew: the wait keeps the old meaning */
  pause_ms(20);
  tap_ok(cuEventQuery(later) == CUDA_ERROR_NOT_READY, "work behind the wait waits");
  open_gate(gate);
  MUST(cuStreamSynchronize(b));
  tap_ok(cuEventQuery(later) == CUDA_SUCCESS && done(a), "until the event has happened");
  MUST(cuEventElapsedTime(&ms, later, event));
  tap_ok(ms >= 0 && ms < 10000, "time between two events runs forwards");
  close_gate(gate);
  hold(gate, a);
  MUST(cuMemsetD32Async(memory, 5, 1, a));
  MUST(cuEventRecord(event, a));
  MUST(cuEventDestroy(event));
  MUST(cuStreamDestroy(a));
  tap_ok(cuEventQuery(event) == CUDA_ERROR_INVALID_HANDLE &&
             cuStreamQuery(a) == CUDA_ERROR_INVALID_HANDLE,
         "destroying events and streams with work doesn't wait");
  open_gate(gate);
  MUST(cuCtxSynchronize());
  tap_ok(device_word(memory) == 5, "and the work is still carried out");
  MUST(cuEventDestroy(later));
  MUST(cuStreamDestroy(b));
}

static struct {
  int runs;
  CUresult answer;
} host;

static void host_function(void *data) {
  size_t free_bytes, total_bytes;
  host.runs += *(int *)data;
  host.answer = cuMemGetInfo(&free_bytes, &total_bytes);
}

static void test_host_function(void) {
  CUstream stream = new_stream(CU_STREAM_NON_BLOCKING);
  struct gate gate = new_gate();
  int add = 3;
  hold(gate, stream);
  MUST(cuLaunchHostFunc(stream, host_function, &add));
  pause_ms(10);
  tap_ok(__atomic_load_n(&host.runs, __ATOMIC_ACQUIRE) == 0, "a host function keeps its place");
  open_gate(gate);
  MUST(cuStreamSynchronize(stream));
  tap_ok(host.runs == 3, "and runs once");
  tap_ok(host.answer == CUDA_ERROR_NOT_PERMITTED, "no CUDA call may be made from one");
  MUST(cuStreamDestroy(stream));
}

static void test_questions(void) {
  CUstream stream;
  int priority, device = -1;
  unsigned flags;
  unsigned long long id, next;
  MUST(cuStreamCreateWithPriority(&stream, CU_STREAM_NON_BLOCKING, -99));
  MUST(cuStreamGetPriority(stream, &priority));
  MUST(cuStreamGetFlags(stream, &flags));
  MUST(cuStreamGetId(stream, &id));
  MUST(cuStreamGetDevice(stream, &device));
  tap_ok(priority == -5 && flags == CU_STREAM_NON_BLOCKING && device == 0,
         "a stream knows its priority, clamped, its flags and its device");
  CUstream another = new_stream(CU_STREAM_DEFAULT);
  MUST(cuStreamGetId(another, &next));
  tap_ok(next == id + 1, "ids count in the order of creation");
  tap_ok(cuStreamCreate(&stream, 8) == CUDA_ERROR_INVALID_VALUE, "unknown flags are refused");
  int local;
  tap_ok(cuStreamSynchronize((CUstream)&local) == CUDA_ERROR_INVALID_HANDLE &&
             cuEventRecord((CUevent)&local, NULL) == CUDA_ERROR_INVALID_HANDLE &&
             cuStreamDestroy(NULL) == CUDA_ERROR_INVALID_HANDLE,
         "what isn't a handle is refused");
}

int main(void) {
  CUcontext context = start();
  CUdeviceptr memory;
  MUST(cuMemAlloc(&memory, 4096));
  test_default_streams(memory);
  test_through_legacy(memory);
  test_per_thread_names(context);
  test_events(memory);
  test_host_function();
  test_questions();
  return tap_done();
}
