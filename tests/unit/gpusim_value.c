/* Value operations: their relations, who writes and who waits, what is refused. */
#include "tests/unit/gpusim_driver.h"
#include <pthread.h>

static CUstream stream;
static uint32_t *word;
static CUdeviceptr address;

/* Whether what the stream holds ends without help: soon when it should, but the machine may be busy; one that should
   not end is given a moment to do it all the same. */
enum { SOON_MS = 5000, MOMENT_MS = 10 };

static bool ends_within(int milliseconds) {
  for (int waited = 0; waited < milliseconds; waited++) {
    if (cuStreamQuery(stream) == CUDA_SUCCESS)
      return true;
    pause_ms(1);
  }
  return false;
}

/* A wait for a word; `release` lets it through afterwards. */
static bool ends(uint32_t now, uint32_t wanted, unsigned flags, uint32_t release,
                 int milliseconds) {
  __atomic_store_n(word, now, __ATOMIC_RELEASE);
  MUST(cuStreamWaitValue32(stream, address, wanted, flags));
  const bool ended = ends_within(milliseconds);
  __atomic_store_n(word, release, __ATOMIC_RELEASE);
  MUST(cuStreamSynchronize(stream));
  return ended;
}

static bool passes(uint32_t now, uint32_t wanted, unsigned flags, uint32_t release) {
  return ends(now, wanted, flags, release, SOON_MS);
}

static bool holds(uint32_t now, uint32_t wanted, unsigned flags, uint32_t release) {
  return !ends(now, wanted, flags, release, MOMENT_MS);
}

static bool ends64(uint64_t now, uint64_t wanted, unsigned flags, uint64_t release,
                   int milliseconds) {
  uint64_t *wide = (uint64_t *)(void *)(word + 2);
  __atomic_store_n(wide, now, __ATOMIC_RELEASE);
  MUST(cuStreamWaitValue64(stream, address + 8, wanted, flags));
  const bool ended = ends_within(milliseconds);
  __atomic_store_n(wide, release, __ATOMIC_RELEASE);
  MUST(cuStreamSynchronize(stream));
  return ended;
}

static void test_relations(void) {
  tap_ok(passes(5, 5, CU_STREAM_WAIT_VALUE_GEQ, 5) && passes(6, 5, CU_STREAM_WAIT_VALUE_GEQ, 5) &&
             holds(4, 5, CU_STREAM_WAIT_VALUE_GEQ, 5),
         "GEQ waits for at least the value");
  tap_ok(passes(3, 0xfffffff0, CU_STREAM_WAIT_VALUE_GEQ, 3) &&
             holds(0xfffffff0, 3, CU_STREAM_WAIT_VALUE_GEQ, 3),
         "cyclically: a counter that wrapped around is ahead");
  tap_ok(passes(7, 7, CU_STREAM_WAIT_VALUE_EQ, 7) && holds(8, 7, CU_STREAM_WAIT_VALUE_EQ, 7),
         "EQ waits for the value itself");
  tap_ok(passes(6, 2, CU_STREAM_WAIT_VALUE_AND, 2) && holds(4, 2, CU_STREAM_WAIT_VALUE_AND, 2),
         "AND waits for a common bit");
  tap_ok(passes(1, 2, CU_STREAM_WAIT_VALUE_NOR, 0) &&
             holds(0xffff0000, 0xffff, CU_STREAM_WAIT_VALUE_NOR, 0),
         "NOR waits for a bit that both lack");
  tap_ok(ends64((uint64_t)1 << 40, 5, CU_STREAM_WAIT_VALUE_GEQ, 5, SOON_MS) &&
             !ends64(5, (uint64_t)1 << 40, CU_STREAM_WAIT_VALUE_EQ, (uint64_t)1 << 40, MOMENT_MS),
         "wide words are compared in whole");
  tap_ok(gpusim_counter_by_name("value_waits") == 6, "waits that had to wait are counted");
}

static void test_refusals(void) {
  CUdeviceptr managed;
  int local = 0;
  MUST(cuMemAllocManaged(&managed, 4096, CU_MEM_ATTACH_GLOBAL));
  tap_ok(cuStreamWaitValue32(stream, address + 2, 0, 0) == CUDA_ERROR_INVALID_VALUE &&
             cuStreamWriteValue64(stream, address + 4, 0, 0) == CUDA_ERROR_INVALID_VALUE,
         "an unaligned word is refused");
  tap_ok(cuStreamWriteValue32(stream, (CUdeviceptr)&local, 0, 0) == CUDA_ERROR_INVALID_VALUE,
         "pageable memory is refused");
  tap_ok(cuStreamWaitValue32(stream, managed, 0, 0) == CUDA_ERROR_INVALID_VALUE,
         "managed memory is refused");
  tap_ok(cuStreamWaitValue32(stream, address, 0, CU_STREAM_WAIT_VALUE_FLUSH) ==
             CUDA_ERROR_NOT_SUPPORTED,
         "FLUSH is not supported, as the attribute says");
  tap_ok(cuStreamWriteValue32(stream, address, 0, CU_STREAM_WRITE_VALUE_NO_MEMORY_BARRIER) ==
             CUDA_ERROR_INVALID_VALUE,
         "NO_MEMORY_BARRIER doesn't exist in these calls");
  MUST(cuMemFree(managed));
}

static void test_on_device(void) {
  CUdeviceptr memory;
  CUstream other;
  MUST(cuMemAlloc(&memory, 4096));
  MUST(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
  MUST(cuMemsetD32(memory, 0, 1));
  MUST(cuCtxSynchronize());
  CUstreamBatchMemOpParams operations[2];
  memset(operations, 0, sizeof operations);
  operations[0].waitValue.operation = CU_STREAM_MEM_OP_WAIT_VALUE_32;
  operations[0].waitValue.address = memory;
  operations[0].waitValue.value = 9;
  operations[0].waitValue.flags = CU_STREAM_WAIT_VALUE_EQ;
  operations[1].writeValue.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32;
  operations[1].writeValue.address = memory + 4;
  operations[1].writeValue.value = 1;
  /* each wait behind its release: the order that works with one hardware queue */
  MUST(cuStreamWriteValue32(stream, memory, 9, 0));
  MUST(cuStreamBatchMemOp(other, 2, operations, 0));
  MUST(cuStreamWaitValue32(stream, memory + 4, 1, CU_STREAM_WAIT_VALUE_EQ));
  MUST(cuStreamSynchronize(stream));
  tap_ok(device_word(memory) == 9 && device_word(memory + 4) == 1,
         "two streams wait for each other's words on the device, one of them by a batch");
  MUST(cuStreamDestroy(other));
  MUST(cuMemFree(memory));
}

/* The pipeline of a step: bytes down, `ready`, the CPU's work, `done`, bytes up. */
struct worker {
  volatile uint32_t *flags; /* ready, done */
  uint32_t *data;
};

static void *work(void *argument) {
  struct worker *worker = argument;
  while (__atomic_load_n(&worker->flags[0], __ATOMIC_ACQUIRE) != 3)
    pause_ms(1);
  for (int i = 0; i < 1024; i++)
    worker->data[i] += 1;
  __atomic_store_n(&worker->flags[1], 3, __ATOMIC_RELEASE);
  return NULL;
}

static void test_worker(void) {
  CUdeviceptr memory;
  void *data;
  pthread_t thread;
  MUST(cuMemAlloc(&memory, 4096));
  MUST(cuMemHostAlloc(&data, 4096, 0));
  word[0] = word[1] = 0;
  struct worker worker = {word, data};
  pthread_create(&thread, NULL, work, &worker);
  MUST(cuMemsetD32Async(memory, 41, 1024, stream));
  MUST(cuMemcpyDtoHAsync(data, memory, 4096, stream));
  MUST(cuStreamWriteValue32(stream, address, 3, 0));
  MUST(cuStreamWaitValue32(stream, address + 4, 3, CU_STREAM_WAIT_VALUE_GEQ));
  MUST(cuMemcpyHtoDAsync(memory, data, 4096, stream));
  MUST(cuStreamSynchronize(stream));
  pthread_join(thread, NULL);
  tap_ok(device_word(memory) == 42 && device_word(memory + 4092) == 42,
         "a CPU thread takes over between two words in a stream");
  MUST(cuMemFree(memory));
  MUST(cuMemFreeHost(data));
}

int main(void) {
  start();
  MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  word = new_gate().word;
  address = (CUdeviceptr)word;
  test_relations();
  test_refusals();
  test_on_device();
  test_worker();
  return tap_done();
}
