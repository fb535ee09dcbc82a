/* How operations are carried out: real asynchrony, hardware queues, depth, delays, deadlocks. Each
   check runs in a process of its own, with its own switches. */
#include "tests/unit/gpusim_driver.h"
#include <pthread.h>

static CUstream new_stream(void) {
  CUstream stream;
  MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  return stream;
}

static CUdeviceptr new_memory(void) {
  CUdeviceptr memory;
  MUST(cuMemAlloc(&memory, 4096));
  return memory;
}

/* ---- hardware queues ---- */

/* A stream held at a gate, then work on another stream: is that done before the gate opens? */
static bool held_up(void) {
  start();
  CUdeviceptr memory = new_memory();
  CUstream first = new_stream(), second = new_stream();
  struct gate gate = new_gate();
  hold(gate, first);
  MUST(cuMemsetD8Async(memory, 1, 16, second));
  pause_ms(50);
  bool waited = cuStreamQuery(second) == CUDA_ERROR_NOT_READY;
  open_gate(gate);
  MUST(cuCtxSynchronize());
  return waited;
}

static int one_queue(void) {
  setenv("GPUSIM_QUEUES", "1", 1);
  return held_up() ? 0 : 1;
}

static int eight_queues(void) {
  setenv("GPUSIM_QUEUES", "8", 1);
  return held_up() ? 1 : 0;
}

/* Streams 2 and 4 share one of two queues, stream 3 has the other. */
static int aliased_queues(void) {
  setenv("GPUSIM_QUEUES", "2", 1);
  start();
  CUdeviceptr memory = new_memory();
  CUstream s2 = new_stream(), s3 = new_stream(), s4 = new_stream();
  struct gate gate = new_gate();
  hold(gate, s2);
  MUST(cuMemsetD8Async(memory, 1, 16, s3));
  MUST(cuMemsetD8Async(memory, 1, 16, s4));
  pause_ms(50);
  bool right = cuStreamQuery(s3) == CUDA_SUCCESS && cuStreamQuery(s4) == CUDA_ERROR_NOT_READY;
  open_gate(gate);
  MUST(cuCtxSynchronize());
  return right ? 0 : 1;
}

/* An event wait at the head of the queue holds up others too; what it waits for was enqueued
 * before, so all ends. */
static int event_wait_in_one_queue(void) {
  setenv("GPUSIM_QUEUES", "1", 1);
  setenv("GPUSIM_SLOW_STREAM", "2", 1);
  setenv("GPUSIM_SLOW_US", "50000", 1);
  start();
  CUdeviceptr memory = new_memory();
  CUstream slow = new_stream(), waiting = new_stream(), other = new_stream();
  CUevent event;
  MUST(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
  MUST(cuMemsetD8Async(memory, 1, 16, slow));
  MUST(cuEventRecord(event, slow));
  MUST(cuStreamWaitEvent(waiting, event, 0));
  MUST(cuMemsetD8Async(memory, 1, 16, other));
  bool waited = cuStreamQuery(other) == CUDA_ERROR_NOT_READY;
  MUST(cuCtxSynchronize());
  return waited ? 0 : 1;
}

/* ---- depth ---- */

static int within_depth(void) {
  setenv("GPUSIM_DEPTH", "4", 1);
  start();
  CUdeviceptr memory = new_memory();
  CUstream stream = new_stream();
  struct gate gate = new_gate();
  hold(gate, stream);
  for (int i = 0; i < 3; i++)
    MUST(cuMemsetD8Async(memory, 1, 16, stream));
  bool right = gpusim_counter_by_name("blocked_submits") == 0;
  open_gate(gate);
  MUST(cuCtxSynchronize());
  return right ? 0 : 1;
}

static void *open_later(void *argument) {
  pause_ms(50);
  open_gate(*(struct gate *)argument);
  return NULL;
}

static int beyond_depth(void) {
  setenv("GPUSIM_DEPTH", "4", 1);
  start();
  CUdeviceptr memory = new_memory();
  CUstream stream = new_stream();
  struct gate gate = new_gate();
  pthread_t thread;
  hold(gate, stream);
  for (int i = 0; i < 3; i++)
    MUST(cuMemsetD8Async(memory, 1, 16, stream));
  pthread_create(&thread, NULL, open_later, &gate);
  MUST(cuMemsetD8Async(memory, 1, 16, stream)); /* returns when the thread has opened the gate */
  bool blocked = *gate.word == 1 && gpusim_counter_by_name("blocked_submits") == 1;
  pthread_join(thread, NULL);
  MUST(cuCtxSynchronize());
  return blocked ? 0 : 1;
}

/* ---- delays ---- */

/* Pairs of operations on two streams; how often the later one ended first. */
static unsigned long long out_of_order(void) {
  start();
  CUdeviceptr memory = new_memory();
  CUstream a = new_stream(), b = new_stream();
  for (int i = 0; i < 30; i++) {
    MUST(cuMemsetD8Async(memory, 1, 16, a));
    MUST(cuMemsetD8Async(memory + 64, 1, 16, b));
    MUST(cuCtxSynchronize());
  }
  return gpusim_counter_by_name("out_of_order");
}

static int random_delays(void) {
  setenv("GPUSIM_DELAY_US", "2000", 1);
  unsigned long long count = out_of_order();
  return count > 0 && count < 30 ? 0 : 1;
}

static int slow_stream(void) {
  setenv("GPUSIM_SLOW_STREAM", "2", 1);
  setenv("GPUSIM_SLOW_US", "5000", 1);
  return out_of_order() >= 25 ? 0 : 1;
}

static int synchronous(void) {
  setenv("GPUSIM_SYNCHRONOUS", "1", 1);
  setenv("GPUSIM_DELAY_US", "2000", 1);
  start();
  CUdeviceptr memory = new_memory();
  CUstream stream = new_stream();
  for (uint32_t i = 0; i < 5; i++) {
    MUST(cuMemsetD32Async(memory, i, 1, stream));
    if (device_word(memory) != i)
      return 1;
  }
  return 0;
}

/* ---- many streams, many operations, from two threads ---- */

struct load {
  CUcontext context;
  CUdeviceptr memory;
  CUstream streams[20];
};

static void *submit_load(void *argument) {
  struct load *load = argument;
  MUST(cuCtxSetCurrent(load->context));
  for (int i = 0; i < 2000; i++)
    MUST(cuMemsetD8Async(load->memory + (CUdeviceptr)(i % 20) * 64, (unsigned char)i, 64,
                         load->streams[i % 20]));
  return NULL;
}

static int two_threads(void) {
  setenv("GPUSIM_DEPTH", "16", 1);
  struct load load = {.context = start(), .memory = new_memory()};
  pthread_t thread;
  for (int i = 0; i < 20; i++)
    MUST(cuStreamCreate(&load.streams[i], i % 2 == 0 ? CU_STREAM_NON_BLOCKING : CU_STREAM_DEFAULT));
  pthread_create(&thread, NULL, submit_load, &load);
  for (int i = 0; i < 50; i++)
    MUST(cuMemsetD8(load.memory + 2048, 3, 64));
  submit_load(&load);
  pthread_join(thread, NULL);
  MUST(cuCtxSynchronize());
  for (int i = 0; i < 20; i++)
    MUST(cuStreamDestroy(load.streams[i]));
  return (device_word(load.memory + 64) & 0xff) == (1981 & 0xff) ? 0 : 1;
}

/* ---- deadlock ---- */

static void wait_before_release(const char *queues) {
  setenv("GPUSIM_QUEUES", queues, 1);
  setenv("GPUSIM_DEADLOCK_MS", "300", 1);
  setenv("GPUSIM_REPORT", "/tmp/gpusim_queue_report.json", 1);
  start();
  CUstream waiting = new_stream(), releasing = new_stream();
  struct gate gate = new_gate();
  hold(gate, waiting);
  MUST(cuStreamWriteValue32(releasing, (CUdeviceptr)gate.word, 1, 0));
  MUST(cuCtxSynchronize());
}

static int deadlock_in_one_queue(void) {
  wait_before_release("1");
  return 0;
}

static int no_deadlock_in_eight(void) {
  wait_before_release("8");
  return gpusim_counter_by_name("value_waits") <= 1 ? 0 : 1;
}

static bool report_says(const char *words) {
  char content[2048] = "";
  FILE *file = fopen("/tmp/gpusim_queue_report.json", "r");
  if (file == NULL)
    return false;
  size_t length = fread(content, 1, sizeof content - 1, file);
  fclose(file);
  content[length] = 0;
  return strstr(content, words) != NULL;
}

int main(void) {
  tap_ok(in_child(one_queue) == 0, "with one hardware queue a wait holds up all streams");
  tap_ok(in_child(eight_queues) == 0, "with eight it holds up its own");
  tap_ok(in_child(aliased_queues) == 0,
         "streams share a queue when their ids agree modulo their number");
  tap_ok(in_child(event_wait_in_one_queue) == 0, "an event wait holds up its queue, and ends");
  tap_ok(in_child(within_depth) == 0, "submits within GPUSIM_DEPTH don't block");
  tap_ok(in_child(beyond_depth) == 0, "one more blocks the caller until there is room");
  tap_ok(in_child(random_delays) == 0, "random delays let operations end out of order, sometimes");
  tap_ok(in_child(slow_stream) == 0, "a slow stream is overtaken nearly always");
  tap_ok(in_child(synchronous) == 0, "GPUSIM_SYNCHRONOUS waits at every submit");
  tap_ok(in_child(two_threads) == 0, "many streams used by two threads come to rest");
  tap_ok(in_child(deadlock_in_one_queue) == 86,
         "a wait enqueued before its release deadlocks one queue and ends the process with 86");
  tap_ok(report_says("\"violations\": 1"), "the report is written then and counts a violation");
  tap_ok(in_child(no_deadlock_in_eight) == 0, "with eight queues the same order works");
  tap_ok(report_says("\"violations\": 0"), "and the report at exit counts none");
  unlink("/tmp/gpusim_queue_report.json");
  return tap_done();
}
